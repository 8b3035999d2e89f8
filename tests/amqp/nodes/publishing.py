"""A client whose links publish into a real store, over two engines in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from holdfast.amqp.config import AmqpConfig
from holdfast.amqp.engine.connection import ConnectionSettings
from holdfast.amqp.engine.events import Attached, Detached, Disposed, Event, Received, SenderSettled
from holdfast.amqp.engine.incoming_link import IncomingLink
from holdfast.amqp.engine.link import Link
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.nodes.node import BrokerParts, ReplyLink
from holdfast.amqp.nodes.publish_target import Destination, PublishTarget
from holdfast.amqp.nodes.temporary import TemporaryNodes
from holdfast.amqp.wire.conditions import AmqpError
from holdfast.amqp.wire.performatives import Accepted
from holdfast.amqp.wire.types import Described, ULong, encode
from holdfast.commitlog.ageing_clock import wall_clock_us
from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.topics import Topic
from holdfast.http_api.access.grants import ANONYMOUS, Principal
from tests.amqp.engine.pair import Pair, accept
from tests.support.servers.api_server import Api, running_api
from tests.support.storage.stored import MIB, until


def data(body: bytes) -> bytes:
    """Return a message with one data section."""
    return encode(Described(ULong(0x75), body))


class Publishing:
    """A client and the broker's end of its connection, with a `PublishTarget` for each link.

    It implements Peer. `wanted` is the destination of the next link that the client attaches.
    """

    def __init__(self, api: Api, **config: Any) -> None:
        context = api.context
        self.api = api
        self.store = api.store
        amqp_config = replace(AmqpConfig(), **config)
        self.parts = BrokerParts(
            amqp_config,
            api.store,
            api.groups,
            api.hold,
            context.http.access,
            context.topics_config,
            context.groups_config,
            context.publish_limiter,
            context.http.metrics.topic,
            wall_clock_us,
            TemporaryNodes(api.store, api.groups, amqp_config),
        )
        self.principal: Principal = ANONYMOUS
        self.client = "127.0.0.1"
        self.container_id = "client"
        self.remote = "127.0.0.1"
        self.replies: list[ReplyLink] = []
        self.has_room = True
        self.pair = Pair(server=ConnectionSettings("server", incoming_window=5_000))
        self.pair.server.on_event = self._handle
        self.pair.pump()
        self.session, self._server_session = self.pair.begun()
        self.targets: dict[Link, PublishTarget] = {}
        self.wanted: Destination | None = None
        self.most_unconfirmed = 0
        self.flushes = 0

    # ---- Peer

    def flush(self) -> None:
        self.flushes += 1

    def flush_now(self) -> None:
        self.flushes += 1

    def detach(self, link: Link, error: AmqpError | None) -> None:
        link.detach(error)
        self.targets.pop(link).stop(is_closed=True)

    def _handle(self, event: Event) -> bool:
        match event:
            case Attached(IncomingLink() as link, False):
                accept(link)
                target = PublishTarget(self, self._server_session, link, self.wanted)
                self.targets[link] = target
                target.start()
            case Received(link, deliveries):
                target = self.targets[link]
                target.deliveries_arrived(deliveries)
                self.most_unconfirmed = max(self.most_unconfirmed, target.unconfirmed)
            case SenderSettled(_, deliveries, state):
                for each in deliveries:
                    self.targets[each[1].link].sender_settled([each], state)
            case Detached(link, is_closed) if link in self.targets:
                self.targets.pop(link).stop(is_closed=is_closed)
            case _:
                return False
        return True

    # ---- The client

    async def sender(
        self, topic: Topic | None = None, name: str = "out", *, queue: int | None = None,
        tag: str | None = None, **options: Any,
    ) -> OutgoingLink:  # fmt: skip
        """Attach a link to a topic, by default "orders"; with name "relay" to the anonymous one."""
        topic = topic or self.store.table.get("orders")
        self.wanted = None if name == "relay" else Destination(topic, queue, tag)
        link, _ = self.pair.sender(self.session, name, **options)
        self.pair.pump()
        return link

    def target(self, link: OutgoingLink) -> PublishTarget:
        """Return the target of a link of the client."""
        (found,) = (each for at, each in self.targets.items() if at.name == link.name)
        return found

    async def publish(self, link: OutgoingLink, messages: list[bytes], **options: Any) -> list[Any]:
        """Send messages; return their outcomes, in order, when all have one."""
        ids = [link.send(each, **options) for each in messages]
        self.pair.pump()
        return await self.outcomes(ids)

    async def outcomes(self, ids: list[int]) -> list[Any]:
        """Wait until all of these deliveries have an outcome; return the outcomes."""
        found: dict[int, Any] = {}
        async with asyncio.timeout(10):
            while True:
                self.pair.pump()
                for event in self.pair.client.take(Disposed):
                    found |= {each: event.state for each, _ in event.deliveries}
                if len(found) >= len(ids):
                    return [found[each] for each in ids]
                await asyncio.sleep(0)

    async def settled(self, link: OutgoingLink) -> None:
        """Wait until no message of a link is unconfirmed."""
        await until(lambda: self.target(link).unconfirmed == 0)
        self.pair.pump()

    async def rows(self, topic: str = "orders", queue: int = 0) -> list[tuple[Batch, int]]:
        """Return the stored messages of a queue: their batches and rows."""
        found = await self.store.reading.read(
            self.store.table.get(topic), queue, 0, max_messages=10_000, max_bytes=64 * MIB
        )
        return [(piece.batch, row) for piece in found.slices for row in piece.rows]

    async def bodies(self, topic: str = "orders", queue: int = 0) -> list[bytes]:
        """Return the bodies of a queue."""
        return [batch.body(row) for batch, row in await self.rows(topic, queue)]


@asynccontextmanager
async def publishing(
    *, orders: int = 1, http: dict[str, Any] | None = None, **config: Any
) -> AsyncIterator[Publishing]:
    """Run a broker with a topic "orders" of this many queues, and a client. `config` are fields of
    AmqpConfig, `http` fields of HttpConfig."""
    async with running_api(orders=orders, **(http or {})) as api:
        yield Publishing(api, **config)


ACCEPTED = Accepted()


def send_all(link: OutgoingLink, message: bytes = data(b"x"), **options: Any) -> list[int]:
    """Send messages until the credit is used up; return their ids."""
    return [link.send(message, **options) for _ in range(link.credit)]
