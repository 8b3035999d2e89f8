"""The yardstick of a Spark write: a sink that takes rows as Arrow and drops them."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType


@dataclass
class Counted(WriterCommitMessage):
    """How many rows one task had."""

    rows: int


class CountingSink(DataSource):
    """`frame.write.format("counting_sink")`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "counting_sink"

    def writer(self, schema: StructType, overwrite: bool) -> "CountingWriter":
        """Return a writer."""
        return CountingWriter()


class CountingWriter(DataSourceArrowWriter):
    """Counts rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Return how many rows there were."""
        return Counted(sum(map(len, iterator)))
