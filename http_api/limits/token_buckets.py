"""Limits how many requests and bytes each client may transfer, and publish, per second.

Pure: the caller passes the time.

Each client has two token buckets: one for requests or messages, and one for bytes. A full bucket
has the tokens of one second. The costs of a request are known only when it has been read or
answered, so they may leave a debt. The next request is accepted only when the debt is paid off.
Clients with full buckets are forgotten, so only clients of the last seconds need memory. If there
are more than MAX_CLIENTS, the client that was seen least recently is forgotten.
"""

from collections import OrderedDict
from math import ceil
from typing import NamedTuple

MAX_CLIENTS = 100_000

Refusal = tuple[str, float]
"""The name of the exceeded limit, and the seconds after which the client may try again."""


class Rates(NamedTuple):
    """How many requests or messages, and how many bytes, are allowed per second. 0: no limit."""

    items: int
    bytes: int


class _Tokens:
    """The tokens that one client has at the time `at`. A negative number is a debt."""

    __slots__ = ("at", "bytes", "items", "rates")

    def __init__(self, rates: Rates, now: float) -> None:
        self.at = now
        self.rates = rates
        self.items: float = rates.items
        self.bytes: float = rates.bytes

    def refill(self, rates: Rates, now: float) -> None:
        passed_s = max(now - self.at, 0.0)
        self.at = now
        self.rates = rates
        self.items = min(self.items + passed_s * rates.items, float(rates.items))
        self.bytes = min(self.bytes + passed_s * rates.bytes, float(rates.bytes))

    def is_full_at(self, now: float) -> bool:
        passed_s, rates = now - self.at, self.rates
        return (
            self.items + passed_s * rates.items >= rates.items
            and self.bytes + passed_s * rates.bytes >= rates.bytes
        )


class _Clients:
    """The tokens of each client."""

    def names(self) -> list[str]:
        """Return the clients that are remembered."""
        return list(self._tokens)

    def wait_s(self, client: str, now: float) -> float:
        """Return how many seconds a client must wait before its next request; 0 if it need not."""
        found = self._tokens.get(client)
        if found is None:
            return 0.0
        passed_s, rates = max(now - found.at, 0.0), found.rates
        items_s = (1 - found.items) / rates.items - passed_s if rates.items else 0.0
        bytes_s = -found.bytes / rates.bytes - passed_s if rates.bytes else 0.0
        return max(items_s, bytes_s, 0.0)

    def __init__(self, max_clients: int) -> None:
        self._max_clients = max_clients
        self._tokens: OrderedDict[str, _Tokens] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tokens)

    def find(self, client: str, rates: Rates, now: float) -> _Tokens | None:
        """Return the tokens of a client at the time `now`; None if its buckets are full."""
        for _ in range(2):  # forget at most two clients: the least recently seen ones
            oldest = next(iter(self._tokens.values()), None)
            if oldest is None or not oldest.is_full_at(now):
                break
            self._tokens.popitem(last=False)
        found = self._tokens.get(client)
        if found is not None:
            found.refill(rates, now)
            self._tokens.move_to_end(client)
        return found

    def find_or_add(self, client: str, rates: Rates, now: float) -> _Tokens:
        found = self.find(client, rates, now)
        if found is None:
            found = self._tokens[client] = _Tokens(rates, now)
            if len(self._tokens) > self._max_clients:
                self._tokens.popitem(last=False)
        return found


class RateLimit:
    """Limits the requests of each client, and the bytes of their bodies and replies."""

    def __init__(
        self, max_requests_per_s: int, max_bytes_per_s: int, max_clients: int = MAX_CLIENTS
    ) -> None:
        self._rates = Rates(max_requests_per_s, max_bytes_per_s)
        self._clients = _Clients(max_clients)

    def names(self) -> list[str]:
        """Return the clients that are remembered."""
        return self._clients.names()

    def wait_s(self, client: str, now: float) -> float:
        """Return how many seconds a client must wait before its next request; 0 if it need not."""
        return self._clients.wait_s(client, now)

    def __len__(self) -> int:
        return len(self._clients)

    def ask(self, client: str, now: float) -> Refusal | None:
        """Charge the client for a request and return None, or refuse the request."""
        rates = self._rates
        found = self._clients.find_or_add(client, rates, now)
        if rates.bytes and found.bytes < 0:
            return "max_bytes_per_s_per_client", -found.bytes / rates.bytes
        if rates.items:
            if found.items < 1:
                return "max_requests_per_s_per_client", (1 - found.items) / rates.items
            found.items -= 1
        return None

    def charge(self, client: str, size: int, now: float) -> None:
        """Charge the client for the bytes of a request and its reply."""
        if self._rates.bytes:
            self._clients.find_or_add(client, self._rates, now).bytes -= size


class PublishRate:
    """Limits the messages that each client publishes, and their bytes."""

    def __init__(self, max_clients: int = MAX_CLIENTS) -> None:
        self._clients = _Clients(max_clients)

    def names(self) -> list[str]:
        """Return the clients that are remembered."""
        return self._clients.names()

    def wait_s(self, client: str, now: float) -> float:
        """Return how many seconds a client must wait before its next request; 0 if it need not."""
        return self._clients.wait_s(client, now)

    def __len__(self) -> int:
        return len(self._clients)

    def ask(self, client: str, rates: Rates, now: float) -> Refusal | None:
        """Return None if the client may publish now; otherwise return why it may not."""
        found = self._clients.find(client, rates, now)
        if found is None:
            return None
        if rates.items and found.items < 1:
            return "publish_messages_per_s", (1 - found.items) / rates.items
        if rates.bytes and found.bytes < 1:
            return "publish_bytes_per_s", (1 - found.bytes) / rates.bytes
        return None

    def charge(self, client: str, rates: Rates, messages: int, size: int, now: float) -> None:
        """Charge the client for the messages and bytes of a request."""
        found = self._clients.find_or_add(client, rates, now)
        if rates.items:
            found.items -= messages
        if rates.bytes:
            found.bytes -= size


def retry_after_s(seconds: float) -> int:
    """Return whole seconds for a Retry-After header: rounded up, and at least 1."""
    return max(ceil(seconds), 1)
