"""The AMQP connections, and what they share: limits, memory, deadlines, names and counters.

All connections belong to one event loop. AMQP and HTTP share one budget for arriving bytes and one
budget for unsent bytes.
"""

import asyncio
from collections import defaultdict
from itertools import count
from operator import methodcaller
from typing import NoReturn, Protocol

import msgspec

from holdfast.amqp.config import AmqpConfig
from holdfast.amqp.engine.connection import ConnectionSettings
from holdfast.amqp.engine.link import Link
from holdfast.amqp.engine.session import Session
from holdfast.amqp.metrics import AmqpCounters, AmqpFigures
from holdfast.amqp.nodes.modified_annotations import ModifiedAnnotations
from holdfast.amqp.sasl import FailureLimit
from holdfast.amqp.wire.conditions import AmqpError
from holdfast.http_api.access.audit import AuditLog
from holdfast.http_api.access.authorization import UNKNOWN, Access
from holdfast.http_api.access.grants import Principal
from holdfast.http_api.wire.admission import Admission, ConnectionLimits
from holdfast.http_api.wire.body_reader import ArrivingBytes
from holdfast.http_api.wire.connection_registry import ClientByteBudget, SlowReader, TimeoutQueue

#: How often the broker checks that the tokens of connections are still valid.
TOKEN_CHECK_S = 0.5

ANONYMOUS_RELAY = "ANONYMOUS-RELAY"
SOLE_CONNECTION = "sole-connection-for-container"
SHARED_SUBSCRIPTIONS = "SHARED-SUBS"


class Member(Protocol):
    """A connection, as the others and the listener see it."""

    principal: Principal
    client: str
    number: int
    """No other connection has this number, also not later."""
    container_id: str

    @property
    def open_sessions(self) -> list[Session]:
        """The sessions that neither the client nor the broker has ended."""

    @property
    def messages_out(self) -> int:
        """How many messages were sent in the sessions that are open."""

    @property
    def unsettled(self) -> tuple[int, int]:
        """How many deliveries from the client, and how many to the client, are not settled."""

    def detach(self, link: Link, error: AmqpError) -> None:
        """Detach a link, and stop its node."""

    def close(self, error: AmqpError) -> None:
        """Close the connection with an error."""

    def close_slow_handshake(self) -> None:
        """Close: the client did not open the connection in time."""

    def end_access(self) -> None:
        """Detach all links and close: the client's token is not valid any more."""

    def set_publishing(self, *, is_stopped: bool) -> None:
        """Close or reopen the windows of the sessions on which the client publishes."""

    async def finish_publishes(self) -> None:
        """Return once all deliveries that arrived have their outcomes."""

    def abort(self) -> None:
        """Close without sending the remaining bytes."""


