"""What can go wrong in the log, by who has to act.

LogError
  CorruptBatch           bytes that are not an intact batch (from a client or from the disk)
    CorruptRecord        ... found in the log below its durable offset: kept, never served
  UnknownFormatVersion   written by a newer Holdfast: upgrade, nothing was touched
  BatchTooLarge          the caller's batch does not fit a segment
  LogClosed              append after close
  LogOverloaded          too many bytes wait for the appender: try again
  DiskFull               no room for the next segment: publishing stops, reading goes on
  DiskLow                little room left: publishing stops before the disk is full
  MemoryLow, IndexBehind too much is in memory: publishing stops until it is less
  NoSegment              the next segment cannot be made just now: try again
  LogPoisoned            a write or sync failed: read-only until the process is restarted
  SequenceGap, ProducerFenced, SequenceTooOld   an idempotent producer's mistakes
"""

#: The reason of a CorruptRecord whose whole segment file is gone.
MISSING_SEGMENT = "missing-segment"


class LogError(Exception):
    """Any failure of the commit log."""


class CorruptBatch(LogError):
    """Bytes that are not an intact batch. `reason` is a stable word, `detail` says more."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"not an intact batch ({self.reason}): {self.detail}"


class CorruptRecord(CorruptBatch):
    """A damaged block of the log. `next_offset` is the queue offset after it, where known."""

    def __init__(
        self, physical_offset: int, reason: str, detail: str = "", next_offset: int | None = None
    ) -> None:
        super().__init__(reason, detail)
        self.args = (physical_offset, reason, detail, next_offset)
        self.physical_offset = physical_offset
        self.next_offset = next_offset

    def ending_at(self, next_offset: int) -> "CorruptRecord":
        """Return this with the queue offset after the damage."""
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
            "Use the Holdfast that wrote it, or a newer one; nothing was changed."
        )


class BatchTooLarge(LogError):
    """A batch that no segment of the configured size can hold."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return f"a batch of {self.size} bytes does not fit a segment; at most {self.limit} do"


class LogClosed(LogError):
    """The log is closed or closing."""

    def __str__(self) -> str:
        return "the commit log is closed"


class LogOverloaded(LogError):
    """More bytes wait to be stored than the limit of this name allows."""

    def __init__(
        self, waiting_bytes: int, limit: int, limit_name: str = "max_waiting_bytes"
    ) -> None:
        super().__init__(waiting_bytes, limit, limit_name)
        self.waiting_bytes = waiting_bytes
        self.limit = limit
        self.limit_name = limit_name

    def __str__(self) -> str:
        return f"{self.waiting_bytes} bytes already wait ({self.limit_name} is {self.limit})"


class DiskFull(LogError):
    """There is no room for the next segment."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(needed_bytes)
        self.needed_bytes = needed_bytes

    def __str__(self) -> str:
        return (
            f"the disk has no room for the next segment ({self.needed_bytes} bytes); "
            "free space or lower the retention, publishing then resumes by itself"
        )


class DiskLow(LogError):
    """Less room is left than `min_free_bytes`, or would be behind the next segment of
    `segment_bytes`: that is kept for other things."""

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
            segment = f", and the next segment takes segment_bytes ({self.segment_bytes})"
            mend = "free space, lower the retention or make segments smaller"
        return (
            f"the disk of {self.directory} has {self.free_bytes} bytes left, of which "
            f"min_free_bytes ({self.min_free_bytes}) are not for messages{segment}; {mend}, "
            "publishing then resumes by itself"
        )


class MemoryLow(LogError):
    """The process uses as much memory as it may."""

    limit_name = "max_memory_bytes"

    def __init__(self, used_bytes: int, limit: int) -> None:
        super().__init__(used_bytes, limit)
        self.used_bytes = used_bytes
        self.limit = limit

    def __str__(self) -> str:
        return f"the broker uses {self.used_bytes} bytes of memory ({self.limit_name} {self.limit})"


class IndexBehind(LogError):
    """As many entries wait to be committed to the index as may; `cause` if it fails."""

    limit_name = "max_uncommitted_entries"

    def __init__(self, entries: int, limit: int, cause: str | None) -> None:
        super().__init__(entries, limit, cause)
        self.entries = entries
        self.limit = limit
        self.cause = cause

    def __str__(self) -> str:
        why = f": {self.cause}; free space, it catches up by itself" if self.cause else ""
        return (
            f"{self.entries} entries wait to be committed to the index ({self.limit_name} is "
            f"{self.limit}){why}"
        )


class NoSegment(LogError):
    """The next segment could not be made, for want of something else than room: descriptors,
    memory, a disk that answers. Nothing has changed."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return f"the next segment cannot be made now ({self.cause})"


class LogPoisoned(LogError):
    """A write or a sync failed; what it covered is unknown, so nothing more is accepted."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return f"the log is read-only since a write failed ({self.cause}); restart the broker"


class SequenceGap(LogError):
    """An idempotent producer skipped a sequence."""

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(expected, found)
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return f"sequence {self.found} leaves a gap; the next one is {self.expected}"


class SequenceTooOld(LogError):
    """A sequence that was stored, but whose offsets are no longer remembered."""

    def __init__(self, found: int, oldest: int) -> None:
        super().__init__(found, oldest)
        self.found = found
        self.oldest = oldest

    def __str__(self) -> str:
        return (
            f"sequence {self.found} was stored before, but only offsets from sequence "
            f"{self.oldest} on are remembered"
        )


class ProducerFenced(LogError):
    """A producer with a lower epoch than one already seen."""

    def __init__(self, epoch: int, current_epoch: int) -> None:
        super().__init__(epoch, current_epoch)
        self.epoch = epoch
        self.current_epoch = current_epoch

    def __str__(self) -> str:
        return f"epoch {self.epoch} is fenced; a producer with epoch {self.current_epoch} took over"
