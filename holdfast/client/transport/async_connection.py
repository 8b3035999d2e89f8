"""One connection of a client on an event loop: one request and its reply at a time."""

import asyncio
from collections.abc import Sequence
from typing import cast

from holdfast.client.transport.http1 import ConnectionLost, MalformedReply, ReplyParser

#: A body up to this size is sent together with its head.
_JOINED_BYTES = 64 * 1024


class AsyncConnection(asyncio.BufferedProtocol):
    """A connection to the broker. Heads and short bodies are received into `scratch`. All
    connections of a loop may share one `scratch`, because its data is copied at once."""

    def __init__(self, scratch: bytearray) -> None:
        self._scratch = memoryview(scratch)
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

        Raises TimeoutError if for `quiet_timeout_s` no byte is sent or received; also raises
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
        """Close at once. May be repeated."""
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
            self._fail(TimeoutError(f"nothing came for {quiet_timeout_s:g} s"))

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    # -- called by the event loop -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is no subclass

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        space = self._reply.buffer() if self._reply is not None else None
        return self._scratch if space is None else space

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the received bytes."""
        reply = self._reply
        if reply is None or self._waiter is None or self._waiter.done():
            self.abort()  # the broker sent bytes although no request waits for them
            return
        self._progress_at_s = asyncio.get_running_loop().time()
        try:
            if reply.buffer() is not None:
                is_whole = reply.advance(nbytes)
            else:
                is_whole = reply.feed(bytes(self._scratch[:nbytes]))
        except MalformedReply as error:
            self._fail(error)
            return
        if is_whole:
            self._waiter.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete the request in flight if the end of the connection is the end of its reply.
        Otherwise fail it."""
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
