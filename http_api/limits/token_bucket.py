"""Limits how many requests, and how many bytes, each client may transfer per second.

Pure: the caller passes the time.

Each client has two token buckets, one for requests and one for bytes. A full bucket has the tokens
of one second. A request is charged before it begins. Its bytes are known only afterwards, so they
may leave a debt, which must be paid off before the next request. Clients with full buckets are
forgotten, so only clients of the last seconds need memory. If there are more than MAX_CLIENTS, the
client that was seen least recently is forgotten.
"""

from collections import OrderedDict
from math import ceil
from typing import Literal

MAX_CLIENTS = 100_000

Limit = Literal["max_requests_per_s_per_client", "max_bytes_per_s_per_client"]


class _Client:
    """The tokens that one client has at the time `at`. A negative number of bytes is a debt."""

    __slots__ = ("at", "bytes", "requests")

    def __init__(self, at: float, requests: float, bytes_: float) -> None:
        self.at = at
        self.requests = requests
        self.bytes = bytes_


class RateLimit:
    """The token buckets of all clients. A limit of 0 means no limit."""

    def __init__(
        self, max_requests_per_s: int, max_bytes_per_s: int, max_clients: int = MAX_CLIENTS
    ) -> None:
        self._requests_per_s = max_requests_per_s
        self._bytes_per_s = max_bytes_per_s
        self._max_clients = max_clients
        self._clients: OrderedDict[str, _Client] = OrderedDict()

    def __len__(self) -> int:
        return len(self._clients)

    def ask(self, client: str, now: float) -> tuple[Limit, float] | None:
        """Charge the client for a request and return None, if the client is within its limits.

        Otherwise return the name of the exceeded limit, and the number of seconds after which the
        client may send a request again.
        """
        found = self._refilled(client, now)
        if self._bytes_per_s and found.bytes < 0:
            return "max_bytes_per_s_per_client", -found.bytes / self._bytes_per_s
        if self._requests_per_s:
            if found.requests < 1:
                return (
                    "max_requests_per_s_per_client",
                    (1 - found.requests) / self._requests_per_s,
                )
            found.requests -= 1
        return None

    def moved(self, client: str, size: int, now: float) -> None:
        """Charge the client for the bytes of a request and its reply."""
        if self._bytes_per_s:
            self._refilled(client, now).bytes -= size

    def _refilled(self, client: str, now: float) -> _Client:
        self._forget(now)
        found = self._clients.get(client)
        if found is None:
            found = _Client(now, self._requests_per_s, self._bytes_per_s)
            self._clients[client] = found
            if len(self._clients) > self._max_clients:
                self._clients.popitem(last=False)
            return found
        passed = max(now - found.at, 0.0)
        found.at = now
        found.requests = min(
            found.requests + passed * self._requests_per_s, float(self._requests_per_s)
        )
        found.bytes = min(found.bytes + passed * self._bytes_per_s, float(self._bytes_per_s))
        self._clients.move_to_end(client)
        return found

    def _forget(self, now: float) -> None:
        """Forget at most two clients, those seen least recently, if their buckets are full now."""
        for _ in range(2):
            if not self._clients:
                return
            oldest = next(iter(self._clients.values()))
            passed = now - oldest.at
            if (
                oldest.requests + passed * self._requests_per_s < self._requests_per_s
                or oldest.bytes + passed * self._bytes_per_s < self._bytes_per_s
            ):
                return
            self._clients.popitem(last=False)


def retry_after_s(seconds: float) -> int:
    """Return whole seconds for a Retry-After header: rounded up, and at least 1."""
    return max(ceil(seconds), 1)
