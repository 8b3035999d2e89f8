"""How fast one client may ask, and how much it may move. Pure: the caller says what time it is.

Two token buckets a client, each holding a second's worth: a request is paid for before it is
begun; its bytes, which are known only afterwards, may leave a debt that has to be worked off
before the next one. Whoever's buckets are full again is forgotten, so that memory follows the
clients of the last seconds; beyond MAX_CLIENTS the one seen least recently is.
"""

from collections import OrderedDict
from math import ceil
from typing import Literal

MAX_CLIENTS = 100_000

Limit = Literal["max_requests_per_s_per_client", "max_bytes_per_s_per_client"]


class _Client:
    """What one client has left, as of `at`."""

    __slots__ = ("at", "bytes", "requests")

    def __init__(self, at: float, requests: float, bytes_: float) -> None:
        self.at = at
        self.requests = requests
        self.bytes = bytes_


class RateLimit:
    """Limits per client and second; 0 is none."""

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
        """Take a request and return None, or the limit it is over and after how many seconds it
        will not be."""
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
        """Take the bytes of a request and its reply."""
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
        """Forget two of those seen least recently, if by now they have all that they may have."""
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
    """Return whole seconds for a Retry-After header: enough of them, and at least one."""
    return max(ceil(seconds), 1)
