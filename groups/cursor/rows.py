"""The rows in which a cursor is stored: made after a change, and read at a start. Pure.

`take_writes` returns everything that changed since its last call. The caller writes it in one
transaction, so the rows on disk are always consistent. Leases are not in the rows but in the
progress page, a small file beside the rows. After a restart, a lease with a deadline (a timed
lease) goes on, and a lease that is bound to a connection has ended. If the page is missing or
damaged, every message that may have been delivered is in grace: it waits until the longest lease
must have expired. If the queue never had a timed lease, its messages need not wait.

All numbers in the rows are big-endian, so the rows of a queue are adjacent and in order. A key
begins with group id u32, topic id u32, queue u32.

    table   key, after that   value
    cur     -                 floor u64, reserved_next u64, epoch u32, oldest boot u32,
                              dead u64, expired u64, lost u64 (to retention or to damage).
                              The oldest boot is 2^32-1 if the queue never had a timed lease
    ack     chunk u64         1,024 bits, the lowest offset in the lowest bit of the first byte;
                              or one byte 1 if all bits are set
    att     offset u64        failures u16 (65535: rejected), acquisitions u32, ready_at_ms u64,
                              the last lease that ended u64 (0: unknown), its end u8, boot u32
    dead    offset u64        position of its record in the dead-letter topic (2^64-1: none) u64,
                              the lease that settled it u64, its end u8
    act     (the key is the   the active member of a single active or exclusive group, in UTF-8
            group id only)

The end of a lease is 1 acked, 2 nacked, 3 released, 4 rejected, 5 expired, 6 revoked, 7 dropped, or
0 unknown. In layout 1 an `att` value has 12 bytes (failures u16, acquisitions u16, ready_at_ms u64)
and a `dead` value has 8 bytes (the position). Old `att` rows are still decoded, old `dead` rows are
deleted.

storage/cursor_store.py adds a checksum to each value.
"""

import struct
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from holdfast.groups.cursor.cursor import (
    BOOT_SHIFT,
    NO_BOOT,
    REJECTED,
    SETTLED_KEPT,
    UNSTORED_ENDS,
    Attempts,
    Changes,
    Cursor,
    CursorKey,
    End,
    Settlement,
    epoch_after,
)
from holdfast.groups.cursor.leases import OVER, Lease
from holdfast.groups.cursor.page_records import Progress
from holdfast.groups.cursor.settled_offsets import CHUNK, FULL, SettledOffsets

CUR, ACK, ATT, DEAD, ACTIVE = TABLES = "cur", "ack", "att", "dead", "act"

_FULL_MARKER = b"\x01"
_GROUP = struct.Struct(">I")
_PREFIX = struct.Struct(">III")
_NUMBER = struct.Struct(">Q")
_MAX_NUMBER = (1 << 64) - 1
#: Larger than every key.
_BEYOND = b"\xff" * (_PREFIX.size + _NUMBER.size + 1)
_CUR = struct.Struct(">QQIIQQQ")
_ATT = struct.Struct(">HIQQBI")
_OLD_ATT = struct.Struct(">HHQ")
_DEAD = struct.Struct(">QQB")
_END_NUMBERS = {end: number for number, end in enumerate(End, 1)}
_ENDS = {number: end for end, number in _END_NUMBERS.items()}


class Write(NamedTuple):
    """One row to write. If `value` is None, the row is deleted."""

    table: str
    key: bytes
    value: bytes | None


class DeleteRange(NamedTuple):
    """The deletion of every row with start <= key < end."""

    table: str
    start: bytes
    end: bytes


class CursorRow(NamedTuple):
    """The fields of a `cur` row, in the order of their bytes."""

    floor: int
    reserved_next: int
    epoch: int
    #: All leases of boots with a lower number than this have ended.
    oldest_boot: int = 0
    dead: int = 0
    expired: int = 0
    lost: int = 0


