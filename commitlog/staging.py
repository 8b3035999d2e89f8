"""What the appender works on: publishes as they wait, rows on their way to share a batch, and
blocks that have their place but are not written yet. Pure, but for what the caller holds in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.batch_header import BatchHeader, Buffer
from holdfast.commitlog.rows import Rows, most_shared_bytes
from holdfast.commitlog.segment import keyed_messages

#: Publishes share a batch up to so much: a reader that wants one message gets the whole batch.
MAX_SHARED_BYTES = 256 * 1024
MAX_SHARED_MESSAGES = 1024

QueueKey = tuple[int, int]


@dataclass(slots=True)
class Appended:
    """Where one batch of a publish is. `duplicate`: it was stored before, by an earlier try."""

    queue_id: int
    base_offset: int
    message_count: int
    store_timestamp_us: int
    end_physical_offset: int
    duplicate: bool = False


@dataclass(slots=True, eq=False)
class AppendRequest:
    """Batches of one publish. `done` is called once, in the thread that finished it, by way of
    the `completed` callback of the Appender: never directly."""

    topic_id: int
    batches: Sequence[Batch | Rows]
    durable: bool
    """Answer only once it is synced."""
    context: object = None
    """The caller's own: what to complete."""
    results: list[Appended] = field(default_factory=list)
    """Of each of `batches`, once it is finished without an error."""
    error: Exception | None = None
    size: int = field(init=False)
    """Bytes that it puts into the log, at most."""

    def __post_init__(self) -> None:
        self.size = sum([batch.total_size for batch in self.batches])

    @property
    def end_physical_offset(self) -> int:
        """Where the last of its blocks ends: what a sync has to cover."""
        return max((result.end_physical_offset for result in self.results), default=0)


class Run:
    """Rows that wait to become one batch, each with the request and the place of its result."""

    def __init__(self) -> None:
        self.rows: list[Rows] = []
        self.requests: list[tuple[AppendRequest, int]] = []
        self._size = 0
        self._count = 0
        self._producers: set[int] = set()

    def takes(self, rows: Rows) -> bool:
        """Return whether the rows may share the batch: it stays small, and of each producer it
        has one publish at most."""
        return (
            self._size + rows.total_size <= MAX_SHARED_BYTES
            and self._count + len(rows) <= MAX_SHARED_MESSAGES
            and rows.producer_id not in self._producers
        )

    def add(self, request: AppendRequest, index: int, rows: Rows) -> None:
        """Add rows that it takes."""
        self.rows.append(rows)
        self.requests.append((request, index))
        self._size += rows.total_size
        self._count += len(rows)
        if rows.producer_id:
            self._producers.add(rows.producer_id)


class Need(NamedTuple):
    """Room in a segment that is enough for batches, or for rows however they share batches."""

    size: int = 0
    keys: int = 0
    blocks: int = 0

    @classmethod
    def of(cls, batches: Sequence[Batch | Rows]) -> "Need":
        """Return the room for all of these."""
        size = keys = 0
        for batch in batches:
            size += batch.total_size
            if isinstance(batch, Rows):
                size += most_shared_bytes(batch)
                keys += len(batch)
            else:
                keys += keyed_messages(batch.header)
        return cls(size, keys, len(batches))

    def and_(self, other: "Need") -> "Need":
        """Return the room for both."""
        return Need(self.size + other.size, self.keys + other.keys, self.blocks + other.blocks)


class Runs(dict[QueueKey, Run]):
    """The runs that wait, whose producers they have, and what room is kept for them. `has_room`:
    the segment takes the whole group, and none needs to be kept."""

    def __init__(self, *, has_room: bool) -> None:
        super().__init__()
        self.has_room = has_room
        self.producers: set[int] = set()
        self.need = Need()


class Staged:
    """Blocks that have their place but are not written yet."""

    def __init__(self) -> None:
        self.clear()

    @property
    def need(self) -> Need:
        """The room that they take."""
        return Need(self.size, self.keys, len(self.headers))

    def clear(self) -> None:
        """Let go of all: it is written."""
        self.headers: list[BatchHeader] = []
        self.buffers: list[Buffer] = []
        self.size = 0
        self.keys = 0

    def add(self, header: BatchHeader, payload: Buffer) -> None:
        """Add a block behind the others."""
        self.headers.append(header)
        self.buffers += (header.encode(), payload)
        self.size += header.total_size
        self.keys += keyed_messages(header)
