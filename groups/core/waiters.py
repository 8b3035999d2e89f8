"""Requests that wait for messages, in the order in which they are served. Pure.

A request that is answered is removed. The next request of its member is added at the end, so the
members take turns. Available messages are offered to one waiting request after another. A request
that gets nothing keeps its place in the order until its deadline.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice

from holdfast.groups.core.requests import ReceiveRequest

#: A loop over the waiters first copies this many of them. It copies the others only if it
#: continues.
FEW = 16


@dataclass(slots=True, eq=False)
class Waiter:
    """One held request. `ticket` is the caller's handle to answer it."""

    request: ReceiveRequest
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
        """Yield all waiters in order. Waiters may be removed meanwhile. Yielding the first FEW is
        fast even if there are many; usually one of the first takes the messages."""
        first = list(islice(self._ring, FEW))
        yield from first
        if len(first) == FEW:
            last = first[-1].number
            yield from [waiter for waiter in self._ring if waiter.number > last]

    def add(self, request: ReceiveRequest, ticket: object, deadline_ms: int) -> Waiter:
        """Add a request at the end of the order."""
        self._last_number += 1
        waiter = Waiter(request, ticket, deadline_ms, self._last_number)
        self._ring[waiter] = None
        heappush(self._deadlines, (deadline_ms, waiter.number, waiter))
        if len(self._deadlines) > 2 * len(self._ring) + 64:
            self._deadlines = sorted((each.deadline_ms, each.number, each) for each in self._ring)
        return waiter

    def remove(self, waiter: Waiter) -> bool:
        """Remove a request. Return False if it had been removed before."""
        if not waiter.is_waiting:
            return False
        waiter.is_waiting = False
        del self._ring[waiter]
        return True

    def next_deadline(self) -> int | None:
        """Return the earliest deadline; None if no request waits."""
        while self._deadlines and not self._deadlines[0][2].is_waiting:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def due(self, now_ms: int) -> list[Waiter]:
        """Remove and return the requests whose deadline has passed, sorted by deadline."""
        found = []
        while (deadline_ms := self.next_deadline()) is not None and deadline_ms <= now_ms:
            waiter = heappop(self._deadlines)[2]
            self.remove(waiter)
            found.append(waiter)
        return found
