"""The interface for planning a read. `BrokerClient` implements it for a broker, and `FileCatalog`
for a data directory. No I/O here."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from holdfast.log_files.descriptions import Split, StoredOffsets, TopicState
from holdfast.log_files.ranges import OffsetRange
from holdfast.spark.errors import SparkError


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
