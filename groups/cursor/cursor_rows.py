"""Makes the rows of a cursor to write after a change, and restores a cursor from its rows. Pure.

`take_writes` returns everything that changed since its last call. The caller writes it in one
transaction, so the rows on disk are always consistent. Leases are not in the rows but in the
progress page, and continue after a restart. Without a trusted page, all offsets that may have been
delivered are in grace, until the longest lease must have ended.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.groups.cursor import rows
from holdfast.groups.cursor.cursor import (
    BOOT_SHIFT,
    SETTLED_KEPT,
    Attempts,
    Changes,
    Cursor,
    End,
    Settlement,
    epoch_after,
)
from holdfast.groups.cursor.leases import Lease
from holdfast.groups.cursor.page_records import Progress
from holdfast.groups.cursor.rows import (
    ACK,
    ATT,
    CUR,
    DEAD,
    REJECTED,
    AttemptsRow,
    CursorRow,
    DeleteRange,
    SettledRow,
    Write,
)  # fmt: skip
from holdfast.groups.cursor.settled_offsets import SettledOffsets

_END_NUMBERS = {end: number for number, end in enumerate(End, 1)}
_ENDS = {number: end for end, number in _END_NUMBERS.items()}


@dataclass(slots=True)
class StoredCursor:
    """The rows of one cursor as they were read."""

    row: CursorRow
    chunks: dict[int, int] = field(default_factory=dict)
    attempts: dict[int, AttemptsRow] = field(default_factory=dict)
    settled: dict[int, SettledRow] = field(default_factory=dict)
    #: Whether there are `dead` rows of layout 1, which have no useful content.
    has_old_rows: bool = False


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
        writes += [rows.all_numbers(each, prefix) for each in (ACK, ATT, DEAD)]
    if changes.trimmed_below is not None:
        writes += [rows.all_numbers(each, prefix, changes.trimmed_below) for each in (ATT, DEAD)]
    if changes.are_settled_new and not changes.is_reset:
        writes.append(rows.all_numbers(DEAD, prefix))
    if changes.is_cursor_dirty or changes.is_reset:
        writes.append(Write(CUR, prefix, rows.encode_cursor(_cursor_row(cursor))))
    writes += _chunk_writes(cursor, prefix)
    for offset in sorted(changes.attempts):
        row = _attempts_row(cursor, offset)
        value = None if row is None else rows.encode_attempts(row)
        writes.append(Write(ATT, rows.numbered_key(prefix, offset), value))
    for offset in sorted(changes.settled):
        value = _settled_value(cursor.settled.get(offset))
        writes.append(Write(DEAD, rows.numbered_key(prefix, offset), value))
    return writes


def _chunk_writes(cursor: Cursor, prefix: bytes) -> list[Write]:
    writes = []
    for number in sorted(cursor.done.dirty):
        bits = cursor.done.chunk_to_write(number)
        if bits is not None:
            value = rows.encode_chunk(bits)
            writes.append(Write(ACK, rows.numbered_key(prefix, number), value))
        elif number != cursor.floor >> 10:  # the row of the floor's chunk may stay: it is harmless
            writes.append(Write(ACK, rows.numbered_key(prefix, number), None))
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
    failures = REJECTED if cursor.dying.get(offset) == REJECTED else attempts.failures
    return AttemptsRow(
        failures,
        attempts.acquisitions,
        cursor.delays.ready_at(offset),
        attempts.last_lease,
        0 if attempts.last_end is None else _END_NUMBERS[attempts.last_end],
        attempts.boot,
    )


def _settled_value(settled: Settlement | None) -> bytes | None:
    if settled is None or settled.end is End.DROPPED:
        return None
    row = SettledRow(settled.position, settled.lease, _END_NUMBERS[settled.end])
    return rows.encode_settled(row)


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

    `log_start` and `end` are the range of the queue in the recovered log. If the rows or the page
    contain offsets at `end` or beyond, these are ignored. In that case, or if `is_log_cut` says
    that the queue has lost its newest messages, the cursor gets a new epoch, because other messages
    will get the same offsets. The caller must write the cursor's changes before it appends or
    delivers messages.

    The leases of `page` continue; `page` must be of the rows' epoch. Without a page, all
    offsets below the reserve that are not done are in grace, until the longest lease must have
    ended.
    """
    row = stored.row
    attempts = {at: each for at, each in stored.attempts.items() if row.floor <= at < end}
    is_cut = (
        is_log_cut
        or row.floor > end
        or (page is not None and page.next > end)
        or any(bits >> max(end - (number << 10), 0) for number, bits in stored.chunks.items())
        or any(at >= end for at in stored.attempts)
    )
    delivered_to = row.reserved_next if page is None else max(page.next, row.floor)
    cursor = Cursor(boot=boot, floor=min(row.floor, end), end=end)
    cursor.epoch = epoch_after(row.epoch) if is_cut else row.epoch
    cursor.done = SettledOffsets.restore(min(row.floor, end), stored.chunks, end)
    cursor.next = max(cursor.floor, min(delivered_to, end))
    cursor.reserved_durable = max(cursor.floor, min(row.reserved_next, end))
    cursor.reserved_next = max(cursor.reserved_durable, cursor.next)
    cursor.oldest_boot = (page and page.oldest_boot) or row.oldest_boot
    cursor.changes.is_cursor_dirty = True
    cursor.dead_count, cursor.expired_count, cursor.lost_count = row.dead, row.expired, row.lost
    leases: dict[int, Lease] = {}
    if page is not None and not is_cut:
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
    if page is not None:
        cursor.grace_boot = page.grace_boot
        cursor.oldest_leased_boot = _oldest_boot(cursor, max(row.oldest_boot, page.grace_boot))
    seen_below = cursor.next if page is None or is_cut else min(page.seen_below, end)
    cursor.seen_below = seen_below if seen_below > cursor.floor else 0
    if is_cut:
        cursor.changes.is_reset = True
        cursor.changes.attempts |= cursor.attempts.keys()
        cursor.changes.settled |= cursor.settled.keys()
        cursor.done.dirty |= cursor.done.chunks().keys()
    elif page is None:
        cursor.begin_grace(cursor.next, latest_end_ms, boot)
    elif page.grace_end_ms > now_ms:
        bound = min(page.grace_bound, end)
        cursor.begin_grace(bound, min(page.grace_end_ms, latest_end_ms), min(page.grace_boot, boot))
    cursor.trim(log_start)
    return cursor


def _oldest_boot(cursor: Cursor, least: int) -> int:
    """Return the oldest boot that has a live lease. Leases of boots before `least` are ignored:
    after a power loss the page may have such a lease, although its grace has ended and its message
    was leased again."""
    boots = (lease.number >> BOOT_SHIFT for lease in cursor.leases)
    return min((boot for boot in boots if boot >= least), default=cursor.boot)


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
    last_end = _ENDS.get(row.last_end)
    cursor.attempts[offset] = Attempts(
        failures, row.acquisitions, row.last_lease, last_end, row.boot
    )
    if is_rejected or (most_failures and failures >= most_failures):
        cursor.dying[offset] = row.failures
    elif row.ready_at_ms > now_ms and not is_leased:
        cursor.delays.add(offset, row.ready_at_ms)


def _restore_lease(cursor: Cursor, lease: Lease, latest_end_ms: int) -> None:
    """Restore a lease; it expires at the first tick if its deadline has passed."""
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
