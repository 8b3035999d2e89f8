"""Acknowledgements that a receive carries, against a scriptable fake group and a real broker."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from holdfast.client.async_client import AsyncClient
from holdfast.testing import RunningBroker
from tests.support.damage.dropping_proxy import dropping_proxy
from tests.support.servers.fake_group import GROUP, FakeGroup, fake_group, until

#: No timer sends acknowledgements within a test.
NEVER_MS = 10**6


def carried(group: FakeGroup) -> int:
    """Return how many receipts the receives have carried."""
    settled = [each for body in group.named("receive") for each in body.get("settle", ())]
    assert {each["verb"] for each in settled} <= {"ack"}
    return sum(len(each["receipts"]) for each in settled)


async def consume(group: FakeGroup, client: AsyncClient, count: int, **options: Any) -> None:
    async with client.consume("t", GROUP, follow=False, **options) as consumer:
        assert [delivery.offset async for delivery in consumer] == list(range(count))
    assert sorted(offset for _, _, offset in group.acked) == list(range(count))


@pytest.mark.parametrize("knows_settle", [True, False])
async def test_with_a_limit_of_one_each_request_acknowledges_and_receives(
    knows_settle: bool,
) -> None:
    # F14: 201 requests; with requests of their own, the 200 acknowledgements make it 401
    async with fake_group(200, knows_settle=knows_settle) as (group, client):
        await consume(group, client, 200, max_in_flight=1, ack_interval_ms=NEVER_MS)
        receives, acks = len(group.named("receive")), len(group.named("ack"))
        if knows_settle:
            assert (receives, acks, carried(group)) == (201, 0, 200)
        else:  # one receive is refused, and the member does not try again
            assert (receives, acks, carried(group)) == (202, 200, 1)


async def test_acknowledgements_join_a_receive_that_is_sent_anyway() -> None:
    # F14
    async with fake_group(100) as (group, client):
        options: dict[str, Any] = {"concurrency": 40, "serial_by": "nothing"}
        async with client.consume(
            "t", GROUP, max_in_flight=40, ack_interval_ms=NEVER_MS, **options
        ) as consumer:
            taken = [await anext(consumer) for _ in range(40)]
            sent = len(group.named("receive"))
            for delivery in taken[:19]:  # one less than a batch
                delivery.ack()
            await asyncio.sleep(0)
            assert len(group.named("receive")) == sent
            taken[19].ack()
            await until(lambda: len(group.acked) == 20)
            (receive,) = group.named("receive")[sent:]
            (settle,) = receive["settle"]
            assert settle == {"verb": "ack", "receipts": [each.receipt for each in taken[:20]]}
            assert receive["max_messages"] == 20  # the room that the acknowledgements make
            await until(lambda: len(group.leased) == 40)
            assert not group.named("ack")


async def test_a_caller_does_not_wait_for_a_receive_that_the_broker_holds() -> None:
    async with fake_group(1) as (group, client):
        async with client.consume("t", GROUP, max_in_flight=1) as consumer:
            delivery = await anext(consumer)
            waiting = asyncio.create_task(consumer.next())  # acknowledges, and waits
            await until(lambda: carried(group) == 1)
            assert group.named("receive")[-1]["wait_ms"] == 20_000
            assert await delivery.ack() == "done"
            assert group.named("ack") == [{"receipts": [delivery.receipt]}]
            group.publish(1)
            later = await waiting
            assert later is not None and later.offset == 1
            await consumer.commit()
            assert len(group.acked) == 2
        assert carried(group) == 1


async def test_an_awaited_acknowledgement_is_not_carried() -> None:
    async with fake_group(5) as (group, client):
        async with client.consume("t", GROUP, max_in_flight=1) as consumer:
            for _ in range(3):
                assert await (await anext(consumer)).ack() == "done"
            await anext(consumer)
            await consumer.commit()
        assert len(group.named("ack")) == 4
        assert carried(group) == 0
        assert len(group.acked) == 4


async def test_closing_sends_what_a_held_receive_carries_again() -> None:
    async with fake_group(1) as (group, client):
        answered = asyncio.Event()

        async def lose(name: str, asked: dict[str, Any]) -> web.StreamResponse | None:
            if "settle" in asked:  # the receive does not reach the broker
                answered.set()
                await asyncio.Event().wait()
            return None

        group.before = lose
        async with client.consume("t", GROUP, max_in_flight=1) as consumer:
            delivery = await anext(consumer)
            waiting = asyncio.create_task(consumer.next())
            await answered.wait()
            assert not group.acked
        assert await waiting is None
        assert [offset for _, _, offset in group.acked] == [0]
        assert await delivery.ack() == "done"
        assert not group.available


async def test_acknowledgements_are_sent_again_if_a_held_receive_does_not_answer_in_time() -> None:
    # A quarter of the lease, here 0.25 s.
    async with fake_group(1, lease_ms=1_000) as (group, client):

        async def lose(name: str, asked: dict[str, Any]) -> web.StreamResponse | None:
            if "settle" in asked:
                await asyncio.Event().wait()
            return None

        group.before = lose
        async with client.consume("t", GROUP, max_in_flight=1) as consumer:
            await anext(consumer)
            waiting = asyncio.create_task(consumer.next())
            await until(lambda: len(group.acked) == 1)
            assert len(group.named("ack")) == 1
            waiting.cancel()


async def test_a_receive_whose_reply_is_lost_is_repeated_with_its_acknowledgements() -> None:
    async with fake_group(3) as (group, client):
        group.lose = {"receive": 2}
        await consume(group, client, 3, max_in_flight=1, ack_interval_ms=NEVER_MS)
        assert not group.named("ack")
        attempts = [body["attempt_id"] for body in group.named("receive")]
        assert len(attempts) == len(set(attempts)) + 2


async def test_a_late_acknowledgement_in_a_receive_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fake_group(2) as (group, client):
        async with client.consume("t", GROUP, max_in_flight=1) as consumer:
            delivery = await anext(consumer)
            group.end_leases()
            group.holders.clear()
            assert (await anext(consumer)).offset == 1
            assert await delivery.ack() == "stale"
        assert carried(group) == 1
    assert "ack came too late for 1 of the messages" in caplog.text


def test_a_consumer_of_a_broker_sends_one_request_for_each_message(
    shared_broker: RunningBroker, topic: str
) -> None:
    # F14: counted on the wire; the limit of 1 makes each request carry one acknowledgement
    with shared_broker.client() as client:
        client.create_topic(topic, queues=1)
        client.create_group(topic, [topic])
        with client.producer(topic) as producer:
            for number in range(50):
                producer.send(str(number))
        with (
            dropping_proxy(shared_broker.url, lambda _: False) as proxy,
            type(client)(proxy.url) as consuming,
            consuming.consume(topic, topic, max_in_flight=1, follow=False) as deliveries,
        ):
            assert [each.text for each in deliveries] == [str(number) for number in range(50)]
        described = client.describe_group(topic)
        assert (described.in_flight, described.available) == (0, 0)
        receives = [each for each in proxy.targets if each.endswith("/receive")]
        acks = [each for each in proxy.targets if each.endswith("/ack")]
        assert len(receives) + len(acks) <= 52
