"""One client's connection: bytes to the engine, events to the nodes, output to the socket.

    data_received -> engine -> events, each acted on before the next -> nodes
    nodes and engine -> flush -> one joined write at the end of the event loop iteration
    messages of a source -> flush_now -> a write of their own, unless output waits already

In one event loop iteration (a turn), a connection processes at most MAX_FRAMES_A_TURN frames. While
bytes are left for the next turn, the connection does not read from the socket. It does not read
either while a client that does not read has too many unsent answers. A slow topic never stops the
reading.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from time import perf_counter
from typing import Any, cast

from holdfast.amqp.connections import SOLE_CONNECTION, AmqpConnections
from holdfast.amqp.engine.connection import Connection
from holdfast.amqp.engine.events import Closed, Event, Opened, SaslResponded, SaslStarted
from holdfast.amqp.engine.link import Link
from holdfast.amqp.engine.session import Session
from holdfast.amqp.login import Login
from holdfast.amqp.nodes.node import BrokerParts, ReplyLink
from holdfast.amqp.sessions import HANDLERS, Sessions
from holdfast.amqp.wire.conditions import (
    INTERNAL_ERROR,
    INVALID_FIELD,
    RESOURCE_LIMIT_EXCEEDED,
    UNAUTHORIZED_ACCESS,
    AmqpError,
    ConnectionFailed,
    LinkFailed,
)
from holdfast.amqp.wire.types import Symbol
from holdfast.http_api.access.authorization import UNKNOWN, certificate_names
from holdfast.http_api.access.grants import ANONYMOUS, Principal
from holdfast.http_api.access.tokens import redact_secrets

_logger = logging.getLogger(__name__)

#: The most frames of one connection that are processed in one event loop iteration (about 5 ms).
MAX_FRAMES_A_TURN = 1000
#: Up to this many unfinished bytes are not counted: they are part of the connection's own memory.
_UNCOUNTED_BYTES = 4096
#: While a client does not read, the broker reads from it until its answers have this many bytes.
_MAX_ANSWER_BYTES = 1024 * 1024
#: Heartbeats are sent at multiples of this time of the loop's clock, at most so much too early. So
#: one iteration of the event loop sends those of many connections: each alone costs several times
#: as much, because code that runs seldom is cold.
_HEARTBEAT_STEP_S = 0.25
#: How long a client may take to answer a close, and to close its socket.
_CLOSING_S = 2.0
#: The longest container-id, which the broker keeps.
_MAX_NAME_CHARACTERS = 1024


class AmqpConnection(asyncio.Protocol):
    """The server's end of one connection. It implements `Peer` for its nodes.

    If the limits admit the connection, the object adds itself to the shared `connections`. It
    removes itself when the connection is lost.
    """

    def __init__(
        self,
        connections: AmqpConnections,
        parts: BrokerParts,
        external: Principal | None = None,
    ) -> None:
        """`external` is the principal if the client has authenticated before AMQP began."""
        self.parts = parts
        self.principal = UNKNOWN
        self.client = ""
        self.number = 0
        self.container_id = ""
        self.replies: list[ReplyLink] = []
        self.has_room = True
        self._shared = connections
        self._loop = asyncio.get_running_loop()
        self._engine = Connection(connections.settings, is_server=True)
        self._transport: asyncio.Transport | None = None
        self._raw: asyncio.Transport | None = None
        """The TCP transport under TLS; None without TLS."""
        self._external = external
        self._login: Login | None = None
        """The login; None before the connection is admitted, and after authentication."""
        self._sessions = Sessions(connections, self._engine, self)
        self._timer: asyncio.TimerHandle | None = None
        self._received_s = self._sent_s = self._loop.time()
        self._is_flush_due = False
        self._is_turn_due = False
        self._is_ending = False
        """Whether the remaining input is discarded."""
        self._is_choked = False
        """Whether reading is paused because the client does not read the answers."""
        self._answer_bytes = 0
        self._has_counted_bytes = False
        """Whether the limit of arriving bytes counts this connection."""
        self._has_unsent = False
        """Whether the limit of unsent bytes counts this connection."""

    # ---- The transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or close it."""
        wire = cast(asyncio.Transport, transport)
        client = self._shared.enter(wire, is_plain=True)
        if client is not None:
            self.begin(wire, client)

    def begin(
        self, transport: asyncio.Transport, client: str, raw: asyncio.Transport | None = None
    ) -> None:
        """Serve an admitted client. `raw` is the TCP transport under a TLS `transport`."""
        shared, access = self._shared, self._shared.access
        self._transport, self._raw, self.client = transport, raw, client
        self._login = Login(
            shared,
            self._engine,
            client,
            certificate_names(transport.get_extra_info("peercert")),
            self._external,
            admitted=self._admit,
            refused=self.flush,
            audit=partial(self.audit, "amqp.open"),
        )
        if not access.is_required:
            self.principal = ANONYMOUS
        self.number = next(shared.numbers)
        shared.open.add(self)
        shared.handshaking.add(self)

    def data_received(self, data: bytes) -> None:
        """Process bytes of the client."""
        self._received_s = self._loop.time()
        if not self._is_ending:
            self._shared.counters.bytes_in += len(data)
            if not self._engine.is_heartbeat(data):
                self._take_turn(data)

    def eof_received(self) -> None:
        """Let the transport close. Clients do not half-close and then wait for messages."""

    def pause_writing(self) -> None:
        """Record that the socket accepts no more bytes now."""
        self.has_room = False
        self._answer_bytes = 0
        self._count_unsent(0)

    def resume_writing(self) -> None:
        """The socket takes bytes again: sources may send."""
        self.has_room = True
        self._count_unsent(0)
        if self._is_choked:
            self._is_choked = False
            self._update_reading()
        self._sessions.tell_room()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop the nodes, and release everything."""
        shared = self._shared
        self._transport = self._raw = None
        if self not in shared.open:
            self._sessions.release()  # it was not admitted
            return
        shared.open.discard(self)
        shared.limits.leave(self.client)
        shared.handshaking.remove(self)
        shared.arriving.release(self)
        shared.unsent.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._login is not None:
            self._login.stop()
            self._login = None
        self._is_ending = True
        self._sessions.stop()
        self._sessions.release()
        shared.names.leave(self)

    # ---- Peer: what nodes use

    @property
    def remote(self) -> str:
        """The client's address; "" if it is unknown."""
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else ""

    def flush(self) -> None:
        """Send the output of the engine at the end of this event loop iteration."""
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._write)

    def flush_now(self) -> None:
        """Send the output of the engine now. Further output of this event loop iteration leaves at
        its end, in one write."""
        if not self._is_flush_due:
            self._write()
            self.flush()

    def detach(self, link: Link, error: AmqpError | None) -> None:
        """Detach a link, with an error if there is one, and stop its node."""
        self._sessions.detach(link, error)
        self.flush()

    # ---- What the listener and the other connections use

    @property
    def messages_out(self) -> int:
        """How many messages were sent in the sessions that are open."""
        return self._sessions.messages_out

    @property
    def open_sessions(self) -> list[Session]:
        """The sessions that neither end has ended."""
        return self._sessions.open

    @property
    def unsettled(self) -> tuple[int, int]:
        """How many deliveries of the client, and to the client, are not settled."""
        return self._sessions.unsettled

    def close(self, error: AmqpError) -> None:
        """Close the connection with an error; its nodes stop."""
        for event in self._engine.fail(error):
            self._handle(event)
        self.flush()

    def close_slow_handshake(self) -> None:
        """Close: the client did not open the connection in time."""
        self._shared.closed_early["slow-handshake"] += 1
        self.close(
            ConnectionFailed(
                RESOURCE_LIMIT_EXCEEDED,
                "the connection was not opened within amqp.handshake_timeout_ms "
                f"({self._shared.config.handshake_timeout_ms})",
            )
        )

    def end_access(self) -> None:
        """Detach all links and close: the client's token is not valid any more."""
        text = "the token was revoked, or has expired; ask for a new one"
        self._sessions.detach_all(LinkFailed(UNAUTHORIZED_ACCESS, text))
        self.close(ConnectionFailed(UNAUTHORIZED_ACCESS, text))

    def set_publishing(self, *, is_stopped: bool) -> None:
        """Close or reopen the windows of the sessions on which the client publishes."""
        self._sessions.set_publishing(is_stopped=is_stopped)
        self.flush()

    async def finish_publishes(self) -> None:
        """Return once all deliveries that arrived have their outcomes, and these are written."""
        await self._sessions.finish_publishes()
        self._write()

    def cut_off(self, reason: str) -> None:
        """Close immediately, because the client uses too much of a shared resource."""
        self._shared.closed_early[reason] += 1
        self._shared.log_seldom(
            f"amqp-{reason}", f"closed an AMQP connection of {self.client}: {reason}"
        )
        self.abort()

    def abort(self) -> None:
        """Close without sending the remaining bytes."""
        if self._transport is not None:
            self._transport.abort()

    # ---- Turns: input, output, memory and time

    def _take_turn(self, data: bytes) -> None:
        """Process the bytes left from the last turn and `data`, up to MAX_FRAMES_A_TURN frames."""
        started = perf_counter()
        engine, counters = self._engine, self._shared.counters
        try:
            for event in engine.receive_data(data, MAX_FRAMES_A_TURN):
                self._handle(event)
        except Exception as error:
            self._close_for_defect(error)
        held = engine.unfinished_bytes
        if held > _UNCOUNTED_BYTES or self._has_counted_bytes:
            self._count_held(held)
        if engine.has_backlog and not self._is_turn_due:
            self._is_turn_due = True
            self._update_reading()
            self._loop.call_soon(self._continue)
        if engine.has_output or engine.is_closed:
            self.flush()
        counters.turns += 1
        counters.turn_seconds += perf_counter() - started

    def _continue(self) -> None:
        self._is_turn_due = False
        if not self._is_ending:
            self._take_turn(b"")
        self._update_reading()

    def _update_reading(self) -> None:
        """Pause or resume reading. To do either twice has no effect."""
        transport = self._transport
        if transport is None:
            return
        if self._is_turn_due or self._is_choked:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _write(self) -> None:
        """Write the output of the engine. End the transport if nothing more can come."""
        self._is_flush_due = False
        output = self._engine.take_output()
        transport = self._transport
        if transport is None:
            return
        if output:
            transport.write(output)
            self._sent_s = self._loop.time()
            self._shared.counters.bytes_out += len(output)
        if not self.has_room or self._engine.waiting_bytes > _UNCOUNTED_BYTES or self._has_unsent:
            self._count_unsent(len(output))
        if self._engine.is_closed and not self._is_ending:
            self._end_transport(transport)

    def _end_transport(self, transport: asyncio.Transport) -> None:
        """Close the socket once the client has closed it, or after a while.

        If the broker closed while input is unread, the client would get a reset, and could lose
        the reason.
        """
        self._is_ending = True
        self._set_timer(self._loop.time() + _CLOSING_S, self.abort)
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def _count_held(self, held: int) -> None:
        """Count the bytes of unfinished deliveries against the limits."""
        shared = self._shared
        self._has_counted_bytes = held > _UNCOUNTED_BYTES
        if not self._has_counted_bytes:
            shared.arriving.release(self)
            return
        limit = shared.config.max_incoming_bytes
        if held > limit:
            self._close_for_memory(f"amqp.max_incoming_bytes ({limit})")
            return
        refused = shared.arriving.take(
            self, self.client, held, lambda: self._close_for_memory("the broker's memory")
        )
        if refused is not None:
            self._close_for_memory(f"http_api.{refused}")

    def _close_for_memory(self, limit: str) -> None:
        self._shared.closed_early["arriving-limit"] += 1
        self._shared.arriving.release(self)
        self.close(
            ConnectionFailed(
                RESOURCE_LIMIT_EXCEEDED, f"messages of more than {limit} have not arrived whole"
            )
        )
        self._is_ending = True  # the client may send more, which is discarded

    def _count_unsent(self, answer_bytes: int) -> None:
        """Count the bytes that the socket or the client's windows have not taken. Above the limit,
        the clients with the most bytes are cut off."""
        transport = self._transport
        if transport is None:
            return
        waiting = self._engine.waiting_bytes
        self._has_unsent = not self.has_room or waiting > _UNCOUNTED_BYTES
        if not self._has_unsent:
            self._shared.unsent.discard(self)
            return
        size = waiting + transport.get_write_buffer_size()
        if self._raw is not None:
            size += self._raw.get_write_buffer_size()
        if not self.has_room:
            self._answer_bytes += answer_bytes
        if self._answer_bytes > _MAX_ANSWER_BYTES and not self._is_choked:
            self._is_choked = True
            self._update_reading()
        for slowest in self._shared.unsent.add(self, self.client, size):
            slowest.cut_off("unsent-limit")

    def _set_timer(self, at_s: float, function: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at_s, function)

    def _check_times(self) -> None:
        """Close an idle connection, or send an empty frame before the client's idle timeout ends.

        Set the timer for the next check.
        """
        now, due = self._loop.time(), float("inf")
        idle_ms, keepalive_ms = self._shared.config.idle_timeout_ms, self._engine.keepalive_ms
        if idle_ms:
            due = self._received_s + idle_ms / 1000
            if due <= now:
                self._shared.closed_early["idle"] += 1
                self.close(ConnectionFailed(RESOURCE_LIMIT_EXCEEDED, "local-idle-timeout expired"))
                return
        if keepalive_ms:
            if self._heartbeat_due_s(keepalive_ms) <= now and self.has_room:
                self._engine.send_empty_frame()
                self._write()
                self._sent_s = now
            due = min(due, max(self._heartbeat_due_s(keepalive_ms), now + 0.02))
        if due != float("inf"):
            self._set_timer(due, self._check_times)

    def _heartbeat_due_s(self, keepalive_ms: float) -> float:
        """Return when the broker must have sent something, as a time of the loop's clock."""
        due_s = self._sent_s + keepalive_ms / 1000
        if keepalive_ms >= 4_000 * _HEARTBEAT_STEP_S:
            due_s -= due_s % _HEARTBEAT_STEP_S
        return due_s

    def _close_for_defect(self, error: BaseException) -> None:
        _logger.error("an AMQP connection failed", exc_info=error)
        self.close(
            ConnectionFailed(
                INTERNAL_ERROR, "the broker failed; see the broker's log if it fails again"
            )
        )

    def start_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run `work`. An exception that `work` raises is a defect and closes the connection."""
        task = self._loop.create_task(work)
        self._shared.tasks.add(task)
        task.add_done_callback(self._end_task)
        return task

    def _end_task(self, task: "asyncio.Task[None]") -> None:
        self._shared.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._close_for_defect(error)

    # ---- Events

    def _handle(self, event: Event) -> None:
        handler = HANDLERS.get(type(event))
        if handler is not None:
            handler(self._sessions, event)
            return
        login = self._login
        if isinstance(event, Opened):
            self._on_opened(event)
        elif isinstance(event, Closed):
            self._on_closed(event)
        elif isinstance(event, SaslStarted) and login is not None:
            login.started(event)
        elif isinstance(event, SaslResponded) and login is not None:
            login.responded(event)

    def _admit(self, principal: Principal) -> None:
        self.principal = principal
        self._login = None

    def _on_opened(self, event: Opened) -> None:
        shared, engine = self._shared, self._engine
        shared.handshaking.remove(self)
        container_id = event.open.container_id
        if len(container_id) > _MAX_NAME_CHARACTERS:
            self._refuse_open("the container-id is too long")
            return
        self.container_id = container_id
        wants_sole = SOLE_CONNECTION in event.open.desired_capabilities
        if not shared.names.enter(self, wants_sole=wants_sole):
            self._refuse_open("the container has a connection already, and only one is allowed")
            return
        engine.open()
        self._check_times()

    def _refuse_open(self, reason: str) -> None:
        """Refuse the client's container-id, as the clients for JMS expect it."""
        properties = self._shared.settings.properties or {}
        self._engine.open({**properties, "amqp:connection-establishment-failed": True})
        info: dict[str, object] = {"invalid-field": Symbol("container-id")}
        self.close(ConnectionFailed(INVALID_FIELD, reason, info))

    def _on_closed(self, event: Closed) -> None:
        if event.is_local:
            self._shared.counters.count_error("connection", event.error)
            self._set_timer(self._loop.time() + _CLOSING_S, self.abort)
        self._shared.handshaking.remove(self)
        self._sessions.stop()

    def audit(self, about: str, principal: str, reason: str) -> None:
        """Record in the audit log that the client was denied something."""
        audit = self._shared.audit
        if audit is not None and self._transport is not None:
            details = {"reason": redact_secrets(reason)[:300]}
            audit.denied(about, principal=principal, client=self.remote, details=details)
