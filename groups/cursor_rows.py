"""A cursor's rows: those to write after a change, and the cursor that rows give again. Pure.

`take_writes` hands out everything that changed since the last time; it goes into one
transaction, so that the rows on disk are always of one moment. Leases are not among them: after
a restart what was maybe delivered is in grace until the longest lease has ended.
"""

from dataclasses import dataclass, field

from holdfast.groups import rows
from holdfast.groups.cursor import Attempts, Changes, Cursor
from holdfast.groups.done_chunks import DoneChunks
from holdfast.groups.rows import (
    ACK,
    ATT,
    CUR,
    DEAD,
    REJECTED,
    AttemptsRow,
    CursorRow,
    DeleteRange,
    Write,
)  # fmt: skip


@dataclass(slots=True)
class StoredCursor:
    """The rows of one cursor as they were found."""

    row: CursorRow
    chunks: dict[int, int] = field(default_factory=dict)
    attempts: dict[int, AttemptsRow] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    """What a page written without sync says of a cursor.

    It outlives a crash of the broker, not of the machine: a page of before a power loss may be
    an old one, and is not to be believed. `lease_end_ms` is when the last live lease ends, 0 if
    there is none. Of another epoch than the rows', it says nothing.
    """

    epoch: int
    next: int
    lease_end_ms: int


def page_of(cursor: Cursor) -> Page:
    """Return what the page should say of a cursor now."""
    grace_end_ms = cursor.grace_end_ms if cursor.grace_count else 0
    return Page(cursor.epoch, cursor.next, max(cursor.leases.latest_end_ms, grace_end_ms))


def has_changes(cursor: Cursor) -> bool:
    """Say whether `take_writes` would return anything of use."""
    changes = cursor.changes
    return bool(
        changes.is_cursor_dirty
        or changes.attempts
        or changes.dead
        or changes.is_reset
        or changes.trimmed_below is not None
        or cursor.done.dirty
    )


def take_writes(cursor: Cursor, prefix: bytes) -> list[Write | DeleteRange]:
    """Return what changed, in the order in which it is to be written, and note it as taken."""
    changes, cursor.changes = cursor.changes, Changes()
    writes: list[Write | DeleteRange] = []
    if changes.is_reset:
        writes += [rows.all_numbers(ACK, prefix), rows.all_numbers(ATT, prefix)]
    if changes.trimmed_below is not None:
        writes += [rows.all_numbers(each, prefix, changes.trimmed_below) for each in (ATT, DEAD)]
    if changes.is_cursor_dirty or changes.is_reset:
        writes.append(Write(CUR, prefix, rows.encode_cursor(_cursor_row(cursor))))
    writes += _chunk_writes(cursor, prefix)
    for offset in sorted(changes.attempts):
        row = _attempts_row(cursor, offset)
        value = None if row is None else rows.encode_attempts(row)
        writes.append(Write(ATT, rows.numbered_key(prefix, offset), value))
    for offset, position in changes.dead.items():
        if offset >= cursor.log_start:
            key = rows.numbered_key(prefix, offset)
            writes.append(Write(DEAD, key, rows.encode_dead(position)))
    return writes


def _chunk_writes(cursor: Cursor, prefix: bytes) -> list[Write]:
    writes = []
    for number in sorted(cursor.done.dirty):
        bits = cursor.done.chunk_to_write(number)
        if bits is not None:
            value = rows.encode_chunk(bits)
            writes.append(Write(ACK, rows.numbered_key(prefix, number), value))
        elif number != cursor.floor >> 10:  # the floor's own is written once it says more
            writes.append(Write(ACK, rows.numbered_key(prefix, number), None))
    cursor.done.dirty.clear()
    return writes


def _cursor_row(cursor: Cursor) -> CursorRow:
    return CursorRow(
        cursor.floor,
        cursor.reserved_next,
        cursor.epoch,
        cursor.oldest_boot if cursor.grace_bound else cursor.boot,
        cursor.dead_count,
        cursor.expired_count,
        cursor.lost_count,
    )


def _attempts_row(cursor: Cursor, offset: int) -> AttemptsRow | None:
    attempts = cursor.attempts.get(offset)
    if attempts is None:
        return None
    failures = REJECTED if cursor.dying.get(offset) == REJECTED else attempts.failures
    return AttemptsRow(failures, attempts.acquisitions, cursor.delays.ready_at(offset))


def restore(
    stored: StoredCursor,
    *,
    boot: int,
    end: int,
    log_start: int,
    now_ms: int,
    longest_lease_ms: int,
    most_failures: int,
    page: Page | None = None,
    is_log_cut: bool = False,
) -> Cursor:
    """Return the cursor that rows give, within the log as it was recovered.

    What lies at `end` or beyond is forgotten; then, and when `is_log_cut` says that this queue
    has lost its newest messages, the epoch is a new one, since an offset that is used again is
    another message. Such changes (`has_changes`) are written before anything is appended or
    delivered. What was maybe delivered is in grace: as far as the page says, or else the
    reserve, and until the longest lease has ended.
    """
    row = stored.row
    if page is not None and page.epoch != row.epoch:
        page = None
    delivered_to = row.reserved_next if page is None else max(page.next, row.floor)
    attempts = {at: each for at, each in stored.attempts.items() if row.floor <= at < end}
    is_cut = (
        is_log_cut
        or row.floor > end
        or (page is not None and page.next > end)
        or any(bits >> max(end - (number << 10), 0) for number, bits in stored.chunks.items())
        or any(at >= end for at in stored.attempts)
    )
    cursor = Cursor(boot=boot, floor=min(row.floor, end), end=end)
    cursor.epoch = row.epoch + is_cut
    cursor.done = DoneChunks.restore(min(row.floor, end), stored.chunks, end)
    cursor.next = max(cursor.floor, min(delivered_to, end))
    cursor.reserved_durable = max(cursor.floor, min(row.reserved_next, end))
    cursor.reserved_next = max(cursor.reserved_durable, cursor.next)
    cursor.oldest_boot = row.oldest_boot
    cursor.changes.is_cursor_dirty = True
    cursor.seen_below = cursor.next
    cursor.dead_count, cursor.expired_count, cursor.lost_count = row.dead, row.expired, row.lost
    for offset, each in attempts.items():
        if offset not in cursor.done:
            _restore_attempts(cursor, offset, each, now_ms, most_failures)
    cursor.changes.attempts |= stored.attempts.keys() - cursor.attempts.keys()
    if is_cut:
        cursor.changes.is_reset = True
        cursor.changes.attempts |= cursor.attempts.keys()
        cursor.done.dirty |= cursor.done.chunks().keys()
    else:
        # No lease can last longer from now on: the clock may have been set back since the page.
        latest_end_ms = now_ms + longest_lease_ms
        grace_end_ms = latest_end_ms if page is None else min(page.lease_end_ms, latest_end_ms)
        if grace_end_ms > now_ms:
            cursor.begin_grace(cursor.next, grace_end_ms)
    cursor.trim(log_start)
    return cursor


def _restore_attempts(
    cursor: Cursor, offset: int, row: AttemptsRow, now_ms: int, most_failures: int
) -> None:
    is_rejected = row.failures == REJECTED
    failures = 0 if is_rejected else row.failures
    cursor.attempts[offset] = Attempts(failures, row.acquisitions)
    if is_rejected or (most_failures and failures >= most_failures):
        cursor.dying[offset] = row.failures
    elif row.ready_at_ms > now_ms:
        cursor.delays.add(offset, row.ready_at_ms)
