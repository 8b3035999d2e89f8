"""Requests to one broker from an event loop: replies or errors back, with retries.

Everything that a reply can be is sorted out here and in `reply`: a problem becomes its ApiError, a
lost connection ConnectionFailed, anything else that is no answer of a broker BadReply.
"""

import asyncio
import re
import ssl
from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.client.connection import Connection, ConnectionLost
from holdfast.client.errors import (
    BadReply,
    CertificateNotTrusted,
    ClientClosed,
    ConnectionFailed,
)
from holdfast.client.http_wire import NotHttp, ReplyParser, query_string, request_head
from holdfast.client.reply import Reply, checked
from holdfast.client.retry import RetryPolicy, retried
from holdfast.client.target import Target, checked_token
from holdfast.client.tls import TlsFiles

__all__ = [
    "BATCH",
    "JSON",
    "MSGPACK",
    "Reply",
    "Requests",
    "Transport",
    "checked_name",
    "checked_token",
]

JSON = "application/json"
MSGPACK = "application/msgpack"
BATCH = "application/vnd.holdfast.batch"

CONNECT_TIMEOUT_S = 10.0
#: How long the broker may take beyond what a pull asks it to wait.
ANSWER_TIMEOUT_S = 10.0
#: Below the broker's 75 s, so that an idle connection is given up here first.
KEEPALIVE_S = 60.0

_SCRATCH_BYTES = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,127}", re.ASCII)

Body = bytes | Sequence[bytes]


class Requests(Protocol):
    """A way to one broker, whose address is `url`: what the API's requests are made through."""

    url: str

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        safe: bool = True,
        wait_s: float = 0.0,
        retry: RetryPolicy | None = None,
    ) -> Reply:
        """Send a request, again as the policy allows, and return its reply.

        `safe` says that running it twice does no harm; `wait_s` is how long the broker was
        asked to hold it. Raises ApiError, ConnectionFailed, BadReply or ClientClosed.
        """
        ...

    def now_s(self) -> float:
        """Return a time that only goes on while requests do."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait. Raises ClientClosed, perhaps later, when the client is closed meanwhile."""
        ...

    async def close(self) -> None:
        """Close all connections; requests under way end with ClientClosed. May be repeated."""
        ...


class Transport:
    """Sends requests to the broker at `url`. Belongs to one event loop; made without one.

    A request has a connection to itself while it is under way; how many there are is the caller's
    affair. `retry` is what requests follow that bring no policy of their own.
    """

    def __init__(
        self, url: str, *, token: str | None, retry: RetryPolicy, tls: TlsFiles | None = None
    ) -> None:
        self._target = Target.of(url, token, tls)
        self.url = self._target.url
        self.retry = retry
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._is_closed = False

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        safe: bool = True,
        wait_s: float = 0.0,
        retry: RetryPolicy | None = None,
    ) -> Reply:
        """As in Requests. Cancelling it closes its connection."""
        head, blocks = encoded_request(self._target, method, path, params, headers, body)

        async def once() -> Reply:
            parsed = await self._once(head, blocks, wait_s + ANSWER_TIMEOUT_S, safe=safe)
            return checked(Reply(parsed.status, parsed.headers, parsed.body, self.url))

        return await retried(once, retry or self.retry, safe=safe, waits=self)

    async def _once(
        self, head: bytes, blocks: Sequence[bytes], quiet_timeout_s: float, *, safe: bool
    ) -> ReplyParser:
        if self._is_closed:
            raise ClientClosed
        kept = self._kept_connection()
        connection = kept or await self._connect()
        try:
            try:
                reply = await self._exchange(connection, head, blocks, quiet_timeout_s)
            except ConnectionLost as lost:
                # The broker may give up a kept connection at any time: that is no failure yet.
                if kept is None or lost.has_begun or not safe or self._is_closed:
                    raise
                connection = await self._connect()
                reply = await self._exchange(connection, head, blocks, quiet_timeout_s)
        except NotHttp as error:
            raise BadReply(self.url, str(error)) from error
        except (ConnectionLost, OSError) as error:
            if self._is_closed:
                raise ClientClosed from error
            raise ConnectionFailed(self.url, str(error), maybe_executed=True) from error
        if connection.is_open:
            connection.idle_since_s = self.now_s()
            self._idle.append(connection)
        return reply

    async def _exchange(
        self,
        connection: Connection,
        head: bytes,
        blocks: Sequence[bytes],
        quiet_timeout_s: float,
    ) -> ReplyParser:
        self._busy.add(connection)
        try:
            return await connection.exchange(head, blocks, quiet_timeout_s)
        finally:
            self._busy.discard(connection)

    def _kept_connection(self) -> Connection | None:
        """Return the open connection that was used last, if there is one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and self.now_s() - connection.idle_since_s < KEEPALIVE_S:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> Connection:
        target = self._target
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(self._scratch), target.host, target.port, ssl=target.tls
                )
        except ssl.SSLCertVerificationError as error:
            raise CertificateNotTrusted(self.url, error.verify_message) from error
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"not connected within {CONNECT_TIMEOUT_S:g} s"
            raise ConnectionFailed(self.url, reason, maybe_executed=False) from error
        if self._is_closed:
            connection.abort()
            raise ClientClosed
        return connection

    def now_s(self) -> float:
        """As in Requests: the loop's time."""
        return asyncio.get_running_loop().time()

    async def pause(self, seconds: float) -> None:
        """As in Requests."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """As in Requests."""
        self._is_closed = True
        for connection in (*self._idle, *self._busy):
            connection.abort()
        self._idle.clear()
        # Connections are told of their end by the loop's next turn.
        await asyncio.sleep(0)


def encoded_request(
    target: Target,
    method: str,
    path: str,
    params: Mapping[str, str | int] | None,
    headers: Mapping[str, str] | None,
    body: Body | None,
) -> tuple[bytes, Sequence[bytes]]:
    """Return a request's head, and its body's blocks."""
    blocks: Sequence[bytes]
    if body is None:
        blocks, size = (), None if method == "GET" else 0
    elif isinstance(body, bytes):
        blocks, size = (body,), len(body)
    else:
        blocks, size = body, sum(map(len, body))
    where = target.prefix + path
    if params:
        where += query_string(params)
    return request_head(method, where, target.headers, headers, size), blocks


def checked_name(kind: str, name: str) -> str:
    """Return a topic's or group's name as it goes into a path.

    Raises ValueError for one that no broker takes, before it could become another path.
    """
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ValueError(
            f"a {kind} is named by 1 to 127 letters, digits, dots, hyphens and underscores, "
            f"not {name!r}"
        )
    return name
