"""The errors of reads and writes, and what each means for the user.

    SparkError
      InvalidOption          an option is unknown, invalid, or contradicts another: fix the option
      JavaMissing            there is no Java, or one that is too old for Spark: install Java
      BrokerUnavailable      no answer within the time allowed for retries: try again later
      CertificateNotTrusted  the server at the address cannot prove that it is the broker
      BrokerRefused          the broker answered with a problem that no retry fixes
      DataLost               requested rows are no longer stored (see failOnDataLoss)
      TopicRecreated         the topic was deleted and created again since the offsets were fixed
      GoneFromStream         a checkpoint names a topic or queue that the stream can no longer read
      CheckpointUnreadable   a stream's checkpoint holds offsets that this release cannot read
      OffsetsMoved           somebody else changed the group's stored offsets since `bind`
      UnknownTopic           the data directory has no topic of this name
      FilesUnreadable        a data directory cannot be read from here, or its state is damaged
      ReplyMismatch          the broker's reply does not fit the request: a defect, not bad data
      UnwritableColumn       a column cannot be written, or is missing: fix the DataFrame
      UnwritableRow          a row cannot be converted to a message: fix the row
      WriteRefused           the broker refused rows permanently
      ReplayDiffers          a repeated attempt sends other rows than the earlier attempt stored
      IdentityMissing        Spark does not give a task its query id or batch number

An error travels from a task to the user as text only, so its message must be complete.
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
    """An option that is unknown, invalid or contradictory. `option` is its documented name."""

    option: str
    detail: str

    def __str__(self) -> str:
        return f"option {self.option!r}: {self.detail}"


@dataclass(eq=False, repr=False)
class JavaMissing(SparkError):
    """There is no Java that this version of Spark supports."""

    found: str

    def __str__(self) -> str:
        return (
            f"Spark needs Java 17 or newer; {self.found}. Install it, for instance with "
            "'apt-get install openjdk-17-jre-headless', or point JAVA_HOME to one"
        )


@dataclass(eq=False, repr=False)
class BrokerUnavailable(SparkError):
    """The broker gave no usable answer within `waited_s` seconds."""

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
    """The server at the address has no certificate that this client trusts for that address."""

    url: str
    reason: str

    def __str__(self) -> str:
        return (
            f"the certificate of {self.url} is not trusted: {self.reason}; use the name that it is "
            "for, or name the file of the authority that signed it by the option caFile"
        )


@dataclass(eq=False, repr=False)
class BrokerRefused(SparkError):
    """The broker answered with an error. `problem` is the complete problem+json, and `type` is its
    field `type`: a stable path, such as /problems/unknown-topic."""

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
            f"{self.next_offset} ({self.reason}); choose offsets that are there, or set "
            "failOnDataLoss=false to skip what is gone"
        )


@dataclass(eq=False, repr=False)
class TopicRecreated(SparkError):
    """The topic with this name has another id than when its offsets were fixed."""

    topic: str
    bound_id: int
    found_id: int

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} was deleted and created again since its offsets were bound "
            f"(topic id {self.bound_id} then, {self.found_id} now); load it anew, or, if it is "
            "streamed, begin a new checkpoint or set failOnDataLoss=false to read the new one"
        )


@dataclass(eq=False, repr=False)
class GoneFromStream(SparkError):
    """A topic or queue in a stream's checkpoint no longer exists, or the options no longer name
    it."""

    topic: str
    queue: int | None

    def __str__(self) -> str:
        what = f"topic {self.topic!r}"
        if self.queue is not None:
            what = f"queue {self.queue} of {what}"
        return (
            f"{what} is in the stream's checkpoint, but is gone, or no more among what the options "
            "name; begin a new checkpoint, or set failOnDataLoss=false to go on without it"
        )


@dataclass(eq=False, repr=False)
class CheckpointUnreadable(SparkError):
    """A checkpoint holds offsets of another source, or of a version that this release cannot
    read."""

    found: object
    reason: str

    def __str__(self) -> str:
        return (
            f"the stream's checkpoint holds offsets that cannot be read: {self.reason}; use the "
            f"release that wrote it, or begin a new checkpoint. Found {str(self.found)[:200]}"
        )


@dataclass(eq=False, repr=False)
class OffsetsMoved(SparkError):
    """The group's stored offsets changed between bind and save, so nothing was saved."""

    group: str
    topic: str

    def __str__(self) -> str:
        return (
            f"the offsets of group {self.group!r} for {self.topic!r} were changed by somebody "
            "else since they were bound, so they were left alone; bind again and repeat the run"
        )


