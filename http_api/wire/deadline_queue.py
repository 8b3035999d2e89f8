"""A queue of entries with a deadline each, all after the same duration, with only one timer.

If each of 100,000 idle connections had its own timer, the timers would need more memory than the
connections.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class EqualDeadlines(Generic[K]):
    """Calls `late` for each entry that was not removed within `after_s` after it was added.

    It belongs to one event loop.
    """

    def __init__(self, after_s: float, late: Callable[[K], None]) -> None:
        self._after_s = after_s
        self._late = late
        self._due: dict[K, float] = {}
        """The deadline of each entry, earliest first. Entries are added in this order."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def put(self, who: K) -> None:
        """Add an entry. If it is already there, its deadline stays unchanged."""
        loop = self._loop
        if loop is None:  # cached, because in Python 3.11 get_running_loop makes a system call
            loop = self._loop = asyncio.get_running_loop()
        self._due.setdefault(who, loop.time() + self._after_s)
        if self._timer is None:
            self._timer = loop.call_later(self._after_s, self._look)

    def take(self, who: K) -> None:
        """Remove an entry, if it is there."""
        self._due.pop(who, None)

    def stop(self) -> None:
        """Remove all entries. May be called twice."""
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
