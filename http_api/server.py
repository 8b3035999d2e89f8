"""Serving the API: a listening socket, the connections it gave rise to, and a clean stop."""

import asyncio
import socket
from functools import partial

from holdfast.http_api.app import App
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.connection import Connection
from holdfast.http_api.connections import Connections
from holdfast.http_api.framing import check_parser
from holdfast.http_api.tls import ServerTls, TlsFiles
from holdfast.http_api.tls_door import TlsDoor

#: Connections that may wait to be accepted: a thousand clients may come back at once.
BACKLOG = 4096


class Server:
    """A listening server. `stop` may be called twice."""

    def __init__(
        self,
        app: App,
        listener: asyncio.Server,
        connections: Connections,
        timeout_s: float,
        tls: ServerTls | None,
    ) -> None:
        self._app = app
        self._listener: asyncio.Server | None = listener
        self._connections = connections
        self._timeout_s = timeout_s
        self._tls = tls
        self.scheme = "http" if tls is None else "https"
        self.host, self.port = listener.sockets[0].getsockname()[:2]

    @property
    def connection_count(self) -> int:
        """Connections that are open now."""
        return self._connections.count

    async def stop(self) -> None:
        """Take no more connections, answer what is held, let what is under way end, close.

        What has not ended after shutdown_timeout_ms is cut off.
        """
        listener, self._listener = self._listener, None
        if listener is None:
            return
        listener.close()
        # A turn, so that requests which are here already are begun; then the idle are closed.
        await asyncio.sleep(0)
        for connection in list(self._connections.open):
            connection.finish()
        await self._app.release()
        await self._connections.finish(self._timeout_s)
        await self._app.stop()
        if self._tls is not None:
            await self._tls.stop()
        self._connections.abort_all()
        while not self._connections.is_empty:  # noqa: ASYNC110 - an abort needs a turn or two of the loop
            await asyncio.sleep(0)
        await listener.wait_closed()


async def start_server(app: App, config: HttpConfig) -> Server:
    """Serve `app` on the configured address; port 0 picks a free one.

    Raises OSError when the address cannot be listened on, TlsUnusable, and ParserMissing.
    """
    check_parser()
    connections = app.connections
    loop = asyncio.get_running_loop()
    files = TlsFiles.of(config)
    tls = ServerTls(files, config.tls_reload_interval_ms / 1000) if files is not None else None

    def connect() -> Connection:
        return Connection(app.answer, loop, config, connections)

    listener = await loop.create_server(
        connect if tls is None else partial(TlsDoor, tls, config, connections, connect),
        config.host,
        config.port,
        backlog=BACKLOG,
    )
    for each in listener.sockets:
        # The connections inherit it: a client that vanishes without a word is found in the end.
        each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    app.start()
    if tls is not None:
        tls.start()
    return Server(app, listener, connections, config.shutdown_timeout_ms / 1000, tls)
