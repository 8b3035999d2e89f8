"""A Python data source with one constant row. It shows the fixed cost of any Python source."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType


class EmptySource(DataSource):
    """One row, body = hello."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "empty"

    def schema(self) -> str:
        """Return the columns."""
        return "`body` binary"

    def reader(self, schema: StructType) -> "EmptyReader":
        """Return a reader."""
        return EmptyReader()


class EmptyReader(DataSourceReader):
    """Reads the row."""

    def partitions(self) -> list[InputPartition]:
        """Return one partition."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the row."""
        yield pa.RecordBatch.from_pydict({"body": pa.array([b"hello"], pa.binary())})
