"""The connections of one server: which are open, which are let in, what their replies hold.

Shared by everything that serves one listening socket; belongs to one event loop.
"""

import asyncio
import logging
import socket
from collections import Counter
from operator import methodcaller
from typing import TYPE_CHECKING

from holdfast.http_api.admission import Admission
from holdfast.http_api.byte_share import ByteShare
from holdfast.http_api.client_address import UNKNOWN, client_of
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.equal_deadlines import EqualDeadlines
from holdfast.http_api.problems import Problem
from holdfast.http_api.reply import PROBLEM_JSON

if TYPE_CHECKING:
    from holdfast.http_api.connection import Connection
    from holdfast.http_api.receiving import Receiving
    from holdfast.http_api.sending import Sending
    from holdfast.http_api.tls_door import TlsDoor

_logger = logging.getLogger(__name__)

#: How long one that is turned away has to take the reason; so many may be told at once, those
#: beyond are closed without a word.
FAREWELL_S = 1.0
MAX_FAREWELLS = 64
#: What happens to many connections at once is logged this often at most.
LOG_INTERVAL_S = 60.0
#: A head and a small body come in one piece; of a large body this much is copied once more.
SCRATCH_BYTES = 16 * 1024


class Connections:
    """Which connections are open. `closed_early` counts those that were cut off, by reason, and
    `refused` those that were not let in."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._admission = Admission(config.max_connections, config.max_connections_per_client)
        self._log_from: dict[str, float] = {}
        self._farewells: set[_TurnedAway] = set()
        self.open: set[Connection] = set()
        self.doors: set[TlsDoor] = set()
        """Those whose TLS handshake is not over."""
        self.unsent: ByteShare[Sending] = ByteShare(config.max_unsent_bytes)
        self.heads: EqualDeadlines[Receiving] = EqualDeadlines(
            config.header_timeout_ms / 1000, methodcaller("head_is_late")
        )
        """Those whose next request's head should have come to its end by then."""
        self.idle: EqualDeadlines[Connection] = EqualDeadlines(
            config.keepalive_timeout_ms / 1000, methodcaller("close")
        )
        """Those that no request is being answered on."""
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        """What a connection receives goes here, but for large bodies; empty after each turn."""
        self.closed_early: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Connections that were let in and have not ended."""
        return self._admission.count

    def enter(self, transport: asyncio.Transport, *, is_plain: bool) -> str | None:
        """Let a new connection in and return its client; None: it was sent away, forget it.

        `is_plain`: it speaks HTTP as it is, and can be told why.
        """
        client = client_at(transport)
        slug = self._admission.enter(client)
        if slug is None:
            if self._config.send_buffer_bytes:
                transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_SNDBUF, self._config.send_buffer_bytes
                )
            return client
        self.refused[slug] += 1
        problem = self._too_many(slug, client)
        self.log_seldom(slug, problem.detail)
        # Where few connections may be open, files are few: those who wait use some up as well.
        most = min(MAX_FAREWELLS, max(self._config.max_connections // 4, 1))
        if not is_plain or len(self._farewells) >= most:
            transport.abort()
            return None
        farewell = _TurnedAway(transport, self._farewells)
        transport.set_protocol(farewell)
        farewell.say(closing_response(problem))
        return None

    def leave(self, client: str) -> None:
        """Count a connection that was let in as ended."""
        self._admission.leave(client)

    def log_seldom(self, what: str, sentence: str) -> None:
        """Warn of something that may happen a thousand times in a second: once a minute."""
        now = asyncio.get_running_loop().time()
        if now >= self._log_from.get(what, 0.0):
            self._log_from[what] = now + LOG_INTERVAL_S
            _logger.warning("%s", sentence)

    async def finish(self, timeout_s: float) -> None:
        """Wait for the requests that are being answered; after half of the time cancel them."""
        for is_last_try in (False, True):
            tasks = [each.task.as_task() for each in self.open if each.task is not None]
            if is_last_try:
                for task in tasks:
                    task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=timeout_s / 2)

    def abort_all(self) -> None:
        """Close everything without sending what is still to be sent."""
        self.heads.stop()
        self.idle.stop()
        for connection in list(self.open):
            connection.abort()
        for door in list(self.doors):
            door.abort()
        for farewell in list(self._farewells):
            farewell.end()

    @property
    def is_empty(self) -> bool:
        """Whether every connection has ended."""
        return not self.open and not self.doors and not self._farewells

    def _too_many(self, slug: str, client: str) -> Problem:
        config = self._config
        if slug == "too-many-connections":
            limit, name, whose = config.max_connections, "max_connections", "in all"
        else:
            limit, name = config.max_connections_per_client, "max_connections_per_client"
            whose = f"from {client}"
        return Problem(
            slug,
            f"{name} ({limit}) connections {whose} are open; close some, or raise the limit",
            limit=limit,
            limit_name=name,
        )


def client_at(transport: asyncio.BaseTransport) -> str:
    """Return the client at the other end, UNKNOWN when it is gone already."""
    peer = transport.get_extra_info("peername")
    return client_of(peer[0]) if isinstance(peer, tuple) else UNKNOWN


def closing_response(problem: Problem) -> bytes:
    """Return a whole response for a connection that no request was read from; it ends there."""
    body = problem.encode()
    lines = [
        f"HTTP/1.1 {problem.kind.status} {problem.kind.title}",
        f"Content-Type: {PROBLEM_JSON}",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in problem.all_headers()),
        "Connection: close",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


class _TurnedAway(asyncio.Protocol):
    """A connection that is told why it cannot stay. What it sends is not looked at: closed at
    once, with something of it unread, the client would see a reset in place of the reason."""

    def __init__(self, transport: asyncio.Transport, others: "set[_TurnedAway]") -> None:
        self._transport = transport
        self._others = others
        self._timer = asyncio.get_running_loop().call_later(FAREWELL_S, self.end)
        others.add(self)

    def say(self, response: bytes) -> None:
        """Send the reason and nothing after it."""
        self._transport.write(response)
        self._transport.write_eof()

    def end(self) -> None:
        """Close now."""
        self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Let go of everything."""
        self._timer.cancel()
        self._others.discard(self)
