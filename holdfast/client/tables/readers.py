"""Readers of record batches. The synchronous one is also a stream of Arrow data for libraries.

`to_table` reads everything. Both readers have the schema before they have read anything.
"""

import pyarrow as pa

from holdfast.client.read.readers import AsyncReader, Reader
from holdfast.client.read.sources import Source
from holdfast.client.tables.rows import FetchedRows
from holdfast.client.tables.table_format import TableFormat
from holdfast.client.transport.blocking_transport import BlockingTransport


class AsyncArrowReader(AsyncReader[pa.RecordBatch]):
    """The reader that `AsyncClient.iter_arrow` returns: iterate with `async for`."""

    def __init__(self, source: Source[FetchedRows], format: TableFormat) -> None:
        super().__init__(source, format.batches)
        self.format = format

    @property
    def schema(self) -> pa.Schema:
        return self.format.schema

    async def to_table(self) -> pa.Table:
        """Return all remaining rows as a table, and close the reader."""
        tables = [pa.Table.from_batches(self._current, self.schema)]
        self._current, self.items = iter(()), self.format.tables
        return pa.concat_tables([*tables, *[table async for table in self]])


class ArrowReader(Reader[pa.RecordBatch]):
    """The reader that `Client.iter_arrow` returns: iterate with `for`, or hand it to a library that
    takes streams of Arrow data (it has `__arrow_c_stream__`). Either way it is read once."""

    def __init__(
        self, source: Source[FetchedRows], format: TableFormat, transport: BlockingTransport
    ) -> None:
        super().__init__(source, format.batches, transport)
        self._format = format

    @property
    def schema(self) -> pa.Schema:
        return self._format.schema

    def to_table(self) -> pa.Table:
        """Return all remaining rows as a table, and close the reader."""
        tables = [pa.Table.from_batches(self._current, self.schema)]
        self._current, self._items = iter(()), self._format.tables
        return pa.concat_tables([*tables, *self])

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the remaining record batches as pyarrow's own kind of reader."""
        return pa.RecordBatchReader.from_batches(self.schema, self)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)