class AttemptsRow(NamedTuple):
    """The fields of an `att` row, in the order of their bytes."""

    failures: int
    acquisitions: int
    ready_at_ms: int
    #: The number of the last lease that ended; 0 if unknown.
    last_lease: int = 0
    #: How the lease `last_lease` ended, as a number; 0 if unknown.
    last_end: int = 0
    #: The boot (the start of the broker) in which this row was last changed.
    boot: int = 0


class SettledRow(NamedTuple):
    """The fields of a `dead` row, in the order of their bytes."""

    position: int
    lease: int
    end: int


class StoredCursor(msgspec.Struct):
    """The rows of one cursor as they were read."""

    row: CursorRow
    chunks: dict[int, int] = msgspec.field(default_factory=dict)
    attempts: dict[int, AttemptsRow] = msgspec.field(default_factory=dict)
    settled: dict[int, SettledRow] = msgspec.field(default_factory=dict)
    #: Whether there are `dead` rows of layout 1, which have no useful content.
    has_old_rows: bool = False


# -- rows to write after a change ------------------------------------------------------------


def has_changes(cursor: Cursor) -> bool:
    """Return whether a cursor has changes to write (`take_writes`)."""
    changes = cursor.changes
    return bool(
        changes.is_cursor_dirty
        or changes.attempts
        or changes.settled
        or changes.is_reset
        or changes.are_settled_new
        or changes.trimmed_below is not None
        or cursor.done.dirty
    )


def take_writes(cursor: Cursor, prefix: bytes) -> list[Write | DeleteRange]:
    """Return the writes for a cursor's changes, in the order in which they must be written. Reset
    the changes."""
    changes, cursor.changes = cursor.changes, Changes()
    writes: list[Write | DeleteRange] = []
    if changes.is_reset:
        writes += [all_numbers(each, prefix) for each in (ACK, ATT, DEAD)]
    if changes.trimmed_below is not None:
        writes += [all_numbers(each, prefix, changes.trimmed_below) for each in (ATT, DEAD)]
    if changes.are_settled_new and not changes.is_reset:
        writes.append(all_numbers(DEAD, prefix))
    if changes.is_cursor_dirty or changes.is_reset:
        cursor.keep_reserve()
        writes.append(Write(CUR, prefix, encode_cursor(_cursor_row(cursor))))
    writes += _chunk_writes(cursor, prefix)
    for offset in sorted(changes.attempts):
        row = _attempts_row(cursor, offset)
        value = None if row is None else encode_attempts(row)
        writes.append(Write(ATT, numbered_key(prefix, offset), value))
    for offset in sorted(changes.settled):
        value = _settled_value(cursor.settled.get(offset))
        writes.append(Write(DEAD, numbered_key(prefix, offset), value))
    return writes


def _chunk_writes(cursor: Cursor, prefix: bytes) -> list[Write]:
    writes = []
    for number in sorted(cursor.done.dirty):
        bits = cursor.done.chunk_to_write(number)
        if bits is not None:
            writes.append(Write(ACK, numbered_key(prefix, number), encode_chunk(bits)))
        elif number != cursor.floor >> 10:  # the row of the floor's chunk may stay: it is harmless
            writes.append(Write(ACK, numbered_key(prefix, number), None))
    cursor.done.dirty.clear()
    return writes


def _cursor_row(cursor: Cursor) -> CursorRow:
    return CursorRow(
        cursor.floor,
        cursor.reserved_next,
        cursor.epoch,
        cursor.oldest_boot if cursor.grace_bound else cursor.oldest_leased_boot,
        cursor.dead_count,
        cursor.expired_count,
        cursor.lost_count,
    )


def _attempts_row(cursor: Cursor, offset: int) -> AttemptsRow | None:
    attempts = cursor.attempts.get(offset)
    if attempts is None:
        return None
    return AttemptsRow(
        REJECTED if cursor.dying.get(offset) == REJECTED else attempts.failures,
        attempts.acquisitions,
        cursor.delays.get(offset),
        attempts.last_lease,
        0 if attempts.last_end is None else _END_NUMBERS[attempts.last_end],
        attempts.boot,
    )


