"""A client's connection to the AMQP part of a broker in this process, without sockets.

The frames of published messages are made before the measurement, so that almost only the broker's
work is measured. The storage and the groups are real.
"""

import asyncio
import gc
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

from holdfast.amqp.config import AmqpConfig
from holdfast.amqp.engine.connection import Connection, ConnectionSettings
from holdfast.amqp.engine.events import (
    Attached,
    Begun,
    CreditChanged,
    Disposed,
    Opened,
    Received,
    SaslStarted,
)
from holdfast.amqp.engine.incoming_link import IncomingLink
from holdfast.amqp.engine.link import Link
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.nodes.addresses import parse_address
from holdfast.amqp.nodes.copied_source import CopiedSource
from holdfast.amqp.nodes.leased_source import LeasedSource
from holdfast.amqp.nodes.node import BrokerParts, ReplyLink
from holdfast.amqp.nodes.publish_target import Destination, PublishTarget
from holdfast.amqp.nodes.temporary import TemporaryNodes
from holdfast.amqp.nodes.terminus import FromGroup, read_source
from holdfast.amqp.wire.conditions import AmqpError
from holdfast.amqp.wire.fast_disposition import encode_disposition
from holdfast.amqp.wire.fast_transfer import TransferEncoder
from holdfast.amqp.wire.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, frame
from holdfast.amqp.wire.performatives import (
    Accepted,
    Attach,
    Begin,
    Disposition,
    Flow,
    Open,
    SaslInit,
    Source,
    Target,
    encode_composite,
)
from holdfast.cli.process.garbage_freezer import GarbageFreezer
from holdfast.commitlog.ageing_clock import wall_clock_us
from holdfast.commitlog.disk.disk import Disk, LinuxFile
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.config import Config
from holdfast.consumequeue.config import TopicsConfig
from holdfast.consumequeue.topics import Topic
from holdfast.groups.config import GroupsConfig
from holdfast.groups.service import GroupService
from holdfast.groups.settings import GroupSettings, Subscription
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.holdservice.pull_request_hold_service import PullRequestHoldService
from holdfast.http_api.access.authorization import Access
from holdfast.http_api.access.grants import ANONYMOUS, Principal
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.limits.rate_limiter import PublishLimiter
from holdfast.http_api.metrics import TopicCounters
from holdfast.storage.storage import Storage, StorageEvents

_MAX_FRAME_BYTES = 65_536
#: `fill_group` publishes so many messages at once.
_BATCH = 256
#: The distance between the delivery-ids of two links.
_IDS = 2**28
_WINDOW = 2**31 - 1


class LocalLink:
    """One link on which the client publishes: its frames, and how many were sent."""

    def __init__(self, handle: int, message: bytes, messages: int) -> None:
        encoder = TransferEncoder(0, handle, _MAX_FRAME_BYTES)
        first = handle * _IDS
        frames = [
            each
            for number in range(first, first + messages)
            for each in encoder.frames(number, number.to_bytes(4, "big"), False, message)
        ]
        self.frame_bytes = len(frames[0])
        self.left = messages
        self._octets = b"".join(frames)
        self._at = 0
        self.link: IncomingLink | None = None
        self.target: PublishTarget | None = None

    @property
    def credit(self) -> int:
        """How many messages the client may send now."""
        assert self.link is not None
        return min(self.link.credit, self.left)

    @property
    def sent(self) -> int:
        """How many messages the client has sent."""
        return self._at // self.frame_bytes

    @property
    def stored(self) -> int:
        """How many messages have an outcome."""
        assert self.target is not None
        return self.sent - self.target.unconfirmed

    def take(self, messages: int) -> bytes:
        """Return the frames of the next messages."""
        start, self._at = self._at, self._at + messages * self.frame_bytes
        self.left -= messages
        return self._octets[start : self._at]


