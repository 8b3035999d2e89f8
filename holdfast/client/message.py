"""Messages as a reader sees them: a body, and the rest decoded when it is looked at. Pure.

A Message is three words: its body, where its columns are, and its row. Millions of them a second
can pass because nothing else is made before an attribute is read. The price: a message that is
kept keeps the whole range that it came in; its `body` does not, nor does a pickled message.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, repeat
from typing import Any, NamedTuple, Protocol, Self

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.batch_header import Buffer
from holdfast.commitlog.message_id import format_message_id, parse_message_id


class PublishResult(NamedTuple):
    """Where a message was stored; `durable` says that it was synced to the disk by then."""

    queue: int
    offset: int
    message_id: str
    durable: bool


@dataclass(frozen=True, slots=True)
class StoredOffsets:
    """A group's offsets on a topic: the next to be read, by queue. `etag` is None for none."""

    offsets: dict[int, int]
    etag: str | None


class Skipped(NamedTuple):
    """Messages that are damaged or gone and were passed over: from `start_offset` to before
    `end_offset`."""

    queue: int
    start_offset: int
    end_offset: int


class PullResult(NamedTuple):
    """The reply to one pull: its messages, where the next one starts, and what was passed over
    because it is damaged or gone."""

    messages: "list[Message]"
    next_offset: int
    min_offset: int
    max_offset: int
    skipped: tuple[Skipped, ...] = ()


class _Columns(Protocol):
    """What messages have beside their bodies, by row."""

    @property
    def topic(self) -> str: ...
    @property
    def topic_id(self) -> int: ...
    @property
    def queue(self) -> int: ...
    @property
    def keys(self) -> Sequence[str | None]: ...
    @property
    def tags(self) -> Sequence[str | None]: ...
    def offset_of(self, row: int) -> int: ...
    def properties_of(self, row: int) -> Mapping[str, str]: ...
    def born_timestamp_ms_of(self, row: int) -> int: ...
    def store_timestamp_ms_of(self, row: int) -> int: ...


