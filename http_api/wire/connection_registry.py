"""The connections of one server, with the limits on their number, their time and their memory.

All code that serves one listening socket shares one `Connections`. It belongs to one event loop.
"""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable
from operator import methodcaller
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.wire.admission import Abortable, Admission
from holdfast.http_api.wire.body_reader import ArrivingBytes
from holdfast.http_api.wire.head_cache import HeadCache
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import problem_reply

K = TypeVar("K")

#: The size of the shared receive buffer. A head with a small body fits in it. The first bytes of a
#: large body also arrive in it, so they are copied once more than the rest of the body.
RECEIVE_BUFFER_BYTES = 16 * 1024
#: How long a refused connection may take to receive the reason.
REJECT_TIMEOUT_S = 1.0
#: At most this many refused connections receive the reason at the same time. Further refused
#: connections are closed without a reply.
MAX_REJECTED = 64


class Closable(Abortable, Protocol):
    """An open connection, as the registry and the request reader see it."""

    task: "asyncio.Future[Any] | None"
    """The task that answers the current request, or the future of a request that is held."""

    def close(self) -> None:
        """Close after the written bytes have been sent."""

    def finish(self) -> None:
        """Close after the reply to the current request."""

    def cut_off(self, reason: str) -> None:
        """Close immediately. `reason` is for the log and the metrics."""

    def serve_next(self) -> None:
        """Begin to answer the oldest waiting request."""


class Upgraded(Abortable, Protocol):
    """A connection that another protocol than HTTP has taken over, as the registry sees it."""

    closed: "asyncio.Future[None]"
    """Completed when the connection is lost."""

    def finish(self) -> None:
        """Begin to close, because the server stops."""


class SlowReader(Protocol):
    """A connection whose reply the operating system has not yet accepted."""

    def cut_off(self, reason: str) -> None:
        """Close immediately. `reason` is for the log and the metrics."""


