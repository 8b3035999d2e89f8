"""Heads, which are the data of messages that selection needs, and their source. Pure.

The group core reads queues through a HeadSource, which never blocks. If a head is not in memory,
the HeadSource returns None, and the core raises NeedsRead. The caller of the core then fetches the
message and repeats the call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from holdfast.consumequeue.lost_ranges import LostRanges
from holdfast.consumequeue.topics import QueueKey

#: The size of a message if only its offset is known.
UNKNOWN_SIZE = 0xFFFF_FFFF


class Head(msgspec.Struct, frozen=True, order=True, gc=False):
    """The data of one message that selection needs. Heads are ordered by offset."""

    offset: int
    size_bytes: int = 0
    #: A number for the message's key, equal for equal keys. It is 0 if the message has no key.
    key: int = 0
    #: When the message expires, by the wall clock. It is 0 if the message never expires.
    expires_at_ms: int = 0
    #: The cost that the publisher gave, in thousandths. It is 0 if it was not read.
    cost: int = 0


class Heads(NamedTuple):
    """The result of reading a part of a queue."""

    #: The messages that match the filter. The filter does not match any other message of the part.
    heads: list[Head]
    #: The offset at which the part ends; greater than the offset at which the read began.
    scanned: int
    #: The ranges of offsets that cannot be read. They may extend beyond the part.
    lost: LostRanges = ()


class HeadSource(Protocol):
    """Returns the heads of messages. Callers ask only for offsets that exist."""

    def read(
        self, queue: QueueKey, start: int, end: int, most: int, filter: object | None
    ) -> Heads | None:
        """Return at most `most` matching messages of [start, end); None if a fetch is needed."""

    def matches(self, queue: QueueKey, offset: int, filter: object) -> bool | None:
        """Return whether one message matches; None if a fetch is needed."""

    def keys(self, queue: QueueKey, start: int, end: int) -> Sequence[bytes] | None:
        """Return the keys of at least one message of [start, end), from `start` on, in UTF-8. The
        key is b"" if a message has none, or cannot be read. None if a fetch is needed."""

    def wall_ms(self, now_ms: int) -> int:
        """Return the time of the wall clock, by which messages expire. `now_ms` is the group's
        present time."""


@dataclass(eq=False)
class NeedsRead(Exception):
    """The head of a message is not in memory. The caller may fetch it and repeat the call."""

    queue: QueueKey
    offset: int
