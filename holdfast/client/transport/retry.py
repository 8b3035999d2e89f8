"""Decides when to retry a request, and retries it. The clock and the sleep are passed in.

Transient failures are retried: an unreachable broker (it may be restarting), a broker that reports
that it is busy, recovering or draining, and a gateway that replies 502 or 504. A request that must
not be executed twice is retried only if it certainly was not executed. All other errors are raised
at once.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from holdfast.client.errors import (
    ApiError,
    CertificateNotTrusted,
    ConnectionFailed,
    HoldfastError,
    SyncTimeout,
)
from holdfast.client.transport.retry_log import RetryLog

T = TypeVar("T")

_GATEWAY_FAILED = (502, 504)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to retry, and how long to pause. The pauses double, from the first to the longest,
    with jitter. `give_up_after_s` counts from the first attempt; None means never give up.
    """

    give_up_after_s: float | None
    first_pause_s: float = 0.05
    longest_pause_s: float = 5.0

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
        return None if self.is_over(elapsed_s + pause_s) else pause_s

    def backoff_s(self, tries: int) -> float:
        """Return the pause after `tries` failed attempts, without a Retry-After."""
        longest_s: float = min(self.longest_pause_s, self.first_pause_s * 2 ** min(tries - 1, 20))
        return longest_s * random.uniform(0.5, 1.0)  # noqa: S311

    def is_over(self, elapsed_s: float) -> bool:
        """Return whether it is too late for another attempt, `elapsed_s` after the first one."""
        return self.give_up_after_s is not None and elapsed_s > self.give_up_after_s


@dataclass(frozen=True, slots=True)
class UntilDeadlineRetryPolicy(RetryPolicy):
    """Retries for ever while `left_s` returns None. When `left_s` returns a number, retries for at
    most that many more seconds."""

    left_s: Callable[[], float | None] = lambda: None

    def pause_s(
        self, error: HoldfastError, tries: int, elapsed_s: float, *, safe: bool
    ) -> float | None:
        """Return the pause as RetryPolicy does. Return None if it would be longer than `left_s`."""
        # super() without arguments fails here: slots=True replaces the class with a new one.
        pause_s = RetryPolicy.pause_s(self, error, tries, 0.0, safe=safe)
        left_s = self.left_s()
        is_over = pause_s is not None and left_s is not None and pause_s > left_s
        return None if is_over else pause_s


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
        return passes or (safe and error.status in _GATEWAY_FAILED)
    return False


class Clock(Protocol):
    """The clock and the sleep of a retrying caller."""

    def now_s(self) -> float:
        """Return the time in seconds, from an arbitrary start."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait."""
        ...


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
