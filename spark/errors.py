"""What can go wrong in a read or a write, by who has to act.

    SparkError
      InvalidOption          an option is unknown, contradicts another, or does not parse: yours
      JavaMissing            Spark's own needs are not met: install the package it names
      BrokerUnavailable      no answer within the time allowed for retries: try again later
      CertificateNotTrusted  what answers there cannot prove to be the broker
      BrokerRefused          the broker answered with a problem that no retry mends
      DataLost               rows that were asked for are not kept any more (failOnDataLoss)
      TopicRecreated         the topic was deleted and made again since the offsets were bound
      GoneFromStream         a stream has offsets of a topic or queue that it cannot read any more
      CheckpointUnreadable   a stream's checkpoint holds offsets that this release cannot read
      OffsetsMoved           somebody else moved the group's offsets since they were bound
      UnknownTopic           the data directory has no topic of this name
      FilesUnreadable        a data directory cannot be read from here, or not wholly trusted
      ReplyMismatch          the broker's reply does not fit the request: a bug, never data
      UnwritableColumn       a column that no message can have: yours
      UnwritableRow          a row that no message can be made of: yours
      WriteRefused           the broker refused rows for good
      ReplayDiffers          rows sent again are not those that were stored under their sequence
      IdentityMissing        Spark does not say of which query and batch a task is

An error that reaches the user from a task travels as text, so its sentence says it all.
"""

from collections.abc import Mapping


class SparkError(Exception):
    """Any failure of a read or a write."""


class InvalidOption(SparkError, ValueError):
    """An option that cannot be obeyed. `option` is its name as documented."""

    def __init__(self, option: str, detail: str) -> None:
        super().__init__(option, detail)
        self.option = option
        self.detail = detail

    def __str__(self) -> str:
        return f"option {self.option!r}: {self.detail}"


class JavaMissing(SparkError):
    """There is no Java that this Spark can run on."""

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found

    def __str__(self) -> str:
        return (
            f"Spark needs Java 17 or newer; {self.found}. Install it, for instance with "
            "'apt-get install openjdk-17-jre-headless', or point JAVA_HOME to one"
        )


class BrokerUnavailable(SparkError):
    """The broker gave no usable answer within `waited_s` seconds."""

    def __init__(self, url: str, waited_s: float, cause: str) -> None:
        super().__init__(url, waited_s, cause)
        self.url = url
        self.waited_s = waited_s
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"no answer from the broker at {self.url} within {self.waited_s:.0f} s ({self.cause}); "
            "is it running, and reachable from the driver and from every executor?"
        )


class CertificateNotTrusted(SparkError):
    """What answers at the address shows no certificate that this reader trusts for it."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url = url
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"the certificate of {self.url} is not trusted: {self.reason}; use the name that it is "
            "for, or name the file of the authority that signed it by the option caFile"
        )


class BrokerRefused(SparkError):
    """The broker's problem+json, kept whole. `type` is its stable path, such as /problems/..."""

    def __init__(self, status: int, problem: Mapping[str, object]) -> None:
        super().__init__(status, dict(problem))
        self.status = status
        self.problem = dict(problem)
        self.type = str(problem.get("type", "about:blank"))

    def __str__(self) -> str:
        detail = self.problem.get("detail") or self.problem.get("title") or "no detail"
        return f"the broker refused ({self.status} {self.type}): {detail}"


class DataLost(SparkError):
    """Offsets from `offset` up to `next_offset` were asked for, but are not there."""

    def __init__(self, topic: str, queue: int, offset: int, next_offset: int, reason: str) -> None:
        super().__init__(topic, queue, offset, next_offset, reason)
        self.topic = topic
        self.queue = queue
        self.offset = offset
        self.next_offset = next_offset
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"queue {self.queue} of {self.topic!r} has no messages from offset {self.offset} to "
            f"{self.next_offset} ({self.reason}); choose offsets that are there, or set "
            "failOnDataLoss=false to skip what is gone"
        )


class TopicRecreated(SparkError):
    """The topic of this name is not the one that the offsets belong to."""

    def __init__(self, topic: str, bound_id: int, found_id: int) -> None:
        super().__init__(topic, bound_id, found_id)
        self.topic = topic
        self.bound_id = bound_id
        self.found_id = found_id

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} was deleted and created again since its offsets were bound "
            f"(topic id {self.bound_id} then, {self.found_id} now); load it anew, or, if it is "
            "streamed, begin a new checkpoint or set failOnDataLoss=false to read the new one"
        )


class GoneFromStream(SparkError):
    """A topic, or one queue of it, that a stream has read is not there or not asked for."""

    def __init__(self, topic: str, queue: int | None) -> None:
        super().__init__(topic, queue)
        self.topic = topic
        self.queue = queue

    def __str__(self) -> str:
        what = f"topic {self.topic!r}"
        if self.queue is not None:
            what = f"queue {self.queue} of {what}"
        return (
            f"{what} is in the stream's checkpoint, but is gone, or no more among what the options "
            "name; begin a new checkpoint, or set failOnDataLoss=false to go on without it"
        )


