"""Deadlines that all have the same time from when they begin: one timer does for all of them.

A timer of its own for each of a hundred thousand idle connections would cost more memory than
what they are idle with.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class EqualDeadlines(Generic[K]):
    """Calls `late` for whoever was not taken out `after_s` after they were put in. Belongs to one
    event loop."""

    def __init__(self, after_s: float, late: Callable[[K], None]) -> None:
        self._after_s = after_s
        self._late = late
        self._due: dict[K, float] = {}
        """In the order in which they fall due, which is that in which they were put in."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def put(self, who: K) -> None:
        """Begin a deadline; one that has begun goes on."""
        loop = self._loop
        if loop is None:  # asked for once: in 3.11 that is a call of the system
            loop = self._loop = asyncio.get_running_loop()
        self._due.setdefault(who, loop.time() + self._after_s)
        if self._timer is None:
            self._timer = loop.call_later(self._after_s, self._look)

    def take(self, who: K) -> None:
        """End a deadline; nothing happens where there is none."""
        self._due.pop(who, None)

    def stop(self) -> None:
        """Forget all of them. May be called twice."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        late = []
        for who, due in self._due.items():
            if due > now:
                self._timer = loop.call_at(due, self._look)
                break
            late.append(who)
        for who in late:
            del self._due[who]
        for who in late:
            self._late(who)
