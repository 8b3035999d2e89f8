"""A client's connection to the AMQP part of a broker in this process, without sockets.

The client's frames are made before the measurement, so that only the broker's work is measured. The
storage is real.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from holdfast.amqp.config import AmqpConfig
from holdfast.amqp.engine.connection import Connection, ConnectionSettings
from holdfast.amqp.engine.events import Attached, Begun, Opened, Received, SaslStarted
from holdfast.amqp.engine.incoming_link import IncomingLink
from holdfast.amqp.engine.link import Link
from holdfast.amqp.nodes.node import BrokerParts, ReplyLink
from holdfast.amqp.nodes.publish_target import Destination, PublishTarget
from holdfast.amqp.nodes.temporary import TemporaryNodes
from holdfast.amqp.wire.conditions import AmqpError
from holdfast.amqp.wire.fast_transfer import TransferEncoder
from holdfast.amqp.wire.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, frame
from holdfast.amqp.wire.performatives import (
    Attach,
    Begin,
    Open,
    SaslInit,
    Source,
    Target,
    encode_composite,
)
from holdfast.commitlog.ageing_clock import wall_clock_us
from holdfast.commitlog.disk.disk import Disk
from holdfast.config import Config
from holdfast.consumequeue.config import TopicsConfig
from holdfast.consumequeue.topics import Topic
from holdfast.groups.config import GroupsConfig
from holdfast.groups.service import GroupService
from holdfast.holdservice.pull_request_hold_service import PullRequestHoldService
from holdfast.http_api.access.authorization import Access
from holdfast.http_api.access.grants import ANONYMOUS, Principal
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.limits.rate_limiter import PublishLimiter
from holdfast.http_api.metrics import TopicCounters
from holdfast.storage.storage import Storage, StorageEvents

_MAX_FRAME_BYTES = 65_536
#: The distance between the delivery-ids of two links.
_IDS = 2**28


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
    def stored(self) -> int:
        """How many messages have an outcome."""
        assert self.target is not None
        return self._at // self.frame_bytes - self.target.unconfirmed

    def take(self, messages: int) -> bytes:
        """Return the frames of the next messages."""
        start, self._at = self._at, self._at + messages * self.frame_bytes
        self.left -= messages
        return self._octets[start : self._at]


class LocalBroker:
    """The broker's end of one connection; implements Peer."""

    def __init__(self, parts: BrokerParts, links: dict[str, tuple[Topic, LocalLink]]) -> None:
        self.parts = parts
        self.principal: Principal = ANONYMOUS
        self.client = "bench"
        self.container_id = "bench"
        self.remote = "127.0.0.1"
        self.replies: list[ReplyLink] = []
        self.has_room = True
        self.changed = asyncio.Event()
        """Set when outcomes or credit were given."""
        self._links = links
        settings = ConnectionSettings("broker", incoming_window=100_000)
        self._connection = Connection(settings, is_server=True)
        self._session: Any = None
        self.receive(_handshake(links))

    def flush(self) -> None:
        self._connection.take_output()
        self.changed.set()

    def detach(self, link: Link, error: AmqpError) -> None:
        raise error

    def receive(self, octets: bytes) -> None:
        """Process bytes of the client."""
        connection = self._connection
        for event in connection.receive_data(octets):
            if type(event) is Received:
                event.link.context.deliveries_arrived(event.deliveries)
            elif type(event) is SaslStarted:
                connection.sasl_outcome(0)
            elif type(event) is Opened:
                connection.open()
            elif type(event) is Begun:
                self._session = event.session
                connection.answer_begin(event.session)
            elif type(event) is Attached:
                self._attach(cast("IncomingLink", event.link))
        connection.take_output()

    def _attach(self, link: IncomingLink) -> None:
        topic, local = self._links[link.name]
        assert link.remote is not None
        source, target = link.remote.source, link.remote.target
        link.send_attach(Attach(link.name, link.handle, True, source=source, target=target))
        local.link = link
        local.target = link.context = PublishTarget(self, self._session, link, Destination(topic))
        local.target.start()


def _handshake(links: dict[str, tuple[Topic, LocalLink]]) -> bytes:
    attaches = [
        Attach(name, handle, False, source=Source("here"), target=Target(name))
        for handle, name in enumerate(links)
    ]
    return b"".join((
        SASL_HEADER,
        frame(0, encode_composite(SaslInit("ANONYMOUS", b"")), SASL_FRAME),
        AMQP_HEADER,
        frame(0, encode_composite(Open("bench"))),
        frame(0, encode_composite(Begin(None, 0, 2**31 - 1, 2**31 - 1))),
        *[frame(0, encode_composite(each._replace(initial_delivery_count=0))) for each in attaches],
    ))  # fmt: skip


@asynccontextmanager
async def local_broker(
    links: dict[str, tuple[str, LocalLink]], *, credit: int, disk: Disk | None = None
) -> AsyncIterator[LocalBroker]:
    """Open a storage with a topic for each name in `links`, each with its durability; yield the
    broker, to which the client has attached a link for each topic."""
    with tempfile.TemporaryDirectory() as folder:
        storage = Storage(
            Config(data_dir=Path(folder) / "data"), StorageEvents(_fail, []), disk=disk
        )
        storage.lock()
        await storage.open()
        try:
            topics = {}
            for name, (durability, link) in links.items():
                topic, _ = await storage.store.topics.create(
                    name, queues=1, fields={"durability": durability}
                )
                topics[name] = (topic, link)
            counters = TopicCounters()
            parts = BrokerParts(
                AmqpConfig(publish_credit=credit),
                storage.store,
                cast("GroupService", None),
                cast("PullRequestHoldService", None),
                Access(),
                TopicsConfig(),
                GroupsConfig(),
                PublishLimiter(HttpConfig()),
                lambda name: counters,
                wall_clock_us,
                cast("TemporaryNodes", None),
            )
            yield LocalBroker(parts, topics)
        finally:
            await storage.close()


def _fail(error: Exception) -> None:
    raise error