class LocalReceiver:
    """One link on which the client receives, the only one of its session."""

    def __init__(self, handle: int, source: Source, *, is_settled: bool = False) -> None:
        self._source = source
        self.attach = Attach(
            "in", handle, True, 1 if is_settled else 2, source=source, target=Target("bench")
        )
        self.link: OutgoingLink | None = None
        self.node: LeasedSource | CopiedSource | None = None
        self.accepted = 0
        """How many messages the client has accepted."""
        self._granted = 0

    @property
    def received(self) -> int:
        """How many messages were sent to the client."""
        assert self.link is not None
        return self._granted - self.link.credit

    def grant(self, credit: int, sent: int = 0) -> bytes:
        """Return the flow that sets the credit. `sent` is how many messages the client has sent in
        the session."""
        received = self.received
        self._granted = received + credit
        handle = self.attach.handle
        flow = Flow(received, _WINDOW, sent, _WINDOW, handle=handle, delivery_count=received)
        return frame(0, encode_composite(flow._replace(link_credit=credit)))

    def accept(self) -> bytes:
        """Return the disposition that accepts all messages that were received."""
        first, self.accepted = self.accepted, self.received
        accepted = Disposition(True, first, self.accepted - 1, True, Accepted())
        return frame(0, encode_disposition(accepted))

    async def start(self, broker: "LocalBroker") -> None:
        """Make the node, and answer the attach."""
        link = self.link
        assert link is not None
        wanted = read_source(self._source, parse_address(self._source.address))
        make: Any = LeasedSource if isinstance(wanted, FromGroup) else CopiedSource
        self.node = link.context = make(broker, link, wanted)
        await self.node.start()
        link.send_attach(
            Attach(link.name, link.handle, False, source=wanted.answer, initial_delivery_count=0)
        )
        broker.flush()

    async def stop(self) -> None:
        """Detach, and leave the group."""
        assert self.node is not None
        self.node.stop(is_closed=True)
        await self.node.finish()


class LocalBroker:
    """The broker's end of one connection; implements Peer."""

    def __init__(
        self,
        parts: BrokerParts,
        links: dict[str, tuple[Topic, LocalLink]],
        receiver: LocalReceiver | None = None,
    ) -> None:
        """The client attaches these links. Then call `LocalReceiver.start` for the receiver."""
        self.parts = parts
        self.principal: Principal = ANONYMOUS
        self.client = "bench"
        self.container_id = "bench"
        self.remote = "127.0.0.1"
        self.replies: list[ReplyLink] = []
        self.has_room = True
        self.changed = asyncio.Event()
        """Set when outcomes or credit were given."""
        self._links, self._receiver = links, receiver
        settings = ConnectionSettings("broker", incoming_window=100_000)
        self._connection = Connection(settings, is_server=True)
        self._session: Any = None
        self.receive(_handshake(links, receiver))

    def flush(self) -> None:
        self._connection.take_output()
        self.changed.set()

    flush_now = flush

    def detach(self, link: Link, error: AmqpError | None) -> None:
        raise error or RuntimeError(f"{link.name} was detached")

    def receive(self, octets: bytes) -> None:
        """Process bytes of the client."""
        connection = self._connection
        for event in connection.receive_data(octets):
            if type(event) is Received:
                event.link.context.deliveries_arrived(event.deliveries)
            elif type(event) is CreditChanged:
                event.link.context.credit_changed()
            elif type(event) is Disposed:
                node = event.deliveries[0][1].link.context
                node.disposed(event.deliveries, event.state, is_settled=event.is_settled)
            elif type(event) is SaslStarted:
                connection.sasl_outcome(0)
            elif type(event) is Opened:
                connection.open()
            elif type(event) is Begun:
                self._session = event.session
                connection.answer_begin(event.session)
            elif type(event) is Attached:
                if isinstance(event.link, IncomingLink):
                    self._attach(event.link)
                else:
                    assert self._receiver is not None
                    self._receiver.link = cast("OutgoingLink", event.link)
        connection.take_output()

    def _attach(self, link: IncomingLink) -> None:
        topic, local = self._links[link.name]
        assert link.remote is not None
        source, target = link.remote.source, link.remote.target
        link.send_attach(Attach(link.name, link.handle, True, source=source, target=target))
        local.link = link
        local.target = link.context = PublishTarget(self, self._session, link, Destination(topic))
        local.target.start()


