"""The clock of all groups, and a timer that follows it.

The clock counts milliseconds since 1970. It never decreases and never stands still. Normally it
shows the time of the clock of retention, which smooths jumps. When that clock goes back, this clock
advances by the time that really elapses, so leases and delays last as long as they should. Messages
expire by the wall clock instead: `ttl_ms` is counted from their publishing.
"""

import asyncio
from collections.abc import Callable


class GroupClock:
    """`ageing_us` is the clock of retention, `passed_s` counts the seconds that really elapse, and
    `wall_us` is the wall clock. `from_ms` is the time at the start; it must not be earlier than any
    time that was stored before the start."""

    def __init__(
        self,
        ageing_us: Callable[[], int],
        passed_s: Callable[[], float],
        wall_us: Callable[[], int],
        from_ms: int,
    ) -> None:
        self._ageing_us = ageing_us
        self._passed_s = passed_s
        self._wall_us = wall_us
        self._now_ms = float(from_ms)
        self.last_ms = from_ms
        """The time that `now_ms` returned last."""
        self._read_s = passed_s()

    def now_ms(self) -> int:
        """Return the time. For the event loop only."""
        passed_s = self._passed_s()
        self._now_ms += max(0.0, passed_s - self._read_s) * 1000
        self._read_s = passed_s
        self._now_ms = max(self._now_ms, self._ageing_us() / 1000)
        self.last_ms = int(self._now_ms)
        return self.last_ms

    def wall_ms(self) -> int:
        """Return the time of the wall clock, by which messages expire."""
        return self._wall_us() // 1000


class DeadlineTimer:
    """Calls `on_deadline` at the time that the last call of `set` gave. For the event loop only.

    A timer of the event loop that is due too early is not replaced: when it fires, it is set again.
    So a deadline that becomes later with each message costs nothing.
    """

    def __init__(self, on_deadline: Callable[[], None], clock: GroupClock) -> None:
        self._on_deadline = on_deadline
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._deadline_ms: int | None = None
        #: When `_handle` fires.
        self._fires_ms = 0
        #: Whether that time had passed when `_handle` was set.
        self._fires_at_once = False

    def set(self, deadline_ms: int | None) -> None:
        """Set the time of the call; it replaces the time set before. None cancels the call."""
        self._deadline_ms = deadline_ms
        if deadline_ms is None:
            return
        if self._handle is None:
            self._start(deadline_ms)
        elif not self._fires_at_once:  # otherwise calls in each iteration could postpone it forever
            # The clock may have jumped past either time, and the loop's timer does not notice that.
            has_passed = min(deadline_ms, self._fires_ms) <= self._clock.last_ms
            if has_passed or deadline_ms < self._fires_ms:
                self._start(deadline_ms)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._deadline_ms = None

    def _start(self, deadline_ms: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        # Add one millisecond: the loop may call slightly too early, and then nothing is due yet.
        now_ms = self._clock.now_ms()
        delay_s = max(0, deadline_ms - now_ms + 1) / 1000
        self._fires_ms, self._fires_at_once = deadline_ms, deadline_ms <= now_ms
        self._handle = self._loop.call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._handle = None
        deadline_ms = self._deadline_ms
        if deadline_ms is not None and deadline_ms > self._fires_ms:
            self._start(deadline_ms)
        elif deadline_ms is not None:
            self._deadline_ms = None
            self._on_deadline()
