"""The limits on unsettled deliveries of a session and of a connection, with a real broker."""

import asyncio
from pathlib import Path

import pytest

from holdfast.amqp.engine.incoming_link import Delivery
from holdfast.amqp.engine.session import Session
from holdfast.amqp.wire.performatives import Accepted
from holdfast.broker import Broker
from tests.amqp.broker import amqp_broker, figure
from tests.amqp.client import TIMEOUT_S, AmqpClient, amqp_client, data_message
from tests.amqp.test_listener import port_of

#: The limits of a session and of a connection, and how many messages a session gets.
LEVELS = [(10, 1_000, 10), (1_000, 10, 10), (10, 7, 7), (7, 10, 7)]


async def publish(client: AmqpClient, count: int) -> None:
    sender = await client.sender(await client.session(), "orders")
    await client.outcomes(await client.send(sender, *[data_message(b"")] * count))


async def nothing_more(broker: Broker, client: AmqpClient, count: int) -> None:
    """Check that the client has exactly `count` unsettled messages, also some round trips later."""
    for _ in range(3):
        session = await client.session()
        session.end()
    async with asyncio.timeout(TIMEOUT_S):
        while await figure(broker, "unsettled") != count:
            await asyncio.sleep(0.02)
    assert await client.receive(0) == []


def settle(session: Session, deliveries: list[Delivery]) -> None:
    for each in deliveries:
        session.dispose(each.id, each.id, Accepted(), settled=True)


@pytest.mark.parametrize(("of_session", "of_connection", "expected"), LEVELS)
@pytest.mark.parametrize("address", ["orders", "/topics/orders"])
async def test_a_client_gets_no_more_unsettled_messages_than_the_smaller_limit(
    tmp_path: Path, address: str, of_session: int, of_connection: int, expected: int
) -> None:  # T18
    limits = {"max_session_unsettled": of_session, "max_connection_unsettled": of_connection}
    async with (
        amqp_broker(tmp_path, **limits) as broker,
        amqp_client(port_of(broker)) as client,
    ):
        await publish(client, 100 if address == "orders" else 0)
        session = await client.session()
        links = [await client.receiver(session, address, name) for name in ("one", "two")]
        for link in links:
            link.grant(100)
        if address != "orders":  # a copy begins at the end of the topic
            await publish(client, 100)
        deliveries = await client.receive(expected)
        assert len(deliveries) == expected
        await nothing_more(broker, client, expected)
        settle(session, deliveries[:3])
        again = await client.receive(3)
        assert len(again) == 3
        await nothing_more(broker, client, expected)
        # The end of a link frees its room for the other link.
        link = (
            links[0] if any(each.link is links[0] for each in again + deliveries[3:]) else links[1]
        )
        held = sum(each.link is link for each in again + deliveries[3:])
        link.detach()
        await client.detached(link)
        assert len(await client.receive(held)) == held
        await nothing_more(broker, client, expected)
