"""The sessions and links of one connection: limits, nodes, and the handling of their events."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol, cast

from holdfast.amqp.conditions_of import amqp_error
from holdfast.amqp.connections import AmqpConnections, Member
from holdfast.amqp.engine.connection import Connection
from holdfast.amqp.engine.delivery_room import DeliveryRoom
from holdfast.amqp.engine.events import (
    Attached,
    Begun,
    CreditChanged,
    Detached,
    Disposed,
    Ended,
    Received,
    SenderSettled,
    WindowOpened,
)
from holdfast.amqp.engine.incoming_link import IncomingLink
from holdfast.amqp.engine.link import Link, LinkState
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.engine.session import Session, SessionState
from holdfast.amqp.nodes.attaching import make_source, make_target
from holdfast.amqp.nodes.node import Peer, Source, Target
from holdfast.amqp.wire.conditions import (
    CONNECTION_FORCED,
    INVALID_FIELD,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT_EXCEEDED,
    STOLEN,
    AmqpError,
    ConnectionFailed,
    LinkFailed,
    SessionFailed,
)
from holdfast.amqp.wire.performatives import Attach, TransactionalState
from holdfast.http_api.access.authorization import Denied

#: This many sessions or links that the broker ended for a limit may wait for the client's end.
_MAX_REFUSED = 16
#: The longest name of a link, which the broker keeps.
_MAX_NAME_CHARACTERS = 1024
#: The broker keeps at most this much of a link's address.
_MAX_ADDRESS_CHARACTERS = 256

_Node = Target | Source


class Owner(Peer, Member, Protocol):
    """The connection, as its sessions use it."""

    def start_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run `work`. An exception that `work` raises is a defect and closes the connection."""

    def audit(self, about: str, principal: str, reason: str) -> None:
        """Record in the audit log that the client was denied something."""


