"""Admission of connections to a listening socket: limits on their number, and counters."""

import asyncio
import logging
from collections import Counter
from typing import Protocol

from holdfast.http_api.wire.request import UNKNOWN, client_of

_logger = logging.getLogger(__name__)

#: The shortest interval between log lines about an event that may affect many connections.
LOG_INTERVAL_S = 60.0


class Abortable(Protocol):
    """A connection during its TLS handshake, as the registry sees it."""

    def abort(self) -> None:
        """Close without sending the remaining bytes."""


class ConnectionLimits:
    """Limits the number of open connections, in total and per client. Pure.

    For each admitted connection, `leave` must be called once.
    """

    def __init__(self, max_connections: int, max_per_client: int) -> None:
        self._max_connections = max_connections
        self._max_per_client = max_per_client
        self.by_client: dict[str, int] = {}
        """The number of connections of each client that has a connection."""
        self.count = 0

    def enter(self, client: str) -> str | None:
        """Admit a connection and return None, or refuse it and return the kind of the problem."""
        if self.count >= self._max_connections:
            return "too-many-connections"
        of_client = self.by_client.get(client, 0)
        if of_client >= self._max_per_client:
            return "too-many-client-connections"
        self.by_client[client] = of_client + 1
        self.count += 1
        return None

    def leave(self, client: str) -> None:
        self.count -= 1
        self.by_client[client] -= 1
        if not self.by_client[client]:
            del self.by_client[client]


class Admission:
    """The connections of one protocol: how many there are, and which ended early or were refused.

    It belongs to one event loop.
    """

    def __init__(self, max_connections: int, max_per_client: int) -> None:
        self.max_connections = max_connections
        self.max_per_client = max_per_client
        self.limits = ConnectionLimits(max_connections, max_per_client)
        """Counts the admitted connections that have not ended."""
        self.handshakes: set[Abortable] = set()
        """Connections during their TLS handshake."""
        self.closed_early: Counter[str] = Counter()
        """How many connections were closed early, by reason: slow clients, memory limits, TLS."""
        self.refused: Counter[str] = Counter()
        """How many connections were not admitted, by the kind of the problem."""
        self._log_from: dict[str, float] = {}

    def enter(self, transport: asyncio.Transport, *, is_plain: bool) -> str | None:
        """Admit a new connection and return the name of its client (`client_of`).

        Return None if a limit refuses the connection; the connection is then being closed. With
        `is_plain`, the connection has no TLS, so `refuse` may send the reason as plain text.
        """
        peer = transport.get_extra_info("peername")  # None if the client has already gone
        client = client_of(peer[0]) if isinstance(peer, tuple) else UNKNOWN
        slug = self.limits.enter(client)
        if slug is None:
            return client
        self.refused[slug] += 1
        self.log_seldom(slug, self.too_many(slug, client))
        self.refuse(transport, slug, client, is_plain=is_plain)
        return None

    def refuse(
        self, transport: asyncio.Transport, slug: str, client: str, *, is_plain: bool
    ) -> None:
        """Close a connection that was not admitted."""
        transport.abort()

    def too_many(self, slug: str, client: str) -> str:
        """Return a sentence about a connection that was not admitted."""
        limit, name, whose = self.limit_of(slug, client)
        return f"{name} ({limit}) connections {whose} are open; close some, or raise the limit"

    def limit_of(self, slug: str, client: str) -> tuple[int, str, str]:
        """Return the limit that refuses a connection, its name, and whose connections it counts."""
        if slug == "too-many-connections":
            return self.max_connections, "max_connections", "in all"
        return self.max_per_client, "max_connections_per_client", f"from {client}"

    def log_seldom(self, what: str, sentence: str) -> None:
        """Log `sentence` as a warning, at most once a minute for each `what`."""
        now = asyncio.get_running_loop().time()
        if now >= self._log_from.get(what, 0.0):
            self._log_from[what] = now + LOG_INTERVAL_S
            _logger.warning("%s", sentence)
