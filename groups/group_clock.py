"""The time of all groups, in milliseconds since 1970: it never falls, and never stands still.

It follows the clock by which messages grow old, which is careful about jumps. When that one goes
back it goes on by what really passes, and is ahead then: leases and delays last as long as they
should.
"""

from collections.abc import Callable


class GroupClock:
    """`ageing_us` is the clock to follow, `passed_s` counts seconds that have really passed, and
    `from_ms` is the time at the start, not before any that was noted before."""

    def __init__(
        self, ageing_us: Callable[[], int], passed_s: Callable[[], float], from_ms: int
    ) -> None:
        self._ageing_us = ageing_us
        self._passed_s = passed_s
        self._now_ms = float(from_ms)
        self._read_s = passed_s()

    def now_ms(self) -> int:
        """Return the time. The event loop's."""
        passed_s = self._passed_s()
        self._now_ms += max(0.0, passed_s - self._read_s) * 1000
        self._read_s = passed_s
        self._now_ms = max(self._now_ms, self._ageing_us() / 1000)
        return int(self._now_ms)

    def lead_ms(self) -> int:
        """Return how far this time is ahead of the clock that it follows, where that matters."""
        lead_ms = self.now_ms() - self._ageing_us() // 1000
        return lead_ms if lead_ms > 1 else 0
