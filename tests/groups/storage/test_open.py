"""The state that a start builds from rows, page and log.

Settled messages are lost only by damage, a delivered message is never treated as new, and a
reused offset never looks settled.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import lmdb
import pytest

from holdfast.consumequeue.index.consume_queue import ConsumeQueue
from holdfast.consumequeue.state.records import (
    StoredOffsets,
    encode_offsets,
    encode_topic,
    offsets_key,
    topic_key,
)
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey, Topic, TopicConfig
from holdfast.groups.config import GroupConfig, GroupsConfig
from holdfast.groups.cursor.cursor import Cursor, CursorKey, End, State
from holdfast.groups.cursor.heads import Head
from holdfast.groups.cursor.rows import DeleteRange, Write, key_prefix, take_writes
from holdfast.groups.settings import Subscription
from holdfast.groups.storage.cursor_store import CursorStore, mark_as_copy
from holdfast.groups.storage.group_records import GroupRecord
from holdfast.groups.storage.group_table import GroupTable
from holdfast.groups.storage.open import OpenedGroups, open_groups
from holdfast.groups.storage.restore import QueueRange, begin_cursor, new_epoch
from tests.groups.storage.test_cursor_store import overwrite, raw

BOOT, OTHER_BOOT = bytes(range(1, 17)), bytes(range(2, 18))
NOW_MS = 1_700_000_000_000
LEASE_MS = 30_000
KEY = (1, 3, 0)


@dataclass
class Directory:
    """The state in a data directory, as a start reads it. `ends` are the ends of queues."""

    path: Path
    durability: str = "fsync"
    group: GroupRecord = field(
        default_factory=lambda: GroupRecord(
            "g", 1, GroupConfig(lease_ms=LEASE_MS, longest_lease_ms=LEASE_MS), {3: Subscription()}
        )
    )
    ends: dict[int, int] = field(default_factory=lambda: {0: 100})
    begins: dict[int, int] = field(default_factory=dict)
    mirrored: dict[int, int] = field(default_factory=dict)
    has_topic: bool = True
    has_group: bool = True
    now_ms: int = NOW_MS

    def records(self) -> dict[bytes, bytes]:
        records: dict[bytes, bytes] = {}
        if self.has_group:
            records.update(GroupTable({}).changes_of(self.group))
        if self.has_topic:
            config = TopicConfig(self.durability, None, None, 1000)
            topic = Topic("t", 3, max(self.ends) + 1, config, 1)
            records[topic_key("t")] = encode_topic(topic)
        if self.mirrored:
            records[offsets_key("g", 3)] = encode_offsets(StoredOffsets(self.mirrored, 1))
        return records

    def open(self, boot_id: bytes = BOOT) -> OpenedGroups:
        records = self.records()
        queues: dict[QueueKey, ConsumeQueue] = {}
        for queue, end in self.ends.items():
            queues[3, queue] = cq = ConsumeQueue(None, self.begins.get(queue, 0), 0)
            cq.max_offset = end
        opened = open_groups(
            self.path,
            GroupsConfig(map_size_bytes=1 << 24),
            records=records,
            topics=TopicTable(records),
            queues=queues,
            boot_id=boot_id,
            now_ms=self.now_ms,
        )
        opened.store.start()
        return opened

    def cursor(self, boot_id: bytes = BOOT) -> Cursor:
        """Return the cursor of queue 0 as a start restores it; then kill that broker."""
        opened = self.open(boot_id)
        kill(opened)
        return opened.cursors[KEY]


def save(opened: OpenedGroups, cursor: Cursor, key: CursorKey = KEY) -> None:
    """Do the service's work after a change: commit and record it."""
    errors: list[Exception | None] = []
    opened.store.commit(take_writes(cursor, key_prefix(*key)), errors.append, now_ms=NOW_MS)
    opened.page.note(key, cursor)
    opened.page.write()


def kill(opened: OpenedGroups) -> None:
    """End without closing the page in order."""
    opened.store.stop()
    os.close(opened.page._file)
    opened.page._file = -1


def deliver(cursor: Cursor, *offsets: int) -> None:
    for offset in offsets:
        cursor.lease([Head(offset)], "m", NOW_MS + LEASE_MS, NOW_MS, 1)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "state")


