"""The errors of the log.

LogError
  CorruptBatch           bytes that are not an intact batch (from a client or from the disk)
    CorruptRecord        a damaged block of the log: kept, never served
  UnknownFormatVersion   written by a newer Holdfast: upgrade; nothing was changed
  BatchTooLarge          the caller's batch does not fit a segment
  LogClosed              append after close
  LogOverloaded          too many bytes wait for the appender: retry
  DiskFull               no room for the next segment: publishing stops, reading continues
  DiskLow                little room left: publishing stops before the disk is full
  MemoryLow, IndexBehind too much is in memory: publishing stops until memory use falls
  NoSegment              the next segment cannot be created now: retry
  SyncTimeout            the disk has not confirmed a publish in time: it may be stored or not
  LogPoisoned            a write or sync failed: the log is read-only until a restart
  SequenceGap, ProducerFenced, SequenceTooOld   the sequence or epoch of a producer is wrong
  TooManyProducers       no room for a new idempotent producer
  RoutedOtherwise        a retried publish goes to other queues than the first attempt
"""

from dataclasses import dataclass
from typing import ClassVar

#: Reason of a CorruptRecord: the whole segment file is missing.
MISSING_SEGMENT = "missing-segment"
#: Reason of a CorruptRecord: the disk failed to read the block; another read may succeed.
UNREADABLE = "unreadable"
#: Reason of a CorruptRecord: a newer Holdfast wrote the block, and this version cannot read it.
UNKNOWN_VERSION = "unknown-version"


class LogError(Exception):
    """Base class of the commit log's errors. The fields of an error are its `args`, so that it can
    be copied and pickled. `sentence` is its text, with the names of fields in braces."""

    sentence: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self.args = tuple(self.__dict__.values())

    def __str__(self) -> str:
        return self.sentence.format_map(vars(self)) if self.sentence else super().__str__()


@dataclass(eq=False, repr=False)
class CorruptBatch(LogError):
    """Bytes that are not an intact batch. `reason` is a fixed word for programs, `detail` is free
    text for people."""

    sentence = "not an intact batch ({reason}): {detail}"
    reason: str
    detail: str = ""


class CorruptRecord(CorruptBatch):
    """A damaged block of the log. `next_offset` is the first queue offset after the damage, None
    if it is unknown."""

    def __init__(
        self, physical_offset: int, reason: str, detail: str = "", next_offset: int | None = None
    ) -> None:
        super().__init__(reason, detail)
        self.args = (physical_offset, reason, detail, next_offset)
        self.physical_offset = physical_offset
        self.next_offset = next_offset

    def ending_at(self, next_offset: int) -> "CorruptRecord":
        """Return a copy of this error with the queue offset after the damage."""
        return CorruptRecord(self.physical_offset, self.reason, self.detail, next_offset)

    def __str__(self) -> str:
        return f"the log is damaged at {self.physical_offset} ({self.reason}): {self.detail}"


@dataclass(eq=False, repr=False)
class UnknownFormatVersion(LogError):
    """A file or block of a version that this code does not know."""

    sentence = (
        "{what} has format version {found}; this Holdfast reads {known}. "
        "Use the Holdfast version that wrote it, or a newer one. Nothing was changed."
    )
    what: str
    found: object
    known: object


@dataclass(eq=False, repr=False)
class BatchTooLarge(LogError):
    """A batch that no segment of the configured size can hold."""

    sentence = "a batch of {size} bytes does not fit in a segment; the limit is {limit}"
    size: int
    limit: int


class LogClosed(LogError):
    """The log is closed or closing."""

    sentence = "the commit log is closed"


@dataclass(eq=False, repr=False)
class LogOverloaded(LogError):
    """More bytes wait to be stored than the limit `limit_name` allows."""

    sentence = "{waiting_bytes} bytes are waiting ({limit_name} is {limit})"
    waiting_bytes: int
    limit: int
    limit_name: str = "max_waiting_bytes"


@dataclass(eq=False, repr=False)
class DiskFull(LogError):
    """There is no room for the next segment."""

    sentence = (
        "the disk has no room for the next segment ({needed_bytes} bytes); "
        "free space or lower the retention, then publishing resumes automatically"
    )
    needed_bytes: int


