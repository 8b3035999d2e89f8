"""Listening for AMQP over TCP and TLS, and a clean stop.

The ports are bound when the broker starts. Connections are accepted once the storage is open;
until then they wait in the operating system. So a client that connects while the broker recovers
need not retry. If the client disconnects before, the broker keeps nothing of its connection.
"""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial

from holdfast.amqp.connections import AmqpConnections
from holdfast.amqp.nodes.node import BrokerParts
from holdfast.amqp.protocol import AmqpConnection
from holdfast.amqp.wire.conditions import CONNECTION_FORCED, ConnectionFailed
from holdfast.http_api.access.grants import Principal
from holdfast.http_api.wire.listener import Listener, MakeProtocol
from holdfast.http_api.wire.request import Peer
from holdfast.http_api.wire.tls import ServerTls
from holdfast.http_api.wire.tls_handshake import TlsHandshakeProtocol

_logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class CannotListen(Exception):
    """A port for AMQP cannot be bound. `key` is the setting of the port."""

    host: str
    port: int
    key: str
    reason: str

    def __str__(self) -> str:
        return (
            f"cannot listen for AMQP on {self.host}, port {self.port}: {self.reason}; stop the "
            f"process that listens there, or change amqp.host or amqp.{self.key}"
        )


class AmqpServer:
    """The AMQP ports of one broker. `stop` may be called twice."""

    def __init__(self, connections: AmqpConnections) -> None:
        self.connections = connections
        self.port: int | None = None
        """The port for TCP; None if there is none."""
        self.tls_port: int | None = None
        """The port for TLS; None if there is none."""
        self._parts: BrokerParts | None = None
        self._listeners: list[Listener] = []

    async def bind(self, host: str, port: int) -> None:
        """Bind a port for TCP; 0 means any. Raises CannotListen."""
        self.port = await self._bind(host, port, self._connect, "port")

    async def bind_tls(self, host: str, port: int, tls: ServerTls) -> None:
        """Bind a port for TLS; 0 means any. Raises CannotListen."""
        connections = self.connections
        timeout_s = connections.config.handshake_timeout_ms / 1000
        make = partial(TlsHandshakeProtocol, tls, timeout_s, connections, self._connect)
        self.tls_port = await self._bind(host, port, make, "tls_port")

    async def _bind(self, host: str, port: int, make: MakeProtocol, key: str) -> int:
        try:
            listener = await Listener.bind(host, port, make)
        except OSError as error:
            reason = error.strerror or str(error)
            raise CannotListen(host, port, key, reason) from error
        self._listeners.append(listener)
        return listener.address[1]

    async def serve(self, parts: BrokerParts) -> None:
        """Accept connections. Call this once the storage is open."""
        self._parts = parts
        await parts.subscriptions.remove_leftovers(parts.groups)
        await parts.temporary.remove_leftovers()
        admission = parts.store.admission
        admission.alarm_listeners.append(self.connections.publishing_changed)
        self.connections.is_publishing_stopped = admission.refusal is not None
        self.connections.start()
        for listener in self._listeners:
            await listener.serve()
            host, port = listener.address
            scheme = "amqps" if port == self.tls_port else "amqp"
            shown = f"[{host}]" if ":" in host else host
            _logger.info("serving AMQP on %s://%s:%d", scheme, shown, port)

    async def stop(self, timeout_s: float) -> None:
        """Stop accepting, answer outstanding publishes, and close all connections."""
        listeners, self._listeners = self._listeners, []
        for each in listeners:
            each.close()
        await asyncio.sleep(0)  # connections that were just accepted begin
        await self.connections.stop(
            timeout_s, ConnectionFailed(CONNECTION_FORCED, "the broker is stopping")
        )
        if self._parts is not None:
            await self._parts.temporary.finish(timeout_s)
        for each in listeners:
            await each.wait_closed()

    def accept_websocket(self, principal: Principal | None, peer: Peer) -> AmqpConnection:
        """Return the protocol for a WebSocket. If `principal` is None, the client authenticates
        with SASL."""
        assert self._parts is not None
        return AmqpConnection(self.connections, self._parts, principal)

    def _connect(self) -> AmqpConnection:
        assert self._parts is not None
        return AmqpConnection(self.connections, self._parts)
