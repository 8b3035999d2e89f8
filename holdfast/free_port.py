"""A port for a server that must know its port before it starts, or must get it again later."""

import random
import socket

#: The kernel gives higher ports (32768 and up) to sockets without a port of their own. A program
#: that is started again might find such a port taken by a connection of another program.
_PORTS = range(15_000, 32_000)

_chosen = random.SystemRandom()


def free_port() -> int:
    """Return a port on which no process listens."""
    while True:
        port = _chosen.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
