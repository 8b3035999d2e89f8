"""What links do on a real broker: attach, refusals, alarms, defects, clients that do not read."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.amqp.engine.connection import ConnectionSettings
from holdfast.amqp.nodes.publish_target import PublishTarget
from holdfast.amqp.wire.frames import frame
from holdfast.amqp.wire.performatives import (
    Accepted,
    Attach,
    Begin,
    Coordinator,
    Detach,
    Open,
    Source,
    Target,
    encode_composite,
)
from tests.amqp.broker import amqp_broker, figure
from tests.amqp.client import TIMEOUT_S, AmqpClient, amqp_client, data_message
from tests.amqp.test_listener import port_of, raw_frames


@pytest.mark.parametrize(
    ("is_sender", "terminus", "condition"),
    [
        (True, Target("/groups/g"), "amqp:not-allowed"),
        (True, Target("/management"), "amqp:not-implemented"),
        (True, Target("/nonsense/at/all"), "amqp:invalid-field"),
        (True, Target(""), "amqp:invalid-field"),
        (True, Target(7), "amqp:invalid-field"),
        (True, Target(dynamic=True), "amqp:not-implemented"),
        (True, Target("/topics/orders/queues/9"), "amqp:not-found"),
        (True, Coordinator(), "amqp:not-implemented"),
        (False, None, "amqp:not-found"),
        (False, Source(dynamic=True), "amqp:not-implemented"),
    ],
)
async def test_a_refused_link_is_attached_without_a_terminus_and_detached(
    tmp_path: Path, is_sender: bool, terminus: Any, condition: str
) -> None:
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        session = await client.session()
        link: Any
        if is_sender:
            link = await client.sender(session, None, target=terminus)
            assert link.remote.target is None
        else:
            link = await client.receiver(session, "x", source=terminus)
            assert link.remote.source is None
        assert (await client.detached(link)).condition == condition
        await client.send(await client.sender(session, "orders"), data_message(b"still served"))


@pytest.mark.parametrize("limit", ["max_total_links", "max_client_links"])
async def test_the_number_of_links_is_limited(tmp_path: Path, limit: str) -> None:
    async with (
        amqp_broker(tmp_path, **{limit: 2}) as broker,
        amqp_client(port_of(broker)) as client,
    ):
        session = await client.session()
        links = [await client.sender(session, "orders", f"{index}") for index in range(3)]
        assert (await client.detached(links[2])).condition == "amqp:resource-limit-exceeded"
        links[0].detach()
        await client.detached(links[0])
        await client.sender(await client.session(), "orders", "again")
        assert await figure(broker, "links") == 2


async def test_a_handle_above_max_links_closes_the_connection(tmp_path: Path) -> None:
    async with (
        amqp_broker(tmp_path, max_links=1) as broker,
        amqp_client(port_of(broker)) as client,
    ):
        session = await client.session()
        await client.sender(session, "orders")
        attach = Attach("x", 1, False, source=Source(), target=Target("orders"))
        client.transport.write(frame(session.channel, encode_composite(attach)))
        assert (await client.closed()).condition == "amqp:connection:framing-error"


# -- defects, and clients that do not read ---------------------------------------------------------


async def test_a_defect_closes_only_the_connection_that_meets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    take = PublishTarget.deliveries_arrived

    def fail(target: PublishTarget, deliveries: Any) -> None:
        if deliveries[0].message.endswith(b"poison"):
            raise ZeroDivisionError
        take(target, deliveries)

    monkeypatch.setattr(PublishTarget, "deliveries_arrived", fail)
    async with (
        amqp_broker(tmp_path) as broker,
        amqp_client(port_of(broker)) as client,
        amqp_client(port_of(broker), ConnectionSettings("other")) as other,
    ):
        link = await client.sender(await client.session(), "orders")
        sender = await other.sender(await other.session(), "orders")
        await client.send(link, data_message(b"poison"))
        assert (await client.closed()).condition == "amqp:internal-error"
        await other.outcomes(await other.send(sender, data_message(b"")))
        assert "ZeroDivisionError" in caplog.text


async def test_the_broker_stops_reading_from_a_client_that_does_not_read(tmp_path: Path) -> None:
    # A51: the client sends 16 MB of frames, which need as many bytes of answers
    attach = Attach("x" * 4000, 5, False, source=Source(), target=Target("orders"))
    pair = [(0, attach), (0, Detach(5, closed=True))]
    data = raw_frames([(0, Open("c")), (0, Begin(None, 0, 9, 9)), *(pair * 4000)])
    async with amqp_broker(tmp_path) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker))
        writer.write(data)
        async with asyncio.timeout(TIMEOUT_S):
            before = -1.0
            while (now := await figure(broker, "bytes_in_total")) != before:
                before = now
                await asyncio.sleep(0.2)
        assert now < len(data) - 1024 * 1024  # the broker does not read
        async with amqp_client(port_of(broker), ConnectionSettings("other")) as other:
            await other.session()
        async with asyncio.timeout(TIMEOUT_S):
            await reader.readexactly(4000 * 4000)
        writer.close()


async def test_a_clean_stop_answers_outstanding_publishes(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        sender = await client.sender(await client.session(), "orders")
        ids = await client.send(sender, *[data_message(b"") for _ in range(100)])
        async with asyncio.timeout(TIMEOUT_S):
            while await figure(broker, "messages_in_total") < 100:
                await asyncio.sleep(0)
        stopping = asyncio.create_task(broker.stop())
        assert set((await client.outcomes(ids)).values()) == {Accepted()}
        assert (await client.closed()).condition == "amqp:connection:forced"
        await stopping


def handshake() -> bytes:
    """Return the bytes with which a client opens a connection and begins a session."""
    client = AmqpClient()
    client.engine.sasl_init("ANONYMOUS", b"", None)
    client.engine.open()
    return client.engine.take_output()


async def test_connections_that_stop_at_every_byte_of_the_handshake_end(tmp_path: Path) -> None:
    async with (
        amqp_broker(tmp_path, handshake_timeout_ms=500) as broker,
        amqp_client(port_of(broker)) as client,
    ):
        data = handshake()
        sockets = []
        for size in range(len(data)):
            for _ in range(3):
                _, writer = await asyncio.open_connection("127.0.0.1", port_of(broker))
                writer.write(data[:size])
                sockets.append(writer)
        sender = await client.sender(await client.session(), "orders")
        await client.outcomes(await client.send(sender, data_message(b"others are served")))
        async with asyncio.timeout(TIMEOUT_S):
            while await figure(broker, "connections") > 1:
                await asyncio.sleep(0.1)
        for writer in sockets:
            writer.close()
