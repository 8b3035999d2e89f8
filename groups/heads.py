"""What the group core must know of a message before it delivers it, and who tells it. Pure.

A HeadSource is the shell's view of a queue: memory, index and log, never waited for. What it
cannot tell at once it answers with None; the core then says so (NeedsRead), the shell reads and
asks again.
"""

from typing import NamedTuple, Protocol

from holdfast.consumequeue.lost_ranges import LostRanges
from holdfast.consumequeue.topics import QueueKey


class Head(NamedTuple):
    """One message as selection sees it."""

    offset: int
    size_bytes: int = 0
    #: A number for the message's key, equal for equal keys; 0: it has none.
    key: int = 0
    #: When it is too old to be delivered; 0: never.
    expires_at_ms: int = 0


class Heads(NamedTuple):
    """A piece of a queue: the messages in it that are wanted, and the offset looked up to.

    What lies between them, up to `scanned`, is not wanted: the filter fails, or nothing is
    there. `scanned` is beyond the start that was asked for. `lost` are those of it that cannot be
    read: ranges that may reach beyond this piece.
    """

    heads: list[Head]
    scanned: int
    lost: LostRanges = ()


class HeadSource(Protocol):
    """Tells of messages below the ends that the core was told of."""

    def read(
        self, queue: QueueKey, start: int, end: int, most: int, filter: object | None
    ) -> Heads | None:
        """Return up to `most` messages of [start, end) that pass; None: not without the disk."""

    def matches(self, queue: QueueKey, offset: int, filter: object) -> bool | None:
        """Say whether one message passes; None: not without the disk."""


class NeedsRead(Exception):
    """The source cannot tell of a message without waiting; nothing has changed."""

    def __init__(self, queue: QueueKey, offset: int) -> None:
        super().__init__(queue, offset)
        self.queue = queue
        self.offset = offset
