"""Cut a partition's rows into windows: sections of consecutive rows. Each window is sent as one
batch per queue.

The cuts depend only on the partition's rows, not on Spark's record batches. So an attempt with the
same rows sends the same batches. The size of a window also depends a little on all rows before it.
So if an attempt has a different row, its later windows differ, too. The broker remembers only the
last few batches of a producer, but these batches then show the difference.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.commitlog.format.header_table import Int64s
from holdfast.spark.write.rows import row_weights


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive rows. `first_row` is the position of the first row in the partition."""

    first_row: int
    rows: pa.RecordBatch


#: The limits of a window are reduced by up to 1/_NARROWEST, in _STEPS steps.
_NARROWEST = 16
_STEPS = 4096


def cut_windows(
    batches: Iterable[pa.RecordBatch],
    *,
    max_rows: int,
    max_bytes: int,
    digest: Callable[[], int] = lambda: 0,
) -> Iterator[Window]:
    """Yield the rows of checked batches in windows within both limits, each of at least one row. A
    window ends before the first row that does not fit. `digest` is called before each window. It
    must return a number that depends on all rows of the earlier windows."""
    first_row = count = size = 0
    at_most_rows, at_most_bytes = _vary_limits(digest(), max_rows, max_bytes)
    parts: list[pa.RecordBatch] = []
    for batch in batches:
        ends = np.cumsum(row_weights(batch))
        at = 0
        while at < len(batch):
            taken = _count_fitting(ends, at, at_most_rows - count, at_most_bytes - size)
            if not taken and not count:
                taken = 1
            if taken:
                parts.append(batch.slice(at, taken))
                size += _size_between(ends, at, at + taken)
                count += taken
                at += taken
            if at < len(batch):
                yield Window(first_row, _concat_batches(parts))
                first_row, count, size = first_row + count, 0, 0
                parts = []
                at_most_rows, at_most_bytes = _vary_limits(digest(), max_rows, max_bytes)
    if parts:
        yield Window(first_row, _concat_batches(parts))


def _vary_limits(digest: int, *limits: int) -> Iterator[int]:
    """Yield the limits of a window, each reduced by an amount that depends on `digest`."""
    step = digest % _STEPS
    return (limit - limit * step // (_NARROWEST * _STEPS) for limit in limits)


def _count_fitting(ends: Int64s, at: int, rows: int, size: int) -> int:
    """Return how many rows from row `at` on may be taken: at most `rows`, and at most `size` bytes.
    `ends` are the running totals of the rows' sizes."""
    before = int(ends[at - 1]) if at else 0
    return max(0, min(int(np.searchsorted(ends, before + size, "right")) - at, rows))


def _size_between(ends: Int64s, start: int, end: int) -> int:
    return int(ends[end - 1]) - (int(ends[start - 1]) if start else 0)


def _concat_batches(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
