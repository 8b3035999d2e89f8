"""The deadlines of held pulls. Pure: the caller passes the time.

Deadlines are stored in buckets (ticks) of 1/128 s. So the cost of `add` and `remove` does not
depend on the number of items, and a removed item leaves no entry. A deadline never fires early,
and at most one tick late.
"""

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from math import ceil
from sys import maxsize
from typing import Generic, TypeVar

#: A power of two, so that the time of a tick in seconds is an exact float. A rounded time could be
#: a little before the deadline.
TICKS_PER_S = 128
#: `crowd` counts the items that are due within this number of ticks (62.5 ms).
CROWD_TICKS = 8

T = TypeVar("T", bound=Hashable)


class Deadlines(Generic[T]):
    """Items with a deadline, in finite seconds on a clock of the caller's choice."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[T, float]] = {}
        # A heap with the tick of each bucket once. An empty bucket stays until its time has come,
        # so there are never more buckets than ticks in the longest wait.
        self._ticks: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        for bucket in self._buckets.values():
            yield from bucket

    def add(self, item: T, deadline: float) -> None:
        """Add an item. It must not be present."""
        tick = _tick(deadline)
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
            heappush(self._ticks, tick)
        bucket[item] = deadline
        self._count += 1

    def remove(self, item: T, deadline: float) -> None:
        """Remove an item. `deadline` must be the deadline that was passed to `add`."""
        del self._buckets[_tick(deadline)][item]
        self._count -= 1

    def next(self) -> float | None:
        """Return the time at which the first item is due, rounded up to a tick; None if there is
        no item."""
        while self._ticks:
            if self._buckets[self._ticks[0]]:
                return self._ticks[0] / TICKS_PER_S
            del self._buckets[heappop(self._ticks)]
        return None

    def crowd(self) -> int:
        """Return how many items are due within CROWD_TICKS from the first due item; 0 if there is
        no item."""
        if self.next() is None:
            return 0
        first = self._ticks[0]
        return sum(len(self._buckets.get(first + n, ())) for n in range(CROWD_TICKS))

    def due(self, now: float, most: int = maxsize) -> list[T]:
        """Remove and return at most `most` due items in order of deadline. Items with equal
        deadlines are in the order in which they were added."""
        found: list[T] = []
        while len(found) < most and self._ticks and self._ticks[0] <= now * TICKS_PER_S:
            bucket = self._buckets[self._ticks[0]]
            taken = sorted(bucket, key=bucket.__getitem__)[: most - len(found)]
            found += taken
            if len(taken) == len(bucket):
                del self._buckets[heappop(self._ticks)]
            else:
                for item in taken:
                    del bucket[item]
        self._count -= len(found)
        return found


def _tick(deadline: float) -> int:
    return ceil(deadline * TICKS_PER_S)
