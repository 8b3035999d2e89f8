"""A relay to a port whose connections a test can cut."""

import contextlib
import socket
import threading
from collections.abc import Iterator


class TcpRelay:
    """Relays connections to `port` of the local host. `listening_port` is its own port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.listening_port: int = self._server.getsockname()[1]
        self._open: list[socket.socket] = []
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close all connections that are open now."""
        cut, self._open = self._open, []
        for each in cut:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Accept no further connection, and cut the open ones."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                theirs, _ = self._server.accept()
                ours = socket.create_connection(("127.0.0.1", self._port))
                self.accepted += 1
                self._open += [theirs, ours]
                for pair in ((theirs, ours), (ours, theirs)):
                    threading.Thread(target=_copy, args=pair, daemon=True).start()


def _copy(source: socket.socket, destination: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            destination.sendall(data)
    for each in (source, destination):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def tcp_relay(port: int) -> Iterator[TcpRelay]:
    """Relay until the block ends."""
    relay = TcpRelay(port)
    try:
        yield relay
    finally:
        relay.close()