class Message(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One message, as a client reads it. `body` is bytes: what was published; an absent key or
    tag is None.

    Equal to another when both are the same message of the same topic.
    """

    body: bytes
    _columns: _Columns
    _row: int

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._columns.topic

    @property
    def queue(self) -> int:
        """The queue in the topic."""
        return self._columns.queue

    @property
    def offset(self) -> int:
        """The offset in the queue."""
        return self._columns.offset_of(self._row)

    @property
    def message_id(self) -> str:
        """The id under which `client.message(...)` finds it again."""
        columns = self._columns
        return format_message_id(columns.topic_id, columns.queue, columns.offset_of(self._row))

    @property
    def key(self) -> str | None:
        """The key, which chose the queue."""
        return self._columns.keys[self._row]

    @property
    def tag(self) -> str | None:
        """The tag, by which pulls can filter."""
        return self._columns.tags[self._row]

    @property
    def properties(self) -> dict[str, str]:
        """The properties, a new dict each time."""
        return dict(self._columns.properties_of(self._row))

    @property
    def born_timestamp_ms(self) -> int:
        """When its producer made it, by the producer's clock."""
        return self._columns.born_timestamp_ms_of(self._row)

    @property
    def store_timestamp_ms(self) -> int:
        """When the broker stored it; never decreasing in a queue."""
        return self._columns.store_timestamp_ms_of(self._row)

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
        alone = LoneMessage(
            topic=self.topic,
            queue=self.queue,
            offset=self.offset,
            message_id=self.message_id,
            body=self.body,
            key=self.key,
            tag=self.tag,
            properties=self.properties,
            born_timestamp_ms=self.born_timestamp_ms,
            store_timestamp_ms=self.store_timestamp_ms,
        )
        return Message, (self.body, alone, 0)


class LoneMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a single message, in the shape in which the API sends it."""

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
        """The topic's number, as its message id has it."""
        return parse_message_id(self.message_id)[0]

    @property
    def keys(self) -> Sequence[str | None]:
        """Its key alone."""
        return (self.key,)

    @property
    def tags(self) -> Sequence[str | None]:
        """Its tag alone."""
        return (self.tag,)

    def offset_of(self, row: int) -> int:
        """Return its offset."""
        return self.offset

    def properties_of(self, row: int) -> Mapping[str, str]:
        """Return its properties."""
        return self.properties

    def born_timestamp_ms_of(self, row: int) -> int:
        """Return when it was made."""
        return self.born_timestamp_ms

    def store_timestamp_ms_of(self, row: int) -> int:
        """Return when it was stored."""
        return self.store_timestamp_ms

    def as_message(self) -> "Message":
        """Return it as a Message."""
        return Message(self.body, self, 0)


@dataclass(frozen=True, slots=True)
class MessageList:
    """Messages of one queue, in order, that came one by one because a filter chose them."""

    queue: int
    messages: Sequence[Message]

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def until(self, end_offset: int) -> Self:
        """Return this without what lies at or after `end_offset`."""
        kept = [message for message in self.messages if message.offset < end_offset]
        return type(self)(self.queue, kept)


class MessageBatch:
    """Messages of one queue that were stored together, or what a pull's range has of them.

    Iterating gives each as a Message. For those who want arrays, `batch` has the columns as
    numpy arrays and buffers, of which rows `start_row` up to `end_row` are meant.
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
        """The offset of its first message."""
        return self.base_offset + self.start_row

    @property
    def end_offset(self) -> int:
        """The offset after its last message."""
        return self.base_offset + self.end_row

    def until(self, end_offset: int) -> Self:
        """Return this without what lies at or after `end_offset`."""
        end_row = max(self.start_row, min(self.end_row, end_offset - self.base_offset))
        return type(self)(self.topic, self.batch, self.start_row, end_row)

    # -- columns of the whole batch, by its rows; decoded when first asked for -----------------

    @cached_property
    def bodies(self) -> list[bytes]:
        """The whole batch's bodies, by row."""
        offsets = self.batch.body_offsets
        return texts_of(self.batch.bodies, offsets[:-1], offsets[1:])

    @cached_property
    def keys(self) -> list[str | None]:
        """The whole batch's keys, by row."""
        offsets = self.batch.key_offsets
        return self._texts(self.batch.keys, None if offsets is None else offsets.tolist())

    @cached_property
    def tags(self) -> list[str | None]:
        """The whole batch's tags, by row."""
        offsets = self.batch.tag_offsets
        return self._texts(self.batch.tags, None if offsets is None else offsets.tolist())

    def offset_of(self, row: int) -> int:
        """Return one row's offset."""
        return self.base_offset + row

    def store_timestamp_ms_of(self, row: int) -> int:
        """Return when the batch was stored."""
        return self.store_timestamp_ms

    def properties_of(self, row: int) -> Mapping[str, str]:
        """Return one row's properties."""
        return self.batch.properties(row)

    def born_timestamp_ms_of(self, row: int) -> int:
        """Return when one row's message was made."""
        return self.batch.born_timestamp_us(row) // 1000

    def _texts(self, column: memoryview, offsets: list[int] | None) -> list[str | None]:
        if offsets is None:
            return [None] * len(self.batch)
        data = bytes(column)
        return [data[start:end].decode() or None for start, end in pairwise(offsets)]


def texts_of(
    data: Buffer,
    starts: npt.NDArray[np.integer[Any]],
    ends: npt.NDArray[np.integer[Any]],
) -> list[bytes]:
    """Return the texts that lie between `starts` and `ends` in `data`.

    Those of one size that lie one after another are cut by numpy, at a quarter of the cost.
    """
    count = len(starts)
    size = int(ends[0] - starts[0]) if count else 0
    first, last = (int(starts[0]), int(ends[-1])) if count else (0, 0)
    if count > 1 and size and last - first == size * count and bool(np.all(ends - starts == size)):
        cut: list[bytes] = np.frombuffer(data, f"V{size}", count, first).tolist()
        return cut
    octets = data if isinstance(data, bytes) else bytes(data)
    return [octets[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
