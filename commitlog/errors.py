"""The errors of the log.

LogError
  CorruptBatch           bytes that are not an intact batch (from a client or from the disk)
    CorruptRecord        a damaged block of the log: kept, never served
  UnknownFormatVersion   written by a newer Holdfast: upgrade; nothing was changed
  BatchTooLarge          the caller's batch does not fit a segment
  LogClosed              append after close
  LogOverloaded          too many bytes wait for the appender: retry
  DiskFull               no room for the next segment: publishing stops, reading goes on
  DiskLow                little room left: publishing stops before the disk is full
  MemoryLow, IndexBehind too much is in memory: publishing stops until memory use falls
  NoSegment              the next segment cannot be created now: retry
  SyncTimeout            the disk has not confirmed a publish in time: it may be stored or not
  LogPoisoned            a write or sync failed: the log is read-only until a restart
  SequenceGap, ProducerFenced, SequenceTooOld   the sequence or epoch of a producer is wrong
  TooManyProducers       no room for a new idempotent producer
  RoutedOtherwise        a retried publish goes to other queues than the first attempt
"""

#: Reason of a CorruptRecord: the whole segment file is missing.
MISSING_SEGMENT = "missing-segment"
#: Reason of a CorruptRecord: the disk failed to read the block; another read may succeed.
UNREADABLE = "unreadable"
#: Reason of a CorruptRecord: a newer Holdfast wrote the block, and this version cannot read it.
UNKNOWN_VERSION = "unknown-version"


class LogError(Exception):
    """Base class of the commit log's errors."""


class CorruptBatch(LogError):
    """Bytes that are not an intact batch. `reason` is a fixed word for programs, `detail` is free
    text for people."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"not an intact batch ({self.reason}): {self.detail}"


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


class UnknownFormatVersion(LogError):
    """A file or block of a version that this code does not know."""

    def __init__(self, what: str, found: object, known: object) -> None:
        super().__init__(what, found, known)
        self.what = what
        self.found = found
        self.known = known

    def __str__(self) -> str:
        return (
            f"{self.what} has format version {self.found}; this Holdfast reads {self.known}. "
            "Use the Holdfast version that wrote it, or a newer one. Nothing was changed."
        )


class BatchTooLarge(LogError):
    """A batch that no segment of the configured size can hold."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return f"a batch of {self.size} bytes does not fit in a segment; the limit is {self.limit}"


class LogClosed(LogError):
    """The log is closed or closing."""

    def __str__(self) -> str:
        return "the commit log is closed"


class LogOverloaded(LogError):
    """More bytes wait to be stored than the limit `limit_name` allows."""

    def __init__(
        self, waiting_bytes: int, limit: int, limit_name: str = "max_waiting_bytes"
    ) -> None:
        super().__init__(waiting_bytes, limit, limit_name)
        self.waiting_bytes = waiting_bytes
        self.limit = limit
        self.limit_name = limit_name

    def __str__(self) -> str:
        return f"{self.waiting_bytes} bytes are waiting ({self.limit_name} is {self.limit})"


