"""Choose a port for a server that must know its port before it starts, or needs the same port after
a restart."""

import random
import socket

#: Below 32768, where the kernel begins to give ports to outgoing connections: a server that starts
#: again could find such a port taken by a connection of another program.
_PORTS = range(15_000, 32_000)

_random = random.SystemRandom()


def free_port() -> int:
    """Return a port on which no process listens."""
    while True:
        port = _random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
