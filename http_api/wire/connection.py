"""One client's connection: it answers the client's requests one after another, in order.

`RequestReader` splits the received bytes into requests, `ResponseWriter` writes replies. This file
connects the two: it answers each request and ends the connection. It also limits how long an idle
connection stays open, and how many bytes it still reads after it has refused a body or head.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from enum import Enum, auto
from functools import partial
from typing import Any, Protocol, cast

from holdfast.commitlog.setting import MIB
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.wire.aiohttp_parser import (
    MAX_FIELD_BYTES,
    MAX_LINE_BYTES,
    HttpProcessingError,
    HttpVersion11,
    LineTooLong,
    hdrs,
)
from holdfast.http_api.wire.body_reader import overloaded
from holdfast.http_api.wire.connection_registry import Connections
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import (
    Bytes,
    Reply,
    StreamPiece,
    Upgrade,
    nothing,
    problem_reply,
)
from holdfast.http_api.wire.request import Peer, Request
from holdfast.http_api.wire.request_reader import HeadTooLarge, NoRoom, RequestReader
from holdfast.http_api.wire.response_writer import ResponseWriter

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


class State(Enum):
    """What a connection is doing. `Connection` has the table of the transitions."""

    IDLE = auto()
    ANSWERING = auto()
    ANSWERING_LAST = auto()
    REFUSING = auto()
    DRAINING_BODY = auto()
    DRAINING_INPUT = auto()
    CLOSED = auto()


Answer = Callable[[Request], Awaitable[Reply]]
"""Returns the reply to a request. If the request fails, the reply describes the error."""


class HeldRequest(Protocol):
    """A request that waits without a task."""

    @property
    def future(self) -> asyncio.Future[Any]:
        """Done when the request can continue. The connection cancels it to give up the request."""

    def make_reply(self) -> "Reply | HeldRequest | None":
        """Return the reply, once the future is done and not cancelled. It must have neither a
        stream nor an upgrade. Return a held request if the request waits again.

        Return None if a task must answer the request from its beginning.
        """

    def give_up(self) -> None:
        """Free what the request occupies, after its future was cancelled or done. May be called
        twice."""


Hold = Callable[[Request], HeldRequest | Reply | None]
"""Answers a request without a task, or begins to hold it. Returns None if a task must answer it.

