"""Requests that wait for messages, in the order of their turns. Pure.

Who was answered goes to the end when it asks again, so members that wait take turns. One thing
that becomes available is offered to one after another until somebody takes it; who got nothing
keeps its place and goes on waiting until its own deadline.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice

from holdfast.groups.asking import Ask

#: Requests that are looked at before all are counted.
FEW = 16


@dataclass(slots=True, eq=False)
class Waiter:
    """One held request. `ticket` is the caller's, to know whom to answer."""

    ask: Ask
    ticket: object
    deadline_ms: int
    number: int = 0
    is_waiting: bool = True


class Waiters:
    """The held requests of one group."""

    def __init__(self) -> None:
        self._ring: dict[Waiter, None] = {}
        self._deadlines: list[tuple[int, int, Waiter]] = []
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._ring)

    def __iter__(self) -> Iterator[Waiter]:
        """Yield them in turn, also if they are removed meanwhile. The first cost the same
        however many there are: mostly one of them takes what there is."""
        first = list(islice(self._ring, FEW))
        yield from first
        if len(first) == FEW:
            last = first[-1].number
            yield from [waiter for waiter in self._ring if waiter.number > last]

    def add(self, ask: Ask, ticket: object, deadline_ms: int) -> Waiter:
        """Hold a request; it is last in turn."""
        self._last_number += 1
        waiter = Waiter(ask, ticket, deadline_ms, self._last_number)
        self._ring[waiter] = None
        heappush(self._deadlines, (deadline_ms, waiter.number, waiter))
        if len(self._deadlines) > 2 * len(self._ring) + 64:
            self._deadlines = sorted((each.deadline_ms, each.number, each) for each in self._ring)
        return waiter

    def remove(self, waiter: Waiter) -> bool:
        """Let a request go. False: it was answered before."""
        if not waiter.is_waiting:
            return False
        waiter.is_waiting = False
        del self._ring[waiter]
        return True

    def next_deadline(self) -> int | None:
        """Return when the first request's time runs out; None: none waits."""
        while self._deadlines and not self._deadlines[0][2].is_waiting:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def due(self, now_ms: int) -> list[Waiter]:
        """Remove and return the requests whose time has run out, by deadline."""
        found = []
        while (deadline_ms := self.next_deadline()) is not None and deadline_ms <= now_ms:
            waiter = heappop(self._deadlines)[2]
            self.remove(waiter)
            found.append(waiter)
        return found