@dataclass(eq=False, repr=False)
class DiskLow(LogError):
    """The disk has less free room than `min_free_bytes`, or would have less after the creation of
    a segment of `segment_bytes`. The free room is reserved for files that are not segments."""

    directory: str
    free_bytes: int
    min_free_bytes: int
    segment_bytes: int = 0

    def __str__(self) -> str:
        segment, mend = "", "free space or lower the retention"
        if self.segment_bytes:
            segment = f", and the next segment needs {self.segment_bytes} (at most segment_bytes)"
            mend = "free space, lower the retention or use smaller segments"
        return (
            f"the disk of {self.directory} has {self.free_bytes} free bytes, but "
            f"min_free_bytes ({self.min_free_bytes}) must stay free{segment}; {mend}, "
            "then publishing resumes automatically"
        )


@dataclass(eq=False, repr=False)
class MemoryLow(LogError):
    """The process uses as much memory as its limit allows, or more."""

    limit_name = "max_memory_bytes"

    used_bytes: int
    limit: int

    def __str__(self) -> str:
        return f"the broker uses {self.used_bytes} bytes of memory ({self.limit_name} {self.limit})"


@dataclass(eq=False, repr=False)
class IndexBehind(LogError):
    """The index has as many uncommitted entries as its limit allows. `cause` is the reason why
    commits of the index fail, None if they do not fail."""

    limit_name = "max_uncommitted_entries"

    entries: int
    limit: int
    cause: str | None

    def __str__(self) -> str:
        why = f": {self.cause}; free space, then it catches up automatically" if self.cause else ""
        return (
            f"{self.entries} entries wait to be committed to the index ({self.limit_name} is "
            f"{self.limit}){why}"
        )


@dataclass(eq=False, repr=False)
class NoSegment(LogError):
    """The next segment could not be created, and the reason is not a full disk, but for example
    too few descriptors, no memory or an I/O error. The log is unchanged."""

    sentence = "the next segment cannot be created now ({cause})"
    cause: str


@dataclass(eq=False, repr=False)
class SyncTimeout(LogError):
    """A publish was not written or synced in time. It may be stored already, or be stored
    later."""

    sentence = (
        "the disk did not confirm the publish within sync_timeout_ms ({timeout_ms}); "
        "it is unknown whether the messages are stored"
    )
    stored = "unknown"

    timeout_ms: int


@dataclass(eq=False, repr=False)
class LogPoisoned(LogError):
    """A write or a sync failed. It is unknown which bytes are stored, so the log accepts no more
    writes."""

    sentence = "the log is read-only because a write failed ({cause}); restart the broker"
    cause: str


@dataclass(eq=False, repr=False)
class SequenceGap(LogError):
    """An idempotent producer skipped a sequence."""

    sentence = "sequence {found} leaves a gap; the next one is {expected}"
    expected: int
    found: int


@dataclass(eq=False, repr=False)
class SequenceTooOld(LogError):
    """A publish with this sequence was stored before, but the broker no longer remembers its
    offsets."""

    sentence = (
        "sequence {found} was stored before, but the broker only remembers the offsets "
        "of sequence {oldest} and later"
    )
    found: int
    oldest: int


@dataclass(eq=False, repr=False)
class RoutedOtherwise(LogError):
    """An earlier publish with this sequence was stored in other queues than those of this request,
    for example because queues were added to the topic."""

    sentence = (
        "sequence {found} was stored before, in other queues: queues were added to the "
        "topic since then, or the request has changed"
    )
    found: int


@dataclass(eq=False, repr=False)
class ProducerFenced(LogError):
    """The producer's epoch is lower than an epoch that the broker has seen."""

    sentence = "epoch {epoch} is fenced; a producer with epoch {current_epoch} took over"
    epoch: int
    current_epoch: int


@dataclass(eq=False, repr=False)
class TooManyProducers(LogError):
    """The broker cannot remember a new idempotent producer: the limit `limit_name` of section
    [commitlog] is reached, and no remembered producer has expired."""

    limit_name: str
    limit: int

    def __str__(self) -> str:
        whose = {
            "max_producers_per_topic": " of this topic",
            "max_producers_per_client": " of this client",
        }.get(self.limit_name, "")
        return (
            f"the limit of idempotent producers{whose} is reached: {self.limit_name} ({self.limit})"
        )
