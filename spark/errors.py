"""The errors of reads and writes.

Spark passes an error of a task to the user as text only. So an error's message must be complete: it
says what failed and, if the user can fix it, how.
"""

from collections.abc import Mapping
from dataclasses import dataclass


class SparkError(Exception):
    """Any failure of a read or a write. Errors can be pickled: the fields of a subclass that is a
    dataclass are its arguments."""

    def __post_init__(self) -> None:
        self.args = tuple(self.__dict__.values())


@dataclass(eq=False, repr=False)
class InvalidOption(SparkError, ValueError):
    """An option is unknown or invalid, or contradicts another one."""

    option: str
    detail: str

    def __str__(self) -> str:
        return f"option {self.option!r}: {self.detail}"


@dataclass(eq=False, repr=False)
class JavaMissing(SparkError):
    """There is no Java, or one that is too old for Spark."""

    found: str

    def __str__(self) -> str:
        return (
            f"Spark needs Java 17 or newer; {self.found}. Install it, for instance with "
            "'apt-get install openjdk-17-jre-headless', or set JAVA_HOME"
        )


@dataclass(eq=False, repr=False)
class BrokerUnavailable(SparkError):
    """The broker gave no usable answer in `waited_s` seconds, the time allowed for retries."""

    url: str
    waited_s: float
    cause: str

    def __str__(self) -> str:
        return (
            f"no answer from the broker at {self.url} within {self.waited_s:.0f} s ({self.cause}); "
            "is it running, and reachable from the driver and from every executor?"
        )


@dataclass(eq=False, repr=False)
class CertificateNotTrusted(SparkError):
    """The server at the address cannot prove that it is the broker."""

    url: str
    reason: str

    def __str__(self) -> str:
        return (
            f"the certificate of {self.url} is not trusted: {self.reason}; use the host name in "
            "the certificate, or set the option caFile to the authority that signed it"
        )


@dataclass(eq=False, repr=False)
class BrokerRefused(SparkError):
    """The broker answered with a problem that no retry fixes. `problem` is the complete
    problem+json; `type` is its field `type`: a stable path, such as /problems/unknown-topic."""

    status: int
    problem: Mapping[str, object]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.type = str(self.problem.get("type", "about:blank"))

    def __str__(self) -> str:
        detail = self.problem.get("detail") or self.problem.get("title") or "no detail"
        return f"the broker refused ({self.status} {self.type}): {detail}"


@dataclass(eq=False, repr=False)
class DataLost(SparkError):
    """The messages at the offsets [`offset`, `next_offset`) were requested but are not stored."""

    topic: str
    queue: int
    offset: int
    next_offset: int
    reason: str

    def __str__(self) -> str:
        return (
            f"queue {self.queue} of {self.topic!r} has no messages from offset {self.offset} to "
            f"{self.next_offset} ({self.reason}); choose offsets that exist, or set "
            "failOnDataLoss=false to skip lost messages"
        )


@dataclass(eq=False, repr=False)
class TopicRecreated(SparkError):
    """The topic was deleted and created again since its offsets were fixed."""

    topic: str
    bound_id: int
    found_id: int

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} was deleted and created again since its offsets were bound "
            f"(topic id {self.bound_id} then, {self.found_id} now); load it again. For a stream, "
            "begin a new checkpoint, or set failOnDataLoss=false to read the new topic"
        )


@dataclass(eq=False, repr=False)
class GoneFromStream(SparkError):
    """A topic or queue in a stream's checkpoint no longer exists, or the options do not name it.
    `queue` is None for a topic."""

    topic: str
    queue: int | None

    def __str__(self) -> str:
        what = f"topic {self.topic!r}"
        if self.queue is not None:
            what = f"queue {self.queue} of {what}"
        return (
            f"{what} is in the stream's checkpoint, but does not exist, or the options do not name "
            "it; begin a new checkpoint, or set failOnDataLoss=false to continue without it"
        )


