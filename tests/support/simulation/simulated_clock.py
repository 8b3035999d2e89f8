"""A wall clock for tests: it advances a little with every reading, and jumps in both directions."""

import threading

_HOUR_US = 3_600_000_000
#: The largest deviation of the clock: an idempotent producer is remembered for a day.
_MOST_US = 6 * _HOUR_US


class SimulatedClock:
    """The storage's source of the time of day. Any thread may call any method."""

    def __init__(self, start_us: int = 1_700_000_000_000_000, tick_us: int = 1000) -> None:
        self._start_us = start_us
        self._now_us = start_us
        self._tick_us = tick_us
        self._lock = threading.Lock()

    def now_us(self) -> int:
        """Return the time in microseconds since 1970."""
        with self._lock:
            self._now_us += self._tick_us
            return self._now_us

    def jump(self, by_us: int) -> None:
        """Set the clock forward or back, within the largest deviation."""
        with self._lock:
            jumped = self._now_us + by_us
            self._now_us = min(max(jumped, self._start_us - _MOST_US), self._start_us + _MOST_US)
