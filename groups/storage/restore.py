"""Restores the cursors of all groups at a start: from rows, page and log. Pure.

If a cursor has no rows, or its `cur` row is damaged, it begins at the group's stored offset of the
queue, which is a copy of its floor; if none is stored, at the first offset of the queue. Messages
from there on are delivered again, also those that were settled. The cursor gets a new epoch, so all
earlier receipts are stale.
"""

import struct
from collections.abc import Callable, Iterable, Mapping

import msgspec

from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.groups.cursor import rows
from holdfast.groups.cursor.cursor import MAX_EPOCH, NO_BOOT, Cursor, CursorKey, epoch_after
from holdfast.groups.cursor.page_records import Progress
from holdfast.groups.cursor.rows import (
    ACK,
    ACTIVE,
    ATT,
    CUR,
    DeleteRange,
    StoredCursor,
    Write,
    all_of,
    group_key,
    key_prefix,
    restore,
    take_writes,
)
from holdfast.groups.storage.group_records import GroupRecord

#: 2020-01-01. New epochs are the seconds since then, modulo 2**32.
_EPOCHS_BEGIN_MS = 1_577_836_800_000


class StoredCursors(msgspec.Struct):
    """All rows that were read, by cursor."""

    cursors: dict[CursorKey, StoredCursor] = msgspec.field(default_factory=dict)
    #: Cursors that have rows, but no intact `cur` row.
    headless: set[CursorKey] = msgspec.field(default_factory=set)
    #: group id -> the active member, for groups that serve one member at a time.
    active: dict[int, str] = msgspec.field(default_factory=dict)
    #: The keys of damaged rows as stored; the first byte is the table.
    damaged: list[bytes] = msgspec.field(default_factory=list)

    def add(self, table: str, key: bytes, value: bytes) -> None:
        """Add a row whose checksum is correct. The `cur` rows must be added before all others.
        Raises ValueError or struct.error if the row is malformed."""
        if table == ACTIVE:
            self.active[rows.parse_group(key)] = value.decode()
            return
        cursor_key = rows.parse_prefix(key)
        if table == CUR:
            self.cursors[cursor_key] = StoredCursor(rows.decode_cursor(value))
            return
        stored = self.cursors.get(cursor_key)
        number = rows.key_number(key)
        if table == ACK:
            bits = rows.decode_chunk(value)
            if stored is not None:
                stored.chunks[number] = bits
        elif table == ATT:
            attempts = rows.decode_attempts(value)
            if stored is not None:
                stored.attempts[number] = attempts
        else:
            settled = rows.decode_settled(value)
            if stored is not None and settled is None:
                stored.has_old_rows = True
            elif stored is not None and settled is not None:
                stored.settled[number] = settled
        if stored is None:
            self.headless.add(cursor_key)

    def damaged_cursors(self) -> set[CursorKey | None]:
        """Return the cursors that have damaged rows. None in the result means a damaged row whose
        cursor is unknown."""
        return {_owner(key) for key in self.damaged}


def _owner(key: bytes) -> CursorKey | None:
    try:
        return rows.parse_prefix(key[1:])
    except struct.error:
        return None


class QueueRange(msgspec.Struct, frozen=True):
    """The offsets that a queue has after recovery: [log_start, end)."""

    log_start: int = 0
    end: int = 0


class RestoreInput(msgspec.Struct, frozen=True):
    """The inputs for restoring cursors at a start."""

    boot: int
    now_ms: int
    #: cursor -> epoch -> its progress in the progress page.
    pages: Mapping[CursorKey, Mapping[int, Progress]]
    #: Whether the page is trusted: its content is up to date. If not, it was true at some earlier
    #: time.
    is_page_trusted: bool
    #: Whether the rows are from a backup. Then the offsets may belong to other messages now.
    is_copy: bool
    topic: Callable[[int], Topic | None]
    queue_range: Callable[[QueueKey], QueueRange]
    #: Returns a group's stored offsets on a topic: queue -> offset.
    stored_offsets: Callable[[str, int], Mapping[int, int]]


class Restored(msgspec.Struct):
    """The cursors of all groups. `writes` must be stored before messages are delivered."""

    cursors: dict[CursorKey, Cursor] = msgspec.field(default_factory=dict)
    #: group id -> the active member, for groups that serve one member at a time.
    active: dict[int, str] = msgspec.field(default_factory=dict)
    writes: list[Write | DeleteRange] = msgspec.field(default_factory=list)
    #: Descriptions of what was damaged.
    notes: list[str] = msgspec.field(default_factory=list)

    def mark_written(self) -> None:
        """Record that the writes are durable."""
        for cursor in self.cursors.values():
            cursor.reserved_durable = cursor.reserved_next
            cursor.may_lease_timed = cursor.oldest_leased_boot != NO_BOOT