def _settled_value(settled: Settlement | None) -> bytes | None:
    if settled is None or settled.end in UNSTORED_ENDS:
        return None
    return encode_settled(SettledRow(settled.position, settled.lease, _END_NUMBERS[settled.end]))


# -- a cursor from its rows ------------------------------------------------------------------


def restore(
    stored: StoredCursor,
    *,
    boot: int,
    end: int,
    log_start: int,
    now_ms: int,
    longest_lease_ms: int,
    most_failures: int,
    page: Progress | None = None,
    is_log_cut: bool = False,
) -> Cursor:
    """Return the cursor that the rows describe.

    `log_start` and `end` are the range of the queue in the recovered log. Offsets at `end` or
    beyond in the rows or the page are ignored. If there are any, or if the queue has lost its
    newest messages (`is_log_cut`), the cursor gets a new epoch, because other messages will get the
    same offsets. The caller must write the cursor's changes before it appends or delivers messages.

    The timed leases of `page` go on, and the messages of its bound leases are available; `page`
    must be of the rows' epoch. Without a page, all offsets below `reserved_next` that are not done
    are in grace until the longest lease must have ended, or available at once if the queue never
    had a timed lease.
    """
    row = stored.row
    attempts = {at: each for at, each in stored.attempts.items() if row.floor <= at < end}
    is_cut = is_log_cut or _is_beyond(end, stored, page)
    cursor = _restore_progress(stored, page, boot, end)
    leases: dict[int, Lease] = {}
    if is_cut:
        cursor.epoch = epoch_after(row.epoch)
    elif page is not None:
        leases = {at: each for at, each in page.leases.items() if _is_live(cursor, attempts, each)}
    for offset, each in attempts.items():
        if offset not in cursor.done:
            is_leased = offset in leases
            _restore_attempts(cursor, offset, each, now_ms, most_failures, is_leased=is_leased)
    cursor.changes.attempts |= stored.attempts.keys() - cursor.attempts.keys()
    _restore_settled(cursor, stored, is_cut=is_cut)
    # Limit the deadlines: the clock may have been set back since the page was written.
    latest_end_ms = now_ms + longest_lease_ms
    for lease in leases.values():
        _restore_lease(cursor, lease, latest_end_ms)
    had_timed = row.oldest_boot != NO_BOOT
    cursor.may_lease_timed = had_timed
    if had_timed:
        cursor.oldest_leased_boot = cursor.boot
    if page is not None:
        cursor.grace_boot = page.grace_boot
        least = max(row.oldest_boot if had_timed else 0, page.grace_boot)
        cursor.oldest_leased_boot = _oldest_boot(cursor, least)
    seen_below = cursor.next if page is None or is_cut else min(page.seen_below, end)
    cursor.seen_below = seen_below if seen_below > cursor.floor else 0
    if is_cut:
        cursor.changes.is_reset = True
        cursor.changes.attempts |= cursor.attempts.keys()
        cursor.changes.settled |= cursor.settled.keys()
        cursor.done.dirty |= cursor.done.chunks().keys()
    elif page is None:
        if had_timed:
            cursor.begin_grace(cursor.next, latest_end_ms, boot)
    elif page.grace_end_ms > now_ms:
        bound = min(page.grace_bound, end)
        cursor.begin_grace(bound, min(page.grace_end_ms, latest_end_ms), min(page.grace_boot, boot))
    cursor.trim(log_start)
    return cursor


def _is_beyond(end: int, stored: StoredCursor, page: Progress | None) -> bool:
    """Return whether the rows or the page contain offsets at `end` or beyond."""
    return (
        stored.row.floor > end
        or (page is not None and page.next > end)
        or any(bits >> max(end - (number << 10), 0) for number, bits in stored.chunks.items())
        or any(at >= end for at in stored.attempts)
    )


