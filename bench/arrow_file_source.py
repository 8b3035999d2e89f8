"""The reference for a Spark scan: a data source that reads ready rows from an Arrow IPC file.

It maps the file into memory and yields its record batches unchanged, without fetching, checking or
decoding them. So the time of a scan is the cost of Spark's Python Data Source API itself. The
schema is that of the reader with which it is compared.
"""

import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

#: At most this many tasks: as many as the compared reader creates for a topic of a few queues.
TASKS = 8


class ArrowFileSource(DataSource):
    """`spark.read.format("arrow_file")`, with the options `file` and `columns` (Spark's DDL)."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "arrow_file"

    def schema(self) -> str:
        """Return the schema from the option `columns`."""
        return str(self.options["columns"])

    def reader(self, schema: StructType) -> "ArrowFileReader":
        """Return a reader of the file."""
        return ArrowFileReader(self.options["file"])


class ArrowFileReader(DataSourceReader):
    """Reads a file. Spark pickles this object into every task."""

    def __init__(self, file: str) -> None:
        self._file = file

    def partitions(self) -> list[InputPartition]:
        """Return ranges of record batches with about the same length."""
        with pa.memory_map(self._file) as mapped:
            count = pa.ipc.open_file(mapped).num_record_batches
        tasks = min(TASKS, count)
        borders = [count * task // tasks for task in range(tasks + 1)]
        return [InputPartition(pair) for pair in pairwise(borders)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of one range, directly from the mapped file."""
        first: Any
        first, end = partition.value
        reader = pa.ipc.open_file(pa.memory_map(self._file))
        for index in range(first, end):
            yield reader.get_batch(index)


def write_arrow_file(file: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """Write the record batches unchanged."""
    batches = iter(batches)
    first = next(batches)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)


def load_arrow_file(spark: SparkSession, file: Path, columns: str) -> DataFrame:
    """Return the rows of the file as a DataFrame; `columns` is their schema in Spark's DDL."""
    # The class is pickled by value, because the workers cannot import this module by name.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(ArrowFileSource)
    return spark.read.format("arrow_file").options(file=str(file), columns=columns).load()