class AmqpConnections(Admission):
    """The open connections of AMQP."""

    def __init__(
        self,
        config: AmqpConfig,
        access: Access,
        *,
        audit: AuditLog | None,
        arriving: ArrivingBytes,
        unsent: ClientByteBudget[SlowReader],
        version: str,
    ) -> None:
        super().__init__(config.max_connections, config.max_connections_per_client)
        self.config = config
        self.access = access
        self.audit = audit
        self.arriving = arriving
        self.unsent = unsent
        self.settings = ConnectionSettings(
            container_id="holdfast",
            max_frame_bytes=config.max_frame_bytes,
            channel_max=config.max_sessions - 1,
            idle_timeout_ms=config.idle_timeout_ms // 2,
            incoming_window=config.incoming_window,
            handle_max=config.max_links - 1,
            offered_capabilities=(ANONYMOUS_RELAY, SOLE_CONNECTION, SHARED_SUBSCRIPTIONS),
            properties={
                "product": config.announce_product,
                "version": version,
                "platform": "Python",
            },
            requires_sasl=config.sasl_required or access.is_required,
        )
        self.open: set[Member] = set()
        self.numbers = count(1)
        """The numbers of later connections."""
        self.handshaking: TimeoutQueue[Member] = TimeoutQueue(
            config.handshake_timeout_ms / 1000, methodcaller("close_slow_handshake")
        )
        """The connections that are not open yet, each with its deadline."""
        self.sessions = ConnectionLimits(config.max_total_sessions, config.max_client_sessions)
        self.links = ConnectionLimits(config.max_total_links, config.max_client_links)
        self.sasl_failures = FailureLimit()
        self.names = Names()
        self.counters = AmqpCounters()
        self.modified = ModifiedAnnotations()
        self.is_publishing_stopped = False
        self.is_stopping = False
        self.tasks: set[asyncio.Task[None]] = set()
        """Tasks of connections, and of the broker's ends of links (nodes) that have ended but still
        have work, such as leaving a group."""
        self._watch: asyncio.Task[NoReturn] | None = None

    def start(self) -> None:
        """Begin to check tokens."""
        if self.access.is_required:
            self._watch = asyncio.create_task(self._watch_tokens(), name="amqp-tokens")

    async def stop(self, timeout_s: float, error: AmqpError) -> None:
        """Answer outstanding publishes, close each connection with `error`, and end all tasks.

        Publishes get half of `timeout_s`. Clients get the rest of it to close their connections.
        """
        self.is_stopping = True
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_s
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait([watch])
        for each in self.handshakes.copy():
            each.abort()
        publishes = [asyncio.create_task(each.finish_publishes()) for each in self.open]
        if publishes:
            await asyncio.wait(publishes, timeout=timeout_s / 2)
        for task in publishes:
            task.cancel()
        await asyncio.gather(*publishes, return_exceptions=True)
        for connection in list(self.open):
            connection.close(error)
        while self.open and loop.time() < ends_at:  # noqa: ASYNC110 - each end needs some iterations
            await asyncio.sleep(0.005)
        for connection in list(self.open):
            connection.abort()
        while self.open or self.handshakes:  # noqa: ASYNC110
            await asyncio.sleep(0)
        while self.tasks:
            await asyncio.wait(self.tasks)
        self.handshaking.stop()

    def figures(self) -> AmqpFigures:
        """Return the figures for metrics."""
        unsettled = [each.unsettled for each in self.open]
        return AmqpFigures(
            self.counters,
            self.limits.count,
            self.sessions.count,
            self.counters.messages_out + sum([each.messages_out for each in self.open]),
            sum([each[0] for each in unsettled]),
            sum([each[1] for each in unsettled]),
            self.closed_early,
            self.refused,
            self.modified.bytes,
            self.modified.dropped_total,
        )

    def publishing_changed(self, refusal: Exception | None) -> None:
        """Stop or continue publishing. The store calls this when the first alarm is raised, and
        when the last alarm has ended."""
        self.is_publishing_stopped = refusal is not None
        for each in list(self.open):
            each.set_publishing(is_stopped=self.is_publishing_stopped)

    async def _watch_tokens(self) -> NoReturn:
        while True:
            await asyncio.sleep(TOKEN_CHECK_S)
            by_principal: dict[str, list[Member]] = defaultdict(list)
            for each in self.open:
                by_principal[each.principal.name].append(each)
            for connections in by_principal.values():
                principal = connections[0].principal
                if principal is UNKNOWN or self.access.is_still_valid(principal):
                    continue
                for each in connections:
                    each.end_access()


class _Container(msgspec.Struct):
    connections: set[Member] = msgspec.field(default_factory=set)
    is_sole: bool = False
    links: dict[tuple[str, bool], tuple[Member, Link]] = msgspec.field(default_factory=dict)
    """The attached links by name and role."""


class Names:
    """The containers that are connected, and the names of their links.

    Names are unique within one principal, so no client can disturb a client of another principal.
    """

    def __init__(self) -> None:
        self._containers: dict[tuple[str, str], _Container] = {}

    def enter(self, connection: Member, *, wants_sole: bool) -> bool:
        """Add a connection. Return False and do not add it if its container has another connection,
        and the new one or the other one was opened as the container's only connection."""
        key = connection.principal.name, connection.container_id
        container = self._containers.get(key)
        if container is not None and container.connections and (wants_sole or container.is_sole):
            return False
        if container is None:
            container = self._containers[key] = _Container()
        container.connections.add(connection)
        container.is_sole = wants_sole
        return True

    def leave(self, connection: Member) -> None:
        """Remove a connection that was added. If it is the last of its container, remove the links
        of the container."""
        key = connection.principal.name, connection.container_id
        container = self._containers.get(key)
        if container is None or connection not in container.connections:
            return
        container.connections.discard(connection)
        if not container.connections:
            del self._containers[key]

    def attach(self, connection: Member, link: Link) -> tuple[Member, Link] | None:
        """Add a link. Return the link of the same container, name and role that it replaces."""
        container = self._containers[connection.principal.name, connection.container_id]
        before = container.links.get((link.name, link.role))
        container.links[link.name, link.role] = connection, link
        return before

    def detach(self, connection: Member, link: Link) -> None:
        """Remove a link, unless another link has replaced it."""
        key = connection.principal.name, connection.container_id
        container = self._containers.get(key)
        if container is not None:
            found = container.links.get((link.name, link.role))
            if found is not None and found[1] is link:
                del container.links[link.name, link.role]
