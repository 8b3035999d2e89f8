"""The state's copy in the log: the records that are written are the records that are read."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.commitlog.disk.disk import LinuxDisk
from holdfast.commitlog.format.batch_check import MessageLimits, check_batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.gap_block import GAP_TOPIC_ID
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.consumequeue.state import journal
from holdfast.consumequeue.state.journal import encode_changes, encode_snapshot, state_in_log
from holdfast.consumequeue.state.records import NEXT_TOPIC_ID, decode_number, offsets_key, topic_key
from holdfast.consumequeue.state.replay import StateReplay
from tests.support.storage.small_log import SmallLog
from tests.support.storage.stored import batch, fill_segment, open_storage, settled, small_config

_KEYS = st.text("abc/", min_size=1, max_size=5).map(str.encode)


@given(st.dictionaries(_KEYS, st.none() | st.binary(max_size=30), min_size=1, max_size=9))
def test_changes_are_messages_of_key_and_value(changes: dict[bytes, bytes | None]) -> None:
    noted = encode_changes(changes)
    check_batch(noted, MessageLimits())
    assert noted.header.queue_id == 0
    found = {
        (noted.key(row) or "").encode(): None if noted.tag(row) else noted.body(row)
        for row in range(len(noted))
    }
    assert found == changes
    assert {noted.tag(row) for row in range(len(noted))} <= {None, "deleted"}


def test_a_snapshot_has_batches_of_moderate_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_SNAPSHOT_BATCH_BYTES", 100)
    records = {b"k%d" % number: b"x" * 40 for number in range(5)} | {b"large": b"y" * 500}
    *batches, end = encode_snapshot(records)
    assert [len(each) for each in batches] == [2, 2, 1, 1]
    assert (end.key(0), end.tag(0), end.body(0)) == (None, "all", b"6")
    found = {
        (each.key(row) or "").encode(): each.body(row)
        for each in batches
        for row in range(len(each))
    }
    assert found == records
    assert encode_snapshot({}) == []


async def test_the_log_has_the_newest_value_of_every_record(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        store = storage.store
        kept, _ = await store.topics.create("kept", queues=2)
        await store.topics.create("gone", queues=1)
        await store.publishing.publish(kept, [batch(["a", "b", "c"])])
        await settled(storage)
        for offset in (1, 3, 2):
            await store.offsets.store_offsets("g", kept, {0: offset})
        await store.topics.delete("gone")
        await settled(storage)
        records, is_whole = state_in_log(storage.log)
        assert is_whole
        assert records.keys() == {topic_key("kept"), NEXT_TOPIC_ID, offsets_key("g", kept.topic_id)}
        assert records == storage.opened.state.records


async def test_every_segment_begins_with_all_records(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        topic, _ = await storage.store.topics.create("t", queues=1)
        for _ in range(3):
            await fill_segment(storage, topic)
            await storage.store.publishing.publish(topic, [batch("after the snapshot")])
            last = storage.log.segments[-1]
            await settled(storage)
            only_last = type("Log", (), {"segments": (last,)})()
            records, _ = state_in_log(only_last)
            assert records == storage.opened.state.records


@pytest.mark.parametrize(("body", "is_whole"), [(b"below", False), (b"above", True)])
async def test_damage_after_the_durable_offset_hides_no_record(
    tmp_path: Path, body: bytes, is_whole: bool
) -> None:
    """Data that was never durable is torn, and was never acknowledged."""
    async with open_storage(small_config(tmp_path)) as storage:
        topic, _ = await storage.store.topics.create("t", queues=1)
        await storage.store.publishing.publish(topic, [batch("below")], durability="fsync")
        await storage.store.publishing.publish(topic, [batch("proof")], durability="fsync")
        await storage.store.publishing.publish(topic, [batch("above")], durability="fsync")
    segment = tmp_path / "commitlog" / ("0" * 20)
    image = bytearray(segment.read_bytes())
    image[image.index(body)] ^= 1
    segment.write_bytes(image)
    # Not with a Storage: the records that it appends at its start would prove the rest durable.
    log = CommitLog(segment.parent, small_config(tmp_path).commitlog, LinuxDisk(), now_us=lambda: 0)
    log.open()
    assert state_in_log(log)[1] == is_whole
    log.close()


@pytest.mark.parametrize(
    ("topic_ids", "expected"), [((), None), ((0,), None), ((3, 7, 0), 8), ((2, GAP_TOPIC_ID), 3)]
)
def test_ids_of_topics_with_messages_are_not_reused(
    tmp_path: Path, topic_ids: tuple[int, ...], expected: int | None
) -> None:
    """This holds although the log has lost the record of that topic and of the next id."""
    small = SmallLog(tmp_path)
    small.open()
    for topic_id in topic_ids:
        small.append(encode_batch([b"x"], keys=["damage"]), topic_id=topic_id)
    records, _ = state_in_log(small.log)
    small.close()
    next_id = records.get(NEXT_TOPIC_ID)
    assert (None if next_id is None else decode_number(next_id)) == expected


async def test_a_snapshot_reveals_an_unrecorded_deletion(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        await storage.store.topics.create("kept", queues=1)
        await storage.store.topics.create("gone", queues=1)
        await settled(storage)
        # A crash right after the deletion was stored: the log contains nothing about it.
        done = threading.Event()
        storage.opened.state.commit({topic_key("gone"): None}, lambda error: done.set())
        await asyncio.to_thread(done.wait)
        assert topic_key("gone") in state_in_log(storage.log)[0]
    async with open_storage(small_config(tmp_path)) as storage:
        topic = storage.store.table.get("kept")
        await storage.store.publishing.publish(topic, [batch("after the snapshot")])
        records, _ = state_in_log(storage.log)
        assert records.keys() == {topic_key("kept"), NEXT_TOPIC_ID}


def test_an_incomplete_snapshot_deletes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_SNAPSHOT_BATCH_BYTES", 1)
    batches = [
        encode_changes({b"old": b"1"}),
        *encode_snapshot({b"a": b"2", b"b": b"3", b"c": b"4"}),
    ]
    for missing in (None, 1, 2, 3):
        replay = StateReplay()
        for offset, each in enumerate(batches):
            if offset != missing:
                replay.apply(replace(each, header=replace(each.header, base_offset=offset)))
        assert (b"old" in replay.records) == (missing is not None)
        assert len(replay.records) == 3
