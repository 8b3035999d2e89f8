"""Groups over a real storage: fairness, retention, times to seek to, and damage."""

import asyncio
from pathlib import Path

from holdfast.groups.service_types import Status, Verb
from holdfast.groups.settings import Subscription
from tests.support.servers.group_broker import bodies_of, receipts_of, running, running_group
from tests.support.storage.stored import fill_segment, settled, until

WEIGHTS = {f"p{n}": 4 * (n + 1) for n in range(10)}


async def test_messages_that_retention_removes_count_as_lost(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await broker.topic()
        await broker.group()
        await fill_segment(broker.storage, topic)
        await fill_segment(broker.storage, topic)
        await settled(broker.storage)
        held = await broker.receive(2, wait_s=10.0)
        await broker.store.topics.change("t", fields={"retention_bytes": 1})
        await broker.storage.retention.run_once()
        begin = broker.store.reading.queue_state(topic, 0).min_offset
        assert begin > 2
        queue = (await broker.groups.describe("g")).topics[0].queues[0]
        assert (queue.floor, queue.lost, queue.in_flight) == (begin, begin, 0)
        assert await broker.settle(held, Verb.NACK) == [Status.STALE] * 2
        await broker.publish("x")
        received = await broker.receive(100_000)
        assert received.deliveries[0].offset == begin
        assert bodies_of(received)[-1] == "x"


async def test_a_group_seeks_to_a_time(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await broker.topic()
        await broker.group()
        await broker.publish("old")
        broker.skipped_s += 3600
        await broker.publish("new")
        fetched = await broker.store.reading.read(topic, 0, 1, max_messages=1, max_bytes=1)
        stored_ms = fetched.slices[0].store_timestamp_us // 1000
        assert await broker.groups.seek("g", stored_ms - 1000) == {"t": {0: 1}}
        assert bodies_of(await broker.receive()) == ["new"]


async def test_messages_expire_by_the_wall_clock_also_right_after_a_start(tmp_path: Path) -> None:
    # R4: for ten minutes after a start, the retention clock continues from the newest message
    async with running_group(tmp_path) as broker:
        await broker.publish("old", expires_timestamps_us=[broker._now_us() + 8_000_000])
    async with running(tmp_path, skipped_s=3600.0) as broker:
        expires = [broker._now_us() + 60_000_000, broker._now_us() + 600_000_000]
        await broker.publish(["soon", "later"], expires_timestamps_us=expires)
        assert bodies_of(await broker.receive(wait_s=10.0)) == ["soon", "later"]
        assert (await broker.groups.describe("g")).topics[0].queues[0].expired == 1
        await broker.groups.seek("g", "earliest")
        broker.later(61)
        assert bodies_of(await broker.receive()) == ["later"]


async def test_messages_expire_by_the_wall_clock_that_was_set(tmp_path: Path) -> None:
    # R4: leases are independent of clock changes; ttl_ms is measured with the wall clock
    async with running_group(tmp_path) as broker:
        start_us = broker._now_us()
        expires = [start_us + 600_000_000, 0, start_us + 7200_000_000]
        await broker.publish(["soon", "never", "later"], expires_timestamps_us=expires)
        first = await broker.receive(1)
        assert bodies_of(first) == ["soon"]
        broker.set_ahead_s = 3600.0
        assert (await broker.groups.describe("g")).in_flight == 1
        await broker.settle(first, Verb.RELEASE)
        assert bodies_of(await broker.receive()) == ["never", "later"]
        broker.set_ahead_s = 7200.0
        assert bodies_of(await broker.receive(browse=True)) == []
        broker.set_ahead_s = 0.0
        await broker.groups.seek("g", "earliest")
        assert bodies_of(await broker.receive()) == ["soon", "never", "later"]


async def test_old_messages_are_read_from_the_disk_once_a_batch(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await broker.topic()
        for n in range(20):
            await broker.publish([f"{n}.{each}" for each in range(10)])
        await settled(broker.storage)
        await broker.group()
    async with running(tmp_path) as broker:
        topic = broker.store.table.get("t")
        read_hot, read = broker.store.reading.read_hot, broker.store.reading.read
        reads: list[int] = []

        async def counted(*args: object, **how: object) -> object:
            reads.append(args[2])  # type: ignore[arg-type]
            return await read(*args, **how)  # type: ignore[arg-type]

        def counted_hot(*args: object, **how: object) -> object:
            found = read_hot(*args, **how)  # type: ignore[arg-type]
            if found is not None:
                reads.append(args[2])  # type: ignore[arg-type]
            return found

        broker.store.reading.read = counted  # type: ignore[method-assign, assignment]
        broker.store.reading.read_hot = counted_hot  # type: ignore[method-assign, assignment]
        found: list[str] = []
        while received := (await broker.receive(7)).deliveries:
            found += [each.batch.body(each.row).decode() for each in received]
        assert found == [f"{n}.{each}" for n in range(20) for each in range(10)]
        assert len(reads) == len(set(reads)) <= 20
        assert topic.queue_count == 1


async def test_a_waiting_receive_finds_a_match_after_many_messages_that_do_not_match(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        for n in range(60):
            await broker.publish([f"{n}"] * 200, tag="no")
        await broker.group(topics={"t": Subscription(filter="yes")})
        waiting = asyncio.create_task(broker.receive(wait_s=30.0))
        (lane,) = broker.groups.registry.by_name["g"].lanes()
        await until(lambda: lane.cursor.floor == 60 * 200)
        await broker.publish("x", tag="yes")
        assert bodies_of(await waiting) == ["x"]


async def test_a_filter_on_disk_continues_where_it_stopped(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        for n in range(50):
            await broker.publish([f"{n}.{each}" for each in range(20)], tag="ab"[n % 2])
        await settled(broker.storage)
        await broker.group(topics={"t": Subscription(filter="b")}, max_in_flight=5_000)
    async with running(tmp_path) as broker:
        found: list[str] = []
        while len(found) < 500:
            received = await broker.receive(64, wait_s=10.0)
            found += bodies_of(received)
            await broker.settle(receipts_of(received))
        assert found == [f"{n}.{each}" for n in range(1, 50, 2) for each in range(20)]
        assert (await broker.groups.floors("g", "t")) == {0: 1000}
