"""Requests to one broker from an event loop, over persistent connections."""

import asyncio
import ssl
from collections.abc import Sequence

from holdfast.client.errors import (
    BadReply,
    CertificateNotTrusted,
    ClientClosed,
    ConnectionFailed,
)
from holdfast.client.transport.async_connection import AsyncConnection
from holdfast.client.transport.http1 import ConnectionLost, MalformedReply, ReplyParser
from holdfast.client.transport.requests import CONNECT_TIMEOUT_S, KEEPALIVE_S, BaseTransport
from holdfast.client.transport.retry import RetryPolicy
from holdfast.client.transport.retry_log import RetryLog
from holdfast.client.transport.target import Target

_SCRATCH_BYTES = 64 * 1024


class AsyncTransport(BaseTransport):
    """Sends requests to a broker. Belongs to one event loop; may be created before the loop.

    Each request in flight has its own connection. The number of connections is not limited.
    Cancelling a request closes its connection.
    """

    def __init__(
        self, target: Target, retry: RetryPolicy, retry_log: RetryLog | None = None
    ) -> None:
        super().__init__(target, retry, retry_log)
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._idle: list[AsyncConnection] = []
        self._busy: set[AsyncConnection] = set()
        self._is_closed = False

    async def _send_once(
        self, head: bytes, blocks: Sequence[bytes], quiet_timeout_s: float, *, safe: bool
    ) -> ReplyParser:
        if self._is_closed:
            raise ClientClosed
        kept = self._take_idle_connection()
        connection = kept or await self._connect()
        try:
            try:
                reply = await self._exchange(connection, head, blocks, quiet_timeout_s)
            except ConnectionLost as lost:
                # The broker may close an idle connection at any time. Send the request again on a
                # new connection.
                if kept is None or lost.has_begun or not safe or self._is_closed:
                    raise
                connection = await self._connect()
                reply = await self._exchange(connection, head, blocks, quiet_timeout_s)
        except MalformedReply as error:
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
        connection: AsyncConnection,
        head: bytes,
        blocks: Sequence[bytes],
        quiet_timeout_s: float,
    ) -> ReplyParser:
        self._busy.add(connection)
        try:
            return await connection.exchange(head, blocks, quiet_timeout_s)
        finally:
            self._busy.discard(connection)

    def _take_idle_connection(self) -> AsyncConnection | None:
        """Return the most recently used idle connection; None if there is none that can be used."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and self.now_s() - connection.idle_since_s < KEEPALIVE_S:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> AsyncConnection:
        target = self._target
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: AsyncConnection(self._scratch), target.host, target.port, ssl=target.tls
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
        """Return the loop's time."""
        return asyncio.get_running_loop().time()

    async def pause(self, seconds: float) -> None:
        """Wait for `seconds` without blocking the loop. Implements `Transport.pause`."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Close all connections. Implements `Transport.close`."""
        self._is_closed = True
        for connection in (*self._idle, *self._busy):
            connection.abort()
        self._idle.clear()
        # The loop calls connection_lost() in its next iteration.
        await asyncio.sleep(0)
