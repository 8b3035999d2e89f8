"""Whose callbacks run next: one block of one channel at a time. Pure; the caller locks.

| state       | the channel                                     | leaves the state by |
|-------------|-------------------------------------------------|---------------------|
| dormant     | has no item                                     | `add`               |
| ready       | has items, and waits for a thread               | `take`              |
| in progress | has a block of items that one thread processes  | `finish`            |

A channel in progress is given to no second thread, so that its callbacks never overlap. Ready
channels are served in turn, a block each.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)
I = TypeVar("I")  # noqa: E741 - the item's type

#: How many callbacks of one channel run before other channels have their turn.
BLOCK_COUNT = 256


class Scheduler(Generic[C, I]):
    """The waiting items of all channels, in their order, and the channels' states."""

    def __init__(self) -> None:
        self._waiting: dict[C, deque[I]] = {}
        self._ready: deque[C] = deque()
        self._in_progress: set[C] = set()

    def add(self, channel: C, items: Iterable[I]) -> bool:
        """Add items behind the others of the channel. Return True if the channel was dormant and
        is now ready: the caller must let one more thread `take`."""
        new = deque(items)
        if not new:
            return False
        if (waiting := self._waiting.get(channel)) is not None:
            waiting.extend(new)
            return False
        self._waiting[channel] = new
        if channel in self._in_progress:
            return False
        self._ready.append(channel)
        return True

    def take(self) -> tuple[C, list[I]] | None:
        """Return the next ready channel and its first items, at most BLOCK_COUNT, which are then
        in progress. Return None if no channel is ready."""
        if not self._ready:
            return None
        channel = self._ready.popleft()
        waiting = self._waiting.pop(channel)
        block = [waiting.popleft() for _ in range(min(BLOCK_COUNT, len(waiting)))]
        if waiting:
            self._waiting[channel] = waiting
        self._in_progress.add(channel)
        return channel, block

    def finish(self, channel: C) -> bool:
        """Record that the block of a channel was processed. Return True if the channel has more
        items and is ready again, and False if it is dormant."""
        self._in_progress.discard(channel)
        if channel not in self._waiting:
            return False
        self._ready.append(channel)
        return True

    def drop(self, channel: C, matches: Callable[[I], bool]) -> list[I]:
        """Remove the waiting items of a channel that match; return them in their order."""
        waiting = self._waiting.get(channel, deque())
        dropped = [each for each in waiting if matches(each)]
        kept = deque(each for each in waiting if not matches(each))
        if kept:
            self._waiting[channel] = kept
        elif self._waiting.pop(channel, None) is not None and channel not in self._in_progress:
            self._ready.remove(channel)
        return dropped

    def count_waiting(self, channel: C) -> int:
        """Return how many items of a channel wait; those in progress do not count."""
        return len(self._waiting.get(channel, ()))
