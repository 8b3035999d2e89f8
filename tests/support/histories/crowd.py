"""Thousands of clients at once: plain sockets of one process, from several loopback addresses."""

import contextlib
import resource
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit
from urllib.request import urlopen

#: Addresses from 127.0.0.2 on, so that limits per address and ports per address are not reached.
ADDRESSES = 100
_RESET = struct.pack("ii", 1, 0)


def files_that_may_be_open() -> int:
    """Raise the soft limit of open files to the hard limit, and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class Crowd:
    """Clients of the server at `url`. Use as a context manager: its exit closes the clients."""

    def __init__(self, url: str) -> None:
        self._port = urlsplit(url).port
        self._joined = 0
        self.sockets: list[socket.socket] = []

    def join(
        self, count: int, request: Callable[[int], bytes], *, receive_buffer: int | None = None
    ) -> list[socket.socket]:
        """Connect `count` more clients; each sends `request(number)`."""
        joined = []
        for _ in range(count):
            number = self._joined
            self._joined += 1
            one = socket.socket()
            self.sockets.append(one)
            joined.append(one)
            if receive_buffer is not None:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            one.bind((f"127.0.0.{2 + number % ADDRESSES}", 0))
            one.connect(("127.0.0.1", self._port))
            sent = request(number)
            if sent:
                one.sendall(sent)
        return joined

    def drip(self, part: bytes) -> int:
        """Send `part` from each client that is connected; return the number of clients."""
        alive = 0
        for one in self.sockets:
            with contextlib.suppress(OSError):
                one.send(part, socket.MSG_DONTWAIT)
                alive += 1
        return alive

    def await_closed(self, sockets: list[socket.socket], timeout_s: float) -> int:
        """Read until each socket is closed; return the number of sockets not closed in time."""
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            for one in sockets:
                one.setblocking(False)
                selector.register(one, selectors.EVENT_READ)
            while selector.get_map() and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    one = key.fileobj  # type: ignore[assignment]
                    try:
                        if one.recv(1 << 20):
                            continue
                    except BlockingIOError:
                        continue
                    except OSError:
                        pass
                    selector.unregister(one)
            return len(selector.get_map())

    def vanish(self) -> None:
        """Reset all connections at once."""
        for one in self.sockets:
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            one.close()
        self.sockets.clear()

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *_: object) -> None:
        self.vanish()


@dataclass
class Healthy:
    """Measurements of a healthy client: the duration of each request, and the failures."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def quantile_ms(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000


@contextmanager
def healthy_client(url: str, *, timeout_s: float = 30.0) -> Iterator[Healthy]:
    """Request /healthz about 20 times a second on one connection until the block ends."""
    met, ends = Healthy(), threading.Event()

    def ask() -> None:
        parts = urlsplit(url)
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
        while not ends.wait(0.05):
            started = time.perf_counter()
            try:
                connection.request("GET", "/healthz")
                connection.getresponse().read()
            except (OSError, HTTPException) as error:
                met.failures.append(repr(error))
                connection.close()
            else:
                met.seconds.append(time.perf_counter() - started)
        connection.close()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield met
    finally:
        ends.set()
        thread.join(timeout_s)


def metrics(url: str) -> dict[str, float]:
    """Return the broker's metrics, by name and labels as /metrics prints them."""
    with urlopen(f"{url}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def await_metric(
    url: str, name: str, is_so: Callable[[float], bool], timeout_s: float = 60.0
) -> float:
    """Return a metric (0 if absent) once `is_so` accepts it. Raise AssertionError on a timeout."""
    deadline = time.monotonic() + timeout_s
    while not is_so(found := metrics(url).get(name, 0.0)):
        assert time.monotonic() < deadline, f"{name} is still {found}"
        time.sleep(0.1)
    return found
