"""Serving the application: a listening socket, the connections it gave rise to, a clean stop."""

import asyncio

from aiohttp import web

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.connection import Connection

#: Connections that may wait to be accepted: a thousand clients may come back at once.
BACKLOG = 4096


class Server:
    """A listening server. `stop` may be called twice."""

    def __init__(
        self,
        runner: web.AppRunner,
        listener: asyncio.AbstractServer,
        connections: set[Connection],
        address: tuple[str, int],
    ) -> None:
        self._runner = runner
        self._listener: asyncio.AbstractServer | None = listener
        self._connections = connections
        self.host, self.port = address

    @property
    def connection_count(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    async def stop(self) -> None:
        """Take no more connections, answer what is held, let what is under way end, close.

        What has not ended after shutdown_timeout_ms is cut off.
        """
        listener, self._listener = self._listener, None
        if listener is None:
            return
        listener.close()
        await self._runner.cleanup()
        for connection in list(self._connections):
            connection.abort()
        await listener.wait_closed()


async def start_server(app: web.Application, config: HttpConfig) -> Server:
    """Serve `app` on the configured address; port 0 picks a free one.

    Raises OSError when the address cannot be listened on.
    """
    runner = web.AppRunner(
        app,
        # A client that goes away cancels its pull. What must come to its end is shielded.
        handler_cancellation=True,
        # aiohttp waits this long twice: for requests to end, then for their cancellation.
        shutdown_timeout=config.shutdown_timeout_ms / 2000,
    )
    await runner.setup()
    manager = runner.server
    assert manager is not None
    connections: set[Connection] = set()
    loop = asyncio.get_running_loop()
    try:
        listener = await loop.create_server(
            lambda: Connection(manager, loop, config, connections),
            config.host,
            config.port,
            backlog=BACKLOG,
        )
    except OSError:
        await runner.cleanup()
        raise
    return Server(runner, listener, connections, listener.sockets[0].getsockname()[:2])