def _handshake(links: dict[str, tuple[Topic, LocalLink]], receiver: LocalReceiver | None) -> bytes:
    attaches = [
        Attach(name, handle, False, source=Source("here"), target=Target(name))
        for handle, name in enumerate(links)
    ]
    attaches = [each._replace(initial_delivery_count=0) for each in attaches]
    if receiver is not None:
        attaches.append(receiver.attach)
    return b"".join((
        SASL_HEADER,
        frame(0, encode_composite(SaslInit("ANONYMOUS", b"")), SASL_FRAME),
        AMQP_HEADER,
        frame(0, encode_composite(Open("bench"))),
        frame(0, encode_composite(Begin(None, 0, _WINDOW, _WINDOW))),
        *[frame(0, encode_composite(each)) for each in attaches],
    ))  # fmt: skip


@asynccontextmanager
async def local_parts(
    config: AmqpConfig, *, disk: Disk | None = None
) -> AsyncIterator[BrokerParts]:
    """Open a storage with its groups; yield the parts of a broker that links use. The garbage
    collector is set as in the process of a broker."""
    with tempfile.TemporaryDirectory() as folder, _freezing():
        storage = Storage(
            Config(data_dir=Path(folder) / "data"), StorageEvents(_fail, []), disk=disk
        )
        storage.lock()
        store = await storage.open()
        hold = PullRequestHoldService(
            HoldServiceConfig(), max_offset=store.reading.max_offset, scan=store.reading.scan_hot
        )
        groups = GroupService(
            store,
            storage.groups,
            GroupsConfig(),
            hold=hold,
            ageing_us=storage.ageing.now_us,
            wall_us=wall_clock_us,
            passed_s=time.monotonic,
        )
        await groups.start()
        counters = TopicCounters()
        try:
            yield BrokerParts(
                config,
                store,
                groups,
                hold,
                Access(),
                TopicsConfig(),
                GroupsConfig(),
                PublishLimiter(HttpConfig()),
                lambda name: counters,
                wall_clock_us,
                cast("TemporaryNodes", None),
            )
        finally:
            await groups.stop()
            await storage.close()


@asynccontextmanager
async def local_broker(
    links: dict[str, tuple[str, LocalLink]], *, credit: int, disk: Disk | None = None
) -> AsyncIterator[LocalBroker]:
    """Open a storage with a topic for each name in `links`, each with its durability; yield the
    broker, to which the client has attached a link for each topic."""
    async with local_parts(AmqpConfig(publish_credit=credit), disk=disk) as parts:
        yield LocalBroker(parts, await make_topics(parts, links))


async def make_topics(
    parts: BrokerParts, links: dict[str, tuple[str, LocalLink]]
) -> dict[str, tuple[Topic, LocalLink]]:
    """Make a topic of one queue for each name in `links`, each with its durability."""
    found = {}
    for name, (durability, link) in links.items():
        topic, _ = await parts.store.topics.create(
            name, queues=1, fields={"durability": durability}
        )
        found[name] = (topic, link)
    return found


async def fill_group(parts: BrokerParts, messages: int, body_bytes: int) -> None:
    """Make the topic `bench` and the group `g` on it, and publish messages to the topic."""
    topic, _ = await parts.store.topics.create("bench", queues=1, fields={"durability": "written"})
    batch = Batch.decode(encode_batch([bytes(body_bytes)] * _BATCH, queue_id=0))
    for _ in range(-(-messages // _BATCH)):
        await parts.store.publishing.publish(topic, [batch])
    settings = GroupSettings(
        topics={"bench": Subscription()}, max_in_flight=10_000, max_in_flight_per_member=10_000
    )
    await parts.groups.put_group("g", settings)


def slow_down_syncs(seconds: float) -> None:
    """Make each sync of the log in this process take this much longer."""
    sync = LinuxFile.sync

    def slow(file: LinuxFile) -> None:
        time.sleep(seconds)
        sync(file)

    LinuxFile.sync = slow  # type: ignore[assignment, method-assign]


@contextmanager
def _freezing() -> Iterator[None]:
    """Let the garbage collector work as in the process of a broker. Without this, it visits the
    objects of all imports again and again, which takes a quarter of a message's time."""
    freezer = GarbageFreezer(lambda: 0)
    freezer.start()
    try:
        yield
    finally:
        freezer.stop()
        gc.unfreeze()


def _fail(error: Exception) -> None:
    raise error
