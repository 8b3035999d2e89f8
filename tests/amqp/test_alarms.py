"""Alarms stop publishers only: windows, consumers, new connections, and floods."""

import asyncio
from pathlib import Path

import pytest

from holdfast.amqp.engine.connection import ConnectionSettings
from holdfast.amqp.engine.events import Ended
from holdfast.amqp.wire.frames import frame
from holdfast.amqp.wire.performatives import Accepted, Transfer, encode_composite
from holdfast.commitlog.errors import DiskLow
from holdfast.storage import alarms
from tests.amqp.broker import amqp_broker, figure
from tests.amqp.client import TIMEOUT_S, amqp_client, data_message
from tests.amqp.test_listener import port_of


async def test_alarms_stop_publishers_only_until_all_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A48
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        session, other = await client.session(), await client.session()
        sender = await client.sender(session, "orders")
        bodies = [b"before %02d" % number for number in range(20)]
        await client.outcomes(await client.send(sender, *map(data_message, bodies)))
        monkeypatch.setattr(alarms, "memory_use", lambda limit: (2, 1))
        monkeypatch.setattr(alarms, "disk_low", lambda free, least: DiskLow("data", 1, 2))
        await client.until(lambda: not session.windows.outgoing_room, "closed window")
        assert other.windows.outgoing_room == 400

        # Consumers continue: on the session of a publisher, and on a new connection.
        await client.receiver(session, "orders", credit=10)
        got = await client.receive(10)
        session.dispose(got[0].id, got[-1].id, Accepted(), settled=True)
        client.write()
        async with amqp_client(port_of(broker), ConnectionSettings("second")) as second:
            begun = await second.session()
            await second.receiver(begun, "orders", credit=10)
            got += await second.receive(10)
            assert [each.message[-9:] for each in got] == bodies
            begun.dispose(got[10].id, got[-1].id, Accepted(), settled=True)
            await second.sender(begun, "orders")
            await second.until(lambda: not begun.windows.outgoing_room, "closed window")

        # A client that sends nevertheless loses its session, and nothing of it is stored.
        async with amqp_client(port_of(broker), ConnectionSettings("flooding")) as flooding:
            begun = await flooding.session()
            link = await flooding.sender(begun, "orders")
            await flooding.until(lambda: not begun.windows.outgoing_room, "closed window")
            for number in range(5_000):
                transfer = Transfer(link.handle, number, b"t", 0, settled=True)
                octets = encode_composite(transfer) + data_message(b"flood")
                flooding.transport.write(frame(begun.channel, octets))
            ended = await flooding.next(Ended)
            assert ended.error
            assert ended.error.condition == "amqp:session:window-violation"
            await flooding.receiver(await flooding.session(), "orders", "in")

        monkeypatch.setattr(alarms, "memory_use", lambda limit: (0, 1))
        await logged(caplog, "the memory alarm has ended")
        await client.session()  # a round trip
        assert not session.windows.outgoing_room
        monkeypatch.setattr(alarms, "disk_low", lambda free, least: None)
        await client.until(lambda: session.windows.outgoing_room == 400, "open window")
        await client.outcomes(await client.send(sender, data_message(b"after")))
        await client.receiver(other, "orders", "all", credit=5_000)
        assert [each.message[-5:] for each in await client.receive(1)] == [b"after"]
        assert await figure(broker, "window_closures_total") == 3


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while text not in caplog.text:
            await asyncio.sleep(0.05)
