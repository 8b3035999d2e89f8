"""Turn index entries and log blocks into the messages of a pull. Plain functions; no threads.

A pull takes whole batches where it can. It selects single rows only in its first and its last
batch, or for a filter. So a batch of a thousand messages costs about as much as a batch of one
message.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np

from holdfast.commitlog.errors import MISSING_SEGMENT, CorruptRecord
from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.index.consume_queue import ConsumeQueue, CqUnit
from holdfast.consumequeue.lost_ranges import LostRange, LostRanges, is_accepted, with_lost
from holdfast.consumequeue.reading.fetched import (
    MAX_SKIPPED_RANGES,
    BatchSlice,
    Fetched,
    MessageFilter,
    Piece,
    Wanted,
    message_sizes,
)
from holdfast.consumequeue.topics import QueueKey

#: A filtered pull ends after reading this many bytes of blocks; the next pull continues at its
#: `next_offset`.
MAX_SCAN_BYTES = 16 * 1024 * 1024
#: A filtered pull ends after about this time, because other requests wait.
MAX_SCAN_US = 20_000
#: A filter runs for about this time before it lets other threads run.
STEP_US = 500
#: If a batch cannot match because of its tag summary, only its index entry is read. Then the batch
#: counts as this many bytes.
SKIPPED_BATCH_BYTES = 128


class NeedsDisk(Exception):
    """A read on the event loop (a hot read) needs a block that is not in memory, or would take too
    long."""


ReadBlock = Callable[[CqUnit], Batch]
"""Returns the batch of an index entry; raises CorruptRecord, or NeedsDisk for a hot read."""


class Place(NamedTuple):
    """Where a read begins in its queue, and the queue's end and lost ranges at the time of the
    request."""

    key: QueueKey
    cq: ConsumeQueue
    offset: int
    max_offset: int
    lost: LostRanges = ()

    def nothing(self) -> Fetched:
        """Return the result of a read that delivers nothing."""
        return Fetched((), self.offset, self.cq.min_offset, self.max_offset, 0)

    def newest_only(self, wanted: Wanted) -> CqUnit | None:
        """Return the entry of the newest batch if a read gets exactly this batch, else None."""
        unit = self.cq.newest
        if (
            unit is None
            or unit.base_offset != self.offset
            or unit.end_offset != self.max_offset
            or unit.message_count > wanted.max_messages
            or unit.size > wanted.max_bytes
            or wanted.filter is not None
            or self.lost
        ):
            return None
        return unit

    def whole(self, batch: Batch) -> Fetched:
        """Return the result of a read that gets exactly this batch, up to the end of the queue."""
        end, rows = self.max_offset, range(len(batch))
        return Fetched([BatchSlice(batch, rows)], end, self.cq.min_offset, end, len(rows))


def collect(
    units: Iterable[CqUnit],
    read_block: ReadBlock,
    place: Place,
    wanted: Wanted,
    *,
    ahead: Fetched | None = None,
    gap_end: Callable[[CqUnit], int] = attrgetter("end_offset"),
    pause: Callable[[], None] = lambda: None,
) -> Fetched:
    """Return messages from `place` on, at most as many as `wanted` allows, but one message is
    always allowed. `units` must start with the entry that holds the place's offset, or, if `ahead`
    is given, with the entry that holds `ahead.next_offset`. `ahead` holds messages from the place
    on that were read before, within the limits.

    Damage is a damaged batch, or a gap in the index. The pull ends before damage. If there is
    damage at the place's offset itself, CorruptRecord is raised; its `next_offset` is the end of
    all adjacent damage. With `skip_corrupt` the pull continues after damage and reports the range
    in `skipped`. Ranges whose loss an operator has accepted (`holdfast repair --accept-loss`) are
    always skipped, and are reported in `skipped`, too.

    For an entry whose segment is missing, `gap_end` returns the offset in this queue where the next
    segment begins. `pause` is called about every STEP_US of filtering. NeedsDisk propagates.
    """
    key, cq, offset, max_offset, lost = place
    max_messages, max_bytes, message_filter, skip_corrupt, _, filter_end = wanted
    min_offset = cq.min_offset
    pieces: list[Piece] = []
    damage = _DamageSkipper(offset, skip_corrupt, lost)
    at, count, size, scanned = offset, 0, 0, 0
    if ahead is not None:
        pieces += ahead.pieces
        at, count, size = ahead.next_offset, ahead.message_count, ahead.block_bytes
        if at >= max_offset or count >= max_messages or size >= max_bytes:
            return Fetched(pieces, at, min_offset, max_offset, count)
    left_us = float(MAX_SCAN_US)
    for unit in units:
        if unit.base_offset >= max_offset or count >= max_messages or size >= max_bytes:
            break
        if unit.end_offset <= at:
            continue
        if damage.is_full or ((scanned > MAX_SCAN_BYTES or left_us <= 0) and at > offset):
            break
        if unit.base_offset > at:
            # The index has no entry between `at` and this entry, because the block was damaged.
            if not damage.skip(at, unit.base_offset, _no_block(unit.physical_offset)):
                break
            at = unit.base_offset
        if message_filter is not None and damage.start_error is None:
            if at >= filter_end:
                break
            may_match = message_filter.may_match(unit.tag_summary)
            scanned += unit.size if may_match else SKIPPED_BATCH_BYTES
            if scanned > MAX_SCAN_BYTES and at > offset:
                break
            if not may_match:
                at = unit.end_offset
                continue
        try:
            batch = verified(read_block(unit), unit, key)
        except CorruptRecord as error:
            scanned += unit.size
            end = unit.end_offset
            if error.reason == MISSING_SEGMENT:
                end = max(end, min(gap_end(unit), max_offset))
            if not damage.skip(at, end, error):
                break
            at = end
            continue
        if damage.start_error is not None:
            break
        first = at - unit.base_offset
        end = len(batch)
        rows: range | list[int] = range(first, end)
        if message_filter is not None:
            rows, end, cost_us = _match_rows(batch, first, message_filter, left_us, pause)
            left_us -= cost_us
        taken, taken_size = _fit_rows(
            batch, rows, max_messages - count, max_bytes - size, not pieces
        )
        if len(taken):
            pieces.append(BatchSlice(batch, taken))
            count += len(taken)
            size += taken_size
        if len(taken) < len(rows):
            at = unit.base_offset + rows[len(taken)]
            break
        at = unit.base_offset + end
        if end < len(batch):
            break
    else:
        # The index has no more entries before the queue's end: the log lost its last blocks.
        if at < max_offset and damage.skip(at, max_offset, _no_block(0)):
            at = max_offset
    if damage.start_error is not None:
        raise damage.start_error.ending_at(at) from damage.start_error
    return Fetched(pieces, at, min_offset, max_offset, count, damage.skipped)


class _DamageSkipper(msgspec.Struct):
    """Decides for one pull which damage is skipped, and records the skipped damage. `start_error`
    is the damage at the pull's first offset, if the pull may not skip it."""

    offset: int
    skip_corrupt: bool
    lost: LostRanges
    skipped: LostRanges = ()
    start_error: CorruptRecord | None = None

    @property
    def is_full(self) -> bool:
        """Whether this pull has skipped as many ranges as are allowed."""
        return len(self.skipped) >= MAX_SKIPPED_RANGES

    def skip(self, start: int, end: int, error: CorruptRecord) -> bool:
        """Return whether the pull continues after the damage from offset `start` to `end`. If
        `start_error` is set, it continues only to find the end of the damage."""
        if self.start_error is not None:
            return True
        accepted = is_accepted(self.lost, start, end)
        if accepted or self.skip_corrupt:
            found = LostRange(start, end, error.reason, accepted)
            self.skipped = with_lost(self.skipped, found)
            return True
        if start == self.offset:
            self.start_error = error
        return self.start_error is not None


