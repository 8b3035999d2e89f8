"""Read many small blocks of the log at once: one system call for blocks that are near each other,
and one verification for all blocks of a run.

Blocks of other queues may lie between the blocks of a queue; these are read too, and dropped.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from holdfast.commitlog.errors import CorruptBatch, CorruptRecord, UnknownFormatVersion
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.format.header_table import (
    Headers,
    count_leading_true,
    find_small_blocks,
    gather_headers,
)
from holdfast.commitlog.segments.commit_log import CommitLog

Int64s = npt.NDArray[np.int64]

#: Fewer blocks than this are decoded one by one, because that is cheaper than a BatchRun.
FEW = 24
#: The most bytes of a BatchRun, unless a single block is larger. To verify and merge a run takes up
#: to four times as much memory for a moment. Smaller runs cost more calls per message.
MAX_RUN_BYTES = 4 * 1024 * 1024
#: Reading this many unwanted bytes costs about as much as another system call.
NEAR_BYTES = 8 * 1024
#: The most bytes of one read, unless a single block is larger: unwanted bytes use memory too.
MAX_EXTENT_BYTES = 1024 * 1024


def read_runs(
    log: CommitLog, physical_offsets: Int64s, sizes: Int64s
) -> Iterator[BatchRun | Batch]:
    """Yield the blocks at these ascending physical offsets; many small blocks become one BatchRun.
    Each block is verified by its checksums and its physical offset.

    Stop before the first run or block that is damaged, deleted or unreadable. Any thread may call
    this; it waits for the disk."""
    try:
        ends = np.cumsum(sizes)
        for start, end in _pieces(ends - sizes, ends, (0, len(sizes)), MAX_RUN_BYTES):
            places, lengths = physical_offsets[start:end], sizes[start:end]
            if end - start < FEW:
                for place, size in zip(places.tolist(), lengths.tolist(), strict=True):
                    yield log.read_batch(place, size)
                continue
            run = BatchRun(_read(log, places, lengths))
            if not np.array_equal(run.field("physical_offset"), places):
                return
            yield run
    except (CorruptRecord, CorruptBatch, UnknownFormatVersion):
        return


def read_queue_runs(
    log: CommitLog,
    physical_offset: int,
    extent_bytes: int,
    queue: tuple[int, int],
    *,
    end_offset: int,
    max_bytes: int,
) -> Iterator[BatchRun]:
    """Yield consecutive small blocks of a queue (topic id, queue id), without their index entries.

    The first run begins with the block at `physical_offset`, which must belong to the queue. The
    runs have the blocks of the queue in the next `extent_bytes` bytes of the log, up to the first
    gap between queue offsets, up to `end_offset`, and at most `max_bytes` bytes. Each run is read
    with one call and has at least FEW blocks. Each block is verified by its checksums and its
    physical offset. Stop before a run that would have fewer blocks, or a block that is damaged,
    deleted or unreadable. Any thread may call this; it waits for the disk."""
    at, end, next_offset = physical_offset, physical_offset + extent_bytes, None
    while at < end:
        try:
            size = min(MAX_RUN_BYTES, end - at)
            data = log.read_bytes(at, size)
            starts, headers, data_end = _own_blocks(data, queue)
            if len(starts) < FEW or (next_offset is None and starts[0] != 0):
                return
            sizes, base_offsets = headers["total_size"].astype(np.int64), headers["base_offset"]
            ends = base_offsets + headers["message_count"].astype(np.int64)
            fits = (ends <= end_offset) & (np.cumsum(sizes) <= max_bytes)
            fits[1:] &= base_offsets[1:] == ends[:-1]
            fits[0] &= next_offset in (None, base_offsets[0])
            count = count_leading_true(fits)
            if count < FEW:
                return
            run = _run_of(data, starts[:count], headers[:count], sizes[:count])
            if not np.array_equal(run.field("physical_offset"), starts[:count] + at):
                return
        except (CorruptRecord, CorruptBatch, UnknownFormatVersion):
            return
        yield run
        if count < len(starts) or len(data) < size or at + size == end:
            return
        at, next_offset = at + data_end, int(ends[-1])
        max_bytes -= len(run.buffer)


def _own_blocks(data: bytes, queue: tuple[int, int]) -> tuple[Int64s, Headers, int]:
    """Return the positions and the headers of the small blocks of a queue in `data`, and the end of
    the last complete block of any queue."""
    starts = find_small_blocks(data)
    headers = gather_headers(data, starts)
    data_end = int(starts[-1]) + int(headers["total_size"][-1]) if len(starts) else 0
    is_own = (headers["topic_id"] == queue[0]) & (headers["queue_id"] == queue[1])
    if not is_own.all():
        starts, headers = starts[is_own], headers[is_own]
    return starts, headers, data_end


def _run_of(data: bytes, starts: Int64s, headers: Headers, sizes: Int64s) -> BatchRun:
    """Return these blocks of `data` as a run. Raise what BatchRun raises."""
    return BatchRun(
        _pick(data, starts, starts + sizes), positions=np.cumsum(sizes) - sizes, headers=headers
    )


def _pieces(
    starts: Int64s, ends: Int64s, within: tuple[int, int], most: int
) -> Iterator[tuple[int, int]]:
    """Group the elements `within` (first, end) into pieces that span at most `most` bytes, unless
    a single element is larger. Yield (first element, end) of each piece; `end` is excluded."""
    first, border = within
    while first < border:
        fitting = int(np.searchsorted(ends, starts[first] + most, side="right"))
        following = max(first + 1, min(border, fitting))
        yield first, following
        first = following


def _read(log: CommitLog, places: Int64s, sizes: Int64s) -> bytes:
    """Return the bytes of these blocks, one after another. Raise CorruptRecord."""
    ends = places + sizes
    segments = np.array([segment.start_offset for segment in log.segments], np.int64)
    is_apart = (places[1:] - ends[:-1] > NEAR_BYTES) | (
        np.diff(np.searchsorted(segments, places, side="right")) != 0
    )
    borders = [0, *(np.flatnonzero(is_apart) + 1).tolist(), len(places)]
    parts = [
        _cut_out(log, places[start:end], ends[start:end])
        for within in pairwise(borders)
        for start, end in _pieces(places, ends, within, MAX_EXTENT_BYTES)
    ]
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _cut_out(log: CommitLog, places: Int64s, ends: Int64s) -> bytes:
    """Read blocks that are near each other with one call; return only their bytes."""
    start, end = int(places[0]), int(ends[-1])
    return _pick(log.read_bytes(start, end - start), places - start, ends - start)


def _pick(data: bytes, starts: Int64s, ends: Int64s) -> bytes:
    """Return the bytes of these blocks in `data`, one after another."""
    # Adjacent blocks are copied together.
    is_apart = starts[1:] != ends[:-1]
    if not is_apart.any():
        return data[int(starts[0]) : int(ends[-1])]  # no copy if this is all of `data`
    firsts = [int(starts[0]), *starts[1:][is_apart].tolist()]
    stops = [*ends[:-1][is_apart].tolist(), int(ends[-1])]
    return b"".join([data[at:stop] for at, stop in zip(firsts, stops, strict=True)])
