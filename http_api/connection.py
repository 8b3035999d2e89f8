"""One client's connection: aiohttp's, with the deadlines that it leaves open.

aiohttp guards an idle connection (keep-alive). Guarded here are a head that does not come to
its end, and a client that does not take its reply. A body's deadline is its reader's (`bodies`).
"""

import asyncio
import logging
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.problems import Problem, problem_for
from holdfast.http_api.reply import Reply, problem_reply

_logger = logging.getLogger(__name__)

#: A poll over 1,024 queues, or a filter of 4 KiB percent-encoded, must fit the request line.
MAX_LINE_BYTES = 64 * 1024
#: How long the rest of a refused body is read, so that the client gets to see why.
LINGERING_S = 2.0


class Connection(RequestHandler):
    """One client's connection. `others` are all that are open; it adds and removes itself."""

    __slots__ = ("_config", "_head_timer", "_others", "_wire", "_write_timer", "received_at")

    def __init__(
        self,
        manager: web.Server,
        loop: asyncio.AbstractEventLoop,
        config: HttpConfig,
        others: "set[Connection]",
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
        self._others = others
        self._wire: asyncio.Transport | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self.received_at = 0.0
        """When bytes last came, by the loop's clock."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a head; close at once when too many connections are open."""
        self._wire = cast(asyncio.Transport, transport)
        if len(self._others) >= self._config.max_connections:
            self.abort()
            return
        self._others.add(self)
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Let go of everything; a request that is being answered is cancelled."""
        self._others.discard(self)
        self._wire = None
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._write_timer = None
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close without sending what is still to be sent."""
        if self._wire is not None:
            self._wire.abort()

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
        self.force_close()

    # -- a reply that is not taken -----------------------------------------------------------

    def pause_writing(self) -> None:
        """The client has fallen behind: from now on it has write_timeout_ms to catch up."""
        super().pause_writing()
        self._write_timer = self._loop.call_later(self._config.write_timeout_ms / 1000, self.abort)

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

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
