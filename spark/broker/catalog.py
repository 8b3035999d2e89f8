"""The interface for planning a read. `BrokerClient` implements it for a broker, and `FileCatalog`
for a data directory. No I/O here."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from holdfast.spark.errors import SparkError
from holdfast.spark.options.offsets import OffsetRange, QueueState, SegmentRange


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as it is now. `priority_levels` is None if the topic has no priorities."""

    name: str
    topic_id: int
    queues: Mapping[int, QueueState]
    priority_levels: int | None


@dataclass(frozen=True, slots=True)
class StoredOffsets:
    """A group's offsets in one topic, by queue; `etag` is their version."""

    offsets: Mapping[int, int]
    etag: str


#: The offsets of a group that does not exist or has stored nothing.
NO_STORED_OFFSETS = StoredOffsets({}, etag='"0"')


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a queue that one task may read, cut at block borders. `segments` are its ranges in
    the segment files, if they are known. `lease_id` is the read lease that protects it from
    retention, or None."""

    queue: int
    start: int
    end: int
    size_bytes: int
    segments: tuple[SegmentRange, ...] = ()
    lease_id: str | None = None


@dataclass(eq=False, repr=False)
class OutOfRange(SparkError):
    """`splits` cannot cut a range into parts, because the queue does not have the whole range."""

    topic: str
    queue: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"queue {self.queue} of {self.topic!r} lacks offsets in {self.start} to {self.end}"


class Catalog(Protocol):
    """Topics, ranges of queues, and their parts. Implementations document the errors they raise."""

    def topic_names(self) -> Iterator[str]:
        """Yield the names of all topics."""

    def describe(self, topic: str) -> TopicState:
        """Return the topic's id and the current range of each queue."""

    def offset_at(self, topic: str, queue: int, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time, or the queue's end if
        there is no such message."""

    def stored_offsets(self, group: str, topic: str) -> StoredOffsets | None:
        """Return a group's offsets, or None if the group does not exist."""

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
        """Return the ranges cut into parts of about `max_bytes`, ordered by queue and offset.

        A broker protects the ranges from retention for `lease_ms`; a data directory ignores
        `lease_ms`. If a queue does not have its complete range, raises OutOfRange, or BrokerRefused
        with status 410 or 416.
        """


@runtime_checkable
class LiveCatalog(Catalog, Protocol):
    """A broker's catalog: it can also wait for messages, and release leases."""

    def hold(self, topic: str, offsets: Mapping[int, int], wait_ms: int) -> None:
        """Wait until a queue has a message at its offset, at most `wait_ms`. May return early."""

    def release_leases(self, leases: Iterable[tuple[str, str]]) -> None:
        """Release leases, (topic, id) each. Raises nothing: other leases expire."""