class Connections(Admission):
    """The open connections, and the memory and the deadlines that they share."""

    def __init__(self, config: HttpConfig) -> None:
        super().__init__(config.max_connections, config.max_connections_per_client)
        self._config = config
        self._rejected: set[_RejectedConnection] = set()
        self.open: set[Closable] = set()
        self.upgraded: set[Upgraded] = set()
        """The connections of other protocols than HTTP. `limits` counts them, too."""
        self.arriving = ArrivingBytes(config.max_arriving_bytes, config.max_client_arriving_bytes)
        self.unsent: ClientByteBudget[SlowReader] = ClientByteBudget(config.max_unsent_bytes)
        self.header_timeouts: TimeoutQueue[Closable] = TimeoutQueue(
            config.header_timeout_ms / 1000, self._close_slow_head
        )
        """The connections that must complete a head, each with its deadline."""
        self.idle: TimeoutQueue[Closable] = TimeoutQueue(
            config.keepalive_timeout_ms / 1000, methodcaller("close")
        )
        """The connections on which no request is being answered, each with its deadline."""
        self.heads = HeadCache()
        """The heads of requests that clients repeat."""
        self.receive_buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        """The shared buffer for received bytes; large bodies have buffers of their own.

        The bytes in it are used before another connection receives.
        """

    def enter(self, transport: asyncio.Transport, *, is_plain: bool) -> str | None:
        """Admit a new connection and return the name of its client (`client_of`).

        Return None if a limit refuses the connection; the connection is then being closed. With
        `is_plain`, the connection has no TLS, so the reason is sent as plain HTTP.
        """
        client = super().enter(transport, is_plain=is_plain)
        if client is not None and self._config.send_buffer_bytes:
            transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, self._config.send_buffer_bytes
            )
        return client

    def refuse(
        self, transport: asyncio.Transport, slug: str, client: str, *, is_plain: bool
    ) -> None:
        """Close a connection that was not admitted, and send the reason if possible."""
        # Refused connections also use file descriptors. If only few connections are allowed, file
        # descriptors are scarce.
        most = min(MAX_REJECTED, max(self.max_connections // 4, 1))
        if not is_plain or len(self._rejected) >= most:
            transport.abort()
            return
        limit, name, _ = self.limit_of(slug, client)
        problem = Problem(slug, self.too_many(slug, client), limit=limit, limit_name=name)
        rejected = _RejectedConnection(transport, self._rejected)
        transport.set_protocol(rejected)
        parts, _ = problem_reply(problem).encode(keeps_alive=False)
        rejected.send(b"".join(parts))

    async def finish(self, timeout_s: float) -> None:
        """Wait for the running requests, and for the end of the upgraded connections.

        After half of the time, cancel the remaining requests.
        """
        for is_last_try in (False, True):
            if is_last_try:
                for task in self._tasks():
                    task.cancel()
            until = monotonic() + timeout_s / 2
            # A held request may continue in a task.
            while waiting := [*self._tasks(), *(each.closed for each in self.upgraded)]:
                left_s = until - monotonic()
                if left_s <= 0:
                    break
                await asyncio.wait(waiting, timeout=left_s)

    def _tasks(self) -> "list[asyncio.Future[Any]]":
        return [task for each in self.open if (task := each.task) is not None]

    def abort_all(self) -> None:
        """Close all connections without sending the remaining bytes."""
        self.header_timeouts.stop()
        self.idle.stop()
        for each in (*self.open, *self.upgraded, *self.handshakes, *self._rejected):
            each.abort()

    @property
    def is_empty(self) -> bool:
        return not (self.open or self.upgraded or self.handshakes or self._rejected)

    def _close_slow_head(self, connection: Closable) -> None:
        self.closed_early["slow-head"] += 1
        connection.close()


class _RejectedConnection(asyncio.Protocol):
    """A refused connection that receives the reason before it is closed.

    Its input is discarded. If the broker closed while input is unread, the client would get
    a reset instead of the reason.
    """

    def __init__(self, transport: asyncio.Transport, others: "set[_RejectedConnection]") -> None:
        self._transport = transport
        self._others = others
        self._timer = asyncio.get_running_loop().call_later(REJECT_TIMEOUT_S, self.abort)
        others.add(self)

    def send(self, response: bytes) -> None:
        """Send the reason, then half-close."""
        self._transport.write(response)
        self._transport.write_eof()

    def abort(self) -> None:
        self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._timer.cancel()
        self._others.discard(self)


class ClientByteBudget(Generic[K]):
    """A memory budget that all clients share, of `limit_bytes`. Pure.

    A holder (such as a connection) has at most one entry. When the budget is exhausted, the client
    with the most bytes loses its oldest entry first. So a client that fills the memory on purpose
    loses its own entries, and clients with few bytes keep theirs.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._holders: dict[str, OrderedDict[K, int]] = {}
        """The holders of each client with their bytes, oldest first."""
        self._client_of: dict[K, str] = {}
        self.bytes_of: dict[str, int] = {}
        """The bytes of each client that has a holder."""
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._client_of)

    def add(self, holder: K, client: str, size: int) -> list[K]:
        """Set the bytes of a holder. Return the holders that must free their memory.

        The entries of the returned holders are already removed. If there is only one holder, it
        may exceed the limit.
        """
        self.discard(holder)
        self._holders.setdefault(client, OrderedDict())[holder] = size
        self.bytes_of[client] = self.bytes_of.get(client, 0) + size
        self._client_of[holder] = client
        self.total_bytes += size
        removed = []
        while self.total_bytes > self._limit_bytes and len(self._client_of) > 1:
            greediest = max(self.bytes_of, key=self.bytes_of.__getitem__)
            oldest = next(iter(self._holders[greediest]))
            self.discard(oldest)
            removed.append(oldest)
        return removed

    def discard(self, holder: K) -> None:
        """Remove the entry of a holder, if it has one."""
        client = self._client_of.pop(holder, None)
        if client is None:
            return
        size = self._holders[client].pop(holder)
        self.total_bytes -= size
        self.bytes_of[client] -= size
        if not self._holders[client]:
            del self._holders[client], self.bytes_of[client]


class TimeoutQueue(Generic[K]):
    """Calls `on_timeout` for each entry that is not removed within `after_s` after it was added.

    All entries share one timer: 100,000 timers, one for each idle connection, would need more
    memory than the connections. A queue belongs to one event loop.
    """

    def __init__(self, after_s: float, on_timeout: Callable[[K], None]) -> None:
        self._after_s = after_s
        self._on_timeout = on_timeout
        self._due: dict[K, float] = {}
        """The deadline of each entry, earliest first. Entries are added in this order."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def add(self, entry: K) -> None:
        """Add an entry. If it is already there, its deadline stays unchanged."""
        loop = self._loop
        if loop is None:  # cached, because in Python 3.11 get_running_loop makes a system call
            loop = self._loop = asyncio.get_running_loop()
        self._due.setdefault(entry, loop.time() + self._after_s)
        if self._timer is None:
            self._timer = loop.call_later(self._after_s, self._check)

    def remove(self, entry: K) -> None:
        """Remove an entry, if it is there."""
        self._due.pop(entry, None)

    def stop(self) -> None:
        """Remove all entries. May be called twice."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        late = []
        for entry, due in self._due.items():
            if due > now:
                self._timer = loop.call_at(due, self._check)
                break
            late.append(entry)
        for entry in late:
            del self._due[entry]
        for entry in late:
            self._on_timeout(entry)