class CheckpointUnreadable(SparkError):
    """Offsets in a checkpoint that are none of this source's, or of another version of it."""

    def __init__(self, found: object, reason: str) -> None:
        super().__init__(found, reason)
        self.found = found
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"the stream's checkpoint holds offsets that cannot be read: {self.reason}; use the "
            f"release that wrote it, or begin a new checkpoint. Found {str(self.found)[:200]}"
        )


class OffsetsMoved(SparkError):
    """The group's stored offsets changed between bind and save, so nothing was saved."""

    def __init__(self, group: str, topic: str) -> None:
        super().__init__(group, topic)
        self.group = group
        self.topic = topic

    def __str__(self) -> str:
        return (
            f"the offsets of group {self.group!r} for {self.topic!r} were changed by somebody "
            "else since they were bound, so they were left alone; bind again and repeat the run"
        )


class UnknownTopic(SparkError):
    """A data directory's log knows no topic of this name."""

    def __init__(self, topic: str, path: str) -> None:
        super().__init__(topic, path)
        self.topic = topic
        self.path = path

    def __str__(self) -> str:
        return (
            f"there is no topic {self.topic!r} in the log of {self.path}; check the option topic "
            "and which data directory path names, or publish to the topic first"
        )


def means_no_topic(error: SparkError) -> bool:
    """Whether an error says that there is no such topic, in a broker or in a directory."""
    if isinstance(error, BrokerRefused):
        return error.type == "/problems/unknown-topic"
    return isinstance(error, UnknownTopic)


class FilesUnreadable(SparkError):
    """The segment files under `path` cannot serve."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"the log in the data directory {self.path} cannot be read here ({self.reason}); path "
            "names a data directory that the driver and every executor see under this name, and "
            "may read; or give url, and rows come over HTTP"
        )


class ReplyMismatch(SparkError):
    """A reply that does not fit its request."""


class UnwritableColumn(SparkError, ValueError):
    """A column that cannot be written, or is missing."""

    def __init__(self, column: str, detail: str) -> None:
        super().__init__(column, detail)
        self.column = column
        self.detail = detail

    def __str__(self) -> str:
        return f"column {self.column!r} {self.detail}"


class UnwritableRow(SparkError, ValueError):
    """A row that is no message. `row` counts from 0 in its partition."""

    def __init__(self, partition: int, row: int, column: str, detail: str) -> None:
        super().__init__(partition, row, column, detail)
        self.partition = partition
        self.row = row
        self.column = column
        self.detail = detail

    def __str__(self) -> str:
        return f"row {self.row} of partition {self.partition}: column {self.column!r} {self.detail}"


class WriteRefused(SparkError):
    """The broker refused rows from `first_row` to `last_row` of a partition, those among them
    that go to these queues, with a problem that no retry mends."""

    def __init__(
        self,
        topic: str,
        queues: tuple[int, ...],
        partition: int,
        first_row: int,
        last_row: int,
        reason: BrokerRefused,
    ) -> None:
        super().__init__(topic, queues, partition, first_row, last_row, reason)
        self.topic = topic
        self.queues = queues
        self.partition = partition
        self.first_row = first_row
        self.last_row = last_row
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"rows {self.first_row} to {self.last_row} of partition {self.partition}, for "
            f"{_named('queue', self.queues)} of {self.topic!r}, were not stored: {self.reason}"
        )


class ReplayDiffers(SparkError):
    """An earlier attempt stored other rows under the sequence that these have. These were not
    stored, and none that were stored is lost."""

    def __init__(self, topic: str, queue: int, partition: int, first_row: int, reason: str) -> None:
        super().__init__(topic, queue, partition, first_row, reason)
        self.topic = topic
        self.queue = queue
        self.partition = partition
        self.first_row = first_row
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"from row {self.first_row} on, partition {self.partition} is not what an earlier "
            f"attempt stored in queue {self.queue} of {self.topic!r} ({self.reason}). Make rows "
            "come in the same order and partitions each time (the option sortBy does the order); "
            "to get past this once, run with idempotent=false, which stores again what was stored "
            "before"
        )


class IdentityMissing(SparkError):
    """The task does not know its query and batch, so that a retry could not be told."""

    def __init__(self, missing: str) -> None:
        super().__init__(missing)
        self.missing = missing

    def __str__(self) -> str:
        return (
            f"Spark gives this task no {self.missing}, so that rows sent again could not be told "
            "from new ones; set idempotent=false to write without that, at least once"
        )


def _named(what: str, numbers: tuple[int, ...]) -> str:
    return (
        f"{what} {numbers[0]}" if len(numbers) == 1 else f"{what}s {', '.join(map(str, numbers))}"
    )
