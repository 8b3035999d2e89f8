"""Which delivery is worked on next: one of a unit at a time, units beside each other. Pure.

A unit is what has to stay in order: a key, a queue, or a message by itself. Of what is free the
delivery that came first goes first, so what the broker chose is kept.
"""

from collections import deque
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")


class Dispatcher(Generic[T]):
    """Deliveries that wait for their turn. At most `concurrency` are in hand at once.

    They are told apart by identity: a message whose lease was lost may come a second time.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._waiting: dict[Hashable, deque[tuple[int, T]]] = {}
        #: The first delivery of each unit that is free, by the order of arrival.
        self._free: list[tuple[int, Hashable]] = []
        self._in_hand: dict[int, tuple[T, Hashable]] = {}
        self._units_in_hand: set[Hashable] = set()
        self._count = 0
        self._next_number = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return self._count

    @property
    def in_hand(self) -> list[T]:
        """Those that were taken and are not done."""
        return [delivery for delivery, _ in self._in_hand.values()]

    def add(self, delivery: T, unit: Hashable) -> None:
        """Put a delivery behind the others of its unit."""
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
        """Return the next delivery; None while none is free, or enough are in hand."""
        if len(self._in_hand) >= self._concurrency:
            return None
        while self._free:
            number, unit = heappop(self._free)
            waiting = self._waiting.get(unit)
            if waiting is None or waiting[0][0] != number:
                continue  # dropped meanwhile
            _, delivery = waiting.popleft()
            if not waiting:
                del self._waiting[unit]
            self._count -= 1
            self._in_hand[id(delivery)] = delivery, unit
            self._units_in_hand.add(unit)
            return delivery
        return None

    def done(self, delivery: T) -> None:
        """A delivery is out of hand: the next of its unit is free. May be repeated."""
        found = self._in_hand.pop(id(delivery), None)
        if found is None:
            return
        _, unit = found
        self._units_in_hand.discard(unit)
        self._offer(unit)

    def drop(self, delivery: T, unit: Hashable) -> bool:
        """Forget a delivery that waits. False: it does not wait."""
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

    def drain(self, unit: Hashable | None = None) -> list[T]:
        """Return what waits, in order of arrival, and forget it: all of it, or of one unit."""
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