def _no_block(physical_offset: int) -> CorruptRecord:
    return CorruptRecord(physical_offset, "missing-block", "no intact block")


def _match_rows(
    batch: Batch,
    first: int,
    message_filter: MessageFilter,
    left_us: float,
    pause: Callable[[], None],
) -> tuple[list[int], int, float]:
    """Match rows, starting with row `first`, for about `left_us`, but at least one row. Return the
    matching rows, the row after the last examined row, and the cost in microseconds."""
    row_us = filter_cost_us(message_filter, batch) / len(batch)
    end = min(len(batch), first + 1 + int(max(left_us, 0) / row_us))
    rows: list[int] = []
    step = 1 + int(STEP_US / row_us)
    for row in range(first, end, step):
        rows += message_filter.matching_rows(batch, row, min(row + step, end))
        pause()
    return rows, end, (end - first) * row_us


def _fit_rows(
    batch: Batch, rows: range | Sequence[int], max_messages: int, max_bytes: int, first: bool
) -> tuple[range | Sequence[int], int]:
    """Return the `rows` that fit the limits, and about how many bytes of text they have."""
    if len(rows) > max_messages:
        rows = rows[:max_messages]
    if len(rows) == 0:
        return rows, 0
    if isinstance(rows, range) and batch.header.total_size <= max_bytes:
        return rows, batch.header.total_size
    sizes = np.cumsum(message_sizes(batch)[np.asarray(rows)])
    fitting = int(np.searchsorted(sizes, max_bytes, side="right"))
    if fitting == 0 and first:
        fitting = 1
    return rows[:fitting], int(sizes[fitting - 1]) if fitting else 0


def filter_cost_us(message_filter: MessageFilter, batch: Batch) -> float:
    """Return about how many microseconds a filter takes for all messages of a batch."""
    header = batch.header
    text_bytes = header.key_bytes + header.tag_bytes + header.property_value_bytes
    return message_filter.cost_us(len(batch), text_bytes)


def verified(batch: Batch, unit: CqUnit, key: QueueKey) -> Batch:
    """Return the batch if it matches its index entry; otherwise raise CorruptRecord."""
    header = batch.header
    found = (header.topic_id, header.queue_id, header.base_offset, header.message_count)
    if found != (*key, unit.base_offset, unit.message_count):
        raise CorruptRecord(unit.physical_offset, "index-mismatch", f"holds {found}, not {key}")
    return batch


def first_match(
    units: Iterable[CqUnit],
    read_block: ReadBlock,
    key: QueueKey,
    start: int,
    end: int,
    message_filter: MessageFilter,
) -> int:
    """Return the first matching offset from `start` to before `end`, or `end` if none matches.

    A damaged batch counts as a match, so that a waiting pull is woken and reports the damage.
    """
    for unit in units:
        if unit.base_offset >= end:
            break
        if not message_filter.may_match(unit.tag_summary):
            continue
        try:
            batch = verified(read_block(unit), unit, key)
        except CorruptRecord:
            return max(start, unit.base_offset)
        first = max(start - unit.base_offset, 0)
        rows = message_filter.matching_rows(batch, first, min(len(batch), end - unit.base_offset))
        if len(rows):
            return unit.base_offset + rows[0]
    return end
