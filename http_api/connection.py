"""One client's connection: aiohttp's, with the deadlines that it leaves open.

aiohttp guards an idle connection (keep-alive). Guarded here are a head that does not come to
its end, and a client that does not take its reply. A body's deadline is its reader's (`bodies`).

The write buffer's limits are 0: writing is paused whenever the system has not taken all of a
reply, which only a slow client brings about. From then on the reply counts among those that wait
in memory, and its client must keep up a least pace.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from holdfast.http_api.client_address import UNKNOWN
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.connections import Connections
from holdfast.http_api.pace import Pace
from holdfast.http_api.problems import Problem, problem_for
from holdfast.http_api.reply import Bytes, Reply, problem_reply

_logger = logging.getLogger(__name__)

#: A poll over 1,024 queues, or a filter of 4 KiB percent-encoded, must fit the request line.
MAX_LINE_BYTES = 64 * 1024
#: How long the rest of a refused body is read, so that the client gets to see why.
LINGERING_S = 2.0

#: So much is encrypted at once; then, as long as the client has not taken it, it is looked at
#: again, ever less often: TLS tells nobody when that is.
_TLS_PIECE_BYTES = 256 * 1024
_TLS_FIRST_PAUSE_S = 0.001
_TLS_LONGEST_PAUSE_S = 0.25


class Connection(RequestHandler):
    """One client's connection. It adds itself to `connections`, if it is let in, and removes
    itself."""

    __slots__ = (
        "_config",
        "_connections",
        "_head_timer",
        "_pace",
        "_raw",
        "_sending_bytes",
        "_wire",
        "_write_deadline",
        "_write_timer",
        "_written_bytes",
        "client",
        "received_at",
    )

    def __init__(
        self,
        manager: web.Server,
        loop: asyncio.AbstractEventLoop,
        config: HttpConfig,
        connections: Connections,
    ) -> None:
        super().__init__(
            manager,
            loop=loop,
            keepalive_timeout=config.keepalive_timeout_ms / 1000,
            access_log=cast(Any, None),
            auto_decompress=False,
            max_line_size=MAX_LINE_BYTES,
            lingering_time=LINGERING_S,
        )
        self._config = config
        self._connections = connections
        self._wire: asyncio.Transport | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._write_deadline = 0.0
        self._raw: asyncio.Transport | None = None
        self._sending_bytes = 0
        self._written_bytes = 0
        self._pace: Pace | None = None
        self.client = UNKNOWN
        """Whose connection it is, for limits that are counted per client."""
        self.received_at = 0.0
        """When bytes last came, by the loop's clock."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a head, if there is room for one more connection."""
        wire = cast(asyncio.Transport, transport)
        client = self._connections.enter(wire, is_plain=True)
        if client is None:
            return
        wire.set_write_buffer_limits(high=0)
        self.begin(wire, client)

    def begin(
        self, wire: asyncio.Transport, client: str, raw: asyncio.Transport | None = None
    ) -> None:
        """Begin to wait for a head of a client that was let in; `raw` is what carries its TLS."""
        self.client = client
        self._wire = wire
        self._raw = raw
        self._connections.open.add(self)
        super().connection_made(wire)
        self._await_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Let go of everything; a request that is being answered is cancelled."""
        if self in self._connections.open:
            self._connections.open.remove(self)
            self._connections.leave(self.client)
        self._wire = self._raw = None
        self._end_behind()
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close without sending what is still to be sent."""
        if self._wire is not None:
            self._wire.abort()

    def cut_off(self, reason: str) -> None:
        """Close at once a client that uses up what is there for all."""
        self._connections.closed_early[reason] += 1
        self._connections.log_seldom(
            reason, f"closed a connection of {self.client or 'a client'}: {reason}"
        )
        self._end_behind()
        self.abort()

    # -- a head that does not come to its end ------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse what has come; start or stop the head's deadline by what that makes of it."""
        # The loop's own idea of now, which is that of the turn's start: of a thousand requests
        # that come in one turn, the last one's wait began with the first one's.
        self.received_at = self._loop.time()
        requests_before = self._request_count
        super().data_received(data)
        if self._request_count != requests_before:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif data and self._head_timer is None and self._is_idle():
            self._await_head()

    def _is_idle(self) -> bool:
        """Whether no request is under way: what comes now is a part of the next one's head."""
        return self._waiter is not None and not self._waiter.done()

    def _await_head(self) -> None:
        self._head_timer = self._loop.call_later(
            self._config.header_timeout_ms / 1000, self._head_is_late
        )

    def _head_is_late(self) -> None:
        self._head_timer = None
        self._connections.closed_early["slow-head"] += 1
        self.force_close()

    # -- a reply that is not taken -----------------------------------------------------------

    async def send(self, parts: Sequence[Bytes], size: int) -> None:
        """Write a whole reply of `size` bytes, then wait until the system has taken all of it.

        Raises ConnectionResetError when the client is gone.
        """
        wire = self._wire
        if wire is None or wire.is_closing():
            raise ConnectionResetError("the client is gone")
        self._sending_bytes = self._written_bytes = size
        if self._raw is not None:
            await self._send_encrypted(parts, self._raw)
        elif len(parts) == 1:
            wire.write(parts[0])
        else:
            wire.writelines(parts)
        if self._paused:
            await self._drain_helper()

    async def _send_encrypted(self, parts: Sequence[Bytes], raw: asyncio.Transport) -> None:
        """Send piece by piece: what TLS has encrypted, its own flow control counts no more."""
        self._written_bytes = 0
        # Beside the reply a piece of it waits encrypted, with the library and with the transport.
        self._sending_bytes += 2 * min(self._sending_bytes, _TLS_PIECE_BYTES)
        try:
            for part in parts:
                for start in range(0, len(part), _TLS_PIECE_BYTES):
                    wire = self._wire
                    if wire is None:
                        raise ConnectionResetError("the client is gone")
                    piece = memoryview(part)[start : start + _TLS_PIECE_BYTES]
                    self._written_bytes += len(piece)
                    wire.write(piece)
                    await self._until_taken(raw)
        finally:
            self._end_behind()

    async def _until_taken(self, raw: asyncio.Transport) -> None:
        pause_s = _TLS_FIRST_PAUSE_S
        while raw.get_write_buffer_size() and self._wire is not None:
            if self._pace is None:
                self._begin_behind()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _TLS_LONGEST_PAUSE_S)

    def pause_writing(self) -> None:
        """The client has fallen behind: from now on it must keep a pace, and come to an end."""
        super().pause_writing()
        self._begin_behind()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._end_behind()
        super().resume_writing()

    def _begin_behind(self) -> None:
        now = self._loop.time()
        self._write_deadline = now + self._config.write_timeout_ms / 1000
        self._pace = Pace(self._config.min_transfer_bytes_per_s, now, self._taken_bytes())
        self._await_progress(now)
        for slowest in self._connections.unsent.add(self, self.client, self._sending_bytes):
            slowest.cut_off("unsent-limit")

    def _end_behind(self) -> None:
        self._pace = None
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        self._connections.unsent.discard(self)

    def _await_progress(self, now: float) -> None:
        self._write_timer = self._loop.call_at(
            min(now + self._config.transfer_grace_ms / 1000, self._write_deadline),
            self._check_progress,
        )

    def _check_progress(self) -> None:
        now = self._loop.time()
        assert self._pace is not None
        if now >= self._write_deadline or self._pace.is_too_slow(now, self._taken_bytes()):
            self.cut_off("slow-reader")
        else:
            self._await_progress(now)

    def _taken_bytes(self) -> int:
        """Return how much of the reply the system has taken."""
        wire = self._raw or self._wire
        return self._written_bytes - (wire.get_write_buffer_size() if wire is not None else 0)

    # -- what is no request ------------------------------------------------------------------

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> Reply:
        """Answer what could not be parsed as a request, and close."""
        if isinstance(exc, LineTooLong):
            problem = Problem(
                "header-too-large",
                f"the request line is longer than {MAX_LINE_BYTES} bytes, or a header than "
                f"{self.max_field_size}; send less in it",
            )
        elif status == 400:
            reason = (message or "").partition("\n")[0][:200]
            problem = Problem(
                "malformed-request", f"this is not HTTP as it should be ({reason}); mend the client"
            )
        else:
            problem = problem_for(exc if isinstance(exc, Exception) else RuntimeError(message))
        _logger.debug("refused %s: %s", request.remote, problem)
        return problem_reply(problem, closes=True)
