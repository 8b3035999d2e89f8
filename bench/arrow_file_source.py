"""The yardstick of a Spark scan: a data source whose rows lie ready in an Arrow IPC file.

It maps the file and yields its record batches as they lie, with nothing to fetch, to check or to
decode: what a scan through it takes is what Spark's Python Data Source API takes by itself. The
schema is that of the reader it is compared with.
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

#: As many tasks as the compared reader makes of a topic of a few queues, if there are as many
#: record batches.
TASKS = 8


class ArrowFileSource(DataSource):
    """`spark.read.format("arrow_file")`, with the options `file` and `columns` (Spark's DDL)."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "arrow_file"

    def schema(self) -> str:
        """Return what the option says."""
        return str(self.options["columns"])

    def reader(self, schema: StructType) -> "ArrowFileReader":
        """Return a reader of the file."""
        return ArrowFileReader(self.options["file"])


class ArrowFileReader(DataSourceReader):
    """Reads a file; pickled into every task."""

    def __init__(self, file: str) -> None:
        self._file = file

    def partitions(self) -> list[InputPartition]:
        """Return runs of record batches, about as long as one another."""
        with pa.memory_map(self._file) as mapped:
            count = pa.ipc.open_file(mapped).num_record_batches
        tasks = min(TASKS, count)
        borders = [count * task // tasks for task in range(tasks + 1)]
        return [InputPartition(pair) for pair in pairwise(borders)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of one run, laid over the mapped file."""
        first: Any
        first, end = partition.value
        reader = pa.ipc.open_file(pa.memory_map(self._file))
        for index in range(first, end):
            yield reader.get_batch(index)


def write_arrow_file(file: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """Write the record batches, cut as they come."""
    batches = iter(batches)
    first = next(batches)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)


def load_arrow_file(spark: SparkSession, file: Path, columns: str) -> DataFrame:
    """Return the rows of the file as a DataFrame; `columns` is their schema in Spark's DDL."""
    # The class travels whole: the workers need not find this module by its name.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(ArrowFileSource)
    return spark.read.format("arrow_file").options(file=str(file), columns=columns).load()
