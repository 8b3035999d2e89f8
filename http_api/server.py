"""The HTTP server: listening sockets, their connections, and a clean stop."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial

from holdfast.http_api.app import App
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.wire.aiohttp_parser import check_parser
from holdfast.http_api.wire.connection import Connection
from holdfast.http_api.wire.tls import ServerTls, TlsFiles
from holdfast.http_api.wire.tls_handshake import TlsHandshakeProtocol

#: At most this many connections wait to be accepted. After a restart, thousands of clients may
#: reconnect together.
BACKLOG = 4096
#: This many file descriptors accept connections for each listening socket. For each descriptor,
#: libuv accepts only one connection per event loop iteration. With a single descriptor, the last
#: client of a full backlog would wait 4,096 iterations, which is 80 s if an iteration takes 20 ms.
ACCEPTS_A_TURN = 16


class Server:
    """A running server. `stop` may be called twice."""

    def __init__(
        self,
        app: App,
        listeners: Sequence[asyncio.Server],
        timeout_s: float,
        tls: ServerTls | None,
    ) -> None:
        self._app = app
        self._listeners = listeners
        self._connections = app.http.connections
        self._timeout_s = timeout_s
        self._tls = tls
        self.scheme = "http" if tls is None else "https"
        self.host, self.port = listeners[0].sockets[0].getsockname()[:2]

    @property
    def connection_count(self) -> int:
        return self._connections.limits.count

    async def reload(self) -> None:
        """Check the TLS files now, and load them if they have changed and are usable."""
        if self._tls is not None:
            await self._tls.reload()

    async def stop(self) -> None:
        """Stop accepting, answer held requests, finish running requests, then close.

        After half of shutdown_timeout_ms, requests that still run are cancelled. After all of it,
        connections that are still open are closed immediately.
        """
        listeners, self._listeners = self._listeners, ()
        if not listeners:
            return
        for listener in listeners:
            listener.close()
        # Wait one loop iteration, so that requests that have already arrived begin. After that, the
        # idle connections close.
        await asyncio.sleep(0)
        for connection in list(self._connections.open):
            connection.finish()
        await self._app.release()
        await self._connections.finish(self._timeout_s)
        await self._app.stop()
        if self._tls is not None:
            await self._tls.stop()
        self._connections.abort_all()
        while not self._connections.is_empty:  # noqa: ASYNC110 - an abort needs one or two loop iterations
            await asyncio.sleep(0)
        for listener in listeners:
            await listener.wait_closed()


async def start_server(app: App, config: HttpConfig) -> Server:
    """Serve `app` on the configured address. If the port is 0, a free port is used.

    Raises OSError if the broker cannot listen on the address. Raises TlsUnusable, ParserMissing.
    """
    check_parser()
    connections = app.http.connections
    loop = asyncio.get_running_loop()
    files = TlsFiles.of(config)
    tls = ServerTls(files, config.tls_reload_interval_ms / 1000) if files is not None else None

    def connect() -> Connection:
        return Connection(app.answer, loop, config, connections)

    listeners = await _listen(
        config,
        connect
        if tls is None
        else partial(TlsHandshakeProtocol, tls, config, connections, connect),
    )
    app.start()
    if tls is not None:
        tls.start()
        app.http.certificate_expires_s = lambda: tls.expires_s
    return Server(app, listeners, config.shutdown_timeout_ms / 1000, tls)


async def _listen(
    config: HttpConfig, make: Callable[[], asyncio.BaseProtocol]
) -> list[asyncio.Server]:
    loop = asyncio.get_running_loop()
    first = await loop.create_server(make, config.host, config.port, backlog=BACKLOG)
    listeners = [first]
    for each in first.sockets:
        # This option detects clients that vanished without closing. Accepted connections inherit
        # it.
        each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for _ in range(ACCEPTS_A_TURN - 1):
            copy = socket.socket(fileno=os.dup(each.fileno()))
            listeners.append(await loop.create_server(make, sock=copy, backlog=BACKLOG))
    return listeners
