"""Decode blocks of the log into Arrow record batches, whole columns at a time. Pure: no I/O, no
pyspark.

The columns of a block are used as Arrow buffers without conversion. Columns of several blocks are
joined. So the cost is per block and per byte, never per message. Spark accepts only the exact Arrow
schema that it expects: plain nullable types, and timestamps in microseconds UTC. Tables without
Spark have the same types. Timestamps are rounded down to milliseconds, as in the HTTP API, so that
reads with a filter (messages.py) give the same rows.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch import tag_summary, tags_code
from holdfast.commitlog.format.batch_header import BatchFlag, Buffer
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.format.header_table import Bools, Int64s

Int32s = npt.NDArray[np.int32]

#: The target size of a record batch. The JVM is fastest with 4 to 10 MB and tens of thousands of
#: rows.
TARGET_BYTES = 8 * 1024 * 1024
MAX_ROWS = 50_000

_BINARY = pa.binary()
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
#: Spark's DDL type -> the Arrow type that Spark requires for it.
ARROW_TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": _TIMESTAMP,
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "array<struct<key:string,value:binary>>": pa.list_(pa.field("element", _HEADER)),
}
LOG_APPEND_TIME = 1  # Kafka's timestampType for a time set by the broker


class SourceQueue(Protocol):
    """The queue that the messages are from, and facts about its topic."""

    @property
    def topic(self) -> str: ...

    @property
    def topic_id(self) -> int: ...

    @property
    def queue(self) -> int: ...

    @property
    def priority_levels(self) -> int | None: ...


class RowSelection(NamedTuple):
    """Selected rows of a BatchRun: for each i, rows [start[i], end[i]) of block number block[i]."""

    block: Int64s
    start: Int64s
    end: Int64s


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """Return the Arrow schema of the record batches with these columns."""
    return pa.schema([(name, ARROW_TYPES[ddl]) for name, ddl in columns.items()])


def select_rows(blocks: BatchRun, start_offset: int, end_offset: int) -> RowSelection:
    """Return the rows whose queue offsets lie in [start_offset, end_offset)."""
    start = np.maximum(start_offset - blocks.base_offsets, 0)
    end = np.minimum(end_offset - blocks.base_offsets, blocks.message_counts)
    block = np.flatnonzero(start < end)
    return RowSelection(block, start[block], end[block])


def select_tagged(blocks: BatchRun, rows: RowSelection, tags: Collection[str]) -> RowSelection:
    """Return the rows without those of blocks that certainly have none of these tags. If `tags` is
    empty, return all rows."""
    if not tags:
        return rows
    # `field` returns the unsigned 64-bit summary as an int64 with the same bits.
    wanted = np.uint64(tag_summary(map(tags_code, tags))).astype(np.int64)
    may_have = blocks.field("tag_summary")[rows.block] & wanted != 0
    return RowSelection(*(column[may_have] for column in rows))


def cut_portions(
    blocks: BatchRun,
    rows: RowSelection,
    *,
    target_bytes: int = TARGET_BYTES,
    max_rows: int = MAX_ROWS,
) -> Iterator[RowSelection]:
    """Cut rows into portions of at most `max_rows` rows. A portion also ends after the block in
    which it reaches `target_bytes`."""
    counts = rows.end - rows.start
    row_bytes = (blocks.total_sizes / blocks.message_counts)[rows.block]
    # Row numbers count from the first selected row. `ends` has the row number after each block.
    ends = np.cumsum(counts)
    sizes = np.cumsum(counts * row_bytes)
    total = int(counts.sum())
    first_row = 0
    while first_row < total:
        first = int(np.searchsorted(ends, first_row, "right"))
        bytes_before = sizes[first] - (ends[first] - first_row) * row_bytes[first]
        full = min(int(np.searchsorted(sizes, bytes_before + target_bytes)), len(ends) - 1)
        end_row = min(first_row + max_rows, int(ends[full]))
        last = int(np.searchsorted(ends, end_row))
        block, start, end = (column[first : last + 1].copy() for column in rows)
        start[0] = rows.end[first] - (ends[first] - first_row)
        end[-1] = rows.end[last] - (ends[last] - end_row)
        yield RowSelection(block, start, end)
        first_row = end_row


def body_chunks(blocks: BatchRun, rows: RowSelection) -> pa.ChunkedArray:
    """Return the bodies of the rows, one array for each block, without a copy: the arrays lie on
    the block, whose offsets are used as they are. Raises CorruptBatch if they do not fit."""
    whole, bodies = pa.py_buffer(blocks.buffer), pa.py_buffer(blocks.bodies)
    places = zip(
        blocks.message_counts[rows.block].tolist(),
        blocks.starts["body_offsets"][rows.block].tolist(),
        blocks.starts["bodies"][rows.block].tolist(),
        blocks.sizes["bodies"][rows.block].tolist(),
        rows.start.tolist(),
        rows.end.tolist(),
        strict=True,
    )
    chunks = []
    for count, offsets_at, bodies_at, body_bytes, start, end in places:
        buffers = [
            None,
            whole.slice(offsets_at, 4 * (count + 1)),
            bodies.slice(bodies_at, body_bytes),
        ]
        chunk = pa.Array.from_buffers(_BINARY, count, buffers, 0)
        chunks.append(chunk if end - start == count else chunk.slice(start, end - start))
    bodies = pa.chunked_array(chunks, _BINARY)
    try:
        bodies.validate(full=True)  # for binary columns: only the offsets
    except pa.ArrowInvalid as error:
        raise CorruptBatch("column-offsets", str(error)) from error
    return bodies


def decode(
    blocks: BatchRun,
    rows: RowSelection,
    source: SourceQueue,
    columns: Mapping[str, str],
    *,
    tags: frozenset[str] = frozenset(),
) -> pa.RecordBatch:
    """Return the rows as one record batch with these columns. If `tags` is not empty, return only
    rows with one of these tags. Raises CorruptBatch if a column's offsets do not fit its bytes."""
    portion = _Portion(blocks, rows, source)
    arrays = [_BUILDERS[name](portion, ARROW_TYPES[ddl]) for name, ddl in columns.items()]
    decoded = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))
    if not tags:
        return decoded
    wanted = pc.is_in(portion.tag(pa.string()), value_set=pa.array(sorted(tags), pa.string()))
    return decoded.filter(wanted)


