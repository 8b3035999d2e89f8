"""What a task of a read is, whether a batch or a stream planned it: its ranges in, rows out."""

import gc
from collections.abc import Iterator
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from holdfast.spark.offsets import QueueRange
from holdfast.spark.options import ReadOptions
from holdfast.spark.reading import read_rows


class RangesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: tuple[QueueRange, ...]) -> None:
        super().__init__(ranges)


def read_partition(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition; none for the partition of None that Spark makes up."""
    ranges: Any = partition.value
    yield from read_rows(ranges or (), options)
    if TaskContext.get() is not None:
        _settle_worker()


@cache
def _settle_worker() -> None:
    """Leave what this worker has loaded out of later garbage collections. Once a process, behind
    the first task that has read all that it was to: what only reading needs is loaded by then.

    Spark's worker collects all garbage after each task, and what it then looks through is modules:
    40 ms of processor time a task, as much as it takes to hand 30 MB of rows to the JVM.
    """
    gc.collect()
    gc.freeze()
