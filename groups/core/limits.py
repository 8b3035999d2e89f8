"""How many messages of each queue or key one reply may have. Pure.

A member that processes one queue or key slowly requests few or no messages of that queue or key. It
still gets messages of the other queues and keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.consumequeue.topics import QueueKey

#: Larger than the number of messages in any reply.
UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class UnitLimit:
    """The most messages of one queue, or of one key in a keyed group, that a reply may have."""

    topic: str
    max_messages: int
    queue: int | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """The limits of one request. A key of `keys` is (topic id, number of the key in `Head.key`).
    Two `Limits` are equal only if they are the same object."""

    queues: Mapping[QueueKey, int] = field(default_factory=dict)
    keys: Mapping[tuple[int, int], int] = field(default_factory=dict)


class OffersKeys(Protocol):
    """A selection that offers the messages of a queue by key."""

    def offer_again(self, number: int) -> None:
        """Offer a key again that was put aside (see `Room.set_aside`)."""


class Room:
    """The part of the limits that is left while one reply is filled. If `returned_only` is true,
    the reply may have only returned messages (in_flight.py explains them)."""

    def __init__(self, limits: Limits) -> None:
        self.returned_only = False
        self._queues = dict(limits.queues)
        self._keys = dict(limits.keys)
        self._aside: dict[tuple[int, int], tuple[OffersKeys, int]] = {}

    def of_queue(self, queue: QueueKey) -> int:
        """Return how many more messages of a queue the reply may have."""
        return self._queues.get(queue, UNLIMITED)

    def has_key(self, topic_id: int, number: int) -> bool:
        """Return whether the reply may have another message of a key."""
        return self._keys.get((topic_id, number), 1) > 0

    def take(self, queue: QueueKey, number: int, count: int = 1) -> None:
        """Count messages of a queue and key that were added to the reply."""
        if queue in self._queues:
            self._queues[queue] -= count
        key = queue[0], number
        if key in self._keys:
            self._keys[key] -= count

    def set_aside(self, selection: OffersKeys, number: int) -> None:
        """Record a key that has no room left. The selection does not offer the key again until
        `put_back`, so the key is checked only once per reply."""
        self._aside[id(selection), number] = selection, number

    def put_back(self) -> None:
        """Let the selections offer again all keys that were put aside."""
        for selection, number in self._aside.values():
            selection.offer_again(number)
        self._aside.clear()