def _restore_progress(stored: StoredCursor, page: Progress | None, boot: int, end: int) -> Cursor:
    """Return a cursor with the stored counts, and with the offsets that are done or delivered."""
    row = stored.row
    cursor = Cursor(boot=boot, floor=min(row.floor, end), end=end, epoch=row.epoch)
    cursor.done = SettledOffsets.restore(cursor.floor, stored.chunks, end)
    delivered_to = row.reserved_next if page is None else max(page.next, row.floor)
    cursor.next = max(cursor.floor, min(delivered_to, end))
    cursor.reserved_durable = max(cursor.floor, min(row.reserved_next, end))
    cursor.reserved_next = max(cursor.reserved_durable, cursor.next)
    cursor.oldest_boot = (page and page.oldest_boot) or row.oldest_boot
    cursor.dead_count, cursor.expired_count, cursor.lost_count = row.dead, row.expired, row.lost
    cursor.changes.is_cursor_dirty = True
    return cursor


def _oldest_boot(cursor: Cursor, least: int) -> int:
    """Return the oldest start of the broker (boot) of which a lease with a deadline is left. Leases
    of boots before `least` are ignored: after a power loss the page may still have a lease whose
    message was delivered to another member meanwhile."""
    timed = (lease for lease in cursor.leases if lease.deadline_ms != OVER)
    boots = (lease.number >> BOOT_SHIFT for lease in timed)
    return min((boot for boot in boots if boot >= least), default=cursor.oldest_leased_boot)


def _is_live(cursor: Cursor, attempts: Mapping[int, AttemptsRow], lease: Lease) -> bool:
    """Return whether a lease of the page had not ended, according to the rows."""
    offset, row = lease.head.offset, attempts.get(lease.head.offset)
    if not cursor.floor <= offset < cursor.end or offset in cursor.done:
        return False
    return row is None or lease.attempt > row.acquisitions


def _restore_attempts(
    cursor: Cursor,
    offset: int,
    row: AttemptsRow,
    now_ms: int,
    most_failures: int,
    *,
    is_leased: bool,
) -> None:
    is_rejected = row.failures == REJECTED
    failures = 0 if is_rejected else row.failures
    end = _ENDS.get(row.last_end)
    cursor.attempts[offset] = Attempts(failures, row.acquisitions, row.last_lease, end, row.boot)
    if is_rejected or (most_failures and failures >= most_failures):
        cursor.dying[offset] = row.failures
    elif row.ready_at_ms > now_ms and not is_leased:
        cursor.delays.set(offset, row.ready_at_ms)


def _restore_lease(cursor: Cursor, lease: Lease, latest_end_ms: int) -> None:
    """Restore a lease. It expires at the first tick if its deadline has passed, or if it was bound
    to a connection (its deadline is then OVER)."""
    offset = lease.head.offset
    if offset in cursor.dying:
        return
    if lease.attempt > cursor.attempt(offset):  # the end of the previous lease was not written
        attempts = cursor.attempts.setdefault(offset, Attempts())
        attempts.acquisitions, attempts.boot = lease.attempt - 1, cursor.boot
        cursor.changes.attempts.add(offset)
    lease.deadline_ms = min(lease.deadline_ms, latest_end_ms)
    cursor.leases.add([lease])
    cursor.next = max(cursor.next, offset + 1)


def _restore_settled(cursor: Cursor, stored: StoredCursor, *, is_cut: bool) -> None:
    for offset, row in sorted(stored.settled.items()):
        end = _ENDS.get(row.end)
        if end is not None and not is_cut and offset in cursor.done:
            cursor.settled[offset] = Settlement(row.lease, end, row.position)
        else:
            cursor.changes.settled.add(offset)
    for offset in list(cursor.settled)[:-SETTLED_KEPT]:
        del cursor.settled[offset]
        cursor.changes.settled.add(offset)
    if stored.has_old_rows:
        cursor.changes.are_settled_new = True
        cursor.changes.settled |= cursor.settled.keys()


