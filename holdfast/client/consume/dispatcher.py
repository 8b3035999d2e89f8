"""Which delivery to process next: one per ordering key at a time. Pure.

An ordering key is a key, a queue, or a single message. Messages with the same ordering key must
stay in order. An ordering key is free while none of its deliveries is being processed. The next
delivery is the one that arrived first of all deliveries of free ordering keys.
"""

from collections import deque
from collections.abc import Hashable
from heapq import heappop, heappush
from itertools import chain
from operator import itemgetter
from typing import Generic, TypeVar

T = TypeVar("T")


class Dispatcher(Generic[T]):
    """The waiting deliveries, and the deliveries that are being processed ("in progress", at most
    `concurrency`). Its length is the number of waiting deliveries.

    Deliveries are compared by identity, because a message whose lease was lost may arrive again.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._waiting: dict[Hashable, deque[tuple[int, T]]] = {}
        #: A heap with an entry for each free ordering key: (arrival number of its first delivery,
        #: ordering key).
        self._free: list[tuple[int, Hashable]] = []
        self._in_progress: dict[int, tuple[T, Hashable]] = {}
        self._busy_keys: set[Hashable] = set()
        self._count = 0
        self._next_number = 0

    def __len__(self) -> int:
        return self._count

    @property
    def in_progress(self) -> list[T]:
        return [delivery for delivery, _ in self._in_progress.values()]

    def add(self, delivery: T, ordering_key: Hashable) -> None:
        number = self._next_number
        self._next_number += 1
        self._count += 1
        waiting = self._waiting.get(ordering_key)
        if waiting is not None:
            waiting.append((number, delivery))
            return
        self._waiting[ordering_key] = deque([(number, delivery)])
        if ordering_key not in self._busy_keys:
            heappush(self._free, (number, ordering_key))

    def take(self) -> T | None:
        """Return the next delivery. Return None if no delivery of a free ordering key waits, or
        `concurrency` deliveries are in progress."""
        if len(self._in_progress) >= self._concurrency:
            return None
        while self._free:
            number, ordering_key = heappop(self._free)
            waiting = self._waiting.get(ordering_key)
            if waiting is None or waiting[0][0] != number:
                continue  # the delivery of this entry was dropped meanwhile
            _, delivery = waiting.popleft()
            if not waiting:
                del self._waiting[ordering_key]
            self._count -= 1
            self._in_progress[id(delivery)] = delivery, ordering_key
            self._busy_keys.add(ordering_key)
            return delivery
        return None

    def finish(self, delivery: T) -> bool:
        """Record that a delivery was processed, which frees its ordering key. Return False if it
        was not in progress. May be repeated."""
        found = self._in_progress.pop(id(delivery), None)
        if found is None:
            return False
        _, ordering_key = found
        self._busy_keys.discard(ordering_key)
        self._offer(ordering_key)
        return True

    def drop(self, delivery: T, ordering_key: Hashable) -> bool:
        """Forget a waiting delivery. Return False if it does not wait."""
        waiting = self._waiting.get(ordering_key)
        kept = deque(each for each in waiting or () if each[1] is not delivery)
        if waiting is None or len(kept) == len(waiting):
            return False
        self._count -= 1
        if kept:
            self._waiting[ordering_key] = kept
        else:
            del self._waiting[ordering_key]
        if ordering_key not in self._busy_keys:
            self._offer(ordering_key)
        return True

    def count_waiting(self, ordering_key: Hashable) -> int:
        """Return how many deliveries of an ordering key wait."""
        return len(self._waiting.get(ordering_key, ()))

    def truncate(self, ordering_key: Hashable, kept: int) -> list[T]:
        """Remove the waiting deliveries of an ordering key after the first `kept`; return them in
        order."""
        waiting = self._waiting.get(ordering_key)
        if waiting is None or len(waiting) <= kept:
            return []
        cut = [waiting.pop()[1] for _ in range(len(waiting) - kept)]
        if not waiting:
            del self._waiting[ordering_key]
        self._count -= len(cut)
        return cut[::-1]

    def drain(self) -> list[T]:
        """Remove all waiting deliveries; return them in order of arrival."""
        found = sorted(chain(*self._waiting.values()), key=itemgetter(0))
        self._waiting.clear()
        self._count = 0
        return [delivery for _, delivery in found]

    def _offer(self, ordering_key: Hashable) -> None:
        waiting = self._waiting.get(ordering_key)
        if waiting:
            heappush(self._free, (waiting[0][0], ordering_key))
