"""One client's connection: its requests are answered one after the other, in their order.

What comes in is received and cut into requests by one half of it (`receiving`), what goes out
leaves by another (`sending`); here is what lies between: a request's answer, and the connection's
end. Guarded here: an idle connection, and what still comes of a body or behind a head that was
refused.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, cast

from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD

from holdfast.commitlog.setting import MIB
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.first_step import Begun, begun
from holdfast.http_api.framing import ends_connection
from holdfast.http_api.headers import MAX_FIELD_BYTES
from holdfast.http_api.problems import Problem
from holdfast.http_api.receiving import MAX_LINE_BYTES, Receiving
from holdfast.http_api.reply import Bytes, Reply, nothing, problem_reply
from holdfast.http_api.request import Request

if TYPE_CHECKING:
    from holdfast.http_api.connections import Connections

_logger = logging.getLogger(__name__)

#: How long the rest of a refused body is read, and what comes behind a refused head, so that the
#: client gets to see why.
LINGERING_S = 2.0
#: How much is read behind a refused head: as much as a body may have, unless that is configured.
LINGERING_BYTES = 16 * MIB

Answer = Callable[[Request], Awaitable[Reply]]
"""Returns the reply to a request, whatever happens."""


class Connection(Receiving):
    """One client's connection. It adds itself to `connections`, if it is let in, and removes
    itself. A request that is being answered when its client goes away is cancelled."""

    __slots__ = (
        "_answer",
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
        """Whether the request that is being answered is the last one."""
        self._is_refused = False
        """Whether what came could not be parsed as a request."""
        self._lingering: asyncio.TimerHandle | None = None
        self._thrown_away_bytes = 0
        """What came since the client was told so."""
        self._untaken: Callable[[], object] = nothing
        """`unsent` of the last reply, which the system took, until another request comes."""
        self.task: Begun | None = None
        """The answering of a request that could not be answered at once."""
        self.remote = ""
        """The client's address as the system writes it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a head, if there is room for one more connection."""
        wire = cast(asyncio.Transport, transport)
        client = self._connections.enter(wire, is_plain=True)
        if client is None:
            return
        wire.set_write_buffer_limits(high=0)
        self.begin(wire, client)

    def begin(
        self, transport: asyncio.Transport, client: str, raw: asyncio.Transport | None = None
    ) -> None:
        """Begin to wait for a head of a client that was let in; `raw` is what carries its TLS."""
        self.client = client
        self.transport = transport
        self._raw = raw
        peer = transport.get_extra_info("peername")
        self.remote = str(peer[0]) if peer else ""
        self._connections.open.add(self)
        self._connections.heads.put(self)
        self._connections.idle.put(self)

    def eof_received(self) -> None:
        """The client has closed, and with that has confirmed what had come: what it had not got by
        then of the last reply it never gets. (A reset says nothing of the kind. It may come from
        something in between, when the client has long read its reply.)"""
        if self._untaken is not nothing and self._has_untaken():
            self._untaken()
        self._untaken = nothing

    def connection_lost(self, exc: BaseException | None) -> None:
        """Let go of everything; a request that is being answered is cancelled."""
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
        if self.task is not None:
            self.task.cancel()

    def finish(self) -> None:
        """Close once the request that is being answered has its reply, now if there is none."""
        self._is_ending = True
        if not self._is_busy:
            self.close()

    # -- answering ---------------------------------------------------------------------------

    def _serve_next(self) -> None:
        """Begin to answer the request that has waited the longest."""
        if self._waiting is None or self._is_busy or self.transport is None:
            return
        self._is_busy = True
        self._untaken = nothing
        self._connections.idle.take(self)
        asked = self._next_request()
        self.task = begun(self._serve(asked), self._loop)
        if self._is_stopped or self._arriving is not None:
            self._set_reading()

    async def _serve(self, asked: Request | HttpProcessingError) -> None:
        reply: Reply | None = None
        try:
            if isinstance(asked, Request):
                reply = await self._answer(asked)
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

    def _encoded(self, request: Request, reply: Reply) -> tuple[Sequence[Bytes], int]:
        # What remains of a body that was refused is not read for long.
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
        """Return the answer to what could not be parsed as a request; the connection ends."""
        problem = _problem_of(error)
        _logger.debug("refused %s: %s", self.client, problem)
        self._is_ending = self._is_refused = True
        return problem_reply(problem).encoded(None, keeps_alive=False)

    def _served(self) -> None:
        """A request has its reply, or its client is gone."""
        self._is_busy = False
        self.task = None
        content, self._content = self._content, EMPTY_PAYLOAD
        if self.transport is None:
            return
        if self._is_ending:
            if self._is_refused:
                self._send_no_more()
                self._linger()
            elif content.is_eof() or self._is_deaf:
                self.close()
            else:
                self._linger()
        elif self._waiting is not None:
            # In a turn of its own: others' requests come between.
            self._loop.call_soon(self._serve_next)
        else:
            self._connections.idle.put(self)
            if self._head_begins:
                self._connections.heads.put(self)

    def _send_no_more(self) -> None:
        """Half-close, which TLS cannot: who waits for the end need not wait until it is closed."""
        transport = self.transport
        if transport is not None and not transport.is_closing() and transport.can_write_eof():
            transport.write_eof()

    def _linger(self) -> None:
        """Read on for a while without looking: closed at once, with something unread, the client
        would see a reset in place of its answer."""
        self._listen_no_more()
        self._lingering = self._loop.call_later(LINGERING_S, self.close)

    def _threw_away(self, count: int) -> None:
        if self._is_refused:
            self._thrown_away_bytes += count
            if self._thrown_away_bytes > LINGERING_BYTES:
                self.close()

    def _body_ended(self) -> None:
        if self._lingering is not None:
            self.close()


def _problem_of(error: HttpProcessingError) -> Problem:
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
