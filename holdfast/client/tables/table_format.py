"""The columns of a table, and how fetched rows become record batches or tables. Pure.

The columns of a large block are used as they are, without a copy. Small blocks are joined, because
a record batch costs more time than the copy of some bytes. In a table only the bodies are cut at
the ends of blocks, so smaller blocks than in record batches need no copy of their bodies.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa

from holdfast.arrow.columns import HOLDFAST_COLUMNS
from holdfast.arrow.decoder import (
    TARGET_BYTES,
    RowSelection,
    arrow_schema,
    body_chunks,
    cut_portions,
    decode,
    select_rows,
    select_tagged,
)
from holdfast.arrow.messages import decode_messages
from holdfast.client.errors import UndecodableBody
from holdfast.client.read.message import LoneMessage
from holdfast.client.tables.bodies import BadBody, BodyForm, body_type, convert_bodies
from holdfast.client.tables.rows import BlockRows, FetchedRows, SourceQueue
from holdfast.commitlog.format.batch_run import BatchRun

#: The columns of a table whose caller names none.
DEFAULT_COLUMNS = (
    *("queue", "offset", "key", "tag", "properties", "body"),
    *("born_timestamp", "store_timestamp"),
)
#: Blocks of at least this mean size become record batches of their own, without a copy. Below it,
#: joining is faster (300 MB in blocks of 300 KiB: 0.3 s of processor time against 0.5 s), above it
#: slower (500 MB in blocks of 1 MB: 1.3 s against 0.6 s).
ALONE_BYTES = 512 * 1024

#: In a table, the bodies of blocks of at least this mean size are not copied. An array costs as
#: much time as the copy of about 16 KiB, and a column of many arrays makes the work on it slower.
APART_BYTES = 32 * 1024

#: Returns the rows of a portion with these columns.
_Decode = Callable[[Mapping[str, str]], pa.RecordBatch]


class TableFormat:
    """The columns and the form of bodies that a caller chose. Raises ValueError for an unknown or
    repeated column, and for an unknown form of bodies."""

    def __init__(self, columns: Sequence[str] | None, body: BodyForm) -> None:
        names = DEFAULT_COLUMNS if columns is None else tuple(columns)
        for name in names:
            if name not in HOLDFAST_COLUMNS:
                known = ", ".join(HOLDFAST_COLUMNS)
                raise ValueError(f"there is no column {name!r}; the columns are {known}")
        if len(set(names)) < len(names):
            raise ValueError(f"a column is named twice in {', '.join(names)}")
        self._columns = {name: HOLDFAST_COLUMNS[name] for name in names}
        self._body = body
        schema = arrow_schema(self._columns)
        kind = body_type(body)
        if "body" in self._columns:
            schema = schema.set(schema.get_field_index("body"), pa.field("body", kind))
        #: The schema of every record batch.
        self.schema = schema

    def batches(self, fetched: FetchedRows) -> Iterator[pa.RecordBatch]:
        """Yield the rows as record batches. Raises CorruptBatch if a column's offsets do not fit
        its bytes, and UndecodableBody."""
        for part in fetched.parts:
            if isinstance(part, BlockRows):
                yield from self._batches_of_blocks(part, fetched.queue)
            elif len(part):
                found = [
                    {name: getattr(message, name) for name in LoneMessage.__struct_fields__}
                    for message in part
                ]
                yield self._build(partial(decode_messages, found, fetched.queue), fetched.queue)

    def tables(self, fetched: FetchedRows) -> Iterator[pa.Table]:
        """Yield the rows as tables. Raises what `batches` raises."""
        for part in fetched.parts:
            if isinstance(part, BlockRows) and self._may_use_bodies(part):
                rows = select_rows(part.blocks, part.start, part.end)
                if len(rows.block):
                    yield self._table_of_blocks(part.blocks, rows, fetched.queue)
            else:
                batches = self.batches(FetchedRows(fetched.queue, [part]))
                yield pa.Table.from_batches(batches, self.schema)

    def _may_use_bodies(self, part: BlockRows) -> bool:
        """Return whether the bodies of these rows are used where they lie, one array a block."""
        blocks = part.blocks
        is_large = len(blocks) > 0 and int(blocks.total_sizes.sum()) >= APART_BYTES * len(blocks)
        has_bodies = "body" in self._columns and not isinstance(self._body, pa.Schema)
        return is_large and has_bodies and not part.tags

    def _table_of_blocks(
        self, blocks: BatchRun, rows: RowSelection, queue: SourceQueue
    ) -> pa.Table:
        others = {name: ddl for name, ddl in self._columns.items() if name != "body"}
        decoded = decode(blocks, rows, queue, others)
        bodies = body_chunks(blocks, rows)
        if self._body != "binary":
            firsts = (blocks.base_offsets[rows.block] + rows.start).tolist()
            chunks = [
                self._convert(chunk, queue, first.__add__)
                for chunk, first in zip(bodies.chunks, firsts, strict=True)
            ]
            bodies = pa.chunked_array(chunks, self.schema.field("body").type)
        columns = [bodies if name == "body" else decoded[name] for name in self._columns]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _batches_of_blocks(self, part: BlockRows, queue: SourceQueue) -> Iterator[pa.RecordBatch]:
        blocks = part.blocks
        rows = select_tagged(blocks, select_rows(blocks, part.start, part.end), part.tags)
        for portion in cut_portions(blocks, rows, target_bytes=_portion_bytes(blocks)):
            yield self._build(partial(decode, blocks, portion, queue, tags=part.tags), queue)

    def _build(self, decode_columns: _Decode, queue: SourceQueue) -> pa.RecordBatch:
        decoded = decode_columns(self._columns)
        if "body" not in self._columns or self._body == "binary":
            return decoded

        def offset_of(row: int) -> int:
            offsets = decode_columns({"offset": HOLDFAST_COLUMNS["offset"]})
            return int(offsets["offset"][row].as_py())

        bodies = self._convert(decoded["body"], queue, offset_of)
        columns = [bodies if name == "body" else decoded[name] for name in self._columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _convert(
        self, bodies: pa.BinaryArray, queue: SourceQueue, offset_of: Callable[[int], int]
    ) -> pa.Array:
        """Return bodies in the wanted form. `offset_of` returns the offset of a row. Raises
        UndecodableBody."""
        try:
            return convert_bodies(bodies, self._body)
        except BadBody as error:
            offset = offset_of(error.row)
            raise UndecodableBody(queue.topic, queue.queue, offset, error.reason) from error


def _portion_bytes(blocks: BatchRun) -> int:
    """Return the size at which a record batch ends, at the end of a block."""
    if blocks.bodies is not blocks.buffer:
        return TARGET_BYTES  # the bodies are together already, so they are not copied
    is_large = len(blocks.buffer) >= ALONE_BYTES * len(blocks)
    return 1 if is_large else TARGET_BYTES