@dataclass(eq=False, repr=False)
class CheckpointUnreadable(SparkError):
    """A stream's checkpoint has offsets that this release cannot read."""

    found: object
    reason: str

    def __str__(self) -> str:
        return (
            f"the offsets in the stream's checkpoint cannot be read: {self.reason}; use the "
            f"release that wrote them, or begin a new checkpoint. Found {str(self.found)[:200]}"
        )


@dataclass(eq=False, repr=False)
class OffsetsMoved(SparkError):
    """The group's stored offsets have changed since `bind`, so nothing was saved."""

    group: str
    topic: str

    def __str__(self) -> str:
        return (
            f"the offsets of group {self.group!r} for {self.topic!r} have changed since they were "
            "bound, so nothing was saved; bind again and repeat the run"
        )


@dataclass(eq=False, repr=False)
class UnknownTopic(SparkError):
    """The log in the data directory has no topic of this name."""

    topic: str
    path: str

    def __str__(self) -> str:
        return (
            f"there is no topic {self.topic!r} in the log of {self.path}; check the options topic "
            "and path, or publish to the topic first"
        )


def means_no_topic(error: SparkError) -> bool:
    """Return True if the error means that a broker or directory does not have the topic."""
    if isinstance(error, BrokerRefused):
        return error.type == "/problems/unknown-topic"
    return isinstance(error, UnknownTopic)


@dataclass(eq=False, repr=False)
class FilesUnreadable(SparkError):
    """A data directory cannot be read from here, or its state is damaged."""

    path: str
    reason: str

    def __str__(self) -> str:
        return (
            f"the log in the data directory {self.path} cannot be read here ({self.reason}); the "
            "driver and every executor must see the directory at this path, and be allowed to read "
            "it; or give url, to read over HTTP"
        )


class ReplyMismatch(SparkError):
    """The broker's reply does not fit the request. This is a defect, not bad data."""


@dataclass(eq=False, repr=False)
class UnwritableColumn(SparkError, ValueError):
    """A column of the DataFrame cannot be written, or is missing."""

    column: str
    detail: str

    def __str__(self) -> str:
        return f"column {self.column!r} {self.detail}"


@dataclass(eq=False, repr=False)
class UnwritableRow(SparkError, ValueError):
    """A row cannot be converted to a message. `row` is its position in the partition, from 0."""

    partition: int
    row: int
    column: str
    detail: str

    def __str__(self) -> str:
        return f"row {self.row} of partition {self.partition}: column {self.column!r} {self.detail}"


@dataclass(eq=False, repr=False)
class WriteRefused(SparkError):
    """The broker refused rows with a problem that no retry fixes. Of the rows `first_row`
    to `last_row` of the partition, it refused all rows for `queues`."""

    topic: str
    queues: tuple[int, ...]
    partition: int
    first_row: int
    last_row: int
    reason: BrokerRefused

    def __str__(self) -> str:
        return (
            f"rows {self.first_row} to {self.last_row} of partition {self.partition}, for "
            f"{self._queues()} of {self.topic!r}, were not stored: {self.reason}"
        )

    def _queues(self) -> str:
        return f"queue{'s' * (len(self.queues) > 1)} {', '.join(map(str, self.queues))}"


@dataclass(eq=False, repr=False)
class ReplayDiffers(SparkError):
    """An earlier attempt stored other rows under the same sequence number. The rows of this attempt
    were not stored. The stored rows remain."""

    topic: str
    queue: int
    partition: int
    first_row: int
    reason: str

    def __str__(self) -> str:
        return (
            f"from row {self.first_row} on, partition {self.partition} differs from the rows that "
            f"an earlier attempt stored in queue {self.queue} of {self.topic!r} ({self.reason}). "
            "Every attempt must have the same rows in the same order and partitions (the option "
            "sortBy fixes the order). To continue once, run with idempotent=false; this stores all "
            "rows of the batch again"
        )


@dataclass(eq=False, repr=False)
class IdentityMissing(SparkError):
    """A task does not know its query id or batch number, so the broker could not recognise a
    retry."""

    missing: str

    def __str__(self) -> str:
        return (
            f"Spark gives this task no {self.missing}, so the broker could not recognise rows that "
            "are sent again; set idempotent=false to store rows at least once"
        )
