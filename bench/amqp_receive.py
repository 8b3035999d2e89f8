"""The processor time of one message received over AMQP and accepted, without sockets.

    python -m bench.amqp_receive [--json] [--messages 100000] [--rounds 5]

The client grants credit and accepts what has arrived with one disposition for each grant. The
engine, the source, a group and a real storage do their work; the output is thrown away. All threads
of the process count: what a broker spends for the message, except for writing its bytes to the
socket.
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
from holdfast.amqp.engine.events import (
    Attached,
    Begun,
    CreditChanged,
    Disposed,
    Opened,
    SaslStarted,
)
from holdfast.amqp.engine.link import Link
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.nodes.addresses import parse_address
from holdfast.amqp.nodes.copied_source import CopiedSource
from holdfast.amqp.nodes.leased_source import LeasedSource
from holdfast.amqp.nodes.node import BrokerParts
from holdfast.amqp.nodes.terminus import FromGroup, read_source
from holdfast.amqp.wire.conditions import AmqpError
from holdfast.amqp.wire.fast_disposition import encode_disposition
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
from holdfast.amqp.wire.types import Described, Symbol
from holdfast.commitlog.ageing_clock import wall_clock_us
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.config import Config
from holdfast.consumequeue.config import TopicsConfig
from holdfast.consumequeue.message_store import MessageStore
from holdfast.groups.config import GroupsConfig
from holdfast.groups.service import GroupService
from holdfast.groups.settings import GroupSettings, Subscription
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.holdservice.pull_request_hold_service import PullRequestHoldService
from holdfast.http_api.access.authorization import Access
from holdfast.http_api.access.grants import ANONYMOUS, Principal
from holdfast.storage.storage import Storage, StorageEvents

_BODY_BYTES = 100
_BATCH = 256
_BAR_US = 14.0
_FIRST = {"s": Described(Symbol("rabbitmq:stream-offset-spec"), "first")}
_CASES: dict[str, tuple[Source, int]] = {
    "leased, accepted": (Source("/groups/g"), 1_000),
    "leased, settled when sent": (Source("/groups/g"), 1_000),
    "copied, accepted": (Source("/topics/bench", filter=_FIRST), 1_000),
    "leased, accepted, credit 100": (Source("/groups/g"), 100),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Processor time a message received over AMQP.")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    report(rows(options.messages, options.rounds), as_json=options.json)


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """Measure each case in turns; yield a row for each case."""
    found: dict[str, list[float]] = {name: [] for name in _CASES}
    for _ in range(rounds):
        for name, times in found.items():
            times.append(uvloop.run(_measure(name, messages)))
    for name, times in found.items():
        bar = _BAR_US if name == "leased, accepted" else None
        yield Row("B5", f"{name}, over AMQP", "written", "cpu us", times, _BODY_BYTES, at_most=bar)


class _Broker:
    """The broker's end of one connection; implements Peer."""

    def __init__(self, parts: BrokerParts) -> None:
        self.parts = parts
        self.principal: Principal = ANONYMOUS
        self.client = "bench"
        self.container_id = "bench"
        self.has_room = True
        self.connection = Connection(ConnectionSettings("broker"), is_server=True)
        self.link: OutgoingLink | None = None
        self.source: LeasedSource | CopiedSource
        self.changed = asyncio.Event()
        """Set when there is output."""

    def flush(self) -> None:
        self.connection.take_output()
        self.changed.set()

    def detach(self, link: Link, error: AmqpError) -> None:
        raise error

    def receive(self, octets: bytes) -> None:
        connection = self.connection
        for event in connection.receive_data(octets):
            kind = type(event)
            if kind is CreditChanged:
                self.source.credit_changed()
            elif kind is Disposed:
                disposed = cast("Disposed", event)
                self.source.disposed(
                    disposed.deliveries, disposed.state, is_settled=disposed.is_settled
                )
            elif kind is SaslStarted:
                connection.sasl_outcome(0)
            elif kind is Opened:
                connection.open()
            elif kind is Begun:
                connection.answer_begin(cast("Begun", event).session)
            elif kind is Attached:
                self.link = cast("OutgoingLink", cast("Attached", event).link)
        connection.take_output()

    async def answer(self) -> None:
        link = self.link
        assert link is not None and link.remote is not None
        source = link.remote.source
        assert source is not None
        wanted = read_source(source, parse_address(source.address))
        make: Any = LeasedSource if isinstance(wanted, FromGroup) else CopiedSource
        self.source = make(self, link, wanted)
        await self.source.start()
        link.send_attach(
            Attach(link.name, link.handle, False, source=wanted.answer, initial_delivery_count=0)
        )
        self.connection.take_output()


