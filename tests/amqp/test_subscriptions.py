"""Durable and shared subscriptions of topics, on a real broker."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.amqp.termini.subscriptions import looked_up, subscription_of
from holdfast.amqp.wire.performatives import Source, Target
from holdfast.amqp.wire.types import Described, Symbol
from holdfast.broker import Broker
from tests.amqp.broker import amqp_broker
from tests.amqp.client import TIMEOUT_S, data_message
from tests.amqp.program import Program
from tests.amqp.test_listener import AUTHENTICATION, token_of

TOPIC, SHARED, GLOBAL = Symbol("topic"), Symbol("shared"), Symbol("global")


class Subscriber(Program):
    """A connection with one session, which subscribes to the topic `news` and publishes to it."""

    async def subscribe(
        self, name: str, *capabilities: Symbol, durable: bool = True, credit: int = 10,
        **source: Any,
    ) -> Any:  # fmt: skip
        terminus = Source(
            "news",
            durable=2 if durable else 0,
            expiry_policy="never" if durable else "link-detach",
            capabilities=(TOPIC, *capabilities),
            **source,
        )
        return await self.client.receiver(self.session, "", name, source=terminus, credit=credit)

    async def look_up(self, name: str) -> Any:
        return await self.client.receiver(self.session, "", name, source=None)

    async def publish(self, *bodies: bytes) -> None:
        target = Target("news", capabilities=(TOPIC,))
        sender = await self.client.sender(self.session, "news", target=target)
        await self.client.outcomes(await self.client.send(sender, *map(data_message, bodies)))
        await self.end(sender)


async def wait_for_groups(broker: Broker, count: int) -> list[str]:
    """Wait until there are this many groups, and return their names."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(TIMEOUT_S):
        while True:
            async with session.get(f"{broker.url}/v1/groups") as reply:
                names = [str(each["group"]) for each in (await reply.json())["groups"]]
            if len(names) == count:
                return names
            await asyncio.sleep(0.02)


def test_links_share_a_subscription_by_their_names() -> None:
    def of(name: str, *capabilities: str, durable: int = 2, container: str = "me") -> Any:
        return subscription_of(container, name, Source("t", durable, capabilities=capabilities))

    mine = of("sub")
    assert mine.group.startswith("amqp.sub-")
    assert of("sub|2", "shared") == mine == looked_up("me", "sub") == looked_up("me", "sub|2")
    shared = of("sub|global", "shared", "global")
    assert of("sub|global2", "shared", "global", container="you") == shared
    assert looked_up("you", "sub|global") == shared
    volatile = of("sub|volatile1", "shared", durable=0)
    assert volatile.group.startswith("amqp.volatile.sub-")
    assert of("sub|volatile2", "shared", durable=0) == volatile
    everybodys = of("sub|global-volatile1", "shared", "global", durable=0)
    assert of("sub|global-volatile1", "global", durable=0, container="you") == everybodys
    others = [of("other"), of("sub", container="you"), of("sub", container="me|sub")]
    different = [mine, shared, volatile, everybodys, *others]
    assert len({each.group for each in different}) == len(different)
    assert of("sub", durable=0) is None
    assert subscription_of("me", "sub", Source("t", expiry_policy="never")) == mine


async def test_a_durable_subscription_lasts_until_it_is_closed(tmp_path: Path) -> None:
    # Q26
    async with AsyncExitStack() as stack:
        async with amqp_broker(tmp_path) as broker, AsyncExitStack() as first:
            me = await Subscriber.connect(first, broker)
            await me.publish(b"before")
            link = await me.subscribe("sub")
            assert (link.remote.source.durable, link.remote.source.expiry_policy) == (2, "never")
            await me.end(link, closed=False)
            await me.publish(b"while away")
            await me.subscribe("sub", credit=0)  # and the connection is lost
        broker = await stack.enter_async_context(amqp_broker(tmp_path))
        me = await Subscriber.connect(stack, broker)
        link = await me.subscribe("sub")
        await me.publish(b"while here")
        assert await me.take(2) == [("sub", b"while away"), ("sub", b"while here")]
        await me.end(link, closed=True)
        await me.publish(b"after the end")
        assert await me.refused(await me.look_up("sub")) == "amqp:not-found"
        await me.subscribe("sub")
        await me.publish(b"anew")
        assert await me.take(1) == [("sub", b"anew")]


