"""The clock of an event loop, advanced by the test alone: no deadline passes by itself."""

import asyncio


class LoopClock:
    """Replaces the clock of the running loop, from now on until the loop is closed.

    Timers and `asyncio.timeout` fire only in `advance`. Poll with `asyncio.sleep(0)`: a longer
    sleep never ends.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._now_s = loop.time()
        loop.time = lambda: self._now_s  # type: ignore[method-assign]

    async def advance(self, seconds: float) -> None:
        """Let this much time pass, and let all timers fire that are then due."""
        self._now_s += seconds
        await asyncio.sleep(0)