The reply must have neither a stream nor an upgrade.
"""


def hold_nothing(request: Request) -> None:
    """Return None: a task answers every request."""


class Connection(asyncio.BufferedProtocol):
    """One client's connection. It receives requests with `reader` and sends replies with `writer`.

    | state          | event                                       | next state     |
    |----------------|---------------------------------------------|----------------|
    | CLOSED         | a connection is made and admitted           | IDLE           |
    | IDLE           | a request is complete up to its head        | ANSWERING      |
    | IDLE           | the bytes are not a valid request           | REFUSING       |
    | IDLE           | timeout of the head or idle; `finish`       | closes         |
    | ANSWERING      | the reply is sent                           | IDLE           |
    | ANSWERING      | the reply ends the connection; `finish`     | ANSWERING_LAST |
    | ANSWERING_LAST | sent; the body was received completely      | closes         |
    | ANSWERING_LAST | sent; the body is incomplete                | DRAINING_BODY  |
    | ANSWERING_LAST | sent; there is input after the request      | DRAINING_INPUT |
    | REFUSING       | the problem is sent                         | DRAINING_INPUT |
    | DRAINING_BODY  | the body ends; LINGERING_S; `finish`        | closes         |
    | DRAINING_INPUT | LINGERING_BYTES; LINGERING_S; `finish`      | closes         |
    | ANSWERING_LAST | another protocol takes over                 | CLOSED         |
    | any            | the connection is lost                      | CLOSED         |

    "Closes" means that the transport closes; `connection_lost` then ends the connection. In both
    DRAINING states the input is discarded, so that the client can receive the last reply.

    If `connections` admits the connection, the connection adds itself to `connections`, and removes
    itself at the end. If the client disconnects, the request that is being answered is cancelled.
    """

    __slots__ = ("_answer", "_config", "_connections", "_discarded_bytes", "_held", "_hold",
                 "_linger_timer",
                 "_loop", "_on_undelivered", "peer", "reader", "state", "task",
                 "writer")  # fmt: skip

    def __init__(
        self,
        answer: Answer,
        loop: asyncio.AbstractEventLoop,
        config: HttpConfig,
        connections: Connections,
        hold: Hold = hold_nothing,
    ) -> None:
        self._answer = answer
        self._hold = hold
        self._loop = loop
        self._config = config
        self._connections = connections
        self.state = State.CLOSED
        self.writer = ResponseWriter(loop, config, connections)
        self.reader = RequestReader(loop, config, connections, self)
        self.peer = Peer()
        self._linger_timer: asyncio.TimerHandle | None = None
        self._discarded_bytes = 0
        """The number of bytes discarded in state DRAINING_INPUT."""
        self._on_undelivered: Callable[[], object] = nothing
        """`Reply.on_undelivered` of the last reply that the operating system has accepted.

        `serve_next` resets it, because a client that sends the next request has the reply.
        """
        self._held: HeldRequest | None = None
        """The current request if it is held without a task."""
        self.task: asyncio.Future[Any] | None = None
        """The task that answers the current request, or the future of a request that is held
        without a task. None if no request is being answered."""

    # -- called by asyncio -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection and wait for a request, unless a connection limit refuses it."""
        wire = cast(asyncio.Transport, transport)
        client = self._connections.enter(wire, is_plain=True)
        if client is None:
            self.reader.detach()  # ends the reference cycle: no `connection_lost` may follow
            return
        wire.set_write_buffer_limits(high=0)
        self.begin(wire, client)

    def begin(
        self, transport: asyncio.Transport, client: str, raw: asyncio.Transport | None = None
    ) -> None:
        """Wait for the first request of an admitted client.

        `raw` is the TCP transport under a TLS `transport`; it is None without TLS.
        """
        if raw is not None:
            # While reading is paused, TLS also buffers up to this many decrypted bytes.
            transport.set_read_buffer_limits(high=TLS_READ_BYTES)  # type: ignore[attr-defined]
        address = transport.get_extra_info("peername")
        remote = str(address[0]) if address else ""
        self.peer = Peer(client, remote, transport.get_extra_info("peercert"))
        self.writer.attach(transport, client, raw)
        self.reader.attach(transport, self.peer)
        self.state = State.IDLE
        self._connections.open.add(self)
        self._connections.header_timeouts.add(self)
        self._connections.idle.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes. `buffer_updated` must follow before another
        connection receives."""
        return self.reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        is_body_end = self.reader.receive(nbytes)
        # A large body arrives in many parts, and until its request is answered none needs an act.
        if self.state is not State.ANSWERING:
            self._after_input(nbytes, is_body_end)

    def data_received(self, data: bytes) -> None:
        """Process received bytes that are not in the buffer of `get_buffer`."""
        self.reader.feed(data)
        self._after_input(len(data), False)

    def eof_received(self) -> None:
        """Report the last reply as undelivered if the client closed before the whole reply arrived.

        The client's system acknowledges all bytes that the client has received (TCP). If the kernel
        here still holds unacknowledged bytes, the last reply was not delivered. A reset (RST)
        proves nothing: a proxy may send it after the client has read its reply.
        """
        if self._on_undelivered is not nothing and self.writer.has_unacknowledged_bytes():
            self._on_undelivered()
        self._on_undelivered = nothing

    def pause_writing(self) -> None:
        """Called when the operating system has not accepted all bytes: the client is slow."""
        self.writer.pause()

    def resume_writing(self) -> None:
        self.writer.resume()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Release everything. A request that is being answered is cancelled."""
        connections = self._connections
        if self in connections.open:
            connections.open.remove(self)
            connections.limits.leave(self.peer.client)
        self._forget_transport()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        task, self.task = self.task, None
        if task is not None:
            task.cancel()
        if self._held is not None:
            self._held.give_up()

    def _forget_transport(self) -> None:
        self._connections.header_timeouts.remove(self)
        self._connections.idle.remove(self)
        self.state = State.CLOSED
        self.writer.detach()
        self.reader.detach()

    # -- ending ------------------------------------------------------------------------------

    def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        self.writer.abort()

    def cut_off(self, reason: str) -> None:
        self.writer.cut_off(reason)

    def finish(self) -> None:
        """Close after the reply to the current request, or now if no request is being answered."""
        if self.state is State.ANSWERING:
            self.state = State.ANSWERING_LAST
        elif self.state not in (State.ANSWERING_LAST, State.REFUSING):
            self.close()

    # -- answering ---------------------------------------------------------------------------

    def _after_input(self, count: int, is_body_end: bool) -> None:
        """Begin to answer a request, or end a connection whose input is discarded."""
        state = self.state
        if state is State.IDLE:
            self.serve_next()
        elif state is State.DRAINING_INPUT:
            self._discarded_bytes += count
            if is_body_end or self._discarded_bytes > LINGERING_BYTES:
                self.close()
        elif state is State.DRAINING_BODY and is_body_end:
            self.close()

    def serve_next(self) -> None:
        """Begin to answer the oldest waiting request, if there is one."""
        if self.state is not State.IDLE or not self.reader.waiting:
            return
        self._on_undelivered = nothing
        self._connections.idle.remove(self)
        asked = self.reader.next_request()
        if isinstance(asked, Request):
            self.state = State.ANSWERING
            held = self._hold(asked)
            if isinstance(held, Reply):
                self._reply_now(asked, held)
                return
            if held is not None:
                self._wait_for(asked, held)
                return
        else:
            self.state = State.REFUSING
        self.task = self._loop.create_task(self._serve(asked))

    def _wait_for(self, asked: Request, held: HeldRequest) -> None:
        """Continue a request when its future is done."""
        self._held, self.task = held, held.future
        held.future.add_done_callback(partial(self._answer_held, asked, held))

    def _answer_held(self, asked: Request, held: HeldRequest, future: asyncio.Future[Any]) -> None:
        """Continue a request that was held without a task; give it up if its client is gone."""
        self._held = None
        if future.cancelled() or not self.writer.is_open:
            held.give_up()
            self.abort()
            self._after_reply()
            return
        reply = held.make_reply()
        if isinstance(reply, Reply):
            self._reply_now(asked, reply)
        elif reply is None:
            self.task = self._loop.create_task(self._serve(asked))
        else:
            self._wait_for(asked, reply)

    def _reply_now(self, asked: Request, reply: Reply) -> None:
        """Write a reply. If the operating system does not accept it at once, a task waits."""
        undelivered = reply.on_undelivered
        try:
            parts, size = self._encode(asked, reply)
            if not self.writer.send_now(parts, size):
                self.task = self._loop.create_task(
                    self._finish(self.writer.send(parts, size), undelivered)
                )
                return
            if self.writer.is_paused:
                accepted = self.writer.wait_until_accepted()
                self.task = self._loop.create_task(self._finish(accepted, undelivered))
                return
            self._on_undelivered = undelivered
        except Exception as error:
            if not isinstance(error, ConnectionError):
                _logger.exception("a connection failed")
            self.abort()
            undelivered()
        self._after_reply()

    async def _finish(
        self, sending: Coroutine[Any, Any, None], undelivered: Callable[[], object]
    ) -> None:
        """Wait until a reply is sent, then continue or end the connection. Call `undelivered` if
        the reply does not reach the client."""
        try:
            await sending
            self._on_undelivered, undelivered = undelivered, nothing
        except ConnectionError:
            self.abort()
        except asyncio.CancelledError:
            self.abort()
            raise
        except Exception:
            _logger.exception("a connection failed")
            self.abort()
        finally:
            undelivered()
            self._after_reply()

    async def _serve(self, asked: Request | HttpProcessingError) -> None:
        reply: Reply | None = None
        try:
            if isinstance(asked, Request):
                reply = await self._answer(asked)
                if reply.stream is not None:
                    await self._send_stream(asked, reply, reply.stream)
                    return
                if reply.upgrade is not None:
                    if self._can_hand_over(asked):
                        self._hand_over(reply.upgrade)
                        return
                    reply = problem_reply(_sent_too_early())
                parts, size = self._encode(asked, reply)
            else:
                parts, size = self._refuse(asked)
            await self.writer.send(parts, size)
            if reply is not None:
                self._on_undelivered, reply = reply.on_undelivered, None
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
                reply.on_undelivered()
            self._after_reply()

    async def _send_stream(
        self, request: Request, reply: Reply, stream: AsyncGenerator[StreamPiece, None]
    ) -> None:
        """Send the pieces of a stream, then end the connection.

        If the client receives a piece too slowly, the connection is closed immediately.
        """
        self._answer_last()
        writer = self.writer
        writer.limit_unsent(STREAM_UNSENT_BYTES)
        is_chunked = request.version >= HttpVersion11
        head = reply.head_of_stream(is_chunked=is_chunked)
        await writer.send((head,), len(head))
        if request.method == hdrs.METH_HEAD:
            return
        async with aclosing(stream):
            async for data, kept_bytes, _ in stream:
                parts = (b"%x\r\n" % len(data), data, b"\r\n") if is_chunked else (data,)
                await writer.send(parts, sum(map(len, parts)), kept_bytes)
                del data, parts  # the next piece may come much later
        if is_chunked:
            await writer.send((b"0\r\n\r\n",), 5)

    def _can_hand_over(self, request: Request) -> bool:
        """Return whether another protocol can take over: the client has sent only its request."""
        return request.content.is_eof() and not self.reader.has_more_input

    def _hand_over(self, upgrade: Upgrade) -> None:
        """Let another protocol take over the transport.

        From now on the protocol is responsible for the connection: it leaves the limits on the
        number of connections at the end, and it ends when the server stops.
        """
        transport = self.writer.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        protocol = upgrade(self.writer.raw)
        self._connections.open.remove(self)
        self._forget_transport()
        transport.set_protocol(protocol)
        try:
            protocol.connection_made(transport)
        except BaseException:
            transport.abort()
            raise

    def _encode(self, request: Request, reply: Reply) -> tuple[Sequence[Bytes], int]:
        # If the body is incomplete, its rest is read only for a short time. So the connection
        # cannot serve another request.
        if reply.closes or not request.is_kept_alive or not request.content.is_eof():
            self._answer_last()
        keeps_alive = self.state is State.ANSWERING
        return reply.encode(request.method, request.version, keeps_alive=keeps_alive)

    def _refuse(self, error: HttpProcessingError) -> tuple[Sequence[Bytes], int]:
        """Return the encoded reply to bytes that could not be parsed as a request."""
        problem = _problem_of(error, self._config)
        _logger.debug("refused %s: %s", self.peer.client, problem)
        return problem_reply(problem).encode(keeps_alive=False)

    def _answer_last(self) -> None:
        if self.state is State.ANSWERING:
            self.state = State.ANSWERING_LAST

    def _after_reply(self) -> None:
        """Continue or end the connection, after a request was answered or its client has gone."""
        self.task = None
        reader = self.reader
        body = reader.end_request()
        if not self.writer.is_open:
            return
        if self.state is State.ANSWERING:
            self.state = State.IDLE
            if not reader.waiting and reader.parser is not None:
                reader.parse_held_back()
            if reader.waiting:
                self.serve_next()
            elif self.state is State.IDLE:
                self._connections.idle.add(self)
                if reader.is_head_incomplete:
                    self._connections.header_timeouts.add(self)
        elif self.state is State.REFUSING or reader.has_more_input:
            self.writer.half_close()
            self._linger(State.DRAINING_INPUT)
        elif body.is_eof() or reader.discards_input:
            self.close()
        else:
            self._linger(State.DRAINING_BODY)

    def _linger(self, state: State) -> None:
        """Discard input for a while before closing.

        If the broker closed while input is unread, the client would get a reset instead of the
        reply.
        """
        self.state = state
        self.reader.discard_input()
        self._linger_timer = self._loop.call_later(LINGERING_S, self.close)


def _sent_too_early() -> Problem:
    return Problem(
        "malformed-request",
        "the request to change the protocol has a body, or other bytes follow it; send further "
        "bytes after the reply",
    )


def _problem_of(error: HttpProcessingError, config: HttpConfig) -> Problem:
    if isinstance(error, NoRoom):
        return overloaded(error.limit_name, config)
    if isinstance(error, HeadTooLarge):
        return Problem(
            "header-too-large",
            f"the request's head is larger than max_head_bytes ({config.max_head_bytes}); send "
            "fewer or shorter headers",
            limit=config.max_head_bytes,
            limit_name="max_head_bytes",
        )
    if isinstance(error, LineTooLong):
        return Problem(
            "header-too-large",
            f"the request line is longer than {MAX_LINE_BYTES} bytes, or a header is longer than "
            f"{MAX_FIELD_BYTES} bytes; shorten it",
        )
    reason = error.message.partition("\n")[0][:200]
    return Problem(
        "malformed-request", f"this is not a valid HTTP request ({reason}); correct the client"
    )
