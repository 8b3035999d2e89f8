"""A stuck handler holds up its own queue or key, and no other."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.client.consume import prefetch
from holdfast.client.consume.consumer import AsyncConsumer
from holdfast.client.consume.delivery import Delivery
from holdfast.client.consume.prefetch import FEW
from tests.support.servers.fake_group import GROUP, FakeGroup, fake_group, until


class Work:
    """A handler that blocks at the first message of some queues and keys until `free` is set."""

    def __init__(self, *stuck: int | str) -> None:
        self.stuck = stuck
        self.free = asyncio.Event()
        self.handled: dict[int | str, list[int]] = defaultdict(list)

    async def handle(self, delivery: Delivery) -> None:
        ordering_key = delivery.queue if delivery.key is None else delivery.key
        if ordering_key in self.stuck:
            await self.free.wait()
        self.handled[ordering_key].append(delivery.offset)

    @asynccontextmanager
    async def of(self, consumer: AsyncConsumer) -> AsyncIterator[None]:
        """Handle a consumer's messages until the end of the block; then unblock and close."""
        running = asyncio.create_task(consumer.run(self.handle))
        try:
            yield
        finally:
            self.free.set()
            await consumer.close()
            await running

    def count(self) -> int:
        """Return the number of handled messages of the other queues and keys."""
        return sum(
            len(offsets)
            for ordering_key, offsets in self.handled.items()
            if ordering_key not in self.stuck
        )


def held(group: FakeGroup, *keys: int | str) -> int:
    """Return the number of leased messages of these queues and keys."""
    return sum(
        place[1] in keys or group.bodies[place][1] in keys for place in group.leased.values()
    )


async def test_one_stuck_handler_of_16_queues_stops_no_other_queue() -> None:
    # C1, T14: the stuck queue filled the buffer, and the client requested no more
    async with fake_group(100, 16) as (group, client):
        work = Work(0)
        async with work.of(client.consume("t", GROUP, concurrency=16)):
            await until(lambda: work.count() == 1_500)
            await until(lambda: held(group, 0) <= 1 + FEW)
            group.publish(50, queue=7)
            await until(lambda: work.count() == 1_550)
            work.free.set()
            await until(lambda: len(group.acked) == 1_650)
            assert work.handled[0] == list(range(100))
            assert not group.leased


async def test_three_stuck_keys_of_many_stop_no_other_key() -> None:
    # C1: a stuck key alone could fill the buffer, too
    async with fake_group(mode="keyed") as (group, client):
        for number in range(1_000):
            group.publish(1, key="stuck" + str(number % 3) if number % 2 else f"k{number % 100}")
        stuck = ("stuck0", "stuck1", "stuck2")
        work = Work(*stuck)
        async with work.of(client.consume("t", GROUP, concurrency=16)):
            await until(lambda: work.count() == 500)
            await until(lambda: held(group, *stuck) <= 3 * (1 + FEW))
            work.free.set()
            await until(lambda: len(group.acked) == 1_000)
            for offsets in work.handled.values():
                assert offsets == sorted(offsets)


async def test_a_member_holds_one_message_of_a_queue_that_is_stuck_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # C1: other members may need the other messages
    monkeypatch.setattr("holdfast.client.consume.prefetch.SLOW_S", 0.01)
    monkeypatch.setattr("holdfast.client.consume.prefetch.STUCK_S", 0.02)
    async with fake_group(20) as (group, client):
        work = Work(0)
        async with work.of(client.consume("t", GROUP, concurrency=4)):
            await until(lambda: len(group.leased) == 1 and len(group.available) == 19)
            work.free.set()
            await until(lambda: len(group.acked) == 20)
            assert work.handled[0] == list(range(20))


async def test_a_handler_that_returns_during_a_release_gets_the_next_message_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # C1: what the member knew of the queue before the release is outdated
    monkeypatch.setattr("holdfast.client.consume.prefetch.SLOW_S", 0.01)
    monkeypatch.setattr("holdfast.client.consume.prefetch.STUCK_S", 0.02)
    async with fake_group(20) as (group, client):
        work = Work(0)

        async def free_before_the_release(name: str, _: dict[str, Any]) -> None:
            if name == "release":
                work.free.set()
                await until(lambda: work.handled[0])

        group.before = free_before_the_release
        async with work.of(client.consume("t", GROUP, concurrency=4)):
            await until(lambda: len(group.acked) == 20)


@pytest.mark.parametrize("mode", ["competing", "keyed"])
async def test_slow_handlers_of_all_queues_stay_busy_without_releases(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr("holdfast.client.consume.prefetch.SLOW_S", 0.0)
    async with fake_group(mode=mode) as (group, client):
        for queue in range(4):
            group.publish(25, queue=queue, key=f"k{queue}" if mode == "keyed" else None)
        seen: dict[int, list[int]] = defaultdict(list)

        async def handle(delivery: Delivery) -> None:
            await asyncio.sleep(0)
            seen[delivery.queue].append(delivery.offset)

        async with asyncio.timeout(20):
            await client.consume("t", GROUP, concurrency=8, follow=False).run(handle)
        assert seen == {queue: list(range(25)) for queue in range(4)}
        assert not group.named("nack")
        assert sum(len(body["receipts"]) for body in group.named("release")) <= 100


async def test_messages_that_were_settled_on_delivery_are_never_released() -> None:
    async with fake_group(20, 4) as (group, client):
        work = Work(0)
        async with work.of(client.consume("t", GROUP, concurrency=4, settled=True)):
            await until(lambda: work.count() == 60)
            work.free.set()
            await until(lambda: len(work.handled[0]) == 20)
            assert not group.named("release")


async def test_keys_of_a_group_that_is_not_keyed_have_no_limits() -> None:
    async with fake_group() as (group, client):
        for number in range(60):
            group.publish(1, key="stuck" if number % 20 == 0 else f"k{number}")
        work = Work("stuck")
        async with work.of(client.consume("t", GROUP, concurrency=4, serial_by="key")):
            await until(lambda: work.count() == 57)
            assert not any("limits" in body for body in group.named("receive"))
            work.free.set()


async def test_a_consumer_without_concurrency_sets_no_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefetch, "SLOW_S", 0.0)  # every delivery is slow
    async with fake_group(5) as (group, client):
        async with client.consume("t", GROUP) as consumer:
            await anext(consumer)
            assert (await anext(consumer)).offset == 1
        assert not any("limits" in body for body in group.named("receive"))


async def test_stopping_a_keyed_consumer_logs_no_lost_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # C7: the first release also revoked the later messages of its key
    async with fake_group(mode="keyed") as (group, client):
        for number in range(24):
            group.publish(1, key=f"k{number % 3}")
        with caplog.at_level(logging.INFO, "holdfast.client"):
            async with client.consume("t", GROUP, concurrency=2) as consumer:
                await anext(consumer)
                await anext(consumer)
                await until(lambda: len(group.leased) > 10)
        assert len(group.available) == 24
        ours = [each for each in caplog.records if each.name.startswith("holdfast")]
        assert not ours
