"""When to try a request again. The time, and how to let it pass, are handed in.

Tried again is what passes by itself: a broker that is not reached (it may be restarting), one
that says it is busy, recovering or draining, and a gateway's 502 and 504. A request that must
not run twice is tried again only when it certainly did not run once. Everything else is the
caller's to know at once.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from holdfast.client.errors import ApiError, CertificateNotTrusted, ConnectionFailed, HoldfastError

T = TypeVar("T")

_GATEWAY_FAILED = (502, 504)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to go on, and the pauses: doubling from the first to the longest, with jitter.

    `give_up_after_s` counts from the first try; None never gives up.
    """

    give_up_after_s: float | None
    first_pause_s: float = 0.05
    longest_pause_s: float = 5.0

    def pause_s(
        self, error: HoldfastError, tries: int, elapsed_s: float, *, safe: bool
    ) -> float | None:
        """Return how long to wait before the next try, None to give up.

        `tries` counts those already made, `safe` says that running twice does no harm. Half of
        a pause is jitter. Where the broker says Retry-After, it is that and up to a quarter more.
        """
        if not _may_pass(error, safe=safe):
            return None
        pause_s: float
        if isinstance(error, ApiError) and error.retry_after_s is not None:
            pause_s = error.retry_after_s * random.uniform(1.0, 1.25)  # noqa: S311 - no secret
        else:
            pause_s = min(self.longest_pause_s, self.first_pause_s * 2 ** min(tries - 1, 20))
            pause_s *= random.uniform(0.5, 1.0)  # noqa: S311
        return None if self.is_over(elapsed_s + pause_s) else pause_s

    def is_over(self, elapsed_s: float) -> bool:
        """Return whether it is too late for another try, so long after the first."""
        return self.give_up_after_s is not None and elapsed_s > self.give_up_after_s


@dataclass(frozen=True, slots=True)
class UntilToldRetryPolicy(RetryPolicy):
    """Goes on for ever, until `left_s` says that there are only so many seconds left."""

    left_s: Callable[[], float | None] = lambda: None

    def pause_s(
        self, error: HoldfastError, tries: int, elapsed_s: float, *, safe: bool
    ) -> float | None:
        """As in RetryPolicy."""
        # A dataclass with slots is another class than the one that super() would look at.
        pause_s = RetryPolicy.pause_s(self, error, tries, 0.0, safe=safe)
        left_s = self.left_s()
        is_over = pause_s is not None and left_s is not None and pause_s > left_s
        return None if is_over else pause_s


#: For one who follows a topic: a broker that is down comes back.
FOREVER = RetryPolicy(give_up_after_s=None)

#: For one who decides himself whether to try again.
ONCE = RetryPolicy(give_up_after_s=-1.0)


def _may_pass(error: HoldfastError, *, safe: bool) -> bool:
    if isinstance(error, CertificateNotTrusted):
        return False
    if isinstance(error, ConnectionFailed):
        return safe or not error.maybe_executed
    if isinstance(error, ApiError):
        passes = error.is_passing or error.retry_after_s is not None
        return passes or (safe and error.status in _GATEWAY_FAILED)
    return False


class Waits(Protocol):
    """How time passes for one who tries again."""

    def now_s(self) -> float:
        """Return the time, from any beginning."""
        ...

    async def pause(self, seconds: float) -> None:
        """Let time pass."""
        ...


async def retried(
    operation: Callable[[], Awaitable[T]], policy: RetryPolicy, *, safe: bool, waits: Waits
) -> T:
    """Return what `operation` returns, trying again as `policy` says.

    Raises the last try's error. Cancelling is as safe as cancelling `operation`.
    """
    started_s = waits.now_s()
    tries = 0
    while True:
        try:
            return await operation()
        except HoldfastError as error:
            tries += 1
            pause_s = policy.pause_s(error, tries, waits.now_s() - started_s, safe=safe)
            if pause_s is None:
                raise
        await waits.pause(pause_s)
