"""Decides when to retry a request, retries it, and logs the retries.

Transient failures are retried: an unreachable broker (it may be restarting), a broker that reports
that it is busy, recovering or draining, and a gateway that replies 502 or 504. A request that must
not be executed twice is retried only if it certainly was not executed. All other errors are raised
immediately.
"""

import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from holdfast.client.errors import (
    ApiError,
    CertificateNotTrusted,
    ConnectionFailed,
    HoldfastError,
    SyncTimeout,
)
from holdfast.commitlog.lazy_import import import_at_first_use

if TYPE_CHECKING:
    import random
else:
    import_at_first_use(globals(), random="random")

T = TypeVar("T")

_log = logging.getLogger("holdfast.client")

#: While the broker is unreachable, one retry is logged per this time, for all requests together.
REPEAT_S = 30.0
#: If a broker fails again soon after it has answered, the new failure is logged only if the last
#: warning about retries is at least this old.
AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to retry, and how long to pause. The pauses double, from the first to the longest,
    with jitter.

    `give_up_after_s` counts from the first attempt; None means never give up. When `left_s` returns
    a number, the next attempt must begin within that many seconds; None means no such limit.
    """

    give_up_after_s: float | None
    first_pause_s: float = 0.05
    longest_pause_s: float = 5.0
    left_s: Callable[[], float | None] = lambda: None

    def pause_s(
        self, error: HoldfastError, tries: int, elapsed_s: float, *, safe: bool
    ) -> float | None:
        """Return how long to wait before the next attempt; None means give up.

        `tries` is the number of attempts so far. `safe` means that the request may be executed
        twice without harm. Up to half of a pause is jitter. If the broker has sent Retry-After, the
        pause is 1 to 1.25 times its value.
        """
        if not _is_transient(error, safe=safe):
            return None
        pause_s = self.backoff_s(tries)
        if isinstance(error, ApiError) and error.retry_after_s is not None:
            pause_s = error.retry_after_s * random.uniform(1.0, 1.25)  # noqa: S311 - no secret
        left_s = self.left_s()
        if self.is_over(elapsed_s + pause_s) or (left_s is not None and pause_s > left_s):
            return None
        return pause_s

    def backoff_s(self, tries: int) -> float:
        """Return the pause after `tries` failed attempts, without a Retry-After."""
        longest_s: float = min(self.longest_pause_s, self.first_pause_s * 2 ** min(tries - 1, 20))
        return longest_s * random.uniform(0.5, 1.0)  # noqa: S311

    def is_over(self, elapsed_s: float) -> bool:
        """Return whether it is too late for another attempt, `elapsed_s` after the first one."""
        return self.give_up_after_s is not None and elapsed_s > self.give_up_after_s


#: For readers that follow a topic: retry until an unreachable broker answers again.
FOREVER = RetryPolicy(give_up_after_s=None)

#: Never retry. This is for callers that decide themselves whether to repeat a request.
ONCE = RetryPolicy(give_up_after_s=-1.0)


def _is_transient(error: HoldfastError, *, safe: bool) -> bool:
    if isinstance(error, CertificateNotTrusted):
        return False
    if isinstance(error, ConnectionFailed):
        return safe or not error.maybe_executed
    if isinstance(error, SyncTimeout):
        return safe
    if isinstance(error, ApiError):
        passes = error.is_passing or error.retry_after_s is not None
        return passes or (safe and error.status in (502, 504))
    return False


@dataclass(eq=False)
class RetryLog:
    """Logs the retries of all requests to one broker: the first retry of an outage, then one retry
    every REPEAT_S, and the end of the outage. Thread-safe."""

    clock_s: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    #: When the first of the retried requests failed; None while the broker answers.
    _since_s: float | None = None
    _logged_at_s: float | None = None
    #: Whether the current outage was reported.
    _is_reported: bool = False

    def record_failure(self, error: HoldfastError) -> None:
        """Record that a request has failed with `error` and will be retried."""
        with self._lock:
            now_s = self.clock_s()
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
            away_s = 0.0 if since_s is None else self.clock_s() - since_s
        if was_reported:
            _log.info("the broker answers again, after %.0f s", away_s)


class Clock(Protocol):
    """The clock and the sleep of a retrying caller. The clock may start at any number."""

    def now_s(self) -> float: ...
    async def pause(self, seconds: float) -> None: ...


async def run_with_retries(
    operation: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    *,
    safe: bool,
    clock: Clock,
    log: RetryLog,
) -> T:
    """Run `operation`, with retries according to `policy`; return its result. `log` records the
    retries.

    Raises the error of the last attempt. Cancelling is as safe as cancelling `operation`.
    """
    started_s = clock.now_s()
    tries = 0
    while True:
        try:
            result = await operation()
        except HoldfastError as error:
            tries += 1
            pause_s = policy.pause_s(error, tries, clock.now_s() - started_s, safe=safe)
            if pause_s is None:
                raise
            log.record_failure(error)
        else:
            log.record_success()
            return result
        await clock.pause(pause_s)
