"""The clock of an event loop, advanced by the test alone: no deadline passes by itself."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from typing import Any, cast

#: Timers fire this much too early, because sums of short times are not exact: on machines that have
#: run for long, the loop's time is a large number.
_RESOLUTION_S = 1e-6


class _Timer:
    """What `call_at` returns."""

    def __init__(self, when_s: float, call: Callable[[], object]) -> None:
        self._when_s = when_s
        self._call = call
        self._is_cancelled = False

    def when(self) -> float:
        return self._when_s

    def cancel(self) -> None:
        self._is_cancelled = True

    def cancelled(self) -> bool:
        return self._is_cancelled

    def fire(self) -> None:
        if not self._is_cancelled:
            self._call()


class LoopClock:
    """Replaces the clock and the timers of the running loop, until the loop is closed.

    Timers that are set from now on, also those of `asyncio.timeout`, fire only in `advance`. Poll
    with `asyncio.sleep(0)`: a longer sleep does not end by itself.
    """

    def __init__(self) -> None:
        self._loop = cast(Any, asyncio.get_running_loop())
        self._now_s = self._loop.time()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._numbers = count()
        self._loop.time = lambda: self._now_s
        self._loop.call_at = self._call_at
        self._loop.call_later = self._call_later

    async def advance(self, seconds: float) -> None:
        """Let this much time pass. Return when the timers that are then due have fired."""
        self._now_s += seconds
        while self._timers and self._timers[0][0] <= self._now_s + _RESOLUTION_S:
            self._loop.call_soon(heappop(self._timers)[2].fire)
            await asyncio.sleep(0)

    def _call_at(
        self, when_s: float, call: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Timer:
        bound = (lambda: context.run(call, *args)) if context else (lambda: call(*args))
        timer = _Timer(when_s, bound)
        heappush(self._timers, (when_s, next(self._numbers), timer))
        return timer

    def _call_later(
        self,
        delay_s: float,
        call: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> _Timer:
        return self._call_at(self._now_s + delay_s, call, *args, context=context)
