"""The connections of one server, with the limits on their number, their time and their memory.

All code that serves one listening socket shares one `Connections`. It belongs to one event loop.
"""

import asyncio
import logging
import socket
from collections import Counter
from operator import methodcaller
from typing import TYPE_CHECKING

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.wire.arriving_bytes import ArrivingBytes
from holdfast.http_api.wire.byte_budget import ByteShare
from holdfast.http_api.wire.client_address import UNKNOWN, client_of
from holdfast.http_api.wire.connection_limits import Admission
from holdfast.http_api.wire.deadline_queue import EqualDeadlines
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import PROBLEM_JSON
from holdfast.http_api.wire.request_reader import SCRATCH_BYTES

if TYPE_CHECKING:
    from holdfast.http_api.wire.connection import Connection
    from holdfast.http_api.wire.request_reader import Receiving
    from holdfast.http_api.wire.response_writer import Sending
    from holdfast.http_api.wire.tls_handshake import TlsDoor

_logger = logging.getLogger(__name__)

#: How long a refused connection may take to receive the reason.
FAREWELL_S = 1.0
#: At most this many refused connections receive the reason at the same time. Further refused
#: connections are closed without a reply.
MAX_FAREWELLS = 64
#: The shortest interval between log lines about an event that may affect many connections.
LOG_INTERVAL_S = 60.0


class Connections:
    """The open connections, and the memory and the deadlines that they share."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._admission = Admission(config.max_connections, config.max_connections_per_client)
        self._log_from: dict[str, float] = {}
        self._farewells: set[_TurnedAway] = set()
        self.open: set[Connection] = set()
        self.doors: set[TlsDoor] = set()
        """Connections during their TLS handshake."""
        self.arriving = ArrivingBytes(config.max_arriving_bytes, config.max_client_arriving_bytes)
        self.unsent: ByteShare[Sending] = ByteShare(config.max_unsent_bytes)
        self.heads: EqualDeadlines[Receiving] = EqualDeadlines(
            config.header_timeout_ms / 1000, methodcaller("head_is_late")
        )
        """The connections that must complete a head, each with its deadline."""
        self.idle: EqualDeadlines[Connection] = EqualDeadlines(
            config.keepalive_timeout_ms / 1000, methodcaller("close")
        )
        """The connections on which no request is being answered, each with its deadline."""
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        """The shared buffer for received bytes; large bodies have buffers of their own.

        The bytes in it are used before another connection receives.
        """
        self.closed_early: Counter[str] = Counter()
        """How many connections were closed early, by reason: slow clients, memory limits, TLS."""
        self.refused: Counter[str] = Counter()
        """How many connections were not admitted, by the kind of the problem."""

    @property
    def count(self) -> int:
        """The number of admitted connections that have not ended."""
        return self._admission.count

    def enter(self, transport: asyncio.Transport, *, is_plain: bool) -> str | None:
        """Admit a new connection and return the name of its client (`client_of`).

        Return None if a limit refuses the connection; the connection is then being closed. With
        `is_plain`, the connection has no TLS, so the reason is sent as plain HTTP.
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
        # Refused connections also use file descriptors. If only few connections are allowed, file
        # descriptors are scarce.
        most = min(MAX_FAREWELLS, max(self._config.max_connections // 4, 1))
        if not is_plain or len(self._farewells) >= most:
            transport.abort()
            return None
        farewell = _TurnedAway(transport, self._farewells)
        transport.set_protocol(farewell)
        farewell.say(closing_response(problem))
        return None

    def leave(self, client: str) -> None:
        """Count an admitted connection as ended."""
        self._admission.leave(client)

    def log_seldom(self, what: str, sentence: str) -> None:
        """Log `sentence` as a warning, at most once a minute for each `what`."""
        now = asyncio.get_running_loop().time()
        if now >= self._log_from.get(what, 0.0):
            self._log_from[what] = now + LOG_INTERVAL_S
            _logger.warning("%s", sentence)

    async def finish(self, timeout_s: float) -> None:
        """Wait for the running requests. After half of the time, cancel the remaining requests."""
        for is_last_try in (False, True):
            tasks = [each.task for each in self.open if each.task is not None]
            if is_last_try:
                for task in tasks:
                    task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=timeout_s / 2)

    def abort_all(self) -> None:
        """Close all connections without sending the remaining bytes."""
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
        """Return whether every connection has ended."""
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
    """Return the name of the client at the other end; UNKNOWN if the client has already gone."""
    peer = transport.get_extra_info("peername")
    return client_of(peer[0]) if isinstance(peer, tuple) else UNKNOWN


def closing_response(problem: Problem) -> bytes:
    """Return a whole HTTP response for a connection that is refused before a request was read."""
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
    """A refused connection that receives the reason before it is closed.

    Its input is discarded. If the broker closed at once while input is unread, the client would get
    a reset instead of the reason.
    """

    def __init__(self, transport: asyncio.Transport, others: "set[_TurnedAway]") -> None:
        self._transport = transport
        self._others = others
        self._timer = asyncio.get_running_loop().call_later(FAREWELL_S, self.end)
        others.add(self)

    def say(self, response: bytes) -> None:
        """Send the reason, then half-close."""
        self._transport.write(response)
        self._transport.write_eof()

    def end(self) -> None:
        """Close now."""
        self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Remove the connection from the set of farewells, and cancel its timer."""
        self._timer.cancel()
        self._others.discard(self)
