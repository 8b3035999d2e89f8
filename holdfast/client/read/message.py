"""Messages as a reader returns them. The body is decoded immediately, other fields on access. Pure.

A Message has three fields: its body, a reference to the columns of its batch or run, and its row.
Nothing else is created before an attribute is read, so a reader can handle millions of messages per
second. The disadvantage: while a program keeps a Message, the whole fetched range stays in memory.
This does not happen if the program keeps only the `body`, or a pickled Message.
"""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, repeat
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_header import Buffer
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.format.header_table import Int64s
from holdfast.commitlog.format.message_id import format_message_id, parse_message_id


class Message(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One message, as a client reads it. `body` holds the published bytes; a missing key or tag
    is None.

    Two Messages are equal if they have the same topic and message id.
    """

    body: bytes
    _columns: "LoneMessage | MessageBatch | RunColumns"
    _row: int

    @property
    def topic(self) -> str:
        return self._columns.topic

    @property
    def queue(self) -> int:
        return self._columns.queue

    @property
    def offset(self) -> int:
        return self._columns.offset_of(self._row)

    @property
    def message_id(self) -> str:
        """The id by which `client.message(...)` returns this message again."""
        columns = self._columns
        return format_message_id(columns.topic_id, columns.queue, columns.offset_of(self._row))

    @property
    def key(self) -> str | None:
        """The key, by which the queue is chosen; None if the message has none."""
        return self._columns.keys[self._row]

    @property
    def tag(self) -> str | None:
        """The tag, by which pulls can filter; None if the message has none."""
        return self._columns.tags[self._row]

    @property
    def properties(self) -> dict[str, str]:
        """The properties; each access returns a new dict."""
        return dict(self._columns.properties_of(self._row))

    @property
    def born_timestamp_ms(self) -> int:
        """When the producer created the message, by the producer's clock."""
        return self._columns.born_timestamp_ms_of(self._row)

    @property
    def store_timestamp_ms(self) -> int:
        """When the broker stored the message. This time never decreases within a queue."""
        return self._columns.store_timestamp_ms_of(self._row)

    @property
    def text(self) -> str:
        """The body as text. Raises UnicodeDecodeError when it is not UTF-8."""
        return str(self.body, "utf-8")

    def json(self) -> Any:
        """Return the body, decoded from JSON. Raises ValueError when it is not JSON."""
        return msgspec.json.decode(self.body)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as in the HTTP API's JSON: `body` if the body is UTF-8, otherwise
        `body_base64`."""
        fields: dict[str, Any] = {
            name: getattr(self, name) for name in LoneMessage.__struct_fields__ if name != "body"
        }
        try:
            fields["body"] = self.text
        except UnicodeDecodeError:
            fields["body_base64"] = b64encode(self.body).decode("ascii")
        return fields

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return self.topic == other.topic and self.message_id == other.message_id

    def __hash__(self) -> int:
        return hash((self._columns.topic_id, self._columns.queue, self.offset))

    def __repr__(self) -> str:
        body = self.body if len(self.body) <= 64 else self.body[:61] + b"..."
        return (
            f"Message(topic={self.topic!r}, queue={self.queue}, offset={self.offset}, "
            f"key={self.key!r}, tag={self.tag!r}, body={body!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        alone = LoneMessage(**{name: getattr(self, name) for name in LoneMessage.__struct_fields__})
        return Message, (self.body, alone, 0)


class LoneMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A single message in the form in which the API sends it. A Message uses a LoneMessage like the
    columns of a batch: a LoneMessage has one row, and its methods ignore the argument `row`."""

    topic: str
    queue: int
    offset: int
    message_id: str
    body: bytes
    key: str | None
    tag: str | None
    properties: dict[str, str]
    born_timestamp_ms: int
    store_timestamp_ms: int

    @property
    def topic_id(self) -> int:
        """The topic's number, decoded from the message id."""
        return parse_message_id(self.message_id)[0]

    @property
    def keys(self) -> Sequence[str | None]:
        return (self.key,)

    @property
    def tags(self) -> Sequence[str | None]:
        return (self.tag,)

    def offset_of(self, row: int) -> int:
        return self.offset

    def properties_of(self, row: int) -> Mapping[str, str]:
        return self.properties

    def born_timestamp_ms_of(self, row: int) -> int:
        return self.born_timestamp_ms

    def store_timestamp_ms_of(self, row: int) -> int:
        return self.store_timestamp_ms

    def as_message(self) -> "Message":
        """Return a Message that takes its fields from this object."""
        return Message(self.body, self, 0)


@dataclass(frozen=True, slots=True)
class MessageList:
    """Messages of one queue, in order, that a filter has selected. The broker sends such messages
    as single messages, not in batches."""

    queue: int
    messages: Sequence[Message]

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def until(self, end_offset: int) -> Self:
        """Return a copy that ends before `end_offset`."""
        kept = [message for message in self.messages if message.offset < end_offset]
        return type(self)(self.queue, kept)


class Messages(msgspec.Struct):
    """A reply that lists single messages."""

    messages: list[LoneMessage]


class MessageBatch:
    """Messages of one queue that were stored together in one batch, or a part of that batch.

    Iterating yields Message objects. For array processing, `batch` holds the columns of the whole
    batch as numpy arrays and buffers; only rows `start_row` (inclusive) to `end_row` (exclusive)
    belong to this object.
    """

    def __init__(self, topic: str, batch: Batch, start_row: int, end_row: int) -> None:
        header = batch.header
        self.topic = topic
        self.topic_id = header.topic_id
        self.queue = header.queue_id
        self.batch = batch
        self.start_row = start_row
        self.end_row = end_row
        self.base_offset = header.base_offset
        self.store_timestamp_ms = header.store_timestamp_us // 1000

    def __len__(self) -> int:
        return self.end_row - self.start_row

    def __iter__(self) -> Iterator[Message]:
        bodies = self.bodies
        if len(self) < len(bodies):
            bodies = bodies[self.start_row : self.end_row]
        return map(Message, bodies, repeat(self), range(self.start_row, self.end_row))

    def __repr__(self) -> str:
        return (
            f"MessageBatch(topic={self.topic!r}, queue={self.queue}, "
            f"start_offset={self.start_offset}, end_offset={self.end_offset})"
        )

    @property
    def start_offset(self) -> int:
        return self.base_offset + self.start_row

    @property
    def end_offset(self) -> int:
        """The offset after the last message."""
        return self.base_offset + self.end_row

    def until(self, end_offset: int) -> Self:
        """Return a copy that ends before `end_offset`."""
        end_row = max(self.start_row, min(self.end_row, end_offset - self.base_offset))
        return type(self)(self.topic, self.batch, self.start_row, end_row)

    # -- columns of the whole batch, by row; decoded at first access ---------------------------

    @cached_property
    def bodies(self) -> list[bytes]:
        offsets = self.batch.body_offsets
        return texts_of(self.batch.bodies, offsets[:-1], offsets[1:])

    @cached_property
    def keys(self) -> list[str | None]:
        offsets = self.batch.key_offsets
        return self._texts(self.batch.keys, None if offsets is None else offsets.tolist())

    @cached_property
    def tags(self) -> list[str | None]:
        offsets = self.batch.tag_offsets
        return self._texts(self.batch.tags, None if offsets is None else offsets.tolist())

    def offset_of(self, row: int) -> int:
        return self.base_offset + row

    def store_timestamp_ms_of(self, row: int) -> int:
        return self.batch.store_timestamp_us(row) // 1000

    def properties_of(self, row: int) -> Mapping[str, str]:
        return self.batch.properties(row)

    def born_timestamp_ms_of(self, row: int) -> int:
        return self.batch.born_timestamp_us(row) // 1000

    def _texts(self, column: memoryview, offsets: list[int] | None) -> list[str | None]:
        if offsets is None:
            return [None] * len(self.batch)
        data = bytes(column)
        return [data[start:end].decode() or None for start, end in pairwise(offsets)]


class MessageRun:
    """Consecutive messages of one queue: rows `start_row` (inclusive) to `end_row` (exclusive) of a
    run. Offsets ascend with the rows."""

    def __init__(self, topic: str, columns: "RunColumns", start_row: int, end_row: int) -> None:
        self.topic = topic
        self.queue = columns.queue
        self._columns = columns
        self.start_row = start_row
        self.end_row = end_row

    def __len__(self) -> int:
        return self.end_row - self.start_row

    def __iter__(self) -> Iterator[Message]:
        rows = range(self.start_row, self.end_row)
        bodies = self._columns.bodies[self.start_row : self.end_row]
        return map(Message, bodies, repeat(self._columns), rows)

    @property
    def blocks(self) -> BatchRun:
        """The stored batches, which may have further messages before and after these."""
        return self._columns.run

    @property
    def end_offset(self) -> int:
        """The offset after the last message."""
        return self._columns.offset_of(self.end_row - 1) + 1

    def until(self, end_offset: int) -> Self:
        """Return a copy that ends before `end_offset`."""
        end_row = min(self.end_row, max(self.start_row, self._columns.row_at(end_offset)))
        return type(self)(self.topic, self._columns, self.start_row, end_row)

    def batches(self) -> Iterator[MessageBatch]:
        """Yield the messages in the batches in which they are stored."""
        first = self._columns.block_of(self.start_row)
        for block in range(first, len(self._columns.run)):
            base = int(self._columns.first_rows[block])
            if base >= self.end_row:
                return
            batch = self._columns.batch(block)
            start, end = max(0, self.start_row - base), min(len(batch), self.end_row - base)
            yield MessageBatch(self.topic, batch, start, end)


class RunColumns:
    """The columns of a run's messages, by row. A run is many small batches that are decoded
    together; its blocks are the stored batches, which belong to one queue and are in order.

    Decoding a very small batch alone takes about 20 microseconds; decoding it in a run of thousands
    of batches takes about 2 microseconds. Rarely used fields (properties, creation time) are
    decoded for each batch at first access.
    """

    def __init__(self, topic: str, run: BatchRun) -> None:
        self.topic = topic
        self.run = run
        self.topic_id = int(run.field("topic_id")[0])
        self.queue = int(run.field("queue_id")[0])
        counts = run.message_counts
        #: The row of each block's first message.
        self.first_rows: Int64s = np.cumsum(counts) - counts
        self.row_count = int(counts.sum())
        self._last_batch: tuple[int, Batch] | None = None

    def row_at(self, offset: int) -> int:
        """Return the first row whose offset is at least `offset`; if there is none, return the
        number of rows."""
        run = self.run
        block = int(np.searchsorted(run.end_offsets, offset, "right"))
        if block == len(run):
            return self.row_count
        return int(self.first_rows[block]) + max(0, offset - int(run.base_offsets[block]))

    def block_of(self, row: int) -> int:
        return int(np.searchsorted(self.first_rows, row, "right")) - 1

    def batch(self, block: int) -> Batch:
        """Return a block as a decoded batch. The last decoded batch is cached."""
        if self._last_batch is None or self._last_batch[0] != block:
            position = int(self.run.positions[block])
            batch = Batch.decode(self.run.buffer, position, verify_payload=False, rebuilt=True)
            self._last_batch = (block, batch)
        return self._last_batch[1]

    @cached_property
    def bodies(self) -> list[bytes]:
        return self._texts("body_offsets", "bodies")

    @cached_property
    def keys(self) -> list[str | None]:
        return [text.decode() or None for text in self._texts("key_offsets", "keys")]

    @cached_property
    def tags(self) -> list[str | None]:
        return [text.decode() or None for text in self._texts("tag_offsets", "tags")]

    @cached_property
    def _stored_ms(self) -> Int64s:
        return self.run.store_timestamps_us // 1000

    def offset_of(self, row: int) -> int:
        block = self.block_of(row)
        return int(self.run.base_offsets[block] + row - self.first_rows[block])

    def store_timestamp_ms_of(self, row: int) -> int:
        return int(self._stored_ms[row])

    def properties_of(self, row: int) -> Mapping[str, str]:
        block = self.block_of(row)
        return self.batch(block).properties(row - int(self.first_rows[block]))

    def born_timestamp_ms_of(self, row: int) -> int:
        block = self.block_of(row)
        return self.batch(block).born_timestamp_us(row - int(self.first_rows[block])) // 1000

    def _texts(self, offsets: str, texts: str) -> list[bytes]:
        return texts_of(self.run.buffer, *self.run.text_ranges(offsets, texts))


def texts_of(
    data: Buffer,
    starts: npt.NDArray[np.integer[Any]],
    ends: npt.NDArray[np.integer[Any]],
) -> list[bytes]:
    """Return the byte strings between `starts` and `ends` in `data`.

    If the strings are contiguous and of one size, numpy splits them in a quarter of the time.
    """
    count = len(starts)
    if count > 1:
        first, last = starts.item(0), ends.item(-1)
        size = ends.item(0) - first
        is_contiguous = size and last - first == size * count
        if is_contiguous and np.count_nonzero(ends - starts == size) == count:
            cut: list[bytes] = np.frombuffer(data, f"V{size}", count, first).tolist()
            return cut
    octets = data if isinstance(data, bytes) else bytes(data)
    return [octets[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