@dataclass(eq=False, repr=False)
class UnknownTopic(SparkError):
    """The log in a data directory has no topic of this name."""

    topic: str
    path: str

    def __str__(self) -> str:
        return (
            f"there is no topic {self.topic!r} in the log of {self.path}; check the option topic "
            "and which data directory path names, or publish to the topic first"
        )


def means_no_topic(error: SparkError) -> bool:
    """Return True if the error means that the topic does not exist, in a broker or in a
    directory."""
    if isinstance(error, BrokerRefused):
        return error.type == "/problems/unknown-topic"
    return isinstance(error, UnknownTopic)


@dataclass(eq=False, repr=False)
class FilesUnreadable(SparkError):
    """The segment files under `path` cannot be used."""

    path: str
    reason: str

    def __str__(self) -> str:
        return (
            f"the log in the data directory {self.path} cannot be read here ({self.reason}); path "
            "names a data directory that the driver and every executor see under this name, and "
            "may read; or give url, and rows come over HTTP"
        )


class ReplyMismatch(SparkError):
    """A reply that does not fit its request."""


@dataclass(eq=False, repr=False)
class UnwritableColumn(SparkError, ValueError):
    """A column that cannot be written, or is missing."""

    column: str
    detail: str

    def __str__(self) -> str:
        return f"column {self.column!r} {self.detail}"


@dataclass(eq=False, repr=False)
class UnwritableRow(SparkError, ValueError):
    """A row that cannot be converted to a message. `row` counts from 0 in its partition."""

    partition: int
    row: int
    column: str
    detail: str

    def __str__(self) -> str:
        return f"row {self.row} of partition {self.partition}: column {self.column!r} {self.detail}"


@dataclass(eq=False, repr=False)
class WriteRefused(SparkError):
    """The broker refused rows with a problem that no retry fixes.

    Of the rows `first_row` to `last_row` of the partition, those for `queues` were refused.
    """

    topic: str
    queues: tuple[int, ...]
    partition: int
    first_row: int
    last_row: int
    reason: BrokerRefused

    def __str__(self) -> str:
        return (
            f"rows {self.first_row} to {self.last_row} of partition {self.partition}, for "
            f"{_format_numbers('queue', self.queues)} of {self.topic!r}, "
            f"were not stored: {self.reason}"
        )


@dataclass(eq=False, repr=False)
class ReplayDiffers(SparkError):
    """An earlier attempt stored other rows under the same sequence number.

    The rows of this attempt were not stored. The stored rows remain.
    """

    topic: str
    queue: int
    partition: int
    first_row: int
    reason: str

    def __str__(self) -> str:
        return (
            f"from row {self.first_row} on, partition {self.partition} is not what an earlier "
            f"attempt stored in queue {self.queue} of {self.topic!r} ({self.reason}). Make rows "
            "come in the same order and partitions each time (the option sortBy does the order); "
            "to get past this once, run with idempotent=false, which stores again what was stored "
            "before"
        )


@dataclass(eq=False, repr=False)
class IdentityMissing(SparkError):
    """The task does not know its query id or batch number, so the broker could not recognise a
    retry."""

    missing: str

    def __str__(self) -> str:
        return (
            f"Spark gives this task no {self.missing}, so that rows sent again could not be told "
            "from new ones; set idempotent=false to write without that, at least once"
        )


def _format_numbers(what: str, numbers: tuple[int, ...]) -> str:
    return (
        f"{what} {numbers[0]}" if len(numbers) == 1 else f"{what}s {', '.join(map(str, numbers))}"
    )