class Sessions:
    """The sessions and links of one connection that count against the limits."""

    def __init__(self, connections: AmqpConnections, engine: Connection, peer: Owner) -> None:
        self._shared = connections
        self._engine = engine
        self._peer = peer
        self._sessions: set[Session] = set()
        """The sessions that neither end has ended."""
        config = connections.config
        self._room = DeliveryRoom(config.max_connection_unsettled, on_room=self.tell_room)
        self._rooms: dict[Session, DeliveryRoom] = {}
        """The room for unsettled deliveries of each session."""
        self._links: set[Link] = set()
        self._attaching: dict[Link, asyncio.Task[None]] = {}
        """The links whose attach is being answered."""
        self._refused_count = 0
        self._turn = 0

    @property
    def messages_out(self) -> int:
        """How many messages were sent in these sessions."""
        return sum([each.sent_count for each in self._sessions])

    @property
    def unsettled(self) -> tuple[int, int]:
        """How many deliveries of the client, and to the client, are not settled."""
        sessions = self._sessions
        return (
            sum([len(each.incoming_unsettled) for each in sessions]),
            sum([len(each.outgoing_unsettled) for each in sessions]),
        )

    @property
    def open(self) -> list[Session]:
        """The sessions that neither end has ended."""
        return list(self._sessions)

    def stop(self) -> None:
        """Stop all nodes: the connection has ended."""
        for session in list(self._sessions):
            self._end_session(session)
        for link in list(self._links):
            self._release(link)
        self._peer.parts.temporary.connection_ended(self._peer)

    def release(self) -> None:
        """End the reference cycle with the connection, which is lost. No other call may follow."""
        self._room.close()
        del self._peer

    def detach(self, link: Link, error: AmqpError | None) -> None:
        """Detach a link, with an error if there is one, and stop its node. A link whose attach is
        not answered yet must get an error."""
        if link.state is LinkState.ATTACH_RECEIVED:
            assert error is not None
            link.refuse(error)
        else:
            link.detach(error)
        self._shared.counters.count_error("link", error)
        self._stop_node(link, is_closed=False)

    def detach_all(self, error: AmqpError) -> None:
        """Detach all links with an error."""
        for link in list(self._links):
            if link.is_attached:
                self.detach(link, error)

    def tell_room(self) -> None:
        """The socket takes bytes again: sources may send."""
        for session in list(self._sessions):
            self._tell_room(session)

    def set_publishing(self, *, is_stopped: bool) -> None:
        """Close or reopen the windows of the sessions on which the client publishes."""
        for session in self._sessions:
            if any(isinstance(link, IncomingLink) and link.is_attached for link in session.links):
                self._set_window(session, is_stopped=is_stopped)

    async def finish_publishes(self) -> None:
        """Return once all deliveries that arrived have their outcomes."""
        targets = [link.context for link in self._links if isinstance(link, IncomingLink)]
        for each in targets:
            if each is not None:
                await each.finish()

    # ---- Events: sessions

    def begun(self, event: Begun) -> None:
        """The client began a session: answer it, or end it at a limit."""
        session: Session = event.session
        refused = self._shared.sessions.enter(self._peer.client)
        self._engine.answer_begin(session)
        if refused is None:
            self._sessions.add(session)
            most = self._shared.config.max_session_unsettled
            on_room = partial(self._tell_room, session)
            self._rooms[session] = DeliveryRoom(most, self._room, on_room)
            return
        error = SessionFailed(RESOURCE_LIMIT_EXCEEDED, "the broker has too many sessions")
        self._shared.counters.count_error("session", error)
        session.end(error)
        if len(self._engine.sessions) - len(self._sessions) > _MAX_REFUSED:
            self._peer.close(ConnectionFailed(RESOURCE_LIMIT_EXCEEDED, error.description))

    def ended(self, event: Ended) -> None:
        """A session ended."""
        if event.is_local:
            self._shared.counters.count_error("session", event.error)
        self._end_session(event.session)

    def _end_session(self, session: Session) -> None:
        """Stop the nodes of a session that has ended."""
        if session not in self._sessions:
            return
        self._sessions.discard(session)
        self._shared.sessions.leave(self._peer.client)
        self._shared.counters.messages_out += session.sent_count
        for link in session.links:
            self._stop_node(link, is_closed=False)
            self._release(link)
        self._rooms.pop(session).close()

    def window_opened(self, event: WindowOpened) -> None:
        """The client's window has room again."""
        self._tell_room(event.session)

    def _tell_room(self, session: Session) -> None:
        links = [link for link in session.links if isinstance(link, OutgoingLink) and link.context]
        # Begin with another link each time, so that no link takes a small window for itself.
        self._turn += 1
        first = self._turn % max(1, len(links))
        for link in links[first:] + links[:first]:
            link.context.room_changed()

    def _set_window(self, session: Session, *, is_stopped: bool) -> None:
        size = 0 if is_stopped else self._shared.config.incoming_window
        if session.windows.incoming_size != size:
            session.set_incoming_window(size)
            self._shared.counters.window_closures += is_stopped

    # ---- Events: links

    def attached(self, event: Attached) -> None:
        """The client attached a link: begin to answer."""
        link, session = event.link, event.session
        refused = self._shared.links.enter(self._peer.client)
        if refused is not None:
            self._refused_count += 1
            self._refuse(link, LinkFailed(RESOURCE_LIMIT_EXCEEDED, "the broker has too many links"))
            if self._refused_count > _MAX_REFUSED:
                self._peer.close(ConnectionFailed(RESOURCE_LIMIT_EXCEEDED, "too many links"))
            return
        self._links.add(link)
        is_settled = link.remote is not None and link.remote.snd_settle_mode == 1
        if isinstance(link, OutgoingLink) and session in self._rooms and not is_settled:
            link.delivery_room = self._rooms[session]
        if self._shared.is_stopping:
            self._refuse(link, LinkFailed(CONNECTION_FORCED, "the broker is stopping"))
        elif len(link.name) > _MAX_NAME_CHARACTERS:
            self._refuse(link, LinkFailed(INVALID_FIELD, "the link's name is too long"))
        else:
            before = self._shared.names.attach(self._peer, link)
            if before is not None:
                owner, stolen = before
                owner.detach(stolen, LinkFailed(STOLEN, "the container attached the link again"))
            self._attaching[link] = self._peer.start_task(self._attach(session, link))

    async def _attach(self, session: Session, link: Link) -> None:
        """Make the node of a link and answer its attach, or refuse the link."""
        node: _Node
        try:
            if isinstance(link, IncomingLink):
                node, answer = await make_target(self._peer, session, link)
            else:
                assert isinstance(link, OutgoingLink)
                node, answer = await make_source(self._peer, link)
        except Exception as error:
            self._attaching.pop(link, None)
            self._peer.parts.temporary.link_ended(link)
            if isinstance(error, Denied):
                self._peer.audit("amqp.attach", error.principal, error.detail)
            self._refuse(link, amqp_error(error, LinkFailed))
            return
        self._attaching.pop(link, None)
        if link.state is not LinkState.ATTACH_RECEIVED or session.state is not SessionState.MAPPED:
            node.stop(is_closed=False)
            await node.finish()
            return
        link.context = node
        link.address = _address_of(link, answer)
        counters = self._shared.counters
        link.send_attach(answer)
        if link.remote is not None:  # keep no maps and lists that the client chose
            link.remote = link.remote._replace(
                source=None, target=None, unsettled=None, properties=None,
                offered_capabilities=(), desired_capabilities=(),
            )  # fmt: skip
        if isinstance(link, IncomingLink):
            counters.links_in += 1
            if self._shared.is_publishing_stopped:
                self._set_window(session, is_stopped=True)
            cast(Target, node).start()
        else:
            counters.links_out += 1
            cast(Source, node).credit_changed()
        self._peer.flush()

    def _refuse(self, link: Link, error: LinkFailed) -> None:
        if link.state is LinkState.ATTACH_RECEIVED:
            self._shared.counters.count_error("link", error)
            self._shared.names.detach(self._peer, link)
            link.refuse(error)
            self._peer.flush()

    def detached(self, event: Detached) -> None:
        """A link ended."""
        if event.is_local:
            self._shared.counters.count_error("link", event.error)
        self._stop_node(event.link, is_closed=event.is_closed and not event.is_local)
        if not event.is_local:
            self._release(event.link)

    def _stop_node(self, link: Link, *, is_closed: bool) -> None:
        """Stop the node of a link that has ended. Do nothing if the node has been stopped."""
        self._peer.parts.temporary.link_ended(link)
        self._shared.names.detach(self._peer, link)
        attaching = self._attaching.pop(link, None)
        if attaching is not None:
            attaching.cancel()
        node, link.context = link.context, None
        if node is None:
            return
        if isinstance(link, IncomingLink):
            self._shared.counters.links_in -= 1
        else:
            self._shared.counters.links_out -= 1
        node.stop(is_closed=is_closed)
        self._peer.start_task(node.finish())

    def _release(self, link: Link) -> None:
        """Stop counting a link that both ends have detached, or whose session has ended."""
        if link in self._links:
            self._links.discard(link)
            self._shared.links.leave(self._peer.client)

    def received(self, event: Received) -> None:
        """Messages of the client arrived."""
        node = event.link.context
        if node is not None:
            self._shared.counters.messages_in += len(event.deliveries)
            node.deliveries_arrived(event.deliveries)

    def credit_changed(self, event: CreditChanged) -> None:
        """The client changed the credit of a link on which it receives."""
        node = event.link.context
        if node is not None:
            node.credit_changed()

    def disposed(self, event: Disposed) -> None:
        """The client gave the outcome of messages that it received."""
        state, deliveries = event.state, event.deliveries
        if type(state) is TransactionalState:
            self._end_for_transaction(event.session)
            return
        outcome = "none" if state is None else type(state).__name__.lower()
        self._shared.counters.outcomes[outcome] += len(deliveries)
        for link, of_link in _by_link(deliveries):
            if link.context is not None:
                link.context.disposed(of_link, state, is_settled=event.is_settled)

    def sender_settled(self, event: SenderSettled) -> None:
        """The client settled messages that it sent."""
        for link, of_link in _by_link(event.deliveries):
            if link.context is not None:
                link.context.sender_settled(of_link, event.state)

    def _end_for_transaction(self, session: Session) -> None:
        error = SessionFailed(NOT_IMPLEMENTED, "this broker has no transactions")
        self._shared.counters.count_error("session", error)
        session.end(error)
        self._end_session(session)


