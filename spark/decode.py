"""Blocks of the log -> Arrow record batches, whole columns at a time. Pure: no I/O, no pyspark.

A block's columns are Arrow buffers as they lie; what several blocks hold is joined by column,
so that the cost is per block and per byte, never per message. Spark compares Arrow schemas
exactly: plain nullable types only, timestamps in microseconds UTC. They carry whole
milliseconds, as everywhere outside the log, so that a row looks the same by every way to it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commitlog.batch_header import BatchFlag, Buffer
from holdfast.commitlog.batch_run import BatchRun
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.header_table import Bools, Int64s
from holdfast.spark.offsets import QueueRange

Int32s = npt.NDArray[np.int32]

#: Size of a record batch: the JVM is fed best with 4 to 10 MB and some ten thousand rows.
TARGET_BYTES = 8 * 1024 * 1024
MAX_ROWS = 50_000

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
#: Spark's DDL type -> the Arrow type that Spark demands for it.
ARROW_TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": _TIMESTAMP,
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "array<struct<key:string,value:binary>>": pa.list_(pa.field("element", _HEADER)),
}
LOG_APPEND_TIME = 1  # Kafka's timestampType of a time that the broker set


class Rows(NamedTuple):
    """Rows [start[i], end[i]) of the block[i]-th block, for each i."""

    block: Int64s
    start: Int64s
    end: Int64s


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """Return the Arrow schema of the record batches with these columns."""
    return pa.schema([(name, ARROW_TYPES[ddl]) for name, ddl in columns.items()])


def cut(blocks: BatchRun, start_offset: int, end_offset: int) -> Rows:
    """Return the rows whose queue offsets lie in [start_offset, end_offset)."""
    start = np.maximum(start_offset - blocks.base_offsets, 0)
    end = np.minimum(end_offset - blocks.base_offsets, blocks.message_counts)
    block = np.flatnonzero(start < end)
    return Rows(block, start[block], end[block])


def portion(
    blocks: BatchRun,
    rows: Rows,
    *,
    target_bytes: int = TARGET_BYTES,
    max_rows: int = MAX_ROWS,
) -> Iterator[Rows]:
    """Cut rows into portions of at most `max_rows`, each closed by the block that brings it to
    `target_bytes`."""
    counts = rows.end - rows.start
    row_bytes = (blocks.total_sizes / blocks.message_counts)[rows.block]
    ends = np.cumsum(counts)  # counted from the first of all rows, as `at` and `until` are
    sizes = np.cumsum(counts * row_bytes)
    total = int(counts.sum())
    at = 0
    while at < total:
        first = int(np.searchsorted(ends, at, "right"))
        passed_bytes = sizes[first] - (ends[first] - at) * row_bytes[first]
        full = min(int(np.searchsorted(sizes, passed_bytes + target_bytes)), len(ends) - 1)
        until = min(at + max_rows, int(ends[full]))
        last = int(np.searchsorted(ends, until))
        block, start, end = (column[first : last + 1].copy() for column in rows)
        start[0] = rows.end[first] - (ends[first] - at)
        end[-1] = rows.end[last] - (ends[last] - until)
        yield Rows(block, start, end)
        at = until


def decode(
    blocks: BatchRun,
    rows: Rows,
    source: QueueRange,
    columns: Mapping[str, str],
    *,
    tags: frozenset[str] = frozenset(),
) -> pa.RecordBatch:
    """Return the rows as one record batch of these columns, with `tags` only those that fit.

    Raises CorruptBatch when a column's offsets do not fit its bytes.
    """
    portion = _Portion(blocks, rows, source)
    arrays = [_BUILDERS[name](portion, ARROW_TYPES[ddl]) for name, ddl in columns.items()]
    decoded = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))
    if not tags:
        return decoded
    wanted = pc.is_in(portion.tag(pa.string()), value_set=pa.array(sorted(tags), pa.string()))
    return decoded.filter(wanted)


class _Portion:
    """Rows of several blocks seen as columns; each public method makes one Arrow array."""

    def __init__(self, blocks: BatchRun, rows: Rows, source: QueueRange) -> None:
        self._source = source
        self._blocks = blocks
        self._index, self._start = rows.block, rows.start
        self._counts = rows.end - rows.start
        self._count = int(self._counts.sum())

    @cached_property
    def _offsets(self) -> Int64s:
        """Queue offsets."""
        return _ranges(self._field("base_offset") + self._start, self._counts)

    def topic(self, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(self._source.topic, kind), self._count)

    def queue(self, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(self._source.queue, kind), self._count)

    def priority(self, kind: pa.DataType) -> pa.Array:
        """The level that the queue is for; null in a topic without levels."""
        levels = self._source.priority_levels
        level = None if levels is None else self._source.queue % levels
        return pa.repeat(pa.scalar(level, kind), self._count)

    def offset(self, kind: pa.DataType) -> pa.Array:
        return pa.array(self._offsets, kind)

    def message_id(self, kind: pa.DataType) -> pa.Array:
        """What format_message_id gives for each row."""
        prefix = f"{self._source.topic_id:08X}{self._source.queue:08X}".encode()
        text = np.empty((self._count, 32), np.uint8)
        text[:, :16] = np.frombuffer(prefix, np.uint8)
        octets = self._offsets.astype(">u8").view(np.uint8).reshape(-1, 8)
        text[:, 16::2] = _HEX[octets >> 4]
        text[:, 17::2] = _HEX[octets & 15]
        ends = np.arange(0, 32 * self._count + 1, 32, dtype=np.int32)
        return _array(kind, self._count, [None, ends, text])

    def key(self, kind: pa.DataType) -> pa.Array:
        return self._optional_text(kind, "key_offsets", "keys", BatchFlag.KEYS)

    def tag(self, kind: pa.DataType) -> pa.Array:
        return self._optional_text(kind, "tag_offsets", "tags", BatchFlag.TAGS)

    def body(self, kind: pa.DataType) -> pa.Array:
        offsets, data = self._texts(
            "body_offsets", "bodies", self._index, self._start, self._counts
        )
        return _array(kind, self._count, [None, offsets, data])

    def _optional_text(
        self, kind: pa.DataType, offsets: str, data: str, flag: BatchFlag
    ) -> pa.Array:
        """A text column that a block may lack, and in which empty means none."""
        present = self._blocks.has(flag)[self._index]
        if not present.any():
            return pa.nulls(self._count, kind)
        ends, texts = self._texts(
            offsets, data, self._index, self._start, np.where(present, self._counts, 0)
        )
        if not present.all():
            ends = _running(self._spread(np.diff(ends), present))
        return _array(kind, self._count, [_bitmap(np.diff(ends) > 0), ends, texts])

    def properties(self, kind: pa.DataType) -> pa.Array:
        """Maps, empty where a message has none."""
        ends, names, values = self._entries(pa.string())
        entries = pa.StructArray.from_arrays(
            [names, values], fields=[kind.key_field, kind.item_field]
        )
        return pa.Array.from_buffers(
            kind, self._count, [None, pa.py_buffer(ends)], children=[entries]
        )

    def headers(self, kind: pa.DataType) -> pa.Array:
        """Lists, null where a message has none, as the Kafka connector gives them."""
        ends, names, values = self._entries(pa.binary())
        entries = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
        validity = _buffer(_bitmap(np.diff(ends) > 0))
        return pa.Array.from_buffers(
            kind, self._count, [validity, pa.py_buffer(ends)], children=[entries]
        )

    def _entries(self, value_kind: pa.DataType) -> tuple[Int32s, pa.Array, pa.Array]:
        """Return where each message's properties end, and all their names and values."""
        present = self._blocks.has(BatchFlag.PROPERTIES)[self._index]
        counts = np.where(present, self._counts, 0)
        at = self._blocks.starts["property_list"][self._index] // 4 + self._start
        sizes, first, last = self._steps(at, counts)
        _check_within(first, last, self._field("property_count"))
        ends = _running(self._spread(sizes, present))
        columns = [
            self._texts(offsets, data, self._index, first, last - first)
            for offsets, data in (("name_offsets", "names"), ("value_offsets", "values"))
        ]
        names, values = (
            _array(kind, len(offsets) - 1, [None, offsets, data])
            for kind, (offsets, data) in zip((pa.string(), value_kind), columns, strict=True)
        )
        return ends, names, values

    def store_timestamp(self, kind: pa.DataType) -> pa.Array:
        stamps = _whole_milliseconds(self._field("store_timestamp_us"))
        return _array(kind, self._count, [None, np.repeat(stamps, self._counts)])

    def born_timestamp(self, kind: pa.DataType) -> pa.Array:
        """Null where the producer gave no time (0, in the milliseconds that are shown)."""
        stamps = np.repeat(self._field("born_timestamp_us"), self._counts)
        own = self._blocks.has(BatchFlag.BORN)[self._index]
        if own.any():
            at = self._blocks.starts["born"][self._index] // 8 + self._start
            words = np.frombuffer(self._blocks.buffer, "<i8")
            stamps[np.repeat(own, self._counts)] = words[_ranges(at[own], self._counts[own])]
        present = _bitmap(stamps >= 1000)
        return _array(kind, self._count, [present, _whole_milliseconds(stamps)])

    def timestamp_type(self, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(LOG_APPEND_TIME, kind), self._count)

    # -- reading the blocks ------------------------------------------------------------------

    def _field(self, name: str) -> Int64s:
        field: Int64s = self._blocks.field(name)[self._index]
        return field

    def _spread(self, sizes: Int32s, present: Bools) -> Int32s:
        """Return sizes of all rows, given those of the rows of the present blocks."""
        if present.all():
            return sizes
        spread = np.zeros(self._count, np.int32)
        spread[np.repeat(present, self._counts)] = sizes
        return spread

    def _steps(self, at: Int64s, counts: Int64s) -> tuple[Int32s, Int64s, Int64s]:
        """Read `counts[i]` + 1 offsets from the int32 at `at[i]` on, for each i.

        Return the sizes they give, and the first and the last offset of each run.
        """
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
        """Join `counts[i]` texts from the start[i]-th on of the index[i]-th block, for each i."""
        at = self._blocks.starts[offsets][index] // 4 + start
        sizes, first, last = self._steps(at, counts)
        base = self._blocks.starts[data][index]
        _check_within(first, last, self._blocks.sizes[data][index])
        whole = self._blocks.bodies if data == "bodies" else self._blocks.buffer
        return _running(sizes), _joined(whole, base + first, base + last)


