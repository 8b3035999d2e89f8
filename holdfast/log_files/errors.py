"""The errors of reads from a data directory. Pure.

Callers translate them to their own errors, which also say how to fix them.
"""

from dataclasses import dataclass


class LogFilesError(Exception):
    """A data directory, or a range of it, cannot be read."""


@dataclass(eq=False, repr=False)
class FilesUnreadable(LogFilesError):
    """A data directory cannot be read from here, or its state is damaged."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"the log in the data directory {self.path} cannot be read here ({self.reason})"


@dataclass(eq=False, repr=False)
class TopicMissing(LogFilesError):
    """The log in the data directory has no topic of this name."""

    topic: str
    path: str

    def __str__(self) -> str:
        return f"there is no topic {self.topic!r} in the log of {self.path}"


@dataclass(eq=False, repr=False)
class TopicReplaced(LogFilesError):
    """The topic was deleted and created again: it has another id now."""

    topic: str
    expected_id: int
    found_id: int

    def __str__(self) -> str:
        return f"topic {self.topic!r} has the id {self.found_id}, not {self.expected_id}"


@dataclass(eq=False, repr=False)
class RangeMissing(LogFilesError):
    """A queue does not have the whole range."""

    topic: str
    queue: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"queue {self.queue} of {self.topic!r} lacks offsets in {self.start} to {self.end}"
