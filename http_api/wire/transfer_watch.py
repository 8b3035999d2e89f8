"""Ends transfers that are too slow: request bodies that arrive, and replies that are sent."""

import asyncio
from collections.abc import Callable

from holdfast.http_api.config import HttpConfig


class MinTransferRate:
    """Checks the rate of one transfer. Each check covers the time since the check before it."""

    __slots__ = ("_min_bytes_per_s", "_moved", "_seen_at")

    def __init__(self, min_bytes_per_s: int, now: float, moved: int = 0) -> None:
        self._min_bytes_per_s = min_bytes_per_s
        self._seen_at = now
        self._moved = moved

    def is_too_slow(self, now: float, moved: int) -> bool:
        """Return whether the transfer was slower than the minimum rate since the last check.

        `moved` is how many bytes of the transfer have been transferred in total.
        """
        least = self._min_bytes_per_s * (now - self._seen_at)
        before, self._seen_at, self._moved = self._moved, now, moved
        return moved - before < least


class TransferWatch:
    """Calls `on_slow` if a transfer misses its deadline or the minimum rate, until `stop`.

    `moved_bytes` returns how many bytes have been transferred; the first check of the rate does not
    count the first `moved_before` of them. `on_slow` is called at most once, with True if the
    deadline has passed, and with False if the rate was too low.
    """

    __slots__ = ("_deadline", "_grace_s", "_loop", "_moved_bytes", "_on_slow", "_rate", "_timer")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: HttpConfig,
        timeout_ms: int,
        moved_bytes: Callable[[], int],
        on_slow: Callable[[bool], object],
        *,
        moved_before: int = 0,
    ) -> None:
        now = loop.time()
        self._loop = loop
        self._deadline = now + timeout_ms / 1000
        self._grace_s = config.transfer_grace_ms / 1000
        self._moved_bytes = moved_bytes
        self._on_slow = on_slow
        self._rate = MinTransferRate(config.min_transfer_bytes_per_s, now, moved_before)
        self._schedule(now)

    def stop(self) -> None:
        self._timer.cancel()

    def _schedule(self, now: float) -> None:
        self._timer = self._loop.call_at(min(now + self._grace_s, self._deadline), self._check)

    def _check(self) -> None:
        now = self._loop.time()
        is_late = now >= self._deadline
        if is_late or self._rate.is_too_slow(now, self._moved_bytes()):
            self._on_slow(is_late)
        else:
            self._schedule(now)
