"""Requests to one broker from any thread, on blocking sockets, without an event loop.

The requests of the API are coroutines. Over this transport they wait for no loop: they block, and
hand control back only where a request is on its way, or time has to pass. `finished` runs one to
its end in the calling thread; UnderWay begins one, and leaves the rest for later.
"""

import threading
import time
import types
import weakref
from collections.abc import Coroutine, Generator, Sequence
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar

from holdfast.client.blocking_connection import BlockingConnection
from holdfast.client.connection import ConnectionLost
from holdfast.client.errors import BadReply, ClientClosed, ConnectionFailed
from holdfast.client.http_wire import NotHttp, ReplyParser
from holdfast.client.requests import KEEPALIVE_S, SentRequests
from holdfast.client.retry import RetryPolicy
from holdfast.client.target import Target

T = TypeVar("T")

#: Whoever was away longer may find that the broker did not keep a reply for him.
_AWAY_S = 1.0


@types.coroutine
def _hand_back() -> Generator[None, None, None]:
    """Give control to whoever runs the coroutine."""
    yield


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine over a blocking transport to its end, and return its result."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as done:
            result: T = done.value
            return result


class UnderWay(Generic[T]):
    """A coroutine over a blocking transport that was begun: its first request is on its way."""

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
        """Run the rest and return the result, or raise the error."""
        if self._outcome is None:
            return finished(self._coroutine)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome[0]

    def cancel(self) -> None:
        """End it where it is, unless another thread runs it just now."""
        with suppress(ValueError):
            self._coroutine.close()


class _Connections:
    """The connections that are kept, and those in use. For any threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: list[BlockingConnection] = []
        self.is_closed = False

    def take(self) -> BlockingConnection | None:
        """Return the connection that was used last, if there is one."""
        while True:
            with self.lock:
                if not self.idle:
                    return None
                connection = self.idle.pop()
            if time.monotonic() - connection.idle_since_s < KEEPALIVE_S:
                return connection
            connection.close()

    def keep(self, connection: BlockingConnection) -> None:
        """Keep a connection for the next request."""
        connection.idle_since_s = time.monotonic()
        with self.lock:
            if not self.is_closed:
                self.idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close all that are kept, and keep no more."""
        with self.lock:
            self.is_closed = True
            idle, self.idle = self.idle, []
        for connection in idle:
            connection.close()


class BlockingTransport(SentRequests):
    """Sends requests to a broker, from any thread. An exception in the blocked thread, such as an
    interrupt, ends its request.

    `part()` gives a transport that can be closed by itself, on the same connections.
    """

    def __init__(
        self, target: Target, retry: RetryPolicy, connections: _Connections | None = None
    ) -> None:
        super().__init__(target, retry)
        self._connections = connections or _Connections()
        if connections is None:
            # Also for a client that is forgotten.
            weakref.finalize(self, self._connections.close)
        self._busy: set[BlockingConnection] = set()
        self._parts: weakref.WeakSet[BlockingTransport] = weakref.WeakSet()
        self._closed = threading.Event()
        self._away_s = 0.0

    def part(self) -> Self:
        """Return a transport that ends with this one, or before it by itself."""
        part = type(self)(self._target, self.retry, self._connections)
        with self._connections.lock:
            self._parts.add(part)
            if self._closed.is_set():
                part._closed.set()
        return part

    async def _once(
        self, head: bytes, blocks: Sequence[bytes], quiet_timeout_s: float, *, safe: bool
    ) -> ReplyParser:
        away_s = self._away_s
        try:
            kept = self._connections.take()
            if kept is not None:
                try:
                    return await self._exchange(kept, head, blocks, quiet_timeout_s)
                except ConnectionLost as lost:
                    # The broker may give up a kept connection at any time, and a reply that
                    # nobody takes: that is no failure yet.
                    was_left = self._away_s - away_s > _AWAY_S
                    if self._closed.is_set() or not safe or (lost.has_begun and not was_left):
                        raise
            await _hand_back()
            self._check_open()
            connection = BlockingConnection(self._target)
            return await self._exchange(connection, head, blocks, quiet_timeout_s)
        except NotHttp as error:
            raise BadReply(self.url, str(error)) from error
        except (ConnectionLost, OSError) as error:
            self._check_open()
            raise ConnectionFailed(self.url, str(error), maybe_executed=True) from error

    async def _exchange(
        self,
        connection: BlockingConnection,
        head: bytes,
        blocks: Sequence[bytes],
        quiet_timeout_s: float,
    ) -> ReplyParser:
        try:
            with self._connections.lock:
                self._check_open()
                self._busy.add(connection)
            connection.send(head, blocks, quiet_timeout_s)
            left_s = time.monotonic()
            await _hand_back()
            self._away_s += time.monotonic() - left_s
            reply = connection.receive(quiet_timeout_s)
        except BaseException:
            connection.close()
            raise
        finally:
            self._busy.discard(connection)
        if reply.keeps_alive:
            self._connections.keep(connection)
        else:
            connection.close()
        return reply

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ClientClosed

    def now_s(self) -> float:
        """As in Requests: without the time for which a request was left under way."""
        return time.monotonic() - self._away_s

    async def pause(self, seconds: float) -> None:
        """As in Requests."""
        if seconds > 0:
            await _hand_back()
            self._closed.wait(seconds)
        self._check_open()

    def end(self) -> None:
        """End this transport and its parts: requests under way, in any thread, raise ClientClosed.

        May be repeated.
        """
        with self._connections.lock:
            self._closed.set()
            busy, parts = list(self._busy), list(self._parts)
        for connection in busy:
            connection.shut()
        for part in parts:
            part.end()

    async def close(self) -> None:
        """As in Requests: also what is kept for later is closed."""
        self.end()
        self._connections.close()
