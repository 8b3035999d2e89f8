"""A partition's rows cut into windows, each of which is sent as a batch a queue.

Where a cut is depends on the rows alone, counted from the partition's first: never on how Spark
cut them into record batches. An attempt that is given the same rows again sends the same batches.
And one that is given other rows cuts otherwise from there on: how far a window reaches depends a
little on all that came before it. So what the broker still remembers, the last batches, tells
also of those that it does not remember any more.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.spark.write_rows import Int64s, row_weights


@dataclass(frozen=True, slots=True)
class Window:
    """Rows that follow each other; `first_row` counts from the partition's beginning."""

    first_row: int
    rows: pa.RecordBatch


#: A window may be smaller than its limits by up to one part in so many, in so many steps.
_NARROWEST = 16
_STEPS = 4096


def cut_windows(
    batches: Iterable[pa.RecordBatch],
    *,
    max_rows: int,
    max_bytes: int,
    digest: Callable[[], int] = lambda: 0,
) -> Iterator[Window]:
    """Yield the rows of checked batches in windows of at most so much, but one row at least.

    A window ends before the first row that does not fit. `digest` is asked before each for a
    number that stands for all rows before it.
    """
    first_row = count = size = 0
    at_most_rows, at_most_bytes = _narrowed(digest(), max_rows, max_bytes)
    parts: list[pa.RecordBatch] = []
    for batch in batches:
        ends = np.cumsum(row_weights(batch))
        at = 0
        while at < len(batch):
            taken = _fitting(ends, at, at_most_rows - count, at_most_bytes - size)
            if not taken and not count:
                taken = 1
            if taken:
                parts.append(batch.slice(at, taken))
                size += _between(ends, at, at + taken)
                count += taken
                at += taken
            if at < len(batch):
                yield Window(first_row, _joined(parts))
                first_row, count, size = first_row + count, 0, 0
                parts = []
                at_most_rows, at_most_bytes = _narrowed(digest(), max_rows, max_bytes)
    if parts:
        yield Window(first_row, _joined(parts))


def _narrowed(digest: int, *limits: int) -> Iterator[int]:
    """Yield the limits that a window has after rows of this digest."""
    step = digest % _STEPS
    return (limit - limit * step // (_NARROWEST * _STEPS) for limit in limits)


def _fitting(ends: Int64s, at: int, rows: int, size: int) -> int:
    """Return how many rows from `at` on fit into so many rows and bytes."""
    before = int(ends[at - 1]) if at else 0
    return max(0, min(int(np.searchsorted(ends, before + size, "right")) - at, rows))


def _between(ends: Int64s, start: int, end: int) -> int:
    return int(ends[end - 1]) - (int(ends[start - 1]) if start else 0)


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
