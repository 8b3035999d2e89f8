"""Requests to one broker from any thread, on blocking sockets, without an event loop.

The requests of the API are coroutines. Over this transport they need no event loop: they block the
thread. They yield only in three places: after they have sent a request, before they open a
connection, and before they pause. `run_blocking` runs a coroutine to its end in the calling thread.
StartedRequest runs a coroutine to its first yield, and to its end later.
"""

import threading
import time
import types
import weakref
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar

from holdfast.client.errors import ClientClosed
from holdfast.client.transport.blocking_connection import BlockingConnection
from holdfast.client.transport.http1 import ConnectionLost, ReplyParser
from holdfast.client.transport.requests import KEEPALIVE_S, Transport
from holdfast.client.transport.retry import RetryLog, RetryPolicy
from holdfast.client.transport.target import Target

T = TypeVar("T")

#: If the caller has left a reply unread for longer than this, the broker may have closed the
#: connection.
_MAX_UNREAD_S = 1.0


@types.coroutine
def _checkpoint() -> Generator[None, None, None]:
    """Yield to `run_blocking` or StartedRequest, which run the coroutine."""
    yield


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine over a blocking transport to its end and return its result."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as done:
            result: T = done.value
            return result


class StartedRequest(Generic[T]):
    """A coroutine over a blocking transport that was run to its first yield: usually its first
    request has been sent."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._outcome: tuple[T] | Exception | None = None
        try:
            coroutine.send(None)
        except StopIteration as done:
            self._outcome = (done.value,)
        except Exception as error:
            self._outcome = error

    def result(self) -> T:
        """Run the coroutine to its end; return its result or raise its error."""
        if self._outcome is None:
            return run_blocking(self._coroutine)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome[0]

    def cancel(self) -> None:
        """Close the coroutine. Do nothing if another thread is running it now."""
        with suppress(ValueError):
            self._coroutine.close()


class _ConnectionPool:
    """The idle connections of a client. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: list[BlockingConnection] = []
        self.is_closed = False

    def acquire(self) -> BlockingConnection | None:
        """Return the most recently used connection; None if there is none."""
        while True:
            with self.lock:
                if not self.idle:
                    return None
                connection = self.idle.pop()
            if time.monotonic() - connection.idle_since_s < KEEPALIVE_S:
                return connection
            connection.close()

    def release(self, connection: BlockingConnection) -> None:
        """Keep a connection for later requests; close it if the pool is closed."""
        connection.idle_since_s = time.monotonic()
        with self.lock:
            if not self.is_closed:
                self.idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close all idle connections. Connections are closed immediately if released later."""
        with self.lock:
            self.is_closed = True
            idle, self.idle = self.idle, []
        for connection in idle:
            connection.close()


class BlockingTransport(Transport):
    """Sends requests to a broker, from any thread. An interrupt of a thread that waits for a reply
    ends the request of that thread.

    `child()` returns a transport that uses the same connections and can be ended separately.
    """

    def __init__(
        self,
        target: Target,
        retry: RetryPolicy,
        pool: _ConnectionPool | None = None,
        retry_log: RetryLog | None = None,
    ) -> None:
        super().__init__(target, retry, retry_log)
        self._pool = pool or _ConnectionPool()
        if pool is None:
            # If the client is garbage-collected without close(), close the connections.
            weakref.finalize(self, self._pool.close)
        self._busy: set[BlockingConnection] = set()
        self._children: weakref.WeakSet[BlockingTransport] = weakref.WeakSet()
        self._closed = threading.Event()
        self._unread_s = 0.0

    def child(self) -> Self:
        """Return a transport on the same connections. It ends when this transport ends, or earlier
        if its own abort() is called."""
        child = type(self)(self.target, self.retry, self._pool, self.retry_log)
        with self._pool.lock:
            self._children.add(child)
            if self._closed.is_set():
                child._closed.set()
        return child

    async def _send_once(
        self, head: bytes, blocks: Sequence[bytes], quiet_timeout_s: float, *, safe: bool
    ) -> ReplyParser:
        unread_s = self._unread_s
        kept = self._pool.acquire()
        if kept is not None:
            try:
                return await self._exchange(kept, head, blocks, quiet_timeout_s)
            except ConnectionLost as lost:
                # The broker may close an idle connection at any time. It may also close a
                # connection whose reply the caller left unread. In both cases send the request
                # again on a new connection.
                was_unread = self._unread_s - unread_s > _MAX_UNREAD_S
                if self._closed.is_set() or not safe or (lost.has_begun and not was_unread):
                    raise
        await _checkpoint()
        self.check_open()
        connection = BlockingConnection(self.target)
        return await self._exchange(connection, head, blocks, quiet_timeout_s)

    async def _exchange(
        self,
        connection: BlockingConnection,
        head: bytes,
        blocks: Sequence[bytes],
        quiet_timeout_s: float,
    ) -> ReplyParser:
        try:
            with self._pool.lock:
                self.check_open()
                self._busy.add(connection)
            connection.send(head, blocks, quiet_timeout_s)
            left_s = time.monotonic()
            await _checkpoint()
            self._unread_s += time.monotonic() - left_s
            reply = connection.receive(quiet_timeout_s)
        except BaseException:
            connection.close()
            raise
        finally:
            self._busy.discard(connection)
        if reply.keeps_alive:
            self._pool.release(connection)
        else:
            connection.close()
        return reply

    def check_open(self) -> None:
        if self._closed.is_set():
            raise ClientClosed

    def now_s(self) -> float:
        """Return the seconds of a clock that stops while the caller leaves replies unread."""
        return time.monotonic() - self._unread_s

    async def call_blocking(self, function: Callable[[], T]) -> T:
        """Return the result of a function. It blocks the caller's thread, as requests do."""
        self.check_open()
        return function()

    async def pause(self, seconds: float) -> None:
        """Wait for `seconds`, or raise ClientClosed as soon as the transport is closed."""
        if seconds > 0:
            await _checkpoint()
            self._closed.wait(seconds)
        self.check_open()

    def abort(self) -> None:
        """End this transport and its children. Requests in flight, in any thread, raise
        ClientClosed. May be repeated."""
        with self._pool.lock:
            self._closed.set()
            busy, children = list(self._busy), list(self._children)
        for connection in busy:
            connection.shut_down()
        for child in children:
            child.abort()

    async def close(self) -> None:
        """End this transport, and close the idle connections."""
        self.abort()
        self._pool.close()
