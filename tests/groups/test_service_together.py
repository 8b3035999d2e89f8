"""Groups over a real storage: many at once, and each receives its own messages once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.groups.service_types import Status
from holdfast.groups.settings import Subscription
from tests.support.servers.group_broker import bodies_of, running, running_group
from tests.support.storage.stored import settled, until


async def test_every_group_that_waits_is_answered_by_one_arrival(tmp_path: Path) -> None:  # L11
    async with running(tmp_path) as broker:
        await broker.topic()
        for name in ("g", "h", "i"):
            await broker.group(name)
        waiting = [
            asyncio.create_task(broker.receive(group=name, wait_s=30.0)) for name in ("g", "h", "i")
        ]
        await until(lambda: broker.groups.stats().waiting == 3)
        await broker.publish("x")
        async with asyncio.timeout(10):
            assert [bodies_of(await each) for each in waiting] == [["x"]] * 3


async def test_concurrent_publishes_have_one_order_for_all_groups(tmp_path: Path) -> None:  # Q2
    async with running(tmp_path) as broker:
        await broker.topic()
        for name in ("g", "h"):
            await broker.group(name, max_in_flight=1_000)

        async def publish(publisher: int) -> None:
            for number in range(25):
                await broker.publish(f"{publisher}.{number}")

        async def follow(group: str, member: str, found: dict[int, str]) -> None:
            while len(found) < 200:
                received = await broker.receive(7, member, group, wait_s=0.05)
                for each, body in zip(received.deliveries, bodies_of(received), strict=True):
                    assert each.offset not in found
                    found[each.offset] = body

        orders: dict[str, dict[int, str]] = {"g": {}, "h": {}}
        async with asyncio.timeout(60):
            await asyncio.gather(
                *(publish(publisher) for publisher in range(8)),
                *(follow(name, member, orders[name]) for name in orders for member in "ab"),
            )
        assert orders["g"] == orders["h"]
        order = [orders["g"][offset] for offset in range(200)]
        for publisher in range(8):
            own = [body for body in order if body.startswith(f"{publisher}.")]
            assert own == [f"{publisher}.{number}" for number in range(25)]


async def test_concurrent_receives_from_disk_get_different_messages(tmp_path: Path) -> None:
    # Q5
    async with running(tmp_path) as broker:
        await broker.topic(queues=3)
        for queue in range(3):
            for n in range(5):
                await broker.publish([f"{queue}.{n}.{each}" for each in range(20)], queue=queue)
        await settled(broker.storage)
        await broker.group(max_in_flight=1_000)
    async with running(tmp_path) as broker:
        shared: list[tuple[int, int]] = []
        while True:
            answers = await asyncio.gather(*(broker.receive(5, member) for member in "abcdefgh"))
            got = [(each.queue, each.offset) for found in answers for each in found.deliveries]
            if not got:
                break
            shared += got
        assert sorted(shared) == [(queue, offset) for queue in range(3) for offset in range(100)]


@pytest.mark.parametrize("order", ["left first", "unsent first"])
async def test_a_member_that_leaves_as_its_reply_fails_gives_back_once(
    tmp_path: Path, order: str
) -> None:  # Q10, L17
    async with running_group(tmp_path, ["x", "y"]) as broker:
        lost = await broker.receive(member="a")
        waiting = await broker.wait_to_receive(member="b")
        if order == "left first":
            await broker.groups.leave("g", "a")
        broker.groups.release_undelivered("g", lost.receipts())
        if order == "unsent first":
            await broker.groups.leave("g", "a")
        async with asyncio.timeout(10):
            received = await waiting
        assert bodies_of(received) == ["x", "y"]
        assert [each.attempt for each in received.deliveries] == [2, 2]
        assert broker.groups.stats().in_flight == 2
        assert await broker.settle(lost) == [Status.STALE] * 2


async def test_a_topic_that_is_removed_while_it_is_browsed_shows_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        for name in ("t", "u"):
            await broker.topic(name)
            await broker.publish(f"of {name}", name)
        await broker.group(topics={"t": Subscription(), "u": Subscription()})
        read, is_asked, goes_on = broker.store.reading.read, asyncio.Event(), asyncio.Event()

        async def hesitate(*args: Any, **how: Any) -> Any:
            is_asked.set()
            await goes_on.wait()
            return await read(*args, **how)

        broker.store.reading.read = hesitate  # type: ignore[method-assign]
        broker.store.reading.read_hot = lambda *args, **how: None  # type: ignore[method-assign]
        broker.store.reading.newest_alone = lambda *args: None  # type: ignore[method-assign]
        browsing = asyncio.create_task(broker.receive(browse=True))
        await is_asked.wait()
        await broker.group(topics={"u": Subscription()})
        goes_on.set()
        assert bodies_of(await browsing) == ["of u"]
