"""When which held pull gives up waiting. Pure: the caller says what time it is.

Deadlines are kept in ticks of 1/128 s, so adding and removing cost the same however many are
kept, and nothing is left behind by a pull that was answered in time. A deadline never comes
early, and at most one tick late.
"""

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from math import ceil
from sys import maxsize
from typing import Generic, TypeVar

#: A power of two: a tick's time in seconds is exact, never a hair before the deadline.
TICKS_PER_S = 128
#: Some 60 ms: what falls due within it is a crowd, and takes about that long to be answered.
CROWD_TICKS = 8

T = TypeVar("T", bound=Hashable)


class Deadlines(Generic[T]):
    """Items with a deadline in seconds (finite), on whatever clock the caller has."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[T, float]] = {}
        # Every bucket's tick once. A bucket that has become empty stays until its time has
        # come, so there are never more of them than ticks in the longest wait.
        self._ticks: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        for bucket in self._buckets.values():
            yield from bucket

    def add(self, item: T, deadline: float) -> None:
        """Keep an item that is not kept yet."""
        tick = _tick(deadline)
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
            heappush(self._ticks, tick)
        bucket[item] = deadline
        self._count += 1

    def remove(self, item: T, deadline: float) -> None:
        """Forget an item that was added with this very deadline."""
        del self._buckets[_tick(deadline)][item]
        self._count -= 1

    def next(self) -> float | None:
        """Return when to look again: the first moment at which something is due."""
        while self._ticks:
            if self._buckets[self._ticks[0]]:
                return self._ticks[0] / TICKS_PER_S
            del self._buckets[heappop(self._ticks)]
        return None

    def crowd(self) -> int:
        """Return how many are due together next: within CROWD_TICKS of the first."""
        if self.next() is None:
            return 0
        first = self._ticks[0]
        return sum(len(self._buckets.get(first + n, ())) for n in range(CROWD_TICKS))

    def due(self, now: float, most: int = maxsize) -> list[T]:
        """Remove and return up to `most` of what is due, by deadline; equal ones in the order
        they came."""
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
