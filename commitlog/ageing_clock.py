"""The time by which things grow old: messages for retention, producers for their expiry.

What is deleted too early is gone, what goes too late only takes room. So this time follows the
wall clock back, but never runs ahead of what has really passed since it last agreed with it: a
jump ahead counts only once it has stood for long. A clock that is wrong at the start of a machine
is set right within minutes, so that what is ahead of all that the log knows stands for less then.
"""

import logging
import threading
from collections.abc import Callable

_logger = logging.getLogger(__name__)

#: How long a jump must have stood to be believed: one while the broker runs, and the time since
#: the newest message when it starts.
JUMP_STANDS_S = 86_400.0
START_STANDS_S = 600.0
#: Adjusting a clock moves it by less than this at a time.
_TOLERANCE_US = 1_000_000


class AgeingClock:
    """`now_us` may be called by any thread. `wall_us` is the wall clock, `passed_s` counts the
    seconds that have passed, also while the machine slept."""

    def __init__(self, wall_us: Callable[[], int], passed_s: Callable[[], float]) -> None:
        self._wall_us = wall_us
        self._passed_s = passed_s
        self._lock = threading.Lock()
        self._anchor_us = wall_us()
        self._anchored_s = passed_s()
        self._stands_s = JUMP_STANDS_S
        self._ahead_since: float | None = None
        self._ahead_us = 0

    def start(self, newest_us: int) -> None:
        """Take the newest timestamp in the log, 0 if there is none, for all that is certain."""
        wall_us = self._wall_us()
        with self._lock:
            self._anchor_us = min(wall_us, newest_us or wall_us)
            self._anchored_s = self._passed_s()
            self._stands_s = START_STANDS_S
            self._ahead_since = None

    def now_us(self) -> int:
        """Return the time, in microseconds since 1970. It may go back, as the wall clock may."""
        wall_us, passed_s = self._wall_us(), self._passed_s()
        with self._lock:
            certain_us = self._anchor_us + int((passed_s - self._anchored_s) * 1e6)
            ahead_us = wall_us - certain_us
            if ahead_us > _TOLERANCE_US and not self._is_believed(passed_s, ahead_us):
                return certain_us
            self._stands_s = JUMP_STANDS_S
            self._ahead_since = None
            self._anchor_us, self._anchored_s = wall_us, passed_s
            return wall_us

    def _is_believed(self, passed_s: float, ahead_us: int) -> bool:
        is_another = self._ahead_since is not None and ahead_us > self._ahead_us + _TOLERANCE_US
        if is_another:
            self._stands_s = JUMP_STANDS_S
        if self._ahead_since is None or is_another:
            self._ahead_since, self._ahead_us = passed_s, ahead_us
            if self._stands_s == JUMP_STANDS_S:
                _logger.warning(
                    "the clock jumped %.0f s ahead; for %.0f hours, or until a restart, nothing "
                    "grows old by that",
                    ahead_us / 1e6,
                    self._stands_s / 3600,
                )
        return passed_s - self._ahead_since >= self._stands_s
