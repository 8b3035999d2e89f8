"""Which delivery to process next: one per unit at a time, different units concurrently. Pure.

A unit is a set of messages that must stay in order: a key, a queue, or a single message. A unit is
free while none of its deliveries is being processed. Of the deliveries of all free units, the one
that arrived first is next, which keeps the broker's order.
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
        #: A heap with an entry for each free unit: (arrival number of its first delivery, unit).
        self._free: list[tuple[int, Hashable]] = []
        self._in_hand: dict[int, tuple[T, Hashable]] = {}
        self._units_in_hand: set[Hashable] = set()
        self._count = 0
        self._next_number = 0

    def __len__(self) -> int:
        """Return how many deliveries wait."""
        return self._count

    @property
    def in_hand(self) -> list[T]:
        """The deliveries that were taken and are not done."""
        return [delivery for delivery, _ in self._in_hand.values()]

    def add(self, delivery: T, unit: Hashable) -> None:
        """Append a delivery to those that wait in its unit."""
        number = self._next_number
        self._next_number += 1
        self._count += 1
        waiting = self._waiting.get(unit)
        if waiting is not None:
            waiting.append((number, delivery))
            return
        self._waiting[unit] = deque([(number, delivery)])
        if unit not in self._units_in_hand:
            heappush(self._free, (number, unit))

    def take(self) -> T | None:
        """Return the next delivery; None if no unit is free or `concurrency` are in hand."""
        if len(self._in_hand) >= self._concurrency:
            return None
        while self._free:
            number, unit = heappop(self._free)
            waiting = self._waiting.get(unit)
            if waiting is None or waiting[0][0] != number:
                continue  # that delivery was dropped meanwhile
            _, delivery = waiting.popleft()
            if not waiting:
                del self._waiting[unit]
            self._count -= 1
            self._in_hand[id(delivery)] = delivery, unit
            self._units_in_hand.add(unit)
            return delivery
        return None

    def done(self, delivery: T) -> bool:
        """Record that a delivery is no longer in hand, which frees its unit. Return False if it
        was not in hand. May be repeated."""
        found = self._in_hand.pop(id(delivery), None)
        if found is None:
            return False
        _, unit = found
        self._units_in_hand.discard(unit)
        self._offer(unit)
        return True

    def drop(self, delivery: T, unit: Hashable) -> bool:
        """Forget a waiting delivery. Return False if it does not wait."""
        waiting = self._waiting.get(unit)
        kept = deque(each for each in waiting or () if each[1] is not delivery)
        if waiting is None or len(kept) == len(waiting):
            return False
        self._count -= 1
        if kept:
            self._waiting[unit] = kept
        else:
            del self._waiting[unit]
        if unit not in self._units_in_hand:
            self._offer(unit)
        return True

    def waiting(self, unit: Hashable) -> int:
        """Return how many deliveries of a unit wait."""
        return len(self._waiting.get(unit, ()))

    def cut(self, unit: Hashable, kept: int) -> list[T]:
        """Remove the waiting deliveries of a unit after the first `kept`; return them in order."""
        waiting = self._waiting.get(unit)
        if waiting is None or len(waiting) <= kept:
            return []
        cut = [waiting.pop()[1] for _ in range(len(waiting) - kept)]
        if not waiting:
            del self._waiting[unit]
        self._count -= len(cut)
        return cut[::-1]

    def drain(self, unit: Hashable | None = None) -> list[T]:
        """Remove the waiting deliveries (of all units, or of `unit`); return them in order of
        arrival."""
        units = list(self._waiting) if unit is None else [unit]
        found = sorted(
            (each for unit in units for each in self._waiting.pop(unit, ())),
            key=lambda each: each[0],
        )
        self._count -= len(found)
        return [delivery for _, delivery in found]

    def _offer(self, unit: Hashable) -> None:
        waiting = self._waiting.get(unit)
        if waiting:
            heappush(self._free, (waiting[0][0], unit))