def _address_of(link: Link, answer: Attach) -> str | None:
    """Return the address of a link's node, cut to what the broker keeps; None if it has none."""
    terminus = answer.target if isinstance(link, IncomingLink) else answer.source
    address = getattr(terminus, "address", None)
    return None if address is None else str(address)[:_MAX_ADDRESS_CHARACTERS]


def _by_link(deliveries: list[tuple[int, Any]]) -> list[tuple[Any, list[tuple[int, Any]]]]:
    """Return the deliveries of each link, in order."""
    first = deliveries[0][1].link
    if len(deliveries) == 1 or all([each.link is first for _, each in deliveries]):  # noqa: C419 - twice as fast
        return [(first, deliveries)]
    found: dict[Any, list[tuple[int, Any]]] = defaultdict(list)
    for delivery in deliveries:
        found[delivery[1].link].append(delivery)
    return list(found.items())


HANDLERS: Mapping[type, Callable[[Sessions, Any], None]] = {
    Attached: Sessions.attached,
    Begun: Sessions.begun,
    CreditChanged: Sessions.credit_changed,
    Detached: Sessions.detached,
    Disposed: Sessions.disposed,
    Ended: Sessions.ended,
    Received: Sessions.received,
    SenderSettled: Sessions.sender_settled,
    WindowOpened: Sessions.window_opened,
}
"""The method of each event."""
