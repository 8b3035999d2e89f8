"""Which delivery to process next: one per ordering key at a time, different ordering keys
concurrently. Pure.

An ordering key is a set of messages that must stay in order: a key, a queue, or a single message. A
ordering key is free while none of its deliveries is being processed. Of the deliveries of all free
ordering keys, the one that arrived first is next, which keeps the broker's order.
"""

from collections import deque
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")


class Dispatcher(Generic[T]):
    """The deliveries that wait to be processed, and those that are being processed ("in hand", at
    most `concurrency`).

    Deliveries are compared by identity, because a message whose lease was lost may arrive again.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._waiting: dict[Hashable, deque[tuple[int, T]]] = {}
        #: A heap with an entry for each free ordering key: (arrival number of its first delivery,
        #: ordering key).
        self._free: list[tuple[int, Hashable]] = []
        self._in_hand: dict[int, tuple[T, Hashable]] = {}
        self._keys_in_hand: set[Hashable] = set()
        self._count = 0
        self._next_number = 0

    def __len__(self) -> int:
        """Return how many deliveries wait."""
        return self._count

    @property
    def in_hand(self) -> list[T]:
        """The deliveries that were taken and are not done."""
        return [delivery for delivery, _ in self._in_hand.values()]

    def add(self, delivery: T, ordering_key: Hashable) -> None:
        """Append a delivery to those that wait in its ordering key."""
        number = self._next_number
        self._next_number += 1
        self._count += 1
        waiting = self._waiting.get(ordering_key)
        if waiting is not None:
            waiting.append((number, delivery))
            return
        self._waiting[ordering_key] = deque([(number, delivery)])
        if ordering_key not in self._keys_in_hand:
            heappush(self._free, (number, ordering_key))

    def take(self) -> T | None:
        """Return the next delivery; None if no ordering key is free or `concurrency` are in
        hand."""
        if len(self._in_hand) >= self._concurrency:
            return None
        while self._free:
            number, ordering_key = heappop(self._free)
            waiting = self._waiting.get(ordering_key)
            if waiting is None or waiting[0][0] != number:
                continue  # that delivery was dropped meanwhile
            _, delivery = waiting.popleft()
            if not waiting:
                del self._waiting[ordering_key]
            self._count -= 1
            self._in_hand[id(delivery)] = delivery, ordering_key
            self._keys_in_hand.add(ordering_key)
            return delivery
        return None

    def finish(self, delivery: T) -> bool:
        """Record that a delivery is no longer in hand, which frees its ordering key. Return False
        if it was not in hand. May be repeated."""
        found = self._in_hand.pop(id(delivery), None)
        if found is None:
            return False
        _, ordering_key = found
        self._keys_in_hand.discard(ordering_key)
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
        if ordering_key not in self._keys_in_hand:
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

    def drain(self, ordering_key: Hashable | None = None) -> list[T]:
        """Remove the waiting deliveries (of all ordering keys, or of `ordering_key`); return them
        in order of arrival."""
        ordering_keys = list(self._waiting) if ordering_key is None else [ordering_key]
        found = sorted(
            (
                each
                for ordering_key in ordering_keys
                for each in self._waiting.pop(ordering_key, ())
            ),
            key=lambda each: each[0],
        )
        self._count -= len(found)
        return [delivery for _, delivery in found]

    def _offer(self, ordering_key: Hashable) -> None:
        waiting = self._waiting.get(ordering_key)
        if waiting:
            heappush(self._free, (waiting[0][0], ordering_key))
