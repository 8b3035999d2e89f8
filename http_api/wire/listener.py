"""Listening on an address: first the port is bound, later connections are accepted."""

import asyncio
import os
import socket
from collections.abc import Callable

#: At most this many connections wait to be accepted. After a restart, thousands of clients may
#: reconnect together.
BACKLOG = 4096
#: This many file descriptors accept connections for each listening socket. For each descriptor,
#: libuv accepts only one connection per event loop iteration. With a single descriptor, the last
#: client of a full backlog would wait 4,096 iterations, which is 80 s if an iteration takes 20 ms.
ACCEPTS_A_TURN = 16

MakeProtocol = Callable[[], asyncio.BaseProtocol]


class Listener:
    """The listening sockets of one host name and port. Between `bind` and `serve`, the operating
    system completes up to BACKLOG connections, which wait for `serve`."""

    def __init__(self, server: asyncio.Server, make: MakeProtocol) -> None:
        self._servers = [server]
        self._make = make
        self.is_closed = False
        self.address: tuple[str, int] = server.sockets[0].getsockname()[:2]
        """The first address, with the port that was chosen if the given port was 0."""

    @classmethod
    async def bind(cls, host: str, port: int, make: MakeProtocol) -> "Listener":
        """Bind the port. Raises OSError if the broker cannot listen there."""
        server = await asyncio.get_running_loop().create_server(
            make, host, port, backlog=BACKLOG, start_serving=False
        )
        for each in server.sockets:
            # This option detects clients that vanished without closing. Accepted connections
            # inherit it.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            with socket.socket(fileno=os.dup(each.fileno())) as copy:
                copy.listen(BACKLOG)
        return cls(server, make)

    async def serve(self) -> None:
        """Accept connections; `make` makes the protocol of each."""
        loop = asyncio.get_running_loop()
        first = self._servers[0]
        await first.start_serving()
        for each in first.sockets:
            for _ in range(ACCEPTS_A_TURN - 1):
                copy = socket.socket(fileno=os.dup(each.fileno()))
                self._servers.append(
                    await loop.create_server(self._make, sock=copy, backlog=BACKLOG)
                )

    def close(self) -> None:
        """Stop accepting. Connections that wait are reset. May be called twice."""
        self.is_closed = True
        for each in self._servers:
            each.close()

    async def wait_closed(self) -> None:
        """Wait until the sockets are closed."""
        for each in self._servers:
            await each.wait_closed()
