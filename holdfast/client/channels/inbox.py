"""Calls from any thread to the loop thread, many with one wake-up. Thread-safe."""

import logging
from collections import deque
from collections.abc import Callable

from holdfast.client.transport.loop_thread import LoopThread

_log = logging.getLogger("holdfast.client")


class Inbox:
    """Runs calls on the loop, in the order in which they were posted."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._is_scheduled = False

    def post(self, call: Callable[..., object], *arguments: object) -> None:
        """Let the loop run a call soon. Does not wait. Raises ClientClosed when the loop is
        stopped."""
        self._calls.append((call, arguments))
        if not self._is_scheduled:  # `_run` resets this before it looks for calls
            self._is_scheduled = True
            self._thread.call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        while self._calls:
            call, arguments = self._calls.popleft()
            try:
                call(*arguments)
            except Exception:
                _log.exception("a call of a channel failed")