async def _measure(name: str, messages: int) -> float:
    """Receive; return the processor time in microseconds per message."""
    source, credit = _CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        storage = Storage(Config(data_dir=Path(folder) / "data"), StorageEvents(_fail, []))
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
        try:
            await _publish(store, messages)
            await groups.put_group(
                "g",
                GroupSettings(
                    topics={"bench": Subscription()},
                    max_in_flight=10_000,
                    max_in_flight_per_member=10_000,
                ),
            )
            parts = BrokerParts(
                config=AmqpConfig(),
                store=store,
                groups=groups,
                hold=hold,
                access=Access(),
                topics_config=TopicsConfig(),
                groups_config=GroupsConfig(),
                publish_limiter=cast("Any", None),
                topic_counters=cast("Any", None),
                wall_us=wall_clock_us,
                temporary=cast("Any", None),
            )
            broker = _Broker(parts)
            is_settled = name == "leased, settled when sent"
            broker.receive(_handshake(source, is_settled=is_settled))
            await broker.answer()
            used_s = await _receive(broker, messages, credit, is_settled=is_settled)
            broker.source.stop(is_closed=True)
            await broker.source.finish()
            return used_s / messages * 1e6
        finally:
            await groups.stop()
            await storage.close()


async def _publish(store: MessageStore, messages: int) -> None:
    topic, _ = await store.topics.create("bench", queues=1, fields={"durability": "written"})
    body = bytes(_BODY_BYTES)
    batch = Batch.decode(encode_batch([body] * _BATCH, queue_id=0))
    for _ in range(-(-messages // _BATCH)):
        await store.publishing.publish(topic, [batch])


def _fail(error: Exception) -> None:
    raise error


def _handshake(source: Source, *, is_settled: bool) -> bytes:
    attach = Attach("in", 0, True, 1 if is_settled else 2, source=source, target=Target("bench"))
    return b"".join((
        SASL_HEADER,
        frame(0, encode_composite(SaslInit("ANONYMOUS", b"")), SASL_FRAME),
        AMQP_HEADER,
        frame(0, encode_composite(Open("bench"))),
        frame(0, encode_composite(Begin(None, 0, 2**31 - 1, 2**31 - 1))),
        frame(0, encode_composite(attach)),
    ))  # fmt: skip


async def _receive(broker: _Broker, messages: int, credit: int, *, is_settled: bool) -> float:
    """Receive and accept; return the processor time in seconds."""
    link = broker.link
    assert link is not None
    received = 0
    before_s = time.process_time()
    while received < messages:
        window = 2**31 - 1
        flow = Flow(received, window, 0, window, handle=0, delivery_count=received)
        broker.receive(frame(0, encode_composite(flow._replace(link_credit=credit))))
        while link.credit:
            if received + credit - link.credit >= messages:
                break
            broker.changed.clear()
            await broker.changed.wait()
        last = received + credit - link.credit - 1
        if not is_settled:
            accepted = Disposition(True, received, last, True, Accepted())
            broker.receive(frame(0, encode_disposition(accepted)))
        received = last + 1
    return time.process_time() - before_s


if __name__ == "__main__":
    main()
