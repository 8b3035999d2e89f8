"""What there is to read, whoever tells it: topics, where their queues begin and end, and how a
range may be cut into parts. No I/O here."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from holdfast.spark.errors import SparkError
from holdfast.spark.offsets import OffsetRange, QueueState, SegmentRange


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as the broker describes it now. `priority_levels` is None without priorities."""

    name: str
    topic_id: int
    queues: Mapping[int, QueueState]
    priority_levels: int | None


@dataclass(frozen=True, slots=True)
class StoredOffsets:
    """A group's offsets in one topic; `etag` names this version of them."""

    offsets: Mapping[int, int]
    etag: str


#: What a group has that does not exist yet, or has stored nothing.
NEVER_STORED = StoredOffsets({}, etag='"0"')


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a queue that a task may read, cut at the borders of blocks. `segments` say where
    in the log's files it lies, if that is known. `lease_id` is that of the lease which keeps it."""

    queue: int
    start: int
    end: int
    size_bytes: int
    segments: tuple[SegmentRange, ...] = ()
    lease_id: str | None = None


class OutOfRange(SparkError):
    """A range that is to be cut, and that the queue does not have (any more)."""

    def __init__(self, topic: str, queue: int, start: int, end: int) -> None:
        super().__init__(topic, queue, start, end)
        self.topic = topic
        self.queue = queue
        self.start = start
        self.end = end

    def __str__(self) -> str:
        return f"queue {self.queue} of {self.topic!r} has not all of {self.start} to {self.end}"


class Catalog(Protocol):
    """Where plans are made. What it raises, its makers say."""

    def topic_names(self) -> Iterator[str]:
        """Yield the names of all topics."""

    def describe(self, topic: str) -> TopicState:
        """Return what the topic is and holds now."""

    def offset_at(self, topic: str, queue: int, timestamp_ms: int) -> int:
        """Return the first offset stored at or after a time, the queue's end when there is none."""

    def stored_offsets(self, group: str, topic: str) -> StoredOffsets | None:
        """Return a group's offsets, None when there is no such group."""

    def splits(
        self,
        topic: str,
        topic_id: int,
        ranges: Mapping[int, OffsetRange],
        *,
        max_bytes: int,
        min_splits: int,
        lease_ms: int = 0,
    ) -> list[Split]:
        """Return the ranges cut into parts of about `max_bytes`, by queue and offset. They are kept
        from retention for `lease_ms`, where there is who does that. A range that the queue does
        not have is refused: OutOfRange, or a BrokerRefused of 410 or 416."""


@runtime_checkable
class LiveCatalog(Catalog, Protocol):
    """A broker's: it can wait for messages, instead of being asked again and again, and leases."""

    def hold(self, topic: str, offsets: Mapping[int, int], wait_ms: int) -> None:
        """Return when one of the queues has a message at its offset, at the latest after `wait_ms`.

        May return at once, for any reason.
        """

    def release_leases(self, leases: Iterable[tuple[str, str]]) -> None:
        """Let go of leases, each a topic and an id, as far as they are still there. Raises
        nothing."""
