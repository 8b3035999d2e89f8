"""The processor time of one message published over AMQP, without sockets.

    python -m bench.amqp_publish [--json] [--messages 200000] [--rounds 5]

The frames of a client are made before. The engine, the target and a real storage process them in
reads of at most 256 KiB, as far as the credit allows. All threads of the process count: what a
broker spends for the message, except for reading its bytes from the socket.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import uvloop

from bench.rows import Row, report
from holdfast.amqp.config import AmqpConfig
from holdfast.amqp.engine.connection import Connection, ConnectionSettings
from holdfast.amqp.engine.events import Attached, Begun, Opened, Received, SaslStarted
from holdfast.amqp.engine.incoming_link import IncomingLink
from holdfast.amqp.engine.link import Link
from holdfast.amqp.nodes.node import BrokerParts
from holdfast.amqp.nodes.publish_target import Destination, PublishTarget
from holdfast.amqp.wire.conditions import AmqpError
from holdfast.amqp.wire.fast_transfer import TransferEncoder
from holdfast.amqp.wire.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, frame
from holdfast.amqp.wire.performatives import (
    Attach,
    Begin,
    Header,
    Open,
    Properties,
    SaslInit,
    Source,
    Target,
    encode_composite,
)
from holdfast.amqp.wire.types import Byte, Described, Symbol, ULong, encode
from holdfast.commitlog.ageing_clock import wall_clock_us
from holdfast.config import Config
from holdfast.consumequeue.config import TopicsConfig
from holdfast.groups.config import GroupsConfig
from holdfast.groups.service import GroupService
from holdfast.holdservice.pull_request_hold_service import PullRequestHoldService
from holdfast.http_api.access.authorization import Access
from holdfast.http_api.access.grants import ANONYMOUS, Principal
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.limits.rate_limiter import PublishLimiter
from holdfast.http_api.metrics import TopicCounters
from holdfast.storage.storage import Storage, StorageEvents

_BODY_BYTES = 100
_READ_BYTES = 256 * 1024
_BAR_US = 8.0

_DATA = encode(Described(ULong(0x75), bytes(_BODY_BYTES)))
#: A BytesMessage as qpid-jms sends it.
_JMS = (
    encode_composite(Header(durable=True))
    + encode(
        Described(
            ULong(0x72),
            {Symbol("x-opt-jms-dest"): Byte(0), Symbol("x-opt-jms-msg-type"): Byte(3)},
        )
    )
    + encode_composite(
        Properties(
            "ID:9b2c2d9e-6a0e-4c1c-8f7e-2d3e4f5a6b7c:1:1:1-1",
            to="bench",
            content_type="application/octet-stream",
            creation_time=1_700_000_000_000,
        )
    )
    + _DATA
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Processor time a message published over AMQP.")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    report(rows(options.messages, options.rounds), as_json=options.json)


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """Measure each case in turns; yield a row for each case."""
    cases: dict[tuple[str, str, int], list[float]] = {
        (name, durability, credit): []
        for name, durability, credit in [
            ("data", "written", 170),
            ("data", "written", 1_000),
            ("data", "fsync", 1_000),
            ("JMS", "written", 1_000),
        ]
    }
    for _ in range(rounds):
        for (name, durability, credit), found in cases.items():
            message = _JMS if name == "JMS" else _DATA
            found.append(uvloop.run(_measure(message, messages, durability, credit)))
    for (name, durability, credit), found in cases.items():
        bar = _BAR_US if name == "data" else None
        case = f"{name} over AMQP, credit {credit}"
        yield Row("", case, durability, "cpu us", found, _BODY_BYTES, at_most=bar)


class _Broker:
    """The broker's end of one connection; implements Peer."""

    def __init__(self, parts: BrokerParts, destination: Destination) -> None:
        self.parts = parts
        self.principal: Principal = ANONYMOUS
        self.client = "bench"
        self.container_id = "bench"
        self.has_room = True
        self.connection = Connection(ConnectionSettings("broker"), is_server=True)
        self.target: PublishTarget | None = None
        self.link: IncomingLink | None = None
        self.changed = asyncio.Event()
        """Set when outcomes or credit were given."""
        self._destination = destination
        self._session: Any = None

    def flush(self) -> None:
        self.connection.take_output()
        self.changed.set()

    def detach(self, link: Link, error: AmqpError) -> None:
        raise error

    def receive(self, octets: bytes | memoryview) -> None:
        connection = self.connection
        for event in connection.receive_data(octets):
            if type(event) is Received:
                assert self.target is not None
                self.target.deliveries_arrived(event.deliveries)
            elif type(event) is SaslStarted:
                connection.sasl_outcome(0)
            elif type(event) is Opened:
                connection.open()
            elif type(event) is Begun:
                self._session = event.session
                connection.answer_begin(event.session)
            elif type(event) is Attached:
                link = self.link = cast("IncomingLink", event.link)
                remote = link.remote
                assert remote is not None
                link.send_attach(
                    Attach(link.name, link.handle, True, source=remote.source, target=remote.target)
                )
                self.target = PublishTarget(self, self._session, link, self._destination)
                self.target.start()
        connection.take_output()


async def _measure(message: bytes, messages: int, durability: str, credit: int) -> float:
    """Publish; return the processor time in microseconds per message."""
    with tempfile.TemporaryDirectory() as folder:
        config = Config(data_dir=Path(folder) / "data")
        storage = Storage(config, StorageEvents(_fail, []))
        storage.lock()
        await storage.open()
        try:
            topic, _ = await storage.store.topics.create(
                "bench", queues=1, fields={"durability": durability}
            )
            counters = TopicCounters()
            parts = BrokerParts(
                AmqpConfig(publish_credit=credit, incoming_window=4 * credit),
                storage.store,
                cast("GroupService", None),
                cast("PullRequestHoldService", None),
                Access(),
                TopicsConfig(),
                GroupsConfig(),
                PublishLimiter(HttpConfig()),
                lambda name: counters,
                wall_clock_us,
            )
            broker = _Broker(parts, Destination(topic))
            broker.receive(_handshake())
            return await _publish(broker, message, messages)
        finally:
            await storage.close()


def _fail(error: Exception) -> None:
    raise error


def _handshake() -> bytes:
    attach = Attach("out", 0, False, source=Source("here"), target=Target("bench"))
    return b"".join((
        SASL_HEADER,
        frame(0, encode_composite(SaslInit("ANONYMOUS", b"")), SASL_FRAME),
        AMQP_HEADER,
        frame(0, encode_composite(Open("bench"))),
        frame(0, encode_composite(Begin(None, 0, 2**31 - 1, 2**31 - 1))),
        frame(0, encode_composite(attach._replace(initial_delivery_count=0))),
    ))  # fmt: skip


async def _publish(broker: _Broker, message: bytes, messages: int) -> float:
    encoder = TransferEncoder(0, 0, 65_536)
    frames = [
        each
        for number in range(messages)
        for each in encoder.frames(number, number.to_bytes(4, "big"), False, message)
    ]
    size = len(frames[0])
    octets = b"".join(frames)
    del frames
    link, target = broker.link, broker.target
    assert link is not None and target is not None
    sent = 0
    before_s = time.process_time()
    while sent < messages:
        count = min(link.credit, _READ_BYTES // size, messages - sent)
        if count:
            broker.receive(octets[sent * size : (sent + count) * size])
            sent += count
            await asyncio.sleep(0)  # one read an iteration
        else:
            broker.changed.clear()
            await broker.changed.wait()
    await target.finish()
    assert target.unconfirmed == 0
    return (time.process_time() - before_s) / messages * 1e6


if __name__ == "__main__":
    main()
