"""An event loop in a thread of its own, for callers that have none.

Started when first needed. The thread does not survive a fork: make a client in each process.
"""

import asyncio
import concurrent.futures
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from holdfast.client.errors import ClientClosed

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads. May be used by any number of them."""

    def __init__(self) -> None:
        #: Held while the loop is given something: nothing comes behind its end, where nobody would
        #: ever answer. A signal's handler may take it again.
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopped = False
        self._finalizer: weakref.finalize[..., LoopThread] | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result, or raise what it raises.

        An interrupt of the waiting thread cancels the coroutine. Raises ClientClosed when the
        thread is stopped before its end.
        """
        try:
            with self._lock:
                future = asyncio.run_coroutine_threadsafe(coroutine, self._running_loop())
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClientClosed from None
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call back on the loop, in a while. Raises ClientClosed when it is stopped."""
        try:
            with self._lock:
                self._running_loop().call_soon_threadsafe(callback, *arguments)
        except RuntimeError as error:
            raise ClientClosed from error

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `last` if anything ran before, then cancel what runs and wait for the thread's end.

        May be repeated.
        """
        with self._lock:
            finalizer, self._finalizer = self._finalizer, None
        try:
            if finalizer is not None:
                self.run(last())
        finally:
            with self._lock:
                self._is_stopped = True
            if finalizer is not None:
                finalizer()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop, started if need be. With the lock held."""
        if self._is_stopped:
            raise ClientClosed
        if self._loop is None:
            self._loop = uvloop.new_event_loop()
            thread = threading.Thread(
                target=_run_loop, args=(self._loop,), name="holdfast-client", daemon=True
            )
            thread.start()
            # Also at the interpreter's exit, before daemon threads are frozen.
            self._finalizer = weakref.finalize(self, _stop_loop, self._loop, thread)
        return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        while tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _stop_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    # A client that is forgotten may be collected in any thread.
    if thread is not threading.current_thread():
        thread.join()
