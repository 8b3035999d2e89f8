"""The reference for a Spark write: a sink that gets rows as Arrow batches and only counts them."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType


@dataclass
class Counted(WriterCommitMessage):
    """The number of rows of one task."""

    rows: int


class CountingSink(DataSource):
    """`frame.write.format("counting_sink")`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "counting_sink"

    def writer(self, schema: StructType, overwrite: bool) -> "CountingWriter":
        """Return a writer."""
        return CountingWriter()


class CountingWriter(DataSourceArrowWriter):
    """Counts rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Return the number of rows."""
        return Counted(sum(map(len, iterator)))
