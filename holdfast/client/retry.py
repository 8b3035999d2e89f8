"""When to try a request again. Pure but for the one loop that sleeps.

Tried again is what passes by itself: a broker that is not reached (it may be restarting), one
that says it is busy, recovering or draining, and a gateway's 502 and 504. A request that must
not run twice is tried again only when it certainly did not run once. Everything else is the
caller's to know at once.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

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
        if self.give_up_after_s is not None and elapsed_s + pause_s > self.give_up_after_s:
            return None
        return pause_s


#: For one who follows a topic: a broker that is down comes back.
FOREVER = RetryPolicy(give_up_after_s=None)


def _may_pass(error: HoldfastError, *, safe: bool) -> bool:
    if isinstance(error, CertificateNotTrusted):
        return False
    if isinstance(error, ConnectionFailed):
        return safe or not error.maybe_executed
    if isinstance(error, ApiError):
        passes = error.is_passing or error.retry_after_s is not None
        return passes or (safe and error.status in _GATEWAY_FAILED)
    return False


async def retried(operation: Callable[[], Awaitable[T]], policy: RetryPolicy, *, safe: bool) -> T:
    """Return what `operation` returns, trying again as `policy` says.

    Raises the last try's error. Cancelling is as safe as cancelling `operation`.
    """
    started = asyncio.get_running_loop().time()
    tries = 0
    while True:
        try:
            return await operation()
        except HoldfastError as error:
            tries += 1
            elapsed_s = asyncio.get_running_loop().time() - started
            pause_s = policy.pause_s(error, tries, elapsed_s, safe=safe)
            if pause_s is None:
                raise
        await asyncio.sleep(pause_s)
