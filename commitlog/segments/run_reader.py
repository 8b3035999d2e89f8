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
    count_leading_true,
    find_small_blocks,
    gather_headers,
)
from holdfast.commitlog.segments.commit_log import CommitLog

Int64s = npt.NDArray[np.int64]

#: Fewer blocks than this are decoded one by one, because that is cheaper than a BatchRun.
FEW = 24
#: The most bytes of a BatchRun, unless a single block is larger.
MAX_RUN_BYTES = 1024 * 1024
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


def read_queue_run(
    log: CommitLog,
    physical_offset: int,
    extent_bytes: int,
    queue: tuple[int, int],
    *,
    end_offset: int,
    max_bytes: int,
) -> BatchRun | None:
    """Read consecutive small blocks of a queue (topic id, queue id), without their index entries.

    The run begins with the block at `physical_offset`, which must belong to the queue. It has the
    blocks of the queue in the next `extent_bytes` bytes of the log, up to the first gap between
    queue offsets, up to `end_offset`, and at most `max_bytes` bytes. Each block is verified by its
    checksums and its physical offset. Return None if there are fewer than FEW such blocks, or if
    one is damaged, deleted or unreadable. Any thread may call this; it waits for the disk."""
    try:
        data = log.read_bytes(physical_offset, extent_bytes)
        starts = find_small_blocks(data)
        headers = gather_headers(data, starts)
        is_own = (headers["topic_id"] == queue[0]) & (headers["queue_id"] == queue[1])
        if not is_own.all():
            starts, headers = starts[is_own], headers[is_own]
        if len(starts) < FEW or starts[0] != 0:
            return None
        sizes, base_offsets = headers["total_size"].astype(np.int64), headers["base_offset"]
        ends = base_offsets + headers["message_count"].astype(np.int64)
        fits = (ends <= end_offset) & (np.cumsum(sizes) <= max_bytes)
        fits[1:] &= base_offsets[1:] == ends[:-1]
        count = count_leading_true(fits)
        if count < FEW:
            return None
        starts, sizes = starts[:count], sizes[:count]
        positions = np.cumsum(sizes) - sizes
        run = BatchRun(_pick(data, starts, starts + sizes), positions=positions)
        if np.array_equal(run.field("physical_offset"), starts + physical_offset):
            return run
    except (CorruptRecord, CorruptBatch, UnknownFormatVersion):
        pass
    return None


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