class DiskFull(LogError):
    """There is no room for the next segment."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(needed_bytes)
        self.needed_bytes = needed_bytes

    def __str__(self) -> str:
        return (
            f"the disk has no room for the next segment ({self.needed_bytes} bytes); "
            "free space or lower the retention, then publishing resumes automatically"
        )


class DiskLow(LogError):
    """The disk has less free room than `min_free_bytes`, or would have less after the creation of
    a segment of `segment_bytes`. The free room is reserved for files that are not segments."""

    def __init__(
        self, directory: str, free_bytes: int, min_free_bytes: int, segment_bytes: int = 0
    ) -> None:
        super().__init__(directory, free_bytes, min_free_bytes, segment_bytes)
        self.directory = directory
        self.free_bytes = free_bytes
        self.min_free_bytes = min_free_bytes
        self.segment_bytes = segment_bytes

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


class MemoryLow(LogError):
    """The process uses as much memory as its limit allows, or more."""

    limit_name = "max_memory_bytes"

    def __init__(self, used_bytes: int, limit: int) -> None:
        super().__init__(used_bytes, limit)
        self.used_bytes = used_bytes
        self.limit = limit

    def __str__(self) -> str:
        return f"the broker uses {self.used_bytes} bytes of memory ({self.limit_name} {self.limit})"


class IndexBehind(LogError):
    """The index has as many uncommitted entries as its limit allows. `cause` is the reason why
    commits of the index fail, None if they do not fail."""

    limit_name = "max_uncommitted_entries"

    def __init__(self, entries: int, limit: int, cause: str | None) -> None:
        super().__init__(entries, limit, cause)
        self.entries = entries
        self.limit = limit
        self.cause = cause

    def __str__(self) -> str:
        why = f": {self.cause}; free space, then it catches up automatically" if self.cause else ""
        return (
            f"{self.entries} entries wait to be committed to the index ({self.limit_name} is "
            f"{self.limit}){why}"
        )


class NoSegment(LogError):
    """The next segment could not be created, and the reason is not a full disk, but for example
    too few descriptors, no memory or an I/O error. The log is unchanged."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return f"the next segment cannot be created now ({self.cause})"


class SyncTimeout(LogError):
    """A publish was not written or synced in time. It may be stored already, or be stored
    later."""

    stored = "unknown"

    def __init__(self, timeout_ms: int) -> None:
        super().__init__(timeout_ms)
        self.timeout_ms = timeout_ms

    def __str__(self) -> str:
        return (
            f"the disk did not confirm the publish within sync_timeout_ms ({self.timeout_ms}); "
            "it is unknown whether the messages are stored"
        )


class LogPoisoned(LogError):
    """A write or a sync failed. It is unknown which bytes are stored, so the log accepts no more
    writes."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return f"the log is read-only because a write failed ({self.cause}); restart the broker"


class SequenceGap(LogError):
    """An idempotent producer skipped a sequence."""

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(expected, found)
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return f"sequence {self.found} leaves a gap; the next one is {self.expected}"


class SequenceTooOld(LogError):
    """A publish with this sequence was stored before, but the broker no longer remembers its
    offsets."""

    def __init__(self, found: int, oldest: int) -> None:
        super().__init__(found, oldest)
        self.found = found
        self.oldest = oldest

    def __str__(self) -> str:
        return (
            f"sequence {self.found} was stored before, but the broker only remembers the offsets "
            f"of sequence {self.oldest} and later"
        )


class RoutedOtherwise(LogError):
    """An earlier publish with this sequence was stored in other queues than those of this request,
    for example because queues were added to the topic."""

    def __init__(self, found: int) -> None:
        super().__init__(found)
        self.found = found

    def __str__(self) -> str:
        return (
            f"sequence {self.found} was stored before, in other queues: queues were added to the "
            "topic since then, or the request has changed"
        )


class ProducerFenced(LogError):
    """The producer's epoch is lower than an epoch that the broker has seen."""

    def __init__(self, epoch: int, current_epoch: int) -> None:
        super().__init__(epoch, current_epoch)
        self.epoch = epoch
        self.current_epoch = current_epoch

    def __str__(self) -> str:
        return f"epoch {self.epoch} is fenced; a producer with epoch {self.current_epoch} took over"


class TooManyProducers(LogError):
    """The broker cannot remember a new idempotent producer: the limit `limit_name` of section
    [commitlog] is reached, and no remembered producer has expired."""

    def __init__(self, limit_name: str, limit: int) -> None:
        super().__init__(limit_name, limit)
        self.limit_name = limit_name
        self.limit = limit

    def __str__(self) -> str:
        whose = {
            "max_producers_per_topic": " of this topic",
            "max_producers_per_client": " of this client",
        }.get(self.limit_name, "")
        return (
            f"the limit of idempotent producers{whose} is reached: {self.limit_name} ({self.limit})"
        )