async def test_a_link_without_a_source_looks_a_subscription_up(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, AsyncExitStack() as stack:
        me = await Subscriber.connect(stack, broker)
        assert await me.refused(await me.look_up("sub")) == "amqp:not-found"
        await me.end(await me.subscribe("sub"), closed=False)
        await me.publish(b"kept")
        link = await me.look_up("sub")
        assert (link.remote.source.address, link.remote.source.durable) == ("news", 2)
        link.grant(5, drain=True)
        await me.client.until(lambda: not link.is_draining, "answer to the drain")
        await me.end(link, closed=False)
        link = await me.subscribe("sub")
        assert await me.take(1) == [("sub", b"kept")]
        await me.end(link, closed=False)
        await me.end(await me.look_up("sub"), closed=True)
        assert await me.refused(await me.look_up("sub")) == "amqp:not-found"
        assert await wait_for_groups(broker, 0) == []


async def test_links_of_a_subscription_compete_and_one_without_credit_is_skipped(
    tmp_path: Path,
) -> None:
    # Q27
    async with amqp_broker(tmp_path) as broker, AsyncExitStack() as stack:
        me = await Subscriber.connect(stack, broker, "one")
        you = await Subscriber.connect(stack, broker, "two")
        idle = await me.subscribe("sub|global", SHARED, GLOBAL, credit=0)
        busy = await you.subscribe("sub|global", SHARED, GLOBAL, credit=10)
        await me.publish(*[b"%d" % index for index in range(10)])
        assert [body for _, body in await you.take(10)] == [b"%d" % index for index in range(10)]
        idle.grant(1)
        await me.publish(b"last")
        assert await me.take(1) == [("sub|global", b"last")]
        await me.end(idle, closed=True)  # the other link still uses the subscription
        await me.publish(b"more")
        busy.grant(1)
        assert [body for _, body in await you.take(1)] == [b"more"]


async def test_a_volatile_subscription_ends_with_its_last_link(tmp_path: Path) -> None:
    # T31, Q26
    async with amqp_broker(tmp_path) as broker, AsyncExitStack() as stack:
        you = await Subscriber.connect(stack, broker, "two")
        await you.publish(b"before")
        async with AsyncExitStack() as lost:
            me = await Subscriber.connect(lost, broker)
            link = await me.subscribe("sub|volatile1", SHARED, durable=False, credit=0)
            await me.subscribe("sub|volatile2", SHARED, durable=False)
            await me.end(link)
            await you.publish(b"during")
            assert await me.take(1) == [("sub|volatile2", b"during")]
            assert len(await wait_for_groups(broker, 1)) == 1
        await wait_for_groups(broker, 0)
        await you.publish(b"after")
        me = await Subscriber.connect(stack, broker)
        await me.subscribe("sub|volatile1", SHARED, durable=False)
        await you.publish(b"again")
        assert await me.take(1) == [("sub|volatile1", b"again")]


async def test_the_start_removes_volatile_subscriptions_that_were_left(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, aiohttp.ClientSession() as session:
        for group in ("amqp.volatile.left", "amqp.kept"):
            body: dict[str, Any] = {"topics": {"news": {}}}
            async with session.put(f"{broker.url}/v1/groups/{group}", json=body) as reply:
                assert reply.status == 201
    async with amqp_broker(tmp_path) as broker:
        assert await wait_for_groups(broker, 1) == ["amqp.kept"]


async def test_the_same_link_of_a_durable_subscription_is_stolen(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, AsyncExitStack() as stack:
        me, again = await Subscriber.connect(stack, broker), await Subscriber.connect(stack, broker)
        link = await me.subscribe("sub", credit=1)
        await me.publish(b"first", b"second")
        await me.client.receive(1)
        await again.subscribe("sub")
        assert (await me.client.detached(link)).condition == "amqp:link:stolen"
        found = await again.take(2)
        assert sorted(body for _, body in found) == [b"first", b"second"]


async def test_another_filter_makes_a_subscription_anew_unless_others_use_it(
    tmp_path: Path,
) -> None:
    def selector(text: str) -> dict[str, Any]:
        name = Symbol("apache.org:selector-filter:string")
        return {"filter": {Symbol("jms-selector"): Described(name, text)}}

    async with amqp_broker(tmp_path) as broker, AsyncExitStack() as stack:
        me, you = (
            await Subscriber.connect(stack, broker, "one"),
            await Subscriber.connect(stack, broker, "two"),
        )
        link = await me.subscribe("sub|global", SHARED, GLOBAL, **selector("JMSPriority > 9"))
        await me.publish(b"not selected")
        other = selector("JMSPriority < 9")
        refused = await you.subscribe("sub|global", SHARED, GLOBAL, credit=0, **other)
        assert await you.refused(refused) == "amqp:not-allowed"
        await me.end(link, closed=False)
        await you.subscribe("sub|global", SHARED, GLOBAL, **other)
        await me.publish(b"selected")
        assert [body for _, body in await you.take(1)] == [b"selected"]


@pytest.mark.parametrize(
    ("grants", "is_refused"),
    [
        (("consume:news:amqp.sub-", "publish:news", "admin:news"), False),
        (("consume:news:other", "publish:news", "admin:news"), True),
        (("consume:other", "publish:news", "admin:news"), True),
    ],
)
async def test_a_subscription_needs_the_grant_to_consume_its_topic_and_group(
    tmp_path: Path, grants: tuple[str, ...], is_refused: bool
) -> None:
    token = token_of(tmp_path, *grants)[1]
    async with (
        amqp_broker(tmp_path, access=AUTHENTICATION) as broker,
        AsyncExitStack() as stack,
    ):
        plain: Any = {"mechanism": "PLAIN", "response": b"\x00x\x00" + token.encode()}
        me = await Subscriber.connect(stack, broker, **plain)
        link = await me.subscribe("sub", credit=0)
        if is_refused:
            assert await me.refused(link) == "amqp:unauthorized-access"
        else:
            link.grant(1)
            await me.publish(b"granted")
            assert await me.take(1) == [("sub", b"granted")]