# -- keys ------------------------------------------------------------------------------------


def key_prefix(group_id: int, topic_id: int, queue: int) -> bytes:
    """Return the prefix of the keys of one cursor's rows. The key of the `cur` row is only this
    prefix."""
    return _PREFIX.pack(group_id, topic_id, queue)


def parse_prefix(key: bytes) -> CursorKey:
    """Return the cursor that a key belongs to."""
    group_id, topic_id, queue = _PREFIX.unpack_from(key)
    return group_id, topic_id, queue


def numbered_key(prefix: bytes, number: int) -> bytes:
    """Return the key of a chunk or an offset."""
    return prefix + _NUMBER.pack(number)


def key_number(key: bytes) -> int:
    """Return the chunk or offset in a key."""
    return int(_NUMBER.unpack_from(key, _PREFIX.size)[0])


def all_numbers(table: str, prefix: bytes, below: int = _MAX_NUMBER) -> DeleteRange:
    """Return the deletion of rows of one cursor in `table`: those with a chunk number or an offset
    below `below`."""
    return DeleteRange(table, numbered_key(prefix, 0), numbered_key(prefix, below))


def all_of(*owner: int) -> list[DeleteRange]:
    """Return the deletion of all rows of a group; `owner` is its id. With (group id, topic id),
    delete only the rows of that topic; with (group id, topic id, queue), only those of one
    cursor."""
    start = b"".join(map(_GROUP.pack, owner))
    number = int.from_bytes(start, "big") + 1
    is_last = number >> 8 * len(start)
    end = _BEYOND if is_last else number.to_bytes(len(start), "big")
    return [DeleteRange(table, start, end) for table in TABLES]


def group_key(group_id: int) -> bytes:
    """Return the key of a group's `act` row."""
    return _GROUP.pack(group_id)


def parse_group(key: bytes) -> int:
    """Return the group id of an `act` row's key."""
    return int(_GROUP.unpack(key)[0])


# -- values ----------------------------------------------------------------------------------


def encode_cursor(row: CursorRow) -> bytes:
    """Return a `cur` value."""
    return _CUR.pack(*row)


def decode_cursor(value: bytes) -> CursorRow:
    """Return the row of a `cur` value. Raises struct.error if the size is wrong."""
    return CursorRow(*_CUR.unpack(value))


def encode_chunk(bits: int) -> bytes:
    """Return an `ack` value."""
    return _FULL_MARKER if bits == FULL else bits.to_bytes(CHUNK // 8, "little")


def decode_chunk(value: bytes) -> int:
    """Return the bits of an `ack` value. Raises ValueError if the size is wrong."""
    if value == _FULL_MARKER:
        return FULL
    if len(value) != CHUNK // 8:
        raise ValueError(f"a chunk has 1 or {CHUNK // 8} bytes, not {len(value)}")
    return int.from_bytes(value, "little")


def encode_attempts(row: AttemptsRow) -> bytes:
    """Return an `att` value; a count that does not fit is stored as the largest value."""
    failures, acquisitions, *rest = row
    return _ATT.pack(failures, min(acquisitions, 0xFFFF_FFFF), *rest)


def decode_attempts(value: bytes) -> AttemptsRow:
    """Return the row of an `att` value. Raises struct.error if the size is wrong."""
    if len(value) == _OLD_ATT.size:
        return AttemptsRow(*_OLD_ATT.unpack(value))
    return AttemptsRow(*_ATT.unpack(value))


def encode_settled(row: SettledRow) -> bytes:
    """Return a `dead` value."""
    return _DEAD.pack(*row)


def decode_settled(value: bytes) -> SettledRow | None:
    """Return the row of a `dead` value; None if it is of layout 1. Raises struct.error if the size
    is wrong."""
    return None if len(value) == _NUMBER.size else SettledRow(*_DEAD.unpack(value))
