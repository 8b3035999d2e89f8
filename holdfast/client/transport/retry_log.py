"""Logs retries to `holdfast.client` while a broker is unreachable: at the first retry, then once in
30 seconds for all requests together, and when the broker answers again."""

import logging
import threading
import time
from collections.abc import Callable

from holdfast.client.errors import HoldfastError

_log = logging.getLogger("holdfast.client")

REPEAT_S = 30.0
#: If a broker fails again soon after it has answered, this is logged at most once in this time.
AGAIN_S = 5.0


class RetryLog:
    """The retries of all requests to one broker. Thread-safe."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        #: When the first of the retried requests failed; None while the broker answers.
        self._since_s: float | None = None
        self._logged_at_s: float | None = None
        #: Whether the current outage was reported.
        self._is_reported = False

    def record_failure(self, error: HoldfastError) -> None:
        """Record that a request has failed with `error` and will be retried."""
        with self._lock:
            now_s = self._clock_s()
            if self._since_s is None:
                self._since_s = now_s
            pause_s = REPEAT_S if self._is_reported else AGAIN_S
            if self._logged_at_s is not None and now_s - self._logged_at_s < pause_s:
                return
            self._logged_at_s = now_s
            was_reported, self._is_reported = self._is_reported, True
            away_s = now_s - self._since_s
        if was_reported:
            _log.warning("still trying again, for %.0f s by now: %s", away_s, error)
        else:
            _log.warning("trying again: %s", error)

    def record_success(self) -> None:
        """Record that a request has succeeded."""
        if self._since_s is None:
            return
        with self._lock:
            since_s, self._since_s = self._since_s, None
            was_reported, self._is_reported = self._is_reported, False
            away_s = 0.0 if since_s is None else self._clock_s() - since_s
        if was_reported:
            _log.info("the broker answers again, after %.0f s", away_s)
