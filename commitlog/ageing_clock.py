"""The clock that measures ages: of messages for retention, of producers for their expiry.

A deletion that is too early loses data; a deletion that is too late only wastes room. So this clock
follows the wall clock when the wall clock goes back. When the wall clock jumps ahead, this clock
continues at the normal rate, and accepts the jump only after it has lasted for a long time. At a
start of the broker the required time is shorter: a wrong clock of a machine that has just booted
is corrected within minutes.
"""

import logging
import threading
import time
from collections.abc import Callable

_logger = logging.getLogger(__name__)

#: A jump of the wall clock while the broker runs is accepted after this time.
JUMP_ACCEPTED_AFTER_S = 86_400.0
#: At a start, a wall clock that is ahead of the newest message is accepted after this time.
START_ACCEPTED_AFTER_S = 600.0
#: A difference of at most this size is a normal clock adjustment, not a jump.
_TOLERANCE_US = 1_000_000


def wall_clock_us() -> int:
    """Return the wall clock in microseconds since 1970."""
    return time.time_ns() // 1000


class AgeingClock:
    """The clock that measures ages. Any thread may call `now_us`. `wall_us` returns the wall
    clock; `passed_s` returns elapsed seconds, also while the machine was suspended."""

    def __init__(self, wall_us: Callable[[], int], passed_s: Callable[[], float]) -> None:
        self._wall_us = wall_us
        self._passed_s = passed_s
        self._lock = threading.Lock()
        self._anchor_us = wall_us()
        self._anchored_s = passed_s()
        self._accept_after_s = JUMP_ACCEPTED_AFTER_S
        self._ahead_since: float | None = None
        self._ahead_us = 0

    def start(self, newest_us: int) -> None:
        """Start from `newest_us`, the newest timestamp in the log. If `newest_us` is 0, or later
        than the wall clock, start from the wall clock. A wall clock ahead of `newest_us` is
        accepted after START_ACCEPTED_AFTER_S."""
        wall_us = self._wall_us()
        with self._lock:
            self._anchor_us = min(wall_us, newest_us or wall_us)
            self._anchored_s = self._passed_s()
            self._accept_after_s = START_ACCEPTED_AFTER_S
            self._ahead_since = None

    def now_us(self) -> int:
        """Return the time, in microseconds since 1970. It may go back, as the wall clock may."""
        wall_us, passed_s = self._wall_us(), self._passed_s()
        with self._lock:
            certain_us = self._anchor_us + int((passed_s - self._anchored_s) * 1e6)
            ahead_us = wall_us - certain_us
            if ahead_us > _TOLERANCE_US and not self._is_accepted(passed_s, ahead_us):
                return certain_us
            self._accept_after_s = JUMP_ACCEPTED_AFTER_S
            self._ahead_since = None
            self._anchor_us, self._anchored_s = wall_us, passed_s
            return wall_us

    def _is_accepted(self, passed_s: float, ahead_us: int) -> bool:
        is_another = self._ahead_since is not None and ahead_us > self._ahead_us + _TOLERANCE_US
        if is_another:
            self._accept_after_s = JUMP_ACCEPTED_AFTER_S
        if self._ahead_since is None or is_another:
            self._ahead_since, self._ahead_us = passed_s, ahead_us
            if self._accept_after_s == JUMP_ACCEPTED_AFTER_S:
                _logger.warning(
                    "the clock jumped %.0f s ahead; for %.0f hours, or until a restart, nothing "
                    "expires because of this jump",
                    ahead_us / 1e6,
                    self._accept_after_s / 3600,
                )
        return passed_s - self._ahead_since >= self._accept_after_s
