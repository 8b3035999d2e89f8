"""The columns of a table, and how fetched rows become its record batches. Pure.

The columns of a large block are used as they are, without a copy. Small blocks are joined, because
a record batch costs more time than the copy of some bytes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa

from holdfast.arrow.columns import HOLDFAST_COLUMNS
from holdfast.arrow.decoder import (
    TARGET_BYTES,
    arrow_schema,
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

    def _batches_of_blocks(self, part: BlockRows, queue: SourceQueue) -> Iterator[pa.RecordBatch]:
        blocks = part.blocks
        rows = select_tagged(blocks, select_rows(blocks, part.start, part.end), part.tags)
        for portion in cut_portions(blocks, rows, target_bytes=_portion_bytes(blocks)):
            yield self._build(partial(decode, blocks, portion, queue, tags=part.tags), queue)

    def _build(self, decode_columns: _Decode, queue: SourceQueue) -> pa.RecordBatch:
        decoded = decode_columns(self._columns)
        if "body" not in self._columns or self._body == "binary":
            return decoded
        try:
            bodies = convert_bodies(decoded["body"], self._body)
        except BadBody as error:
            offsets = decode_columns({"offset": HOLDFAST_COLUMNS["offset"]})
            offset = offsets["offset"][error.row].as_py()
            raise UndecodableBody(queue.topic, queue.queue, offset, error.reason) from error
        columns = [bodies if name == "body" else decoded[name] for name in self._columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _portion_bytes(blocks: BatchRun) -> int:
    """Return the size at which a record batch ends, at the end of a block."""
    if blocks.bodies is not blocks.buffer:
        return TARGET_BYTES  # the bodies are together already, so they are not copied
    is_large = len(blocks.buffer) >= ALONE_BYTES * len(blocks)
    return 1 if is_large else TARGET_BYTES
