"""The HTTP server: listening sockets, their connections, and a clean stop."""

import asyncio
from functools import partial

from holdfast.http_api.app import App
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.wire.aiohttp_parser import check_parser
from holdfast.http_api.wire.connection import Connection
from holdfast.http_api.wire.listener import Listener
from holdfast.http_api.wire.tls import ServerTls, TlsFiles
from holdfast.http_api.wire.tls_handshake import TlsHandshakeProtocol


class Server:
    """A running server. `stop` may be called twice."""

    def __init__(
        self,
        app: App,
        listener: Listener,
        timeout_s: float,
        tls: ServerTls | None,
    ) -> None:
        self._app = app
        self._listener = listener
        self._connections = app.http.connections
        self._timeout_s = timeout_s
        self.tls = tls
        """The certificate for new connections; None without TLS."""
        self.scheme = "http" if tls is None else "https"
        self.host, self.port = listener.address

    @property
    def connection_count(self) -> int:
        return self._connections.limits.count

    async def reload(self) -> None:
        """Check the TLS files now, and load them if they have changed and are usable."""
        if self.tls is not None:
            await self.tls.reload()

    async def stop(self) -> None:
        """Stop accepting, answer held requests, finish running requests, then close.

        After half of shutdown_timeout_ms, requests that still run are cancelled. After all of it,
        connections that are still open are closed immediately.
        """
        if self._listener.is_closed:
            return
        self._listener.close()
        # Wait one loop iteration, so that requests that have already arrived begin. After that, the
        # idle connections close.
        await asyncio.sleep(0)
        for connection in list(self._connections.open):
            connection.finish()
        for upgraded in list(self._connections.upgraded):
            upgraded.finish()
        await self._app.release()
        await self._connections.finish(self._timeout_s)
        await self._app.stop()
        if self.tls is not None:
            await self.tls.stop()
        self._connections.abort_all()
        while not self._connections.is_empty:  # noqa: ASYNC110 - an abort needs one or two loop iterations
            await asyncio.sleep(0)
        await self._listener.wait_closed()


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
        return Connection(app.answer, loop, config, connections, app.hold)

    timeout_s = config.header_timeout_ms / 1000
    listener = await Listener.bind(
        config.host,
        config.port,
        connect
        if tls is None
        else partial(TlsHandshakeProtocol, tls, timeout_s, connections, connect),
    )
    await listener.serve()
    app.start()
    if tls is not None:
        tls.start()
        app.http.certificate_expires_s = lambda: tls.expires_s
    return Server(app, listener, config.shutdown_timeout_ms / 1000, tls)
