"""One client's connection: it answers the client's requests one after another, in order.

`request_reader` reads bytes and splits them into requests, `response_writer` writes replies. This
file connects the two: it answers each request and ends the connection. It also limits how long an
idle connection stays open, and how many bytes it still reads after it has refused a body or head.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from aiohttp import EMPTY_PAYLOAD, HttpVersion11, hdrs

from holdfast.commitlog.setting import MIB
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.wire.aiohttp_parser import (
    MAX_LINE_BYTES,
    HttpProcessingError,
    LineTooLong,
)
from holdfast.http_api.wire.body_reader import overloaded
from holdfast.http_api.wire.framing import ends_connection
from holdfast.http_api.wire.headers import MAX_FIELD_BYTES
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Bytes, Reply, StreamPiece, nothing, problem_reply
from holdfast.http_api.wire.request import Request
from holdfast.http_api.wire.request_reader import HeadTooLarge, NoRoom, Receiving

if TYPE_CHECKING:
    from holdfast.http_api.wire.connection_registry import Connections

_logger = logging.getLogger(__name__)

#: How long the broker still reads and discards input after it has refused a body or a head. This
#: lets the client receive the reply that explains the refusal.
LINGERING_S = 2.0
#: At most this many bytes are read and discarded after the last reply. The number is the default
#: limit of a body.
LINGERING_BYTES = 16 * MIB

#: How many encrypted bytes TLS may buffer while the broker does not read from the client. A TLS
#: record is decrypted as a whole and has slightly more than 16 KiB.
TLS_READ_BYTES = 32 * 1024

#: At most this many unsent bytes of a stream are buffered in the operating system. No limit of the
#: broker counts this memory, and a client that does not read would occupy it without end.
STREAM_UNSENT_BYTES = 16 * 1024

Answer = Callable[[Request], Awaitable[Reply]]
"""Returns the reply to a request. If the request fails, the reply describes the error."""


class Connection(Receiving):
    """One client's connection.

    If `connections` admits it, it adds itself there, and removes itself at the end. If the client
    disconnects, the request that is being answered is cancelled.
    """

    __slots__ = (
        "_answer",
        "_is_all_sent",
        "_is_ending",
        "_is_refused",
        "_lingering",
        "_thrown_away_bytes",
        "_untaken",
        "remote",
        "task",
    )

    def __init__(
        self,
        answer: Answer,
        loop: asyncio.AbstractEventLoop,
        config: HttpConfig,
        connections: "Connections",
    ) -> None:
        super().__init__(loop, config, connections)
        self._answer = answer
        self._is_ending = False
        """Whether the connection closes after the current reply."""
        self._is_refused = False
        """Whether the received bytes could not be parsed as a request."""
        self._is_all_sent = False
        """Whether the last reply was sent, but the client has sent or may send more input.

        The connection then counts the bytes that it discards, and closes after LINGERING_BYTES.
        """
        self._lingering: asyncio.TimerHandle | None = None
        self._thrown_away_bytes = 0
        """The number of bytes discarded since `_is_all_sent` was set."""
        self._untaken: Callable[[], object] = nothing
        """`Reply.unsent` of the last reply that the operating system has accepted.

        `_serve_next` resets it, because a client that sends the next request has the reply.
        """
        self.task: asyncio.Task[None] | None = None
        """The task that answers the current request. None if no request is being answered."""
        self.remote = ""
        """The client's address, as the operating system writes it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection and wait for a request, unless a connection limit refuses it."""
        wire = cast(asyncio.Transport, transport)
        client = self._connections.enter(wire, is_plain=True)
        if client is None:
            return
        wire.set_write_buffer_limits(high=0)
        self.begin(wire, client)

    def begin(
        self, transport: asyncio.Transport, client: str, raw: asyncio.Transport | None = None
    ) -> None:
        """Wait for the first request of an admitted client.

        `raw` is the TCP transport under a TLS `transport`; it is None without TLS.
        """
        self.client = client
        self.transport = transport
        self._raw = raw
        if raw is not None:
            # While reading is paused, TLS also buffers up to this many decrypted bytes.
            transport.set_read_buffer_limits(high=TLS_READ_BYTES)  # type: ignore[attr-defined]
        peer = transport.get_extra_info("peername")
        self.remote = str(peer[0]) if peer else ""
        self._connections.open.add(self)
        self._connections.heads.put(self)
        self._connections.idle.put(self)

    def eof_received(self) -> None:
        """Report the last reply as undelivered if the client closed before the whole reply arrived.

        The system of a client that closes has acknowledged all bytes that it received (TCP). If the
        kernel here still holds unacknowledged bytes, the last reply was not delivered. A reset
        (RST) proves nothing: a proxy may send it after the client has read its reply.
        """
        if self._untaken is not nothing and self._has_untaken():
            self._untaken()
        self._untaken = nothing

    def connection_lost(self, exc: BaseException | None) -> None:
        """Release everything. A request that is being answered is cancelled."""
        connections = self._connections
        if self in connections.open:
            connections.open.remove(self)
            connections.leave(self.client)
        connections.heads.take(self)
        connections.idle.take(self)
        self._lost()
        self._forget()
        if self._lingering is not None:
            self._lingering.cancel()
        task, self.task = self.task, None
        if task is not None:
            task.cancel()

    def finish(self) -> None:
        """Close after the reply to the current request, or now if no request is being answered."""
        self._is_ending = True
        if not self._is_busy:
            self.close()

    # -- answering ---------------------------------------------------------------------------

    def _serve_next(self) -> None:
        """Begin to answer the oldest waiting request."""
        if self._waiting is None or self._is_busy or self.transport is None:
            return
        self._is_busy = True
        self._untaken = nothing
        self._connections.idle.take(self)
        asked = self._next_request()
        self.task = self._loop.create_task(self._serve(asked))
        if self._is_stopped or self._arriving is not None:
            self._set_reading()

    async def _serve(self, asked: Request | HttpProcessingError) -> None:
        reply: Reply | None = None
        try:
            if isinstance(asked, Request):
                reply = await self._answer(asked)
                if reply.stream is not None:
                    await self._send_stream(asked, reply, reply.stream)
                    return
                parts, size = self._encoded(asked, reply)
            else:
                parts, size = self._refused(asked)
            await self.send(parts, size)
            if reply is not None:
                self._untaken, reply = reply.unsent, None
        except ConnectionError:
            self.abort()
        except asyncio.CancelledError:
            self.abort()
            raise
        except Exception:
            _logger.exception("a connection failed")
            self.abort()
        finally:
            if reply is not None:
                reply.unsent()
            self._served()

    async def _send_stream(
        self, request: Request, reply: Reply, stream: AsyncGenerator[StreamPiece, None]
    ) -> None:
        """Send the pieces of a stream, then end the connection.

        If the client receives a piece too slowly, the connection is closed at once.
        """
        self._is_ending = True
        self._bound_unsent(STREAM_UNSENT_BYTES)
        is_chunked = request.version >= HttpVersion11
        head = reply.head_of_stream(is_chunked=is_chunked)
        await self.send((head,), len(head))
        if request.method == hdrs.METH_HEAD:
            return
        async with aclosing(stream):
            async for data, kept_bytes, _ in stream:
                parts = (b"%x\r\n" % len(data), data, b"\r\n") if is_chunked else (data,)
                await self.send(parts, sum(map(len, parts)), kept_bytes)
                del data, parts  # the next piece may come much later
        if is_chunked:
            await self.send((b"0\r\n\r\n",), 5)

    def _encoded(self, request: Request, reply: Reply) -> tuple[Sequence[Bytes], int]:
        # If the body is incomplete, its rest is read only for a short time. So the connection
        # cannot serve another request.
        is_last = (
            reply.closes
            or self._is_ending
            or not request.is_kept_alive
            or not request.content.is_eof()
            or ends_connection(request)
        )
        self._is_ending = is_last
        return reply.encoded(request, keeps_alive=not is_last)

    def _refused(self, error: HttpProcessingError) -> tuple[Sequence[Bytes], int]:
        """Return the encoded reply to bytes that could not be parsed as a request.

        After this reply the connection ends.
        """
        problem = _problem_of(error, self._config)
        _logger.debug("refused %s: %s", self.client, problem)
        self._is_ending = self._is_refused = True
        return problem_reply(problem).encoded(None, keeps_alive=False)

    def _served(self) -> None:
        """Continue or end the connection, after a request was answered or its client has gone."""
        self._is_busy = False
        self.task = None
        content, self._content = self._content, EMPTY_PAYLOAD
        if self._request_memory:
            self._request_memory = 0
            self._recount()
        if self.transport is None or self.transport.is_closing():
            return
        if self._waiting is None and self._parser is not None and not self._is_ending:
            self._parse(b"")  # the parser may have unparsed bytes
        if self._is_ending:
            if self._is_refused or self._is_more_there:
                self._send_no_more()
                self._linger()
            elif content.is_eof() or self._is_deaf:
                self.close()
            else:
                self._linger()
        elif self._waiting is not None:
            self._serve_next()
        else:
            self._connections.idle.put(self)
            if self._head_begins:
                self._connections.heads.put(self)

    def _send_no_more(self) -> None:
        """Half-close: the client sees the end of the replies, and the broker can still read.

        TLS cannot half-close; then nothing is sent.
        """
        self._is_all_sent = True
        transport = self.transport
        if transport is not None and not transport.is_closing() and transport.can_write_eof():
            transport.write_eof()

    def _linger(self) -> None:
        """Discard input for a while before closing.

        If the broker closed while input is unread, the client would get a reset instead of the
        reply.
        """
        self._listen_no_more()
        self._lingering = self._loop.call_later(LINGERING_S, self.close)

    def _threw_away(self, count: int) -> None:
        if self._is_all_sent:
            self._thrown_away_bytes += count
            if self._thrown_away_bytes > LINGERING_BYTES:
                self.close()

    def _body_ended(self) -> None:
        if self._lingering is not None:
            self.close()


def _problem_of(error: HttpProcessingError, config: HttpConfig) -> Problem:
    if isinstance(error, NoRoom):
        return overloaded(error.limit_name, config)
    if isinstance(error, HeadTooLarge):
        return Problem(
            "header-too-large",
            f"the request's head is larger than max_head_bytes ({config.max_head_bytes}); send "
            "less in it",
            limit=config.max_head_bytes,
            limit_name="max_head_bytes",
        )
    if isinstance(error, LineTooLong):
        return Problem(
            "header-too-large",
            f"the request line is longer than {MAX_LINE_BYTES} bytes, or a header than "
            f"{MAX_FIELD_BYTES}; send less in it",
        )
    reason = error.message.partition("\n")[0][:200]
    return Problem(
        "malformed-request", f"this is not HTTP as it should be ({reason}); mend the client"
    )
