"""Counts over all groups since the broker started, and the delivery rate of each queue."""

from collections import Counter, deque
from dataclasses import dataclass, field

from holdfast.groups.service_types import Served

#: The rate is the average over this time, counted in steps of a second.
WINDOW_S = 60


@dataclass(slots=True)
class Counters:
    """Counts of all groups together."""

    delivered: int = 0
    redelivered: int = 0
    settled: Counter[tuple[str, str]] = field(default_factory=Counter)
    dead_letters: int = 0
    letters_not_kept: Counter[str] = field(default_factory=Counter)
    undelivered: int = 0
    commits: int = 0
    commit_failures: int = 0


class DeliveryRate:
    """The deliveries of one queue of a group. `began_ms` is the time when counting began."""

    def __init__(self, began_ms: int) -> None:
        self._began_ms = began_ms
        self._count = 0
        self._bytes = 0
        #: (second, messages delivered in it), the oldest first.
        self._seconds: deque[list[int]] = deque()

    def add(self, count: int, size_bytes: int, now_ms: int) -> None:
        """Count messages that are delivered now."""
        self._count += count
        self._bytes += size_bytes
        second = now_ms // 1000
        self._forget(second)
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1][1] += count
        else:
            self._seconds.append([second, count])

    def served(self, now_ms: int) -> Served:
        """Return the counts, and the rate in messages a second."""
        self._forget(now_ms // 1000)
        over_s = min(WINDOW_S, max(1.0, (now_ms - self._began_ms) / 1000))
        rate = sum(count for _, count in self._seconds) / over_s
        return Served(self._count, self._bytes, round(rate, 3))

    def _forget(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second - WINDOW_S:
            self._seconds.popleft()
