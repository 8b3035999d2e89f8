"""A queue of AMQP that delivers only the newest message of each key, on a real broker."""

from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from holdfast.amqp.wire.performatives import Properties, Released, encode_composite
from holdfast.broker import Broker
from tests.amqp.broker import amqp_broker
from tests.amqp.client import data_message
from tests.amqp.program import Program


def keyed(body: bytes, key: str | None) -> bytes:
    """Return a message whose group-id is its key."""
    return encode_composite(Properties(group_id=key)) + data_message(body)


async def create(broker: Broker) -> None:
    """Create the topic and the group of the queue `prices`."""
    async with aiohttp.ClientSession(broker.url) as session:
        for path, body in (
            ("topics/prices", {"queues": 1}),
            ("groups/prices", {"topics": {"prices": {}}, "last_value": True}),
        ):
            async with session.put(f"/v1/{path}", json=body) as reply:
                assert reply.status == 201, await reply.text()


async def test_a_queue_delivers_the_newest_message_of_each_key(tmp_path: Path) -> None:  # Q24
    async with amqp_broker(tmp_path) as broker, AsyncExitStack() as stack:
        await create(broker)
        me = await Program.connect(stack, broker)
        sender = await me.client.sender(me.session, "prices")
        sent = [
            keyed(b"a1", "a"), keyed(b"b1", "b"), keyed(b"none", None),
            keyed(b"a2", "a"), keyed(b"a3", "a"),
        ]  # fmt: skip
        await me.client.outcomes(await me.client.send(sender, *sent))
        await me.client.receiver(me.session, "prices", "r", credit=2)
        first, second = await me.client.receive(2)
        assert [first.message[-2:], second.message[-4:]] == [b"b1", b"none"]
        newer = [keyed(b"b2", "b"), keyed(b"last", None)]
        await me.client.outcomes(await me.client.send(sender, *newer))
        me.session.dispose(first.id, second.id, Released(), settled=True)
        me.client.write()
        other = await Program.connect(stack, broker, "other")
        await other.client.receiver(other.session, "prices", "o", credit=10)
        assert {body for _, body in await other.take(4)} == {b"none", b"a3", b"b2", b"last"}
