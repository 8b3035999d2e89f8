"""The appender's data: waiting publishes, rows that will share a batch, and blocks that have
their offsets but are not written yet. Pure, except for the `context` that callers store here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import Rows, most_shared_bytes
from holdfast.commitlog.format.batch_header import BatchHeader, Buffer
from holdfast.commitlog.segments.segment import keyed_messages

#: At most this many bytes and messages of several publishes share a batch, because a reader that
#: needs one message reads the whole batch.
MAX_SHARED_BYTES = 256 * 1024
MAX_SHARED_MESSAGES = 1024

QueueKey = tuple[int, int]


@dataclass(slots=True)
class AppendResult:
    """Where one batch of a publish is stored. `duplicate` is True if an earlier attempt of the
    publish stored it."""

    queue_id: int
    base_offset: int
    message_count: int
    store_timestamp_us: int
    end_physical_offset: int
    duplicate: bool = False


@dataclass(slots=True, eq=False)
class AppendRequest:
    """The batches of one publish, all for one topic. Each request is passed once to
    `ReputInbox.put_finished`, with `results` or `error` set."""

    topic_id: int
    batches: Sequence[Batch | Rows]
    durable: bool
    """Complete the request only after a sync."""
    context: object = None
    """An object of the caller, such as the future to complete."""
    client: str = ""
    """The client whose limit of remembered producers is charged for a new producer of this publish;
    empty if there is no client."""
    refusal: Exception | None = None
    """If this is set, nothing of the request may be stored, and the request fails with this error.
    But a request that is already completely stored succeeds, as a duplicate."""
    results: list[AppendResult] = field(default_factory=list)
    """One result for each of `batches`, valid if the request completed without an error."""
    error: Exception | None = None
    size: int = field(init=False)
    """The total size of `batches`, in bytes."""

    def __post_init__(self) -> None:
        self.size = sum([batch.total_size for batch in self.batches])

    @property
    def end_physical_offset(self) -> int:
        """Where the last block of the request ends: a sync must reach this offset."""
        return max((result.end_physical_offset for result in self.results), default=0)


class ReputInbox(Protocol):
    """Takes the reports of the appender and the sync thread. A report is only queued; a thread
    calls `flush` after its last report."""

    def put_headers(self, headers: list[BatchHeader]) -> None:
        """Report that these blocks were written. They are in log order."""

    def put_durable_offset(self, durable_offset: int) -> None:
        """Report that the log is synced up to this physical offset."""

    def put_finished(self, requests: list[AppendRequest]) -> None:
        """Report requests that succeeded or failed. Their blocks were reported before."""

    def flush(self) -> None:
        """Have the queued reports processed, in this thread or in another one."""


class RowRun:
    """Rows that will become one batch, each with its request and the index of its result."""

    def __init__(self) -> None:
        self.rows: list[Rows] = []
        self.requests: list[tuple[AppendRequest, int]] = []
        self._size = 0
        self._count = 0
        self._producers: set[int] = set()

    def takes(self, rows: Rows) -> bool:
        """Return whether the rows may share this batch. The batch must stay small and have at most
        one publish of each producer."""
        return (
            self._size + rows.total_size <= MAX_SHARED_BYTES
            and self._count + len(rows) <= MAX_SHARED_MESSAGES
            and rows.producer_id not in self._producers
        )

    def add(self, request: AppendRequest, index: int, rows: Rows) -> None:
        """Add rows; `takes` must have returned True. `index` is the place of the rows' result in
        `request.results`."""
        self.rows.append(rows)
        self.requests.append((request, index))
        self._size += rows.total_size
        self._count += len(rows)
        if rows.producer_id:
            self._producers.add(rows.producer_id)


class Need(NamedTuple):
    """The room that batches and rows need in a segment. For rows it is the most that they can
    need, because it is not known yet which rows will share a batch."""

    size: int = 0
    keys: int = 0
    blocks: int = 0

    @classmethod
    def of(cls, batches: Sequence[Batch | Rows]) -> "Need":
        """Return the room for all `batches`."""
        size = keys = 0
        for batch in batches:
            size += batch.total_size
            if isinstance(batch, Rows):
                size += most_shared_bytes(batch)
                keys += len(batch)
            else:
                keys += keyed_messages(batch.header)
        return cls(size, keys, len(batches))

    def plus(self, other: "Need") -> "Need":
        """Return the sum of the two needs."""
        return Need(self.size + other.size, self.keys + other.keys, self.blocks + other.blocks)


class RowRuns(dict[QueueKey, RowRun]):
    """The waiting run of each queue."""

    def __init__(self, *, has_room: bool) -> None:
        super().__init__()
        self.has_room = has_room
        """Whether the active segment has room for all requests that are written together, so that
        it is unnecessary to reserve room."""
        self.producers: set[int] = set()
        """The producers that have rows in these runs."""
        self.need = Need()
        """The room that is reserved for these runs."""


class StagedBlocks:
    """Blocks that have their offsets but are not written yet."""

    def __init__(self) -> None:
        self.clear()

    @property
    def need(self) -> Need:
        """The room that these blocks need in a segment."""
        return Need(self.size, self.keys, len(self.headers))

    def clear(self) -> None:
        """Remove all blocks, after they were written."""
        self.headers: list[BatchHeader] = []
        self.buffers: list[Buffer] = []
        self.size = 0
        self.keys = 0

    def add(self, header: BatchHeader, payload: Buffer) -> None:
        """Add a block after the others."""
        self.headers.append(header)
        self.buffers += (header.encode(), payload)
        self.size += header.total_size
        self.keys += keyed_messages(header)