class _Portion:
    """Rows of several blocks, as columns. Each public method builds one Arrow array."""

    def __init__(self, blocks: BatchRun, rows: RowSelection, source: SourceQueue) -> None:
        self._source = source
        self._blocks = blocks
        self._index, self._start = rows.block, rows.start
        self._counts = rows.end - rows.start
        self._count = int(self._counts.sum())

    @cached_property
    def _offsets(self) -> Int64s:
        """The queue offset of each row."""
        firsts = self._field("base_offset") + self._start
        if np.array_equal(firsts[1:], (firsts + self._counts)[:-1]):
            return np.arange(firsts[0], firsts[0] + self._count)
        return _ranges(firsts, self._counts)

    def topic(self, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(self._source.topic, kind), self._count)

    def queue(self, kind: pa.DataType) -> pa.Array:
        # numpy repeats numbers several times faster than pa.repeat.
        return pa.array(np.full(self._count, self._source.queue, np.int32), kind)

    def priority(self, kind: pa.DataType) -> pa.Array:
        """The priority level of the queue; null in a topic without priorities."""
        levels = self._source.priority_levels
        level = None if levels is None else self._source.queue % levels
        return pa.repeat(pa.scalar(level, kind), self._count)

    def offset(self, kind: pa.DataType) -> pa.Array:
        return pa.array(self._offsets, kind)

    def message_id(self, kind: pa.DataType) -> pa.Array:
        """Build the text of format_message_id for each row."""
        prefix = f"{self._source.topic_id:08X}{self._source.queue:08X}".encode()
        text = np.empty((self._count, 32), np.uint8)
        text[:, :16] = np.frombuffer(prefix, np.uint8)
        octets = self._offsets.astype(">u8").view(np.uint8).reshape(-1, 8)
        text[:, 16::2] = _HEX[octets >> 4]
        text[:, 17::2] = _HEX[octets & 15]
        ends = np.arange(0, 32 * self._count + 1, 32, dtype=np.int32)
        return _make_array(kind, self._count, [None, ends, text])

    def key(self, kind: pa.DataType) -> pa.Array:
        return self._optional_text(kind, "key_offsets", "keys", BatchFlag.KEYS)

    def tag(self, kind: pa.DataType) -> pa.Array:
        return self._optional_text(kind, "tag_offsets", "tags", BatchFlag.TAGS)

    def body(self, kind: pa.DataType) -> pa.Array:
        texts = self._texts("body_offsets", "bodies", self._index, self._start, self._counts)
        return _make_array(kind, self._count, [None, *texts])

    def _optional_text(
        self, kind: pa.DataType, offsets: str, data: str, flag: BatchFlag
    ) -> pa.Array:
        """Build a text column that some blocks may lack. An empty text becomes null."""
        present = self._blocks.has(flag)[self._index]
        if not present.any():
            return pa.nulls(self._count, kind)
        ends, texts = self._texts(
            offsets, data, self._index, self._start, np.where(present, self._counts, 0)
        )
        if not present.all():
            ends = _text_offsets(self._spread(np.diff(ends), present))
        return _make_array(kind, self._count, [_validity_bits(np.diff(ends) > 0), ends, texts])

    def properties(self, kind: pa.DataType) -> pa.Array:
        """Build maps. A message without properties has an empty map."""
        ends, names, values = self._entries(pa.string())
        fields = [kind.key_field, kind.item_field]
        entries = pa.StructArray.from_arrays([names, values], fields=fields)
        buffers = [None, _make_buffer(ends)]
        return pa.Array.from_buffers(kind, self._count, buffers, children=[entries])

    def headers(self, kind: pa.DataType) -> pa.Array:
        """Build lists. A message without properties has null, as in the Kafka connector."""
        ends, names, values = self._entries(pa.binary())
        entries = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
        buffers = [_make_buffer(_validity_bits(np.diff(ends) > 0)), _make_buffer(ends)]
        return pa.Array.from_buffers(kind, self._count, buffers, children=[entries])

    def _entries(self, value_kind: pa.DataType) -> tuple[Int32s, pa.Array, pa.Array]:
        """Return (offsets, names, values); message i has the properties from offsets[i] on."""
        present = self._blocks.has(BatchFlag.PROPERTIES)[self._index]
        counts = np.where(present, self._counts, 0)
        at = self._blocks.starts["property_list"][self._index] // 4 + self._start
        sizes, first, last = self._steps(at, counts)
        _check_within(first, last, self._field("property_count"))
        ends = _text_offsets(self._spread(sizes, present))
        columns = [
            self._texts(offsets, data, self._index, first, last - first)
            for offsets, data in (("name_offsets", "names"), ("value_offsets", "values"))
        ]
        names, values = (
            _make_array(kind, len(offsets) - 1, [None, offsets, data])
            for kind, (offsets, data) in zip((pa.string(), value_kind), columns, strict=True)
        )
        return ends, names, values

    def store_timestamp(self, kind: pa.DataType) -> pa.Array:
        stamps = self._timestamps("store_timestamp_us", "stored", BatchFlag.REBUILT)
        return _make_array(kind, self._count, [None, stamps])

    def born_timestamp(self, kind: pa.DataType) -> pa.Array:
        """Build timestamps. A stored time below 1 ms means "not given", and becomes null."""
        stamps = self._timestamps("born_timestamp_us", "born", BatchFlag.BORN)
        return _make_array(kind, self._count, [_validity_bits(stamps >= 1000), stamps])

    def timestamp_type(self, kind: pa.DataType) -> pa.Array:
        return pa.array(np.full(self._count, LOG_APPEND_TIME, np.int32), kind)

    # -- reading the blocks ------------------------------------------------------------------

    def _field(self, name: str) -> Int64s:
        field: Int64s = self._blocks.field(name)[self._index]
        return field

    def _timestamps(self, name: str, section: str, flag: BatchFlag) -> Int64s:
        """Return a time for each row, rounded down to milliseconds: from `section` for blocks with
        `flag`, otherwise the field `name` of the block's header."""
        stamps: Int64s = np.repeat(_round_to_milliseconds(self._field(name)), self._counts)
        own = self._blocks.has(flag)[self._index]
        if own.any():
            at = self._blocks.starts[section][self._index] // 8 + self._start
            words = np.frombuffer(self._blocks.buffer, "<i8", len(self._blocks.buffer) // 8)
            found = words[_ranges(at[own], self._counts[own])]
            stamps[np.repeat(own, self._counts)] = _round_to_milliseconds(found)
        return stamps

    def _spread(self, sizes: Int32s, present: Bools) -> Int32s:
        """Return a size for each row: `sizes` for blocks where `present` is true, otherwise 0."""
        if present.all():
            return sizes
        spread = np.zeros(self._count, np.int32)
        spread[np.repeat(present, self._counts)] = sizes
        return spread

    def _steps(self, at: Int64s, counts: Int64s) -> tuple[Int32s, Int64s, Int64s]:
        """Read `counts[i]` + 1 offsets from the int32 at `at[i]` on, for each i. Return the
        differences between neighbouring offsets, and the first and the last offset for each i."""
        words = np.frombuffer(self._blocks.buffer, "<i4")
        used = counts > 0
        runs = words[_ranges(at[used], counts[used] + 1)]
        borders = np.cumsum(counts[used] + 1)[:-1] - 1
        sizes = np.delete(np.diff(runs), borders)
        if bool(np.any(sizes < 0)):
            raise CorruptBatch("column-offsets", "they decrease")
        first = np.zeros(len(counts), np.int64)
        last = np.zeros(len(counts), np.int64)
        first[used] = words[at[used]]
        last[used] = words[(at + counts)[used]]
        return sizes, first, last

    def _texts(
        self, offsets: str, data: str, index: Int64s, start: Int64s, counts: Int64s
    ) -> tuple[Int32s, Any]:
        """Join `counts[i]` texts of block index[i], from text start[i] on, for each i. Return their
        Arrow offsets and their bytes."""
        at = self._blocks.starts[offsets][index] // 4 + start
        sizes, first, last = self._steps(at, counts)
        base = self._blocks.starts[data][index]
        _check_within(first, last, self._blocks.sizes[data][index])
        whole = self._blocks.bodies if data == "bodies" else self._blocks.buffer
        return _text_offsets(sizes), _join_pieces(whole, base + first, base + last)


#: Column -> its builder, for Holdfast's own schema and for the schema of Spark's Kafka connector.
_BUILDERS: Mapping[str, Callable[[_Portion, pa.DataType], pa.Array]] = {
    "topic": _Portion.topic,
    "queue": _Portion.queue,
    "partition": _Portion.queue,
    "priority": _Portion.priority,
    "offset": _Portion.offset,
    "message_id": _Portion.message_id,
    "key": _Portion.key,
    "tag": _Portion.tag,
    "properties": _Portion.properties,
    "headers": _Portion.headers,
    "body": _Portion.body,
    "value": _Portion.body,
    "born_timestamp": _Portion.born_timestamp,
    "store_timestamp": _Portion.store_timestamp,
    "timestamp": _Portion.store_timestamp,
    "timestampType": _Portion.timestamp_type,
}

_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def _ranges(starts: Int64s, counts: Int64s) -> Int64s:
    """Return one array: for each i, the `counts[i]` consecutive integers from `starts[i]` on."""
    before = np.cumsum(counts) - counts
    ranges: Int64s = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    return ranges


def _join_pieces(buffer: Buffer, starts: Int64s, ends: Int64s) -> pa.Buffer:
    """Join the pieces [starts[i], ends[i]) of `buffer`. If all pieces are adjacent, nothing is
    copied.

    The pieces are in ascending order and do not overlap. So the pieces and the gaps between them
    can be the texts of one Arrow array, and `take` of every second text copies only the pieces.
    """
    whole = pa.py_buffer(buffer)
    if np.array_equal(starts[1:], ends[:-1]):
        return whole.slice(int(starts[0]), int(ends[-1] - starts[0]))
    borders = np.stack((starts, ends), axis=1).astype(np.int32)
    pieces = _make_array(pa.binary(), borders.size - 1, [None, borders, whole])
    return pieces.take(pa.array(np.arange(0, borders.size, 2))).buffers()[2]


def _check_within(first: Int64s, last: Int64s, sizes: Int64s) -> None:
    """Raise CorruptBatch unless the offsets first[i] to last[i] are within sizes[i]."""
    if bool(np.any((first < 0) | (last > sizes))):
        raise CorruptBatch("column-offsets", "they are outside their column")


def _text_offsets(sizes: Int32s) -> Int32s:
    """Return the Arrow offsets of texts with these sizes."""
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    return ends


def _round_to_milliseconds(stamps_us: Int64s) -> Int64s:
    return stamps_us - stamps_us % 1000


def _validity_bits(present: Bools) -> npt.NDArray[np.uint8] | None:
    """Return Arrow's validity bits, or None if every value is present."""
    return None if bool(present.all()) else np.packbits(present, bitorder="little")


def _make_array(kind: pa.DataType, count: int, buffers: Sequence[Any]) -> pa.Array:
    """Return an Arrow array that uses `buffers` without a copy; the first has the validity bits."""
    return pa.Array.from_buffers(kind, count, [_make_buffer(buffer) for buffer in buffers])


def _make_buffer(data: Any) -> pa.Buffer | None:
    return None if data is None else pa.py_buffer(data)