def restore_cursors(
    groups: Iterable[GroupRecord], found: StoredCursors, known: RestoreInput
) -> Restored:
    """Return the cursors of all queues of the groups' topics. `writes` of the result also delete
    the rows of other queues."""
    restored = Restored()
    groups = list(groups)
    owners = _owners(groups, known)
    group_ids = {group.group_id for group in groups}
    for group_id, member in found.active.items():
        if group_id in group_ids:
            restored.active[group_id] = member
        else:
            restored.writes.append(Write(ACTIVE, group_key(group_id), None))
    for key in sorted((found.cursors.keys() | found.headless) - owners.keys()):
        restored.writes += all_of(*key)
    for key, (group, topic) in owners.items():
        stored = found.cursors.get(key)
        if key in found.headless:
            restored.writes += all_of(*key)
        if stored is None:
            cursor = _restart_cursor(key, group, topic, known)
        else:
            cursor = _restore_cursor(key, stored, group, topic, known)
        restored.cursors[key] = cursor
        restored.writes += take_writes(cursor, key_prefix(*key))
    for damaged in found.damaged_cursors():
        restored.notes.append(_damage_note(damaged, owners, restored))
    return restored


def _owners(
    groups: Iterable[GroupRecord], known: RestoreInput
) -> dict[CursorKey, tuple[GroupRecord, Topic]]:
    owners = {}
    for group in groups:
        for topic_id in group.topics:
            topic = known.topic(topic_id)
            for queue in range(0 if topic is None else topic.queue_count):
                assert topic is not None
                owners[group.group_id, topic_id, queue] = group, topic
    return owners


def _restore_cursor(
    key: CursorKey, stored: StoredCursor, group: GroupRecord, topic: Topic, known: RestoreInput
) -> Cursor:
    within = known.queue_range(key[1:])
    page = known.pages.get(key, {}).get(stored.row.epoch)
    # An outdated page proves this, too: if `next` was ever beyond the present end, messages were
    # delivered that are lost now.
    was_seen = page is not None and page.next > within.end
    # With durability "written", messages that were delivered may be lost in a power loss, and other
    # messages may get their offsets.
    may_be_cut = topic.config.durability == "written" and not known.is_page_trusted
    cursor = restore(
        stored,
        boot=known.boot,
        end=within.end,
        log_start=within.log_start,
        now_ms=known.now_ms,
        longest_lease_ms=group.config.longest_lease_ms,
        most_failures=group.config.max_attempts,
        page=page if known.is_page_trusted else None,
        is_log_cut=was_seen or may_be_cut or known.is_copy,
    )
    if cursor.epoch != stored.row.epoch:
        cursor.epoch = _epoch_different_from(stored.row.epoch, known.now_ms)
    return cursor


def _restart_cursor(
    key: CursorKey, group: GroupRecord, topic: Topic, known: RestoreInput
) -> Cursor:
    within = known.queue_range(key[1:])
    offset = known.stored_offsets(group.name, topic.topic_id).get(key[2], within.log_start)
    cursor = begin_cursor(known.boot, known.now_ms, within, offset)
    cursor.seen_below = cursor.end  # all messages may have been delivered before
    return cursor


def _damage_note(
    key: CursorKey | None, owners: Mapping[CursorKey, tuple[GroupRecord, Topic]], restored: Restored
) -> str:
    if key is None or key not in owners:
        return "a row of a cursor that belongs to no group is damaged: the row is deleted"
    group, topic = owners[key]
    return (
        f"rows of group {group.name} on queue {key[2]} of {topic.name!r} are damaged: settled "
        f"messages from offset {restored.cursors[key].floor} on may be delivered again"
    )


def new_epoch(now_ms: int) -> int:
    """Return an epoch made of the seconds of this time. The numbers repeat after 136 years, so no
    cursor from an earlier second has the same one."""
    return max((now_ms - _EPOCHS_BEGIN_MS) // 1000, 1) % (MAX_EPOCH + 1) or 1


def _epoch_different_from(epoch: int, now_ms: int) -> int:
    """Return an epoch that is above `epoch` and not below `new_epoch`. After the largest epoch,
    return 1."""
    return max(epoch_after(epoch), new_epoch(now_ms)) if epoch < MAX_EPOCH else 1


def begin_cursor(
    boot: int,
    now_ms: int,
    known: QueueRange,
    offset: int,
    *,
    last_epoch: int = 0,
    last_lease: int = 0,
) -> Cursor:
    """Return a new cursor at an offset. If the offset is outside the queue's range `known`, take
    the nearest offset inside. The caller must write the cursor's changes (`take_writes`) before it
    delivers messages.

    The epoch is above `last_epoch`, and lease numbers are above `last_lease`. This is necessary
    because the group may have had the queue before, even in this same second."""
    floor = max(min(offset, known.end), 0)
    epoch = max(new_epoch(now_ms), epoch_after(last_epoch))
    cursor = Cursor(boot=boot, floor=floor, end=known.end, epoch=epoch, last_lease=last_lease)
    cursor.trim(known.log_start)
    cursor.changes.is_cursor_dirty = True
    return cursor
