"""A client's engine, linked to real sources over a real store and groups, without sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from holdfast.amqp.config import AmqpConfig
from holdfast.amqp.engine.events import (
    Attached,
    CreditChanged,
    Detached,
    Disposed,
    Ended,
    Event,
    WindowOpened,
)
from holdfast.amqp.engine.incoming_link import Delivery, IncomingLink
from holdfast.amqp.engine.link import Link
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.engine.session import Session
from holdfast.amqp.messages.sections import Sections
from holdfast.amqp.nodes.addresses import parse_address
from holdfast.amqp.nodes.browsing_source import BrowsingSource
from holdfast.amqp.nodes.copied_source import CopiedSource
from holdfast.amqp.nodes.envelope_fields import read_fields
from holdfast.amqp.nodes.leased_source import LeasedSource
from holdfast.amqp.nodes.node import BrokerParts, Peer, ReplyLink
from holdfast.amqp.nodes.temporary import TemporaryNodes
from holdfast.amqp.nodes.terminus import FromTopic, read_source
from holdfast.amqp.wire.conditions import AmqpError, LinkFailed
from holdfast.amqp.wire.performatives import Attach, Flow, Source, Target
from holdfast.consumequeue.config import TopicsConfig
from holdfast.groups.config import GroupsConfig
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.holdservice.envelope_columns import set_reader
from holdfast.http_api.access.authorization import Access
from holdfast.http_api.access.grants import ANONYMOUS, Principal
from tests.amqp.engine.pair import Pair
from tests.support.servers.group_broker import GroupBroker, running
from tests.support.storage.stored import until

LEFT_OUT: Any = None


@dataclass
class Client:
    """One connection of a client. The server's end makes sources for its links."""

    parts: BrokerParts
    principal: Principal = ANONYMOUS
    client: str = "127.0.0.1"
    container_id: str = "test client"
    has_room: bool = True
    remote: str = "127.0.0.1"
    replies: list[ReplyLink] = field(default_factory=list)
    pair: Pair = field(default_factory=Pair)
    _is_flushing: bool = False
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.pair.server.on_event = self._on_event
        self.pair.pump()

    # -- Peer ------------------------------------------------------------------------------------

    def flush(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self.pump)

    flush_now = flush

    def detach(self, link: Link, error: AmqpError) -> None:
        link.detach(error)
        link.context.stop(is_closed=True)
        self.flush()

    # -- the client's end ------------------------------------------------------------------------

    def pump(self) -> None:
        """Pass bytes until both ends are quiet."""
        self._is_flushing = False
        self.pair.pump()

    async def until(self, condition: Callable[[], object]) -> None:
        """Pass bytes until a condition is true."""

        def is_true() -> object:
            self.pump()
            return condition()

        await until(is_true)

    def session(self, incoming_window: int = 1_000) -> Session:
        """Begin a session whose window has room for this many frames."""
        session = self.pair.client.connection.begin()
        session.windows.incoming_size = incoming_window
        self.pump()
        session.set_incoming_window(incoming_window)
        self.pump()
        return session

    async def attach(
        self, address: str, session: Session | None = None, name: str = "in", *,
        snd_settle_mode: int = 2, max_message_size: int | None = None, **source: Any,
    ) -> "Receiver":  # fmt: skip
        """Attach a receiver; return it when the attach was answered."""
        session = session or self.session()
        link = session.receiver(
            name,
            lambda handle: Attach(
                name, handle, True, snd_settle_mode, 0, Source(address, **source), Target("here"),
                max_message_size=max_message_size,
            ),
        )  # fmt: skip
        receiver = Receiver(self, session, link)
        apply = link.remote_flow

        def remote_flow(flow: Flow) -> bool:
            if flow.properties is not None:
                receiver.states.append(flow.properties)
            return apply(flow)

        link.remote_flow = remote_flow  # type: ignore[method-assign]
        self.pump()
        await until(lambda: link.remote is not None)
        return receiver

    def record(self) -> list[Any]:
        """Return a list to which each performative that the server sends from now on is added, in
        the order on the wire."""
        sent: list[Any] = []
        self.pair.server.sent = sent
        return sent

    def lose(self) -> None:
        """End the connection without any frame, as when the client crashes."""
        for session in self.pair.server.connection.sessions:
            for link in session.links:
                link.context.stop(is_closed=True)

    # -- the server's end ------------------------------------------------------------------------

    def _on_event(self, event: Event) -> bool:
        match event:
            case Attached():
                task = asyncio.create_task(self._answer(cast(OutgoingLink, event.link)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case CreditChanged(link):
                if link.context is not None:
                    link.context.credit_changed()
            case WindowOpened(session):
                for link in session.links:
                    link.context.room_changed()
            case Disposed(_, deliveries, state, is_settled):
                for source in {sent.link.context for _, sent in deliveries}:
                    mine = [each for each in deliveries if each[1].link.context is source]
                    source.disposed(mine, state, is_settled=is_settled)
            case Detached(link, is_closed, _):
                link.context.stop(is_closed=is_closed)
            case Ended(session):
                for link in session.links:
                    link.context.stop(is_closed=True)
            case _:
                return False
        return True

    async def _answer(self, link: OutgoingLink) -> None:
        attach = link.remote
        assert attach is not None
        assert attach.source is not None
        try:
            wanted = read_source(attach.source, parse_address(attach.source.address))
            peer = cast(Peer, self)
            source: Any
            if isinstance(wanted, FromTopic):
                source = CopiedSource(peer, link, wanted)
            elif wanted.is_browsed:
                source = BrowsingSource(peer, link, wanted)
            else:
                source = LeasedSource(peer, link, wanted)
            link.context = source
            await source.start()
        except LinkFailed as error:
            if link.context is not None:
                link.context.stop(is_closed=True)
            link.context = SimpleNamespace(stop=lambda *, is_closed: None)
            link.refuse(error)
            self.flush()
            return
        link.send_attach(
            Attach(
                link.name, link.handle, False, attach.snd_settle_mode, attach.rcv_settle_mode,
                wanted.answer, attach.target, initial_delivery_count=0,
            )
        )  # fmt: skip
        source.credit_changed()
        self.flush()


@dataclass
class Receiver:
    """The client's end of a link."""

    client: Client
    session: Session
    link: IncomingLink
    states: list[dict[str, Any]] = field(default_factory=list)
    """The properties of the server's flows."""

    def grant(self, credit: int, *, drain: bool = False, echo: bool = False) -> None:
        self.link.grant(credit, drain=drain, echo=echo)
        self.client.pump()

    def take(self) -> list[Delivery]:
        """Return the deliveries that have arrived since the last call."""
        self.client.pump()
        end = self.client.pair.client
        mine: list[Event] = []
        others: list[Event] = []
        for event in end.events:
            (mine if getattr(event, "link", None) is self.link and hasattr(event, "deliveries")
             else others).append(event)  # fmt: skip
        end.events = others
        return [each for event in mine for each in cast(Any, event).deliveries]

    async def receive(self, count: int) -> list[Delivery]:
        """Wait for this many deliveries, and return all that have arrived by then."""
        found: list[Delivery] = []

        def has_all() -> bool:
            found.extend(self.take())
            return len(found) >= count

        await until(has_all)
        return found

    async def rest(self) -> list[str]:
        """Return the bodies of what has arrived when the server answers an echo: A31."""
        self.link.available = None
        self.link.grant(self.link.credit, echo=True)
        await self.client.until(lambda: self.link.available is not None)
        return [body_of(each) for each in self.take()]

    async def drained(self) -> list[str]:
        """Wait until the server has answered a drain; return the bodies that arrived before."""
        await self.client.until(lambda: not self.link.is_draining)
        return [body_of(each) for each in self.take()]

    async def bodies(self, count: int) -> list[str]:
        return [body_of(each) for each in await self.receive(count)]

    def settle(self, deliveries: list[Delivery], state: Any, *, is_settled: bool = True) -> None:
        for each in deliveries:
            self.session.dispose(each.id, each.id, state, settled=is_settled)
        self.client.pump()

    def detach(self, *, closed: bool = True) -> None:
        self.link.detach(closed=closed)
        self.client.pump()

    async def error(self) -> str:
        """Wait until the server detaches the link, and return its condition."""
        found: list[Any] = []

        def is_detached() -> bool:
            self.client.pump()
            found.extend(
                each for each in self.client.pair.client.events
                if isinstance(each, Detached) and each.link is self.link
            )  # fmt: skip
            return bool(found)

        await until(is_detached)
        return str(found[0].error.condition)


def body_of(delivery: Delivery) -> str:
    return cast(bytes, Sections(delivery.message).body_value()).decode()


def parts_of(broker: GroupBroker, **config: Any) -> BrokerParts:
    """Return what the sources use of a broker."""
    amqp_config = AmqpConfig(**config)
    return BrokerParts(
        config=amqp_config,
        store=broker.store,
        groups=broker.groups,
        hold=broker.hold,
        access=Access(),
        topics_config=TopicsConfig(),
        groups_config=GroupsConfig(),
        wall_us=broker._now_us,
        publish_limiter=LEFT_OUT,
        topic_counters=LEFT_OUT,
        temporary=TemporaryNodes(broker.store, broker.groups, amqp_config),
    )


@asynccontextmanager
async def linked(
    tmp_path: Path, *, hold: HoldServiceConfig | None = None, **config: Any
) -> AsyncIterator[tuple[GroupBroker, Callable[..., Client]]]:
    """Run a broker; yield it, and a function that connects clients."""
    set_reader(read_fields)
    async with running(tmp_path, hold=hold) as broker:
        parts = parts_of(broker, **config)
        clients: list[Client] = []

        def connect(**fields: Any) -> Client:
            clients.append(Client(parts, **fields))
            return clients[-1]

        yield broker, connect
        for client in clients:
            for session in client.pair.server.connection.sessions:
                for link in session.links:
                    if link.context is not None:
                        link.context.stop(is_closed=True)
                        if hasattr(link.context, "finish"):
                            await link.context.finish()
