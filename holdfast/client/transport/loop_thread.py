"""An event loop in its own thread, for callers that have no event loop.

The thread starts at first use. It does not survive a fork: create a client in each process.
"""

import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.client.errors import ClientClosed
from holdfast.commitlog.lazy_import import import_at_first_use

if TYPE_CHECKING:
    import asyncio
    from concurrent import futures
else:
    import_at_first_use(globals(), asyncio="asyncio", futures="concurrent.futures")

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads. Thread-safe."""

    def __init__(self) -> None:
        #: Held while a coroutine or callback is passed to the loop. Without the lock, the loop
        #: could end before a coroutine arrives, and the caller would wait for ever. The lock is
        #: reentrant, because a signal handler may acquire it again.
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopped = False
        self._finalizer: weakref.finalize[..., LoopThread] | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result or raise its error.

        An interrupt of the waiting thread cancels the coroutine. Raises ClientClosed when the
        loop is stopped before the coroutine ends.
        """
        try:
            with self._lock:
                future = asyncio.run_coroutine_threadsafe(coroutine, self._running_loop())
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result()
        except futures.CancelledError:
            raise ClientClosed from None
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Schedule a callback on the loop. Raises ClientClosed when the loop is stopped."""
        try:
            with self._lock:
                self._running_loop().call_soon_threadsafe(callback, *arguments)
        except RuntimeError as error:
            raise ClientClosed from error

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the coroutine of `last`, cancel all tasks and wait for the end of the thread. If the
        loop was never started, do nothing. May be repeated.
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

    def _running_loop(self) -> "asyncio.AbstractEventLoop":
        """Return the loop; start it if necessary. The caller must hold the lock."""
        if self._is_stopped:
            raise ClientClosed
        if self._loop is None:
            self._loop = _new_loop()
            thread = threading.Thread(
                target=_run_loop, args=(self._loop,), name="holdfast-client", daemon=True
            )
            thread.start()
            # The finalizer also runs at interpreter exit, before daemon threads are frozen.
            self._finalizer = weakref.finalize(self, _stop_loop, self._loop, thread)
        return self._loop


def _new_loop() -> "asyncio.AbstractEventLoop":
    """Return a loop of uvloop if it is installed, as it is with the broker."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _run_loop(loop: "asyncio.AbstractEventLoop") -> None:
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


def _stop_loop(loop: "asyncio.AbstractEventLoop", thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    # The garbage collector may call this in any thread, also in the thread of the loop.
    if thread is not threading.current_thread():
        thread.join()
