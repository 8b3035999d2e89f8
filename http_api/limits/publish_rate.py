"""Limits how fast one client may publish. Pure: the caller passes the time.

Each client has two token buckets, one for messages and one for bytes. A full bucket has the tokens
of one second. How much a request publishes is known only after it has been read, so a request may
leave a debt. The next request is accepted only after the debt has been paid off. Clients with full
buckets are forgotten. If there are more than MAX_CLIENTS, the client that was seen least recently
is forgotten.
"""

from collections import OrderedDict
from typing import Literal, NamedTuple

from holdfast.http_api.limits.token_bucket import MAX_CLIENTS

Limit = Literal["publish_messages_per_s", "publish_bytes_per_s"]


class Rates(NamedTuple):
    """How many messages and bytes a client may publish per second. 0 means no limit."""

    messages: int
    bytes: int


class _Client:
    """The tokens that one client has at the time `at`. A negative number is a debt."""

    __slots__ = ("at", "bytes", "messages")

    def __init__(self, at: float, rates: Rates) -> None:
        self.at = at
        self.messages: float = rates.messages
        self.bytes: float = rates.bytes

    def refill(self, rates: Rates, now: float) -> None:
        passed = max(now - self.at, 0.0)
        self.at = now
        self.messages = min(self.messages + passed * rates.messages, float(rates.messages))
        self.bytes = min(self.bytes + passed * rates.bytes, float(rates.bytes))


class PublishRate:
    """The token buckets of all clients that have published recently."""

    def __init__(self, max_clients: int = MAX_CLIENTS) -> None:
        self._max_clients = max_clients
        self._clients: OrderedDict[str, _Client] = OrderedDict()

    def __len__(self) -> int:
        return len(self._clients)

    def ask(self, client: str, rates: Rates, now: float) -> tuple[Limit, float] | None:
        """Return None if the client may publish now.

        Otherwise return the name of the exceeded limit, and the number of seconds after which the
        client may publish again.
        """
        found = self._clients.get(client)
        if found is None:
            return None
        found.refill(rates, now)
        if rates.messages and found.messages < 1:
            return "publish_messages_per_s", (1 - found.messages) / rates.messages
        if rates.bytes and found.bytes < 1:
            return "publish_bytes_per_s", (1 - found.bytes) / rates.bytes
        if found.messages >= rates.messages and found.bytes >= rates.bytes:
            del self._clients[client]
        return None

    def published(self, client: str, rates: Rates, messages: int, size: int, now: float) -> None:
        """Charge the client for the messages and bytes of a request."""
        found = self._clients.get(client)
        if found is None:
            found = self._clients[client] = _Client(now, rates)
            if len(self._clients) > self._max_clients:
                self._clients.popitem(last=False)
        else:
            found.refill(rates, now)
            self._clients.move_to_end(client)
        if rates.messages:
            found.messages -= messages
        if rates.bytes:
            found.bytes -= size
