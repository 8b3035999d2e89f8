"""Credit on the sockets of a real broker: stops, turns, slow targets and large messages."""

import asyncio
from pathlib import Path

import pytest

from holdfast.amqp.engine.connection import ConnectionSettings
from holdfast.amqp.engine.events import Received
from holdfast.amqp.wire.performatives import Accepted
from holdfast.client import AsyncClient
from tests.amqp.broker import amqp_broker, figure
from tests.amqp.client import TIMEOUT_S, amqp_client, data_message
from tests.amqp.test_listener import port_of
from tests.support.damage.standing_syncs import StandingSyncs


async def test_after_a_stop_nothing_arrives_until_the_client_resumes(tmp_path: Path) -> None:
    # A30, A31: a window of 100 frames limits what is on its way when the client stops
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        session = await client.session()
        sender = await client.sender(session, "orders")
        bodies = [b"%03d" % index for index in range(300)]
        await client.outcomes(await client.send(sender, *map(data_message, bodies)))
        receiver = await client.receiver(session, "orders", credit=20)
        received = await client.receive(20)
        client.transport.pause_reading()
        session.windows.incoming_size = 100
        receiver.grant(280)
        client.write()
        async with asyncio.timeout(TIMEOUT_S):
            while await figure(broker, "messages_out_total") != 120:
                await asyncio.sleep(0.02)
        setattr(receiver, "available", None)  # noqa: B010 - mypy would think that it stays None
        receiver.grant(0, echo=True)
        client.write()
        client.transport.resume_reading()
        await client.until(lambda: receiver.available is not None, "answer to the echo")
        received += await client.receive(100)  # they arrived before the answer
        assert len(received) == 120
        assert (receiver.available, receiver.credit) == (180, 0)
        session.set_incoming_window(1_000)
        client.write()
        await client.session()  # a round trip
        assert await figure(broker, "messages_out_total") == 120
        assert not [each for each in client.events if isinstance(each, Received)]
        receiver.grant(300)
        received += await client.receive(180)
        assert [each.message[-3:] for each in received] == bodies
        assert receiver.credit == 120


async def test_what_a_publisher_says_of_its_backlog_changes_nothing(tmp_path: Path) -> None:
    # A40
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        session = await client.session()
        sender = await client.sender(session, "orders")
        await client.until(lambda: sender.credit, "credit")
        before = sender.credit
        sender.available = 99
        sender.send_flow()
        await client.session()  # a round trip
        assert sender.credit == before
        await client.outcomes(await client.send(sender, data_message(b"")))


async def test_links_of_a_session_take_turns_with_a_small_window(tmp_path: Path) -> None:
    # A43
    settings = ConnectionSettings("client", incoming_window=4)
    async with (
        amqp_broker(tmp_path) as broker,
        amqp_client(port_of(broker), settings) as client,
    ):
        session = await client.session()
        for name in ("first", "second", "third"):
            sender = await client.sender(session, name)
            await client.outcomes(await client.send(sender, *[data_message(b"x")] * 60))
        links = [await client.receiver(session, name) for name in ("first", "second", "third")]
        for link in links:  # the first message of a group waits for a commit
            link.grant(1)
        client.write()
        await client.receive(3)
        for link in links:
            link.grant(59)
        client.write()
        deliveries = await client.receive(90)
        counts = [sum(each.link is link for each in deliveries) for link in links]
        assert min(counts) > 15, counts


async def test_available_lies_between_the_true_counts_during_the_exchange(tmp_path: Path) -> None:
    # A38
    async with (
        amqp_broker(tmp_path) as broker,
        amqp_client(port_of(broker)) as reader,
        amqp_client(port_of(broker)) as writer,
    ):
        session = await reader.session()
        receiver = await reader.receiver(session, "orders")
        sender = await writer.sender(await writer.session(), "orders")
        stored = sent = 0

        async def publish() -> None:
            nonlocal sent, stored
            for number in range(300):
                sent += 1
                await writer.outcomes(await writer.send(sender, data_message(b"%d" % number)))
                stored += 1

        publishing = asyncio.create_task(publish())
        seen: set[int] = set()
        while not publishing.done():
            at_least = stored
            setattr(receiver, "available", None)  # noqa: B010 - as above
            receiver.grant(0, echo=True)
            await reader.until(lambda: receiver.available is not None, "answer to the echo")
            available = receiver.available or 0
            assert at_least <= available <= sent
            seen.add(available)
        await publishing
        assert len(seen) > 1, "messages were published during the exchanges"


async def test_a_slow_target_stops_neither_its_siblings_nor_the_acknowledgements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A16: all links are of one session. The client may have ten unsettled messages, so the last
    # arrives only if the broker processes the acknowledgements while the slow target stands.
    syncs = StandingSyncs(monkeypatch)
    patient = {"sync_timeout_ms": 60_000}
    async with (
        amqp_broker(tmp_path, commitlog=patient) as broker,
        AsyncClient(broker.url) as http,
        amqp_client(port_of(broker)) as client,
    ):
        await http.create_topic("slow", queues=1)
        await http.create_topic("fast", queues=1, durability="written")
        await http.create_group("g", "fast", max_in_flight_per_member=10)
        session = await client.session()
        slow, fast = [await client.sender(session, name) for name in ("slow", "fast")]
        receiver = await client.receiver(session, "/groups/g", credit=2_000)
        await client.until(lambda: slow.credit and fast.credit, "credit")
        pauses = pauses_of_reading(type(client.transport), monkeypatch)
        syncs.hold()
        try:
            late = []
            while slow.credit:
                late += await client.send(slow, *[data_message(b"slow")] * slow.credit)
                await client.session()  # a round trip
            bodies = [data_message(b"%03d" % index) for index in range(1_000)]
            received = []
            for first in range(0, 1_000, 100):
                ids = await client.send(fast, *bodies[first : first + 100])
                assert set((await client.outcomes(ids)).values()) == {Accepted()}
                for _ in range(10):
                    ten = await client.receive(10)
                    session.dispose(ten[0].id, ten[-1].id, Accepted(), settled=True)
                    received += ten
            assert [each.message[-3:] for each in received] == [each[-3:] for each in bodies]
            assert (slow.credit, receiver.credit) == (0, 1_000)
            assert pauses == [], "the broker reads on"
        finally:
            syncs.release()
        assert len(late) >= 170
        assert set((await client.outcomes(late)).values()) == {Accepted()}


def pauses_of_reading(transport: type, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list to which each transport is added when its reading is paused."""
    found: list[object] = []
    pause = transport.pause_reading  # type: ignore[attr-defined]

    def paused(self: object) -> None:
        found.append(self)
        pause(self)

    monkeypatch.setattr(transport, "pause_reading", paused)
    return found
