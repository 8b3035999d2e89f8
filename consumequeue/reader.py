"""Turn index entries and log blocks into what a pull delivers. Plain functions; no threads.

A pull takes whole batches where it can and cuts rows only at its ends, so that a batch of a
thousand messages costs about what one costs.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol

import numpy as np

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.errors import MISSING_SEGMENT, CorruptRecord
from holdfast.consumequeue.consume_queue import CqUnit
from holdfast.consumequeue.fetched import BatchSlice, Fetched, Piece, message_sizes
from holdfast.consumequeue.lost_ranges import LostRange, LostRanges, is_accepted, with_lost
from holdfast.consumequeue.topics import QueueKey

#: Blocks that one filtered pull reads before it answers with how far it got.
MAX_SCAN_BYTES = 16 * 1024 * 1024
#: Ranges that one pull passes over before it answers: as many as fit a header.
MAX_SKIPPED_RANGES = 64
#: How long one filtered pull looks, about, before it answers with how far it got: others wait.
MAX_SCAN_US = 20_000
#: A filter is tried for about so long before others that want the interpreter get it.
STEP_US = 500
#: What a batch counts of that which its tag summary already rules out: a look at its entry.
PASSED_OVER_BYTES = 128


class MessageFilter(Protocol):
    """Which messages a pull wants."""

    def may_match(self, tag_summary: int) -> bool:
        """Return False when no message of a batch with this summary can match."""

    def cost_us(self, messages: int, text_bytes: int) -> float:
        """Return about how long matching so many messages takes, with so many bytes of keys,
        tags and property values in all."""

    def matching_rows(self, batch: Batch, start_row: int, end_row: int) -> Sequence[int]:
        """Return the rows from `start_row` to before `end_row` that match, ascending."""


class Wanted(NamedTuple):
    """What one read is to deliver: so many messages and bytes of texts, of those that a filter
    matches, and whether to go on behind damage."""

    max_messages: int
    max_bytes: int
    filter: MessageFilter | None = None
    skip_corrupt: bool = False

    def bounded(self, max_messages: int, max_bytes: int) -> "Wanted":
        """Return the same with other bounds."""
        return Wanted(max_messages, max_bytes, self.filter, self.skip_corrupt)


class NeedsDisk(Exception):
    """A hot read met a block that is not in memory, or more than the event loop should read."""


ReadBlock = Callable[[CqUnit], Batch]
"""Returns the batch of an index entry; raises CorruptRecord, or NeedsDisk for a hot read."""


def collect(
    units: Iterable[CqUnit],
    read_block: ReadBlock,
    key: QueueKey,
    offset: int,
    *,
    min_offset: int,
    max_offset: int,
    max_messages: int,
    max_bytes: int,
    message_filter: MessageFilter | None,
    skip_corrupt: bool = False,
    lost: LostRanges = (),
    ahead: Fetched | None = None,
    gap_end: Callable[[CqUnit], int] = attrgetter("end_offset"),
    pause: Callable[[], None] = lambda: None,
) -> Fetched:
    """Deliver from `offset` on: at most `max_messages`, and after the first one at most
    `max_bytes` of message texts; `units` start with the entry that holds `offset`.

    A damaged batch, or a gap where one was, ends the pull before it. At the very start its
    CorruptRecord passes through, with `next_offset` past all the damage that follows it at once.
    With `skip_corrupt` the pull goes on behind it, and says so in `skipped`; what is accepted of
    `lost` is always passed over so. `gap_end` tells for an entry whose segment is missing where
    the next segment begins in this queue. `pause` is called about every STEP_US of filtering.
    `ahead` is what was read already from `offset` on, within the bounds: then `units` start with
    the entry that holds its `next_offset`. NeedsDisk passes through.
    """
    pieces: list[Piece] = []
    passing = _Passing(offset, skip_corrupt, lost)
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
        if passing.is_full or ((scanned > MAX_SCAN_BYTES or left_us <= 0) and at > offset):
            break
        if unit.base_offset > at:
            # Nothing is indexed from `at` up to this entry: its block was damaged.
            if not passing.over(at, unit.base_offset, _no_block(unit.physical_offset)):
                break
            at = unit.base_offset
        if message_filter is not None and passing.met is None:
            may_match = message_filter.may_match(unit.tag_summary)
            scanned += unit.size if may_match else PASSED_OVER_BYTES
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
            if not passing.over(at, end, error):
                break
            at = end
            continue
        if passing.met is not None:
            break
        first = at - unit.base_offset
        end = len(batch)
        rows: range | list[int] = range(first, end)
        if message_filter is not None:
            row_us = filter_cost_us(message_filter, batch) / len(batch)
            end = min(end, first + 1 + int(max(left_us, 0) / row_us))
            left_us -= (end - first) * row_us
            rows = []
            step = 1 + int(STEP_US / row_us)
            for row in range(first, end, step):
                rows += message_filter.matching_rows(batch, row, min(row + step, end))
                pause()
        taken, taken_size = _take(batch, rows, max_messages - count, max_bytes - size, not pieces)
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
        # Nothing is indexed up to the queue's end: the log lost its tail.
        if at < max_offset and passing.over(at, max_offset, _no_block(0)):
            at = max_offset
    if passing.met is not None:
        raise passing.met.ending_at(at) from passing.met
    return Fetched(pieces, at, min_offset, max_offset, count, passing.skipped)


class _Passing:
    """What one pull does about the damage that it meets."""

    def __init__(self, offset: int, skip_corrupt: bool, lost: LostRanges) -> None:
        self._offset = offset
        self._skip_corrupt = skip_corrupt
        self._lost = lost
        self.skipped: LostRanges = ()
        self.met: CorruptRecord | None = None
        """The damage at the very start of a pull that may not pass it."""

    @property
    def is_full(self) -> bool:
        """Whether no more can be passed over in one pull."""
        return len(self.skipped) >= MAX_SKIPPED_RANGES

    def over(self, start: int, end: int, error: CorruptRecord) -> bool:
        """Return whether to go on behind the damage from offset `start` to `end`: to deliver
        what follows, or only to find where the damage that was met first ends."""
        if self.met is not None:
            return True
        accepted = is_accepted(self._lost, start, end)
        if accepted or self._skip_corrupt:
            found = LostRange(start, end, error.reason, accepted)
            self.skipped = with_lost(self.skipped, found)
            return True
        if start == self._offset:
            self.met = error
        return self.met is not None


def _no_block(physical_offset: int) -> CorruptRecord:
    return CorruptRecord(physical_offset, "missing-block", "no intact block")


def _take(
    batch: Batch, rows: range | Sequence[int], max_messages: int, max_bytes: int, first: bool
) -> tuple[range | Sequence[int], int]:
    """Return as many of `rows` as fit, and the bytes of their texts."""
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
    """Return about how long a filter takes for all messages of a batch."""
    header = batch.header
    text_bytes = header.key_bytes + header.tag_bytes + header.property_value_bytes
    return message_filter.cost_us(len(batch), text_bytes)


def verified(batch: Batch, unit: CqUnit, key: QueueKey) -> Batch:
    """Return the batch if it is the one that the index means."""
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
    """Return the first matching offset from `start` to before `end`, or `end`.

    A damaged batch counts as a match: the pull that it wakes will say so.
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
