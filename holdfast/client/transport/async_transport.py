"""Requests to one broker from an event loop, over persistent connections."""

import asyncio
import ssl
import weakref
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from holdfast.client.errors import (
    CertificateNotTrusted,
    ClientClosed,
    ConnectionFailed,
)
from holdfast.client.transport.http1 import ConnectionLost, MalformedReply, ReplyParser
from holdfast.client.transport.requests import CONNECT_TIMEOUT_S, KEEPALIVE_S, Transport
from holdfast.client.transport.retry import RetryLog, RetryPolicy
from holdfast.client.transport.target import Target

T = TypeVar("T")

_RECEIVE_BUFFER_BYTES = 64 * 1024
#: A body up to this size is sent together with its head.
_JOINED_BYTES = 64 * 1024


class AsyncTransport(Transport):
    """Sends requests to a broker. Belongs to one event loop; may be created before the loop.

    Each request in flight has its own connection. The number of connections is not limited.
    Cancelling a request closes its connection.
    """

    def __init__(
        self, target: Target, retry: RetryPolicy, retry_log: RetryLog | None = None
    ) -> None:
        super().__init__(target, retry, retry_log)
        self._receive_buffer = bytearray(_RECEIVE_BUFFER_BYTES)
        self._idle: list[AsyncConnection] = []
        self._connections: weakref.WeakSet[AsyncConnection] = weakref.WeakSet()
        self._is_closed = False

    async def _send_once(
        self, head: bytes, blocks: Sequence[bytes], quiet_timeout_s: float, *, safe: bool
    ) -> ReplyParser:
        self.check_open()
        kept = self._take_idle_connection()
        connection = kept or await self._connect()
        try:
            reply = await connection.exchange(head, blocks, quiet_timeout_s)
        except ConnectionLost as lost:
            # The broker may close an idle connection at any time. Send the request again on a new
            # connection.
            if kept is None or lost.has_begun or not safe or self._is_closed:
                raise
            connection = await self._connect()
            reply = await connection.exchange(head, blocks, quiet_timeout_s)
        if connection.is_open:
            connection.idle_since_s = self.now_s()
            self._idle.append(connection)
        return reply

    def _take_idle_connection(self) -> "AsyncConnection | None":
        """Return the most recently used idle connection; None if there is none that can be used."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and self.now_s() - connection.idle_since_s < KEEPALIVE_S:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> "AsyncConnection":
        target = self.target
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: AsyncConnection(self._receive_buffer),
                    target.host,
                    target.port,
                    ssl=target.tls,
                )
        except ssl.SSLCertVerificationError as error:
            raise CertificateNotTrusted(self.url, error.verify_message) from error
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"not connected within {CONNECT_TIMEOUT_S:g} s"
            raise ConnectionFailed(self.url, reason, maybe_executed=False) from error
        if self._is_closed:
            connection.abort()
            raise ClientClosed
        self._connections.add(connection)
        return connection

    def check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def call_blocking(self, function: Callable[[], T]) -> T:
        """Return the result of a function that runs in a thread. If the caller is cancelled, the
        function still runs to its end."""
        self.check_open()
        return await asyncio.to_thread(function)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        self._is_closed = True
        for connection in list(self._connections):
            connection.abort()
        self._idle.clear()
        # The loop calls connection_lost() in its next iteration.
        await asyncio.sleep(0)


class AsyncConnection(asyncio.BufferedProtocol):
    """A connection to the broker: one request and its reply at a time.

    Heads and short bodies are received into `receive_buffer`. All connections of a loop may share
    one buffer, because each connection copies its data immediately.
    """

    def __init__(self, receive_buffer: bytearray) -> None:
        self._receive_buffer = memoryview(receive_buffer)
        self._transport: asyncio.Transport | None = None
        self._reply: ReplyParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._progress_at_s = 0.0
        self._unsent_bytes = 0
        self.idle_since_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the connection can accept another request, as far as the client knows."""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(
        self, head: bytes, body: Sequence[bytes], quiet_timeout_s: float
    ) -> ReplyParser:
        """Send a request and return its reply once it is complete.

        Raises TimeoutError if no byte is sent or received for `quiet_timeout_s`. Also raises
        ConnectionLost or MalformedReply. After an error, and when cancelled, the connection is
        closed.
        """
        transport = self._transport
        if transport is None:
            raise ConnectionLost("the connection has ended", has_begun=False)
        loop = asyncio.get_running_loop()
        self._reply = reply = ReplyParser()
        self._waiter = loop.create_future()
        self._progress_at_s = loop.time()
        self._timer = loop.call_later(quiet_timeout_s, self._check_progress, loop, quiet_timeout_s)
        try:
            if sum(map(len, body)) <= _JOINED_BYTES:
                transport.write(b"".join((head, *body)))
            else:
                transport.write(head)
                for block in body:
                    transport.write(block)
            await self._waiter
        except BaseException:
            self.abort()
            raise
        finally:
            self._timer.cancel()
            self._reply = self._waiter = None
        if not reply.keeps_alive or transport.get_write_buffer_size():
            self.abort()
        return reply

    def abort(self) -> None:
        """Close immediately. May be repeated."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _check_progress(self, loop: asyncio.AbstractEventLoop, quiet_timeout_s: float) -> None:
        """Fail a request that has made no progress for too long."""
        assert self._transport is not None
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes != self._unsent_bytes:
            self._unsent_bytes = unsent_bytes
            self._progress_at_s = loop.time()
        left_s = self._progress_at_s + quiet_timeout_s - loop.time()
        if left_s > 0:
            self._timer = loop.call_later(left_s, self._check_progress, loop, quiet_timeout_s)
        else:
            self._fail(TimeoutError(f"no progress for {quiet_timeout_s:g} s"))

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    # -- called by the event loop -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is no subclass

    def get_buffer(self, sizehint: int) -> memoryview:
        space = self._reply.buffer() if self._reply is not None else None
        return self._receive_buffer if space is None else space

    def buffer_updated(self, nbytes: int) -> None:
        reply = self._reply
        if reply is None or self._waiter is None or self._waiter.done():
            self.abort()  # the broker sent bytes although no request waits for them
            return
        self._progress_at_s = asyncio.get_running_loop().time()
        try:
            if reply.buffer() is not None:
                is_whole = reply.advance(nbytes)
            else:
                is_whole = reply.feed(bytes(self._receive_buffer[:nbytes]))
        except MalformedReply as error:
            self._fail(error)
            return
        if is_whole:
            self._waiter.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete the request in flight if its reply ends with the connection. Otherwise fail the
        request."""
        self._transport = None
        reply, waiter = self._reply, self._waiter
        if reply is None or waiter is None or waiter.done():
            return
        if exc is None and reply.feed_eof():
            waiter.set_result(None)
            return
        reason = str(exc) if exc else "the connection ended before the reply did"
        lost = ConnectionLost(reason, has_begun=reply.has_begun)
        lost.__cause__ = exc
        waiter.set_exception(lost)
