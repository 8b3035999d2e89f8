"""Runs the callbacks of channels on an executor: never two of one channel at a time, and many
channels in parallel.

A thread of its own passes work to the executor. So an executor whose `submit` blocks, or runs the
call itself, stops no reading of the connection. Thread-safe.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from queue import SimpleQueue
from typing import Any, Protocol

from holdfast.client.channels.scheduler import Scheduler

_log = logging.getLogger("holdfast.client")


class CallbackChannel(Protocol):
    """A channel, as its callbacks run. Neither method raises."""

    def __hash__(self) -> int: ...

    def run_callback(self, item: Any) -> None:
        """Run the callback of one item."""

    def callbacks_are_idle(self) -> None:
        """Take notice that no callback of the channel waits or runs."""


class CallbackPool:
    """The waiting callbacks of all channels of a connection."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = threading.Lock()
        self._scheduler: Scheduler[CallbackChannel, Any] = Scheduler()
        #: One True for each time that a channel has become ready; False ends the thread.
        self._ready: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._submit, name="holdfast-callbacks", daemon=True)
        self._thread.start()

    def add(self, channel: CallbackChannel, items: Iterable[Any]) -> None:
        """Let the callbacks of a channel's items run, in this order. Does not wait."""
        with self._lock:
            is_ready = self._scheduler.add(channel, items)
        if is_ready:
            self._ready.put(True)

    def drop(self, channel: CallbackChannel, matches: Callable[[Any], bool]) -> list[Any]:
        """Remove the waiting items of a channel that match; return them."""
        with self._lock:
            return self._scheduler.drop(channel, matches)

    def close(self) -> None:
        """Start no further callback. Callbacks that run go on. May be repeated."""
        self._ready.put(False)

    def _submit(self) -> None:
        while self._ready.get():
            try:
                self._executor.submit(self._run_block)
            except RuntimeError as error:
                _log.error("the executor accepts no callbacks; deliveries wait: %s", error)

    def _run_block(self) -> None:
        with self._lock:
            found = self._scheduler.take()
        if found is None:
            return
        channel, block = found
        for item in block:
            channel.run_callback(item)
        with self._lock:
            is_ready = self._scheduler.finish(channel)
        if is_ready:
            self._ready.put(True)
        else:
            channel.callbacks_are_idle()