#: Column -> what builds it, for both schemas: Kafka's names mean the same things.
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
    """Return counts[i] whole numbers from starts[i] up, for each i, one after another."""
    before = np.cumsum(counts) - counts
    ranges: Int64s = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    return ranges


def _joined(buffer: Buffer, starts: Int64s, ends: Int64s) -> pa.Buffer:
    """Return the pieces [starts[i], ends[i]) of `buffer`, one after another; what lies so already
    is not copied.

    They lie in order, apart from one another: so they and the gaps between them are the texts of an
    Arrow array as they lie, from which Arrow takes every other one.
    """
    whole = pa.py_buffer(buffer)
    if np.array_equal(starts[1:], ends[:-1]):
        return whole.slice(int(starts[0]), int(ends[-1] - starts[0]))
    borders = np.stack((starts, ends), axis=1).astype(np.int32)
    pieces = _array(pa.binary(), borders.size - 1, [None, borders, whole])
    return pieces.take(pa.array(np.arange(0, borders.size, 2))).buffers()[2]


def _check_within(first: Int64s, last: Int64s, sizes: Int64s) -> None:
    """Check that ascending offsets, from first[i] to last[i], lie within what they cut."""
    if bool(np.any((first < 0) | (last > sizes))):
        raise CorruptBatch("column-offsets", "they lie outside their column")


def _running(sizes: Int32s) -> Int32s:
    """Return Arrow offsets of texts of these sizes."""
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    return ends


def _whole_milliseconds(stamps_us: Int64s) -> Int64s:
    return stamps_us - stamps_us % 1000


def _bitmap(present: Bools) -> npt.NDArray[np.uint8] | None:
    """Return Arrow's validity bits, None when everything is present."""
    return None if bool(present.all()) else np.packbits(present, bitorder="little")


def _array(kind: pa.DataType, count: int, buffers: Sequence[Any]) -> pa.Array:
    """Return an Arrow array laid over `buffers`, the first of which is the validity."""
    return pa.Array.from_buffers(kind, count, [_buffer(buffer) for buffer in buffers])


def _buffer(data: Any) -> pa.Buffer | None:
    return None if data is None else pa.py_buffer(data)
