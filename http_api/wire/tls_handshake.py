"""The TLS handshake of an admitted connection, before HTTP or AMQP begins.

The connection limits also count connections during their handshake, so they also apply to clients
that never finish it.
"""

import asyncio
import logging
import ssl
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Protocol, cast

from holdfast.http_api.wire.admission import Admission
from holdfast.http_api.wire.tls import ServerTls

_logger = logging.getLogger(__name__)

#: How long the broker waits for the client's TLS close message when it closes a connection.
CLOSING_S = 2.0


class EncryptedConnection(Protocol):
    """The protocol of a connection after its TLS handshake, a subclass of asyncio.BaseProtocol."""

    def begin(
        self, transport: asyncio.Transport, client: str, raw: asyncio.Transport | None = None
    ) -> None:
        """Begin to serve an admitted client. `raw` is the TCP transport under `transport`."""

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""


class TlsHandshakeProtocol(asyncio.Protocol):
    """A connection during its TLS handshake. After that, `make` makes its protocol."""

    def __init__(
        self,
        tls: ServerTls,
        timeout_s: float,
        connections: Admission,
        make: Callable[[], EncryptedConnection],
    ) -> None:
        self._tls = tls
        self._handshake_timeout_s = timeout_s
        self._connections = connections
        self._make = make
        self._raw: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake, unless a connection limit refuses the connection."""
        raw = cast(asyncio.Transport, transport)
        client = self._connections.enter(raw, is_plain=False)
        if client is None:
            return
        self._raw = raw
        self._connections.handshakes.add(self)
        handshake = asyncio.get_running_loop().start_tls(
            raw,
            self,
            self._tls.context,
            server_side=True,
            ssl_handshake_timeout=self._handshake_timeout_s,
            ssl_shutdown_timeout=CLOSING_S,
        )
        # The first step of `start_tls` takes over the transport. That must happen before any byte
        # is read.
        started = _resumed(handshake, handshake.send(None))
        self._task = asyncio.create_task(
            self._finish_handshake(started, raw, client), name="tls-handshake"
        )

    def data_received(self, data: bytes) -> None:
        """Keep decrypted bytes that arrive together with the end of the handshake."""
        self._early += data

    def abort(self) -> None:
        if self._raw is not None:
            self._raw.abort()

    async def _finish_handshake(
        self, handshake: Awaitable[asyncio.Transport | None], raw: asyncio.Transport, client: str
    ) -> None:
        connection: EncryptedConnection | None = None
        try:
            wire = await handshake
            if wire is not None and not wire.is_closing():
                connection = self._make()
                wire.set_protocol(cast(asyncio.BaseProtocol, connection))
        except (OSError, ssl.SSLError) as error:
            self._connections.closed_early["tls-handshake"] += 1
            _logger.debug("the TLS handshake with %s failed: %s", client, error)
            raw.abort()
        finally:
            self._connections.handshakes.discard(self)
            if connection is None:
                self._connections.limits.leave(client)
        if connection is not None and wire is not None:
            connection.begin(wire, client, raw)
            if self._early:
                connection.data_received(self._early)


@types.coroutine
def _resumed(
    coroutine: Coroutine[Any, Any, asyncio.Transport | None], awaited: Any
) -> Generator[Any, Any, asyncio.Transport | None]:
    """Continue a coroutine that has run until its first wait. It waits for `awaited`."""
    yield awaited
    result: asyncio.Transport | None = yield from coroutine
    return result