def used(directory: Directory) -> OpenedGroups:
    """Deliver 0 to 9, settle some of them, and let one fail."""
    opened = directory.open()
    cursor = opened.cursors[KEY]
    cursor.seen_below = 0  # as in a new group: nothing was delivered before
    deliver(cursor, *range(10))
    for offset in (0, 1, 4):
        cursor.finish(offset, End.ACKED)
    cursor.give_back(5, End.NACKED, cursor.leases.get(5).number)  # type: ignore[union-attr]
    save(opened, cursor)
    return opened


# -- new cursors ---------------------------------------------------------------------------


def test_a_new_cursor_begins_where_the_queue_does(directory: Directory) -> None:
    directory.begins = {0: 7}
    cursor = directory.cursor()
    assert (cursor.floor, cursor.next, cursor.end, cursor.lost_count) == (7, 7, 100, 0)
    assert cursor.epoch == new_epoch(NOW_MS) == (NOW_MS - 1_577_836_800_000) // 1000


def test_without_rows_a_cursor_begins_at_the_mirrored_offset(directory: Directory) -> None:
    directory.ends = {0: 100, 1: 5, 2: 5}
    directory.mirrored = {0: 40, 1: 9}
    opened = directory.open()
    assert [opened.cursors[1, 3, queue].floor for queue in range(3)] == [40, 5, 0]
    # The deliveries beyond that offset are unknown.
    assert opened.cursors[KEY].is_redelivery(99)
    opened.close()


def test_a_begun_cursor_lies_within_its_queue() -> None:
    known = QueueRange(10, 50)
    for offset, floor in [(-1, 10), (3, 10), (10, 10), (30, 30), (50, 50), (99, 50)]:
        assert begin_cursor(1, NOW_MS, known, offset).floor == floor


def test_a_begun_cursor_is_written_before_anything_is_delivered(directory: Directory) -> None:
    first = directory.cursor()
    directory.mirrored = {0: 50}
    directory.now_ms += 5_000
    again = directory.cursor()
    assert (again.floor, again.epoch) == (first.floor, first.epoch)


# -- restored cursors ----------------------------------------------------------------------


def test_after_a_kill_everything_is_as_it_was(directory: Directory) -> None:
    kill(used(directory))
    cursor = directory.cursor()
    assert (cursor.floor, cursor.next) == (2, 10)
    assert 4 in cursor.done
    assert cursor.failures(5) == 1
    assert [each.head.offset for each in cursor.leases] == [2, 3, 6, 7, 8, 9]
    assert {each.deadline_ms for each in cursor.leases} == {NOW_MS + LEASE_MS}
    assert cursor.state(5) is State.AVAILABLE, "it came back"
    assert cursor.state(10) is State.AVAILABLE, "it was not delivered: the page says so"
    assert not cursor.is_redelivery(10)


def test_counts_of_dead_letters_outlive_a_kill(directory: Directory) -> None:
    opened = used(directory)
    cursor = opened.cursors[KEY]
    cursor.give_back(8, End.REJECTED, cursor.leases.get(8).number)  # type: ignore[union-attr]
    cursor.mark_dead(8, 77)
    save(opened, cursor)
    kill(opened)
    assert directory.cursor().dead_count == 1


def test_after_a_power_loss_the_reserve_is_in_grace(directory: Directory) -> None:
    kill(used(directory))
    directory.now_ms += 1_000
    cursor = directory.cursor(OTHER_BOOT)
    assert (cursor.floor, cursor.next) == (2, 100)
    assert cursor.state(99) is State.GRACE
    assert cursor.grace_end_ms == NOW_MS + 1_000 + LEASE_MS
    assert cursor.epoch == new_epoch(NOW_MS), "receipts are good"


def test_after_an_orderly_end_and_a_reboot_everything_is_as_it_was(directory: Directory) -> None:
    used(directory).close()
    cursor = directory.cursor(OTHER_BOOT)
    assert (cursor.floor, cursor.next) == (2, 10)


def test_without_its_page_a_cursor_goes_by_the_reserve(directory: Directory) -> None:
    used(directory).close()
    (directory.path / "groups.page").unlink()
    assert directory.cursor().next == 100


