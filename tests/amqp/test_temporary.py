"""Temporary nodes on a real broker: topics and queues that belong to a connection."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.amqp.nodes.temporary import LIFETIME_POLICY, NAME_PREFIX, TEMPORARY_TOPIC
from holdfast.amqp.wire.performatives import (
    Attach,
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoLinksOrMessages,
    DeleteOnNoMessages,
    Properties,
    Source,
    Target,
    encode_composite,
)
from holdfast.amqp.wire.types import Described, Symbol, ULong
from holdfast.broker import Broker
from holdfast.check.data_dir import check_data_dir
from holdfast.free_port import free_port
from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.amqp.broker import amqp_broker
from tests.amqp.client import data_message
from tests.amqp.program import Program
from tests.amqp.test_listener import AUTHENTICATION, token_of
from tests.support.clients.amqp_client import AmqpClient as BlockingClient
from tests.support.storage.stored import until


class Requester(Program):
    """A connection with one session, which makes temporary nodes."""

    async def make(self, name: str, *capabilities: str, credit: int = 0, policy: Any = None) -> Any:
        """Receive from a new temporary node; return the link. Its address is in its source."""
        source = Source(
            dynamic=True,
            capabilities=tuple(map(Symbol, capabilities)),
            dynamic_node_properties=None if policy is None else {LIFETIME_POLICY: policy},
        )
        return await self.client.receiver(self.session, "", name, source=source, credit=credit)

    async def receive_from(self, address: str, name: str, credit: int = 10) -> Any:
        return await self.client.receiver(self.session, address, name, credit=credit)

    async def send(self, address: str, *bodies: bytes) -> None:
        sender = await self.client.sender(self.session, address, target=Target(address))
        await self.client.outcomes(await self.client.send(sender, *map(data_message, bodies)))
        await self.end(sender)


def _to(address: str) -> bytes:
    """Return the section of a message that names its destination."""
    return encode_composite(Properties(to=address))


def names(broker: Broker) -> list[str]:
    """Return the names of the topics and groups of temporary nodes."""
    assert broker._storage is not None
    topics = [topic.name for topic in broker._storage.store.table.all()]
    return [name for name in topics if name.startswith(NAME_PREFIX)]


async def test_a_node_is_private_to_its_connection_and_ends_with_it(tmp_path: Path) -> None:
    # T30
    async with amqp_broker(tmp_path) as broker, AsyncExitStack() as stack:
        you = await Requester.connect(stack, broker, "you")
        async with AsyncExitStack() as first:
            me = await Requester.connect(first, broker)
            link = await me.make("replies")
            source = link.remote.source
            assert source.dynamic
            assert source.address.startswith("/temp/")
            assert source.capabilities == ("temporary-queue",)
            assert source.dynamic_node_properties == {LIFETIME_POLICY: Described(ULong(0x2B), [])}
            await you.send(source.address, b"a reply")
            other = await you.receive_from(source.address, "mine", credit=0)
            assert await you.refused(other) == "amqp:resource-locked"
            link.grant(10)
            me.client.write()
            assert await me.take(1) == [("replies", b"a reply")]
            assert len(names(broker)) == 1
            backlog = await you.client.sender(you.session, source.address)
            await you.client.outcomes(await you.client.send(backlog, data_message(b"late")))
        await until(lambda: not names(broker))
        # An error would end servers that keep a link for each client, such as Proton's example.
        assert await you.client.detached(backlog) is None
        gone = await you.client.sender(you.session, source.address, "again")
        assert await you.refused(gone) == "amqp:not-found"


async def test_receivers_share_a_queue_and_copy_a_topic(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, AsyncExitStack() as stack:
        me = await Requester.connect(stack, broker)
        link = await me.make("first", credit=1)
        address = link.remote.source.address
        await me.receive_from(address, "second", credit=1)
        await me.send(address, b"1", b"2")
        assert sorted(await me.take(2)) in (
            [("first", b"1"), ("second", b"2")],
            [("first", b"2"), ("second", b"1")],
        )
        topic = await me.make("third", TEMPORARY_TOPIC, credit=1)
        address = topic.remote.source.address
        assert topic.remote.source.capabilities == ("temporary-topic",)
        await me.receive_from(address, "fourth", credit=1)
        await me.send(address, b"3")
        assert sorted(await me.take(2)) == [("fourth", b"3"), ("third", b"3")]


async def test_a_dynamic_target_and_the_anonymous_relay_reach_a_node(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, AsyncExitStack() as stack:
        me = await Requester.connect(stack, broker)
        sender: Any = await me.client.sender(me.session, "", target=Target(dynamic=True))
        address = sender.remote.target.address
        await me.receive_from(address, "reader")
        await me.client.send(sender, data_message(b"one"))
        relay = await me.client.sender(me.session, "", "relay", target=Target())
        await me.client.send(relay, _to(address) + data_message(b"two"))
        assert await me.take(2) == [("reader", b"one"), ("reader", b"two")]
        (unknown,) = await me.client.send(relay, _to("/temp/unknown") + data_message(b"three"))
        outcome = (await me.client.outcomes([unknown]))[unknown]
        assert outcome.error.condition == "amqp:not-found"


async def test_a_node_lives_as_long_as_its_policy_says(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, AsyncExitStack() as stack:
        me = await Requester.connect(stack, broker)
        for code, policy in enumerate(
            (
                DeleteOnClose(),
                DeleteOnNoLinks(),
                DeleteOnNoMessages(),
                DeleteOnNoLinksOrMessages(),
            ),
            start=0x2B,
        ):
            maker = await me.make("maker", policy=policy)
            source = maker.remote.source
            assert source.dynamic_node_properties == {LIFETIME_POLICY: Described(ULong(code), [])}
            other = await me.receive_from(source.address, "other", credit=0)
            await me.send(source.address, b"kept")
            await me.end(maker)
            if isinstance(policy, DeleteOnClose):
                assert str((await me.client.detached(other)).condition) == "amqp:resource-deleted"
                await until(lambda: not names(broker))
                continue
            assert len(names(broker)) == 1
            if isinstance(policy, DeleteOnNoLinks):
                await me.end(other)
                await until(lambda: not names(broker))
                continue
            other.grant(1)
            me.client.write()
            assert await me.take(1) == [("other", b"kept")]
            if isinstance(policy, DeleteOnNoLinksOrMessages):
                await me.end(other)
            await until(lambda: not names(broker))


async def test_an_unknown_policy_is_refused(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, AsyncExitStack() as stack:
        me = await Requester.connect(stack, broker)
        link = await me.make("odd", policy=Symbol("forever"))
        assert await me.refused(link) == "amqp:invalid-field"
        assert not names(broker)


@pytest.mark.parametrize("setting", ["max_temporary_nodes", "max_client_temporary_nodes"])
async def test_the_number_of_nodes_is_limited(tmp_path: Path, setting: str) -> None:
    async with (
        amqp_broker(tmp_path, **{setting: 2}) as broker,
        AsyncExitStack() as stack,
    ):
        me = await Requester.connect(stack, broker)
        first = await me.make("1")
        await me.make("2")
        third = await me.make("3")
        assert await me.refused(third) == "amqp:resource-limit-exceeded"
        await me.end(first)
        await until(lambda: len(names(broker)) == 1)
        link = await me.make("4")
        assert link.remote.source is not None


async def test_other_protocols_do_not_see_nodes(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, AsyncExitStack() as stack:
        me = await Requester.connect(stack, broker)
        await me.make("mine")
        (name,) = names(broker)
        async with aiohttp.ClientSession() as http:

            async def get(path: str) -> tuple[int, str]:
                async with http.get(broker.url + path) as reply:
                    return reply.status, await reply.text()

            for path in ("/v1/topics", "/v1/groups", "/metrics"):
                status, text = await get(path)
                assert status == 200
                assert name not in text
            assert (await get(f"/v1/topics/{name}"))[0] == 400
            assert (await get(f"/v1/topics/{name}/queues/0/messages?offset=0"))[0] == 400
            assert (await get(f"/v1/groups/{name}"))[0] == 400
        named = await me.receive_from(f"/groups/{name}", "by name", credit=0)
        assert await me.refused(named) == "amqp:not-found"


async def test_with_authentication_a_node_needs_no_grant(tmp_path: Path) -> None:
    _, text = token_of(tmp_path, "publish:orders")
    async with (
        amqp_broker(tmp_path, access=AUTHENTICATION) as broker,
        AsyncExitStack() as stack,
    ):
        sasl: dict[str, Any] = {"mechanism": "PLAIN", "response": b"\x00me\x00" + text.encode()}
        me = await Requester.connect(stack, broker, **sasl)
        link = await me.make("replies", credit=1)
        await me.send(link.remote.source.address, b"a reply")
        assert await me.take(1) == [("replies", b"a reply")]


async def test_a_link_that_ends_while_its_node_is_made_leaves_nothing(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, AsyncExitStack() as stack:
        async with AsyncExitStack() as first:
            me = await Requester.connect(first, broker)
            for number in range(20):
                me.session.receiver(f"{number}", _dynamic(f"{number}"))
            me.client.write()
        you = await Requester.connect(stack, broker, "you")
        await you.send("orders", b"x")
        await until(lambda: not names(broker))


def _dynamic(name: str) -> Any:
    return lambda handle: Attach(name, handle, True, source=Source(dynamic=True), target=Target())


def test_a_killed_broker_leaves_no_node(tmp_path: Path) -> None:
    port = free_port()
    arguments = (*TEST_ARGUMENTS, "--amqp-port", str(port))
    with RunningBroker(tmp_path / "data", arguments) as broker:
        client = BlockingClient(port)
        for number in range(3):
            client.receiver("", name=f"{number}", source=Source(dynamic=True))
        client.send(client.sender("orders"), data_message(b"stays"))
        client.outcome(0)
        broker.kill()
        client.cut()
        killed = check_data_dir(tmp_path / "data")
        assert (killed.topics, killed.groups) == (4, 3)
        broker.start()
        broker.stop()
    report = check_data_dir(tmp_path / "data")
    assert (report.topics, report.groups) == (1, 0)
    assert not report.findings
