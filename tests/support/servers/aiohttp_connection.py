"""Serve the same application with aiohttp's own server, to compare the broker's connection with it.

A test that runs against both servers must get the same answer. This server has no deadlines and
no connection limits, so tests cannot compare those.
"""

import asyncio
from typing import Any, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from holdfast.http_api.app import App
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.wire.aiohttp_parser import MAX_LINE_BYTES, LineTooLong
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Reply, problem_reply
from holdfast.http_api.wire.request import Peer, Request

_PEER = Peer("127.0.0.1", "127.0.0.1")


class AiohttpConnection(RequestHandler):
    """aiohttp's connection, which is also the source of the application's requests."""

    received_at = 0.0

    def data_received(self, data: bytes) -> None:
        self.received_at = self._loop.time()
        super().data_received(data)

    def expect_body(self, *, sends_continue: bool) -> None:
        """Send "100 Continue" if asked to. This connection counts no body bytes."""
        if sends_continue and self.transport is not None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def count_more(self, size: int) -> str | None:
        """Do nothing: this connection counts no memory."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        slug = "header-too-large" if isinstance(exc, LineTooLong) else "malformed-request"
        reply = problem_reply(Problem(slug, "mend the client"))
        reply.closes = True
        return _Response(reply)


class _Response(web.StreamResponse):
    """A Reply as a response that aiohttp can send."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(status=reply.status)
        self._reply = reply
        self._keeps_alive = False
        self._asked: web.BaseRequest | None = None

    @property
    def keep_alive(self) -> bool:
        return self._keeps_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        self._asked = request
        is_kept_alive = request.keep_alive and _as_ours(request).is_kept_alive
        self._keeps_alive = is_kept_alive and not self._reply.closes and request.content.is_eof()

    async def write_eof(self, data: bytes = b"") -> None:
        asked, self._asked = self._asked, None
        if asked is None:
            return
        if asked.transport is None:
            raise ConnectionResetError
        parts, _ = self._reply.encode(asked.method, asked.version, keeps_alive=self._keeps_alive)
        asked.transport.writelines(parts)
        await asked.protocol._drain_helper()


def _as_ours(request: web.BaseRequest) -> Request:
    source = cast(AiohttpConnection, request.protocol)
    return Request(request._message, request.content, _PEER, source)


class AiohttpServer:
    """A replacement for the broker's Server."""

    def __init__(self, app: App, manager: web.Server, listener: asyncio.Server) -> None:
        self._app = app
        self._manager = manager
        self._listener = listener
        self.port: int = listener.sockets[0].getsockname()[1]

    @property
    def connection_count(self) -> int:
        return len(self._manager.connections)

    async def stop(self) -> None:
        self._listener.close()
        self._manager.pre_shutdown()
        await self._app.release()
        await self._manager.shutdown(1.0)
        await self._app.stop()


async def start_aiohttp_server(app: App, config: HttpConfig) -> AiohttpServer:
    """Serve `app` on a free port of loopback."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return _Response(await app.answer(_as_ours(request)))

    manager = web.Server(answer, handler_cancellation=True)
    loop = asyncio.get_running_loop()

    def connect() -> AiohttpConnection:
        return AiohttpConnection(
            manager,
            loop=loop,
            access_log=cast(Any, None),
            auto_decompress=False,
            max_line_size=MAX_LINE_BYTES,
            lingering_time=1.0,
        )

    listener = await loop.create_server(connect, config.host, config.port)
    app.start()
    return AiohttpServer(app, manager, listener)
