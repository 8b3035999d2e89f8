"""Reading many small blocks of the log at once: those that lie near each other by one call of the
system, and all of them checked together.

Between a queue's blocks those of other queues may lie; what belongs is cut out of what was read.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.batch_run import BatchRun
from holdfast.commitlog.commit_log import CommitLog
from holdfast.commitlog.errors import CorruptBatch, CorruptRecord, UnknownFormatVersion

Int64s = npt.NDArray[np.int64]

#: Fewer blocks than this are decoded one by one: a run of them would cost more.
FEW = 24
#: A run has no more bytes, unless one block has.
MAX_RUN_BYTES = 1024 * 1024
#: Reading so many bytes that belong to others costs about what another call costs.
NEAR_BYTES = 8 * 1024
#: One call reads no more: what it brings beside the blocks that are wanted is memory.
MAX_EXTENT_BYTES = 1024 * 1024


def read_runs(
    log: CommitLog, physical_offsets: Int64s, sizes: Int64s
) -> Iterator[BatchRun | Batch]:
    """Yield the blocks at these ascending places of the log, small ones as runs of many, each of
    them proven by its checksums and its place. Ends before the first run or block that is
    damaged or gone, or cannot be read. For any thread; waits for the disk."""
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


def _pieces(
    starts: Int64s, ends: Int64s, within: tuple[int, int], most: int
) -> Iterator[tuple[int, int]]:
    """Cut elements that each begin and end so into pieces of at most `most`, unless one element
    alone is more. Yield from which element to before which each piece goes."""
    first, border = within
    while first < border:
        fitting = int(np.searchsorted(ends, starts[first] + most, side="right"))
        following = max(first + 1, min(border, fitting))
        yield first, following
        first = following


def _read(log: CommitLog, places: Int64s, sizes: Int64s) -> bytes:
    """Return the bytes of these blocks, one after another. Raises CorruptRecord."""
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
    """Read blocks that lie near each other by one call; return what belongs to them."""
    start, end = int(places[0]), int(ends[-1])
    data = log.read_bytes(start, end - start)
    if len(places) == 1:
        return data
    # Neighbours are cut out together.
    is_apart = places[1:] != ends[:-1]
    if not is_apart.any():
        return data
    starts = [0, *(places[1:][is_apart] - start).tolist()]
    stops = [*(ends[:-1][is_apart] - start).tolist(), end - start]
    return b"".join([data[at:stop] for at, stop in zip(starts, stops, strict=True)])
