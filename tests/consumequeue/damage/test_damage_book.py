"""Known damage is reported, counted, stored, and forgotten after a repair."""

import asyncio
import logging
from pathlib import Path

import pytest

from holdfast.consumequeue.damage.damage_book import (
    MAX_FAULTS,
    MAX_RANGES,
    DamageBook,
    DamageKeeper,
    Fault,
)
from holdfast.consumequeue.errors import StateUnavailable
from holdfast.consumequeue.index.consume_queue import ConsumeQueue
from holdfast.consumequeue.lost_ranges import LostRange
from holdfast.consumequeue.state.records import DAMAGE, lost_key
from holdfast.consumequeue.state.store import Changes
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import Topic, TopicConfig
from tests.support.storage.stored import batch, open_storage, settled, small_config

KEY = (1, 0)
TABLE = TopicTable({})
TABLE.put(Topic("t", 1, 8, TopicConfig("fsync", None, None, 1), 0))


def faults(book: DamageBook, min_offset: int = 0) -> list[Fault]:
    return book.faults(TABLE, {KEY: ConsumeQueue(None, min_offset, 0)})


def test_damage_is_reported_once_and_counted_once() -> None:
    book = DamageBook()
    for _ in range(2):
        book.record_lost(KEY, 3, 5, "payload-crc")
        book.note_damage(4096, 8192, "bad-magic")
        book.note_file(Fault("damaged-file", "x"))
    assert faults(book) == [
        Fault("damaged-file", "x"),
        Fault("bad-magic", "the log is damaged from 4096 to 8192"),
        Fault("payload-crc", "queue 0 of 't' has lost its messages from offset 3 to 5"),
    ]
    assert book.counts == {"payload-crc": 1, "bad-magic": 1, "damaged-file": 1}


def test_deleted_messages_and_accepted_losses_are_no_fault() -> None:
    book = DamageBook()
    book.record_lost(KEY, 3, 5, "a")
    assert faults(book, min_offset=5) == []
    assert [fault.detail[-1] for fault in faults(book, min_offset=4)] == ["5"]
    book.record_lost((9, 0), 3, 5, "of a topic that is gone")
    assert len(faults(book)) == 1
    book.lost[KEY] = (LostRange(3, 5, "a", accepted=True),)
    assert faults(book) == []


def test_the_list_of_faults_is_limited() -> None:
    book = DamageBook()
    for offset in range(0, 4 * MAX_RANGES, 2):
        book.record_lost(KEY, offset, offset + 1, "a")
    assert len(book.lost[KEY]) == MAX_RANGES
    found = faults(book)
    assert len(found) == MAX_FAULTS
    assert found[-1] == Fault("more", f"and {MAX_RANGES - MAX_FAULTS + 1} more damages")


def test_a_broken_disk_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    book = DamageBook()
    with caplog.at_level(logging.ERROR):
        for offset in range(0, 2000, 2):
            book.record_lost(KEY, offset, offset + 1, "a")
    assert len(caplog.records) == 20


def test_stored_damage_is_loaded_again(tmp_path: Path) -> None:
    book = DamageBook()
    book.record_lost(KEY, 3, 5, "a")
    book.record_lost((1, 7), 0, 1, "b")
    book.note_damage(4096, 8192, "c")
    changes = book.take_changes()
    assert set(changes) == {lost_key(1), DAMAGE}
    assert book.take_changes() == {}
    again = DamageBook()
    again.load({key: value for key, value in changes.items() if value is not None})
    assert (again.lost, again.damage) == (book.lost, book.damage)
    assert again.counts == {}  # the damage was not found again
    again.record_readable(KEY, 0, 9)
    again.record_readable((1, 7), 0, 9)
    again.forget_damage(4096)
    assert again.take_changes() == {lost_key(1): None, DAMAGE: None}
    assert faults(again) == []


async def test_changes_that_failed_are_stored_with_the_next_change() -> None:
    book = DamageBook()
    stored: list[Changes] = []
    is_full = True

    async def commit(changes: Changes) -> None:
        if is_full:
            raise StateUnavailable("the disk is full")
        stored.append(changes)

    keeper = DamageKeeper(book, commit)
    book.record_lost(KEY, 3, 5, "a")
    await asyncio.sleep(0)  # the task stores the damage
    assert stored == []
    is_full = False
    book.record_lost((2, 0), 3, 5, "a")
    await keeper.stop()
    await keeper.stop()
    assert [set(changes) for changes in stored] == [{lost_key(1), lost_key(2)}]


async def test_deleting_a_topic_deletes_its_recorded_losses(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        topic, _ = await storage.store.topics.create("t", queues=1)
        await storage.store.publishing.publish(topic, [batch("x")])
        await settled(storage)
        storage.opened.damage.record_lost((topic.topic_id, 0), 0, 1, "payload-crc")
    async with open_storage(small_config(tmp_path)) as storage:
        # The messages can be read again, so they are not lost.
        assert storage.degraded == []
        storage.opened.damage.record_lost((topic.topic_id, 0), 0, 1, "payload-crc")
        assert len(storage.degraded) == 1
        await storage.store.topics.delete("t")
        assert storage.degraded == []
    async with open_storage(small_config(tmp_path)) as storage:
        assert storage.degraded == []
