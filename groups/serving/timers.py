"""A timer for the next moment at which a group has something to do."""

import asyncio
from collections.abc import Callable


class DeadlineTimer:
    """Calls `fire` at the time that `set` got last. For the event loop only."""

    def __init__(self, fire: Callable[[], None], now_ms: Callable[[], int]) -> None:
        self._on_deadline = fire
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._deadline_ms: int | None = None

    def set(self, deadline_ms: int | None) -> None:
        """Set the time of the call; it replaces the time set before. None cancels the call."""
        if deadline_ms == self._deadline_ms:
            return
        self.stop()
        if deadline_ms is not None:
            self._deadline_ms = deadline_ms
            # Add one millisecond: the loop may call slightly too early, and then nothing is due
            # yet.
            delay_s = max(0, deadline_ms - self._now_ms() + 1) / 1000
            self._handle = self._loop.call_later(delay_s, self._fire)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._deadline_ms = None

    def _fire(self) -> None:
        self._handle = self._deadline_ms = None
        self._on_deadline()