def test_a_kill_while_opening_changes_nothing(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(used(directory))
    with monkeypatch.context() as patched:
        patched.setattr("holdfast.groups.storage.open.ProgressPage.begin", _fail)
        with pytest.raises(OSError, match="for a test"):
            directory.open()
    cursor = directory.cursor()
    assert (cursor.floor, cursor.next) == (2, 10)
    assert cursor.boot == 3


def _fail(*args: object) -> None:
    raise OSError("for a test")


def test_the_brokers_time_never_falls(directory: Directory) -> None:
    kill(used(directory))
    directory.now_ms -= 3_600_000
    opened = directory.open()
    assert opened.opened_ms == NOW_MS
    kill(opened)


def test_retention_raises_the_floor_and_counts_lost_messages(directory: Directory) -> None:
    kill(used(directory))
    directory.begins = {0: 6}
    cursor = directory.cursor()
    assert (cursor.floor, cursor.lost_count) == (6, 3)  # 2, 3 and 5
    assert 5 not in cursor.attempts


# -- a log that lost its end ---------------------------------------------------------------


def test_offsets_beyond_the_end_are_forgotten_and_receipts_are_void(directory: Directory) -> None:
    kill(used(directory))
    directory.ends = {0: 4}
    cursor = directory.cursor(OTHER_BOOT)
    assert (cursor.floor, cursor.next, cursor.end) == (2, 4, 4)
    assert cursor.epoch > new_epoch(NOW_MS)
    assert 4 not in cursor.done
    directory.ends = {0: 100}
    again = directory.cursor(OTHER_BOOT)
    assert 4 not in again.done, "it is another message"
    assert again.failures(5) == 0
    assert again.epoch == cursor.epoch


def test_after_a_power_loss_in_written_mode_receipts_are_void(directory: Directory) -> None:
    """Delivered messages may be lost, and their offsets reused, before the end is reached again."""
    directory.durability = "written"
    kill(used(directory))
    assert directory.cursor(BOOT).epoch == new_epoch(NOW_MS)
    cursor = directory.cursor(OTHER_BOOT)
    assert cursor.epoch > new_epoch(NOW_MS)
    assert cursor.floor == 2
    assert 4 in cursor.done


def test_a_page_that_saw_more_than_there_is_voids_receipts_though_it_is_old(
    directory: Directory,
) -> None:
    kill(used(directory))
    directory.ends = {0: 9}
    assert directory.cursor(OTHER_BOOT).epoch > new_epoch(NOW_MS)


def test_in_a_copy_receipts_are_void(directory: Directory) -> None:
    used(directory).close()
    (directory.path / "groups.page").unlink()
    mark_as_copy(directory.path / "groups")
    directory.now_ms += 60_000
    cursor = directory.cursor()
    assert cursor.epoch == new_epoch(NOW_MS + 60_000)
    assert (cursor.floor, 4 in cursor.done) == (2, True)
    assert directory.cursor().epoch == cursor.epoch, "but once"


# -- damage --------------------------------------------------------------------------------


def _damage(directory: Directory, table: bytes) -> None:
    path = directory.path / "groups"
    for key in raw(path):
        if key.startswith(table):
            overwrite(path, key, b"damaged")


def test_a_cursor_whose_row_is_damaged_begins_at_the_mirrored_offset(directory: Directory) -> None:
    kill(used(directory))
    _damage(directory, b"\1")
    directory.mirrored = {0: 1}
    directory.now_ms += 2_000
    opened = directory.open()
    cursor = opened.cursors[KEY]
    assert cursor.floor == 1
    assert 4 not in cursor.done
    assert cursor.epoch == new_epoch(NOW_MS + 2_000)
    assert len(opened.faults) == 1
    assert "group g on queue 0 of 't'" in opened.faults[0]
    assert "from offset 1 on" in opened.faults[0]
    kill(opened)
    opened = directory.open()
    assert opened.faults == []
    kill(opened)
    assert {key[:1] for key in raw(directory.path / "groups")} == {b"\0", b"\1"}


@pytest.mark.parametrize(("table", "again", "failures"), [(b"\2", True, 1), (b"\3", False, 0)])
def test_other_damaged_rows_lose_only_their_own_content(
    directory: Directory, table: bytes, again: bool, failures: int
) -> None:
    kill(used(directory))
    _damage(directory, table)
    opened = directory.open()
    cursor = opened.cursors[KEY]
    assert (cursor.floor, cursor.next, cursor.epoch) == (2, 10, new_epoch(NOW_MS))
    assert (4 not in cursor.done) == again
    assert cursor.failures(5) == failures
    assert len(opened.faults) == 1
    kill(opened)
    opened = directory.open()
    assert opened.faults == []
    kill(opened)


def test_an_environment_that_is_damaged_as_a_whole_is_set_aside(directory: Directory) -> None:
    kill(used(directory))
    (directory.path / "groups" / "data.mdb").write_bytes(b"no environment" * 1000)
    directory.mirrored = {0: 2}
    opened = directory.open()
    assert opened.cursors[KEY].floor == 2
    assert (directory.path / f"groups.corrupt-{NOW_MS}" / "data.mdb").exists()
    assert len(opened.faults) == 2
    assert "kept as groups.corrupt-" in opened.faults[0]
    kill(opened)


def test_lost_cursors_are_reported_only_where_there_were_any(directory: Directory) -> None:
    directory.has_group = False
    opened = directory.open()
    assert opened.faults == []
    kill(opened)
    (directory.path / "groups" / "data.mdb").unlink()
    directory.has_group = True
    opened = directory.open()
    assert len(opened.faults) == 1
    kill(opened)


@pytest.mark.parametrize("gone", ["has_group", "has_topic"])
def test_rows_of_deleted_groups_and_topics_are_deleted(directory: Directory, gone: str) -> None:
    kill(used(directory))
    setattr(directory, gone, False)
    opened = directory.open()
    assert opened.cursors == {}
    assert opened.page.found
    kill(opened)
    assert all(key.startswith(b"\0") for key in raw(directory.path / "groups"))
    setattr(directory, gone, True)
    directory.now_ms += 9_000
    assert directory.cursor().epoch == new_epoch(NOW_MS + 9_000)


# -- interrupted commits -------------------------------------------------------------------


def test_commits_cut_short_leave_the_rows_of_one_moment(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine fails after any number of the writes that LMDB received."""
    opened = used(directory)
    cursor = opened.cursors[KEY]
    for offset in (2, 3, 6):
        cursor.finish(offset, End.ACKED)
    writes = take_writes(cursor, key_prefix(*KEY))
    kill(opened)
    assert len(writes) >= 2
    for count in range(len(writes)):
        with pytest.raises(_Failed), monkeypatch.context() as patched:
            store = CursorStore(directory.path / "groups", 1 << 24)
            patched.setattr("holdfast.groups.storage.cursor_store._apply", _failing_after(count))
            store.begin(writes)
        store.stop()
        again = directory.cursor()
        assert (again.floor, 6 in again.done) == (2, False)
    store = CursorStore(directory.path / "groups", 1 << 24)
    store.begin(writes)
    store.stop()
    again = directory.cursor()
    assert (again.floor, 6 in again.done) == (5, True)


class _Failed(Exception):
    pass


def _failing_after(count: int) -> object:
    def apply(txn: "lmdb.Transaction[bytes]", writes: list[Write | DeleteRange]) -> None:
        for write in writes[:count]:
            if isinstance(write, Write) and write.value is not None:
                txn.put(b"\1" + write.key, write.value)
        raise _Failed

    return apply


def test_a_page_of_another_epoch_is_ignored(directory: Directory) -> None:
    opened = used(directory)
    opened.cursors[KEY].epoch += 1
    opened.page.begin(opened.cursors)
    kill(opened)
    cursor = directory.cursor()
    assert cursor.next == 100


@pytest.mark.parametrize("by_ms", [-1, 0, 1, 10**12])
def test_leases_of_a_clock_that_was_ahead_last_no_longer_than_a_lease_can(
    directory: Directory, by_ms: int
) -> None:
    opened = used(directory)
    cursor = opened.cursors[KEY]
    for lease in cursor.leases:
        cursor.extend(lease, NOW_MS + LEASE_MS + by_ms)
    opened.page.note(KEY, cursor)
    opened.page.write()
    kill(opened)
    again = directory.cursor()
    assert {each.deadline_ms for each in again.leases} == {NOW_MS + LEASE_MS + min(by_ms, 0)}


def test_a_page_ahead_of_the_reserve_is_provided_for_on_disk_at_once(directory: Directory) -> None:
    """The broker was killed after it recorded deliveries, and before it wrote the record to
    disk."""
    opened = used(directory)
    cursor = opened.cursors[KEY]
    assert cursor.reserved_next < 1500
    cursor.end = 2000
    deliver(cursor, 1499)
    opened.page.note(KEY, cursor)
    opened.page.write()
    kill(opened)
    directory.ends = {0: 2000}
    again = directory.cursor()
    assert again.next == again.reserved_next == again.reserved_durable == 1500
    assert directory.cursor(OTHER_BOOT).next == 1500
