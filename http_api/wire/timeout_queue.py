"""A queue of entries with a deadline each, all after the same duration, with only one timer.

If each of 100,000 idle connections had its own timer, the timers would need more memory than the
connections.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")


class TimeoutQueue(Generic[K]):
    """Calls `on_timeout` for each entry that was not removed within `after_s` after it was added.

    It belongs to one event loop.
    """

    def __init__(self, after_s: float, on_timeout: Callable[[K], None]) -> None:
        self._after_s = after_s
        self._on_timeout = on_timeout
        self._due: dict[K, float] = {}
        """The deadline of each entry, earliest first. Entries are added in this order."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def add(self, entry: K) -> None:
        """Add an entry. If it is already there, its deadline stays unchanged."""
        loop = self._loop
        if loop is None:  # cached, because in Python 3.11 get_running_loop makes a system call
            loop = self._loop = asyncio.get_running_loop()
        self._due.setdefault(entry, loop.time() + self._after_s)
        if self._timer is None:
            self._timer = loop.call_later(self._after_s, self._check)

    def remove(self, entry: K) -> None:
        """Remove an entry, if it is there."""
        self._due.pop(entry, None)

    def stop(self) -> None:
        """Remove all entries. May be called twice."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        late = []
        for entry, due in self._due.items():
            if due > now:
                self._timer = loop.call_at(due, self._check)
                break
            late.append(entry)
        for entry in late:
            del self._due[entry]
        for entry in late:
            self._on_timeout(entry)
