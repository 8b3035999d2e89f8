"""A task of a batch or streaming read: it reads the rows of its partition's ranges."""

import gc
from collections.abc import Iterator
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from holdfast.spark.options.offsets import QueueRange
from holdfast.spark.options.read import ReadOptions
from holdfast.spark.read.reading import read_rows


class RangesPartition(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: tuple[QueueRange, ...]) -> None:
        super().__init__(ranges)


def read_partition(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition. Spark may pass a partition of None, which has no rows."""
    ranges: Any = partition.value
    yield from read_rows(ranges or (), options)
    if TaskContext.get() is not None:
        _freeze_modules()


@cache
def _freeze_modules() -> None:
    """Exclude all objects that exist now, mostly modules, from later garbage collections. Runs once
    per process: after its first task, because then all modules for reading are loaded.

    Spark's worker runs a full collection after each task. If this collection scans the modules, it
    takes 40 ms of CPU time, as much as passing 30 MB of rows to the JVM.
    """
    gc.collect()
    gc.freeze()
