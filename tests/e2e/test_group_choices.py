"""Which messages a group chooses first, seen by its Python client: topic shares and priorities."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping

import pytest

from holdfast.client import AsyncClient, Delivery
from holdfast.client.descriptions import Engine
from holdfast.groups.config import FAIR_ENGINES
from holdfast.testing import RunningBroker

engines = pytest.mark.parametrize("engine", FAIR_ENGINES)


@pytest.fixture
async def client(broker: RunningBroker) -> AsyncIterator[AsyncClient]:
    """A client of a broker without topics."""
    async with broker.async_client() as client, asyncio.timeout(60):
        for group in await client.groups():
            await client.delete_group(group.group)
        for topic in await client.topics():
            await client.delete_topic(topic.topic)
        yield client


async def backlog(client: AsyncClient, counts: Mapping[str, int]) -> None:
    for topic, count in counts.items():
        await client.create_topic(topic, queues=2)
        async with client.producer(topic) as producer:
            for _ in range(count):
                producer.send(topic)


@engines
@pytest.mark.parametrize("max_in_flight", [1, 7, 1000])
async def test_shares_do_not_depend_on_how_much_a_member_holds(
    client: AsyncClient, engine: Engine, max_in_flight: int
) -> None:  # F9, F15
    """Messages are handed out ten to one, never further from that share than one turn."""
    topics = {"bulk": 1, "express": 10}
    await backlog(client, {"bulk": 20, "express": 200})
    await client.create_group("w", topics, engine=engine)
    got = Counter[str]()
    async with client.consume(
        list(topics), "w", max_in_flight=max_in_flight, serial_by="nothing"
    ) as deliveries:
        async for delivery in deliveries:
            got[delivery.topic] += 1
            bound = 10 + 1 if engine == "dwrr" else 2
            assert abs(got["express"] - got.total() * 10 / 11) <= bound
            if got.total() == 110:
                break
    assert got["bulk"] == 10


@engines
async def test_members_share_by_weight_together(client: AsyncClient, engine: Engine) -> None:
    # F8, F21
    weights = {"p0": 4, "p1": 8, "p2": 12}
    await backlog(client, {topic: weight * 60 for topic, weight in weights.items()})
    await client.create_group("w", weights, engine=engine)
    handled = 0
    consumers = [client.consume(list(weights), "w", max_in_flight=each) for each in (1, 10, 100)]

    async def handle(_: Delivery) -> None:
        nonlocal handled
        handled += 1
        if handled == 40 * 24:
            for consumer in consumers:
                consumer.stop()

    await asyncio.gather(*(consumer.run(handle) for consumer in consumers))
    described = await client.describe_group("w")
    served = {each["topic"]: each["served"]["count"] for each in described["topics"]}
    assert sum(served.values()) >= 40 * 24
    for topic, weight in weights.items():
        assert abs(served[topic] - sum(served.values()) * weight / 24) <= weight + 1


async def test_a_late_high_message_overtakes_what_the_client_does_not_hold(
    client: AsyncClient,
) -> None:  # Q23
    await client.create_topic("orders", queues=1, priority_levels=10)
    await client.create_group("g", "orders")
    for body in ("4a", "4b", "4c"):
        await client.publish("orders", body, priority=4)
    got: list[str] = []
    async with client.consume("orders", "g", max_in_flight=1, follow=False) as deliveries:
        async for delivery in deliveries:
            got.append(delivery.body.decode())
            if got == ["4a"]:
                await client.publish("orders", "9a", priority=9)
            if got == ["4a", "9a", "4b"]:
                await client.publish("orders", "9b", priority=9)
                await delivery.nack(0)
    # A failed message returns to its own priority level, after all messages of higher levels.
    assert got == ["4a", "9a", "4b", "9b", "4b", "4c"]
