"""Read leases over a real log: pinned messages are kept exactly until the lease ends."""

import asyncio
from pathlib import Path

import pytest

from holdfast.consumequeue.errors import OffsetTrimmed, UnknownReadLease
from holdfast.consumequeue.maintenance.read_lease_service import ReadLeaseService
from holdfast.consumequeue.topics import Topic
from holdfast.storage.storage import Storage
from tests.support.stored import (
    MIB,
    batch,
    filled_topic,
    open_storage,
    read_queue,
    settled,
    small_config,
)

MINUTE_MS = 60_000


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def leasing(storage: Storage) -> tuple[ReadLeaseService, Clock]:
    clock = Clock()
    storage.store.read_leases._monotonic = clock
    return storage.store.read_leases, clock


async def make(storage: Storage, *, queues: int = 1) -> Topic:
    await filled_topic(storage, queues=queues, segments=4)
    return await storage.store.topics.change("t", fields={"retention_bytes": MIB})


async def test_retention_stops_at_what_is_pinned_and_goes_on_after_it(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        leases, clock = leasing(storage)
        topic = await make(storage)
        before = await read_queue(storage.store, topic)
        end = storage.store.reading.queue_state(topic, 0).max_offset
        await leases.take(topic, {0: end // 2}, MINUTE_MS)
        await storage.retention.run_once()
        assert 0 < storage.store.reading.queue_state(topic, 0).min_offset <= end // 2
        begin = storage.store.reading.queue_state(topic, 0).min_offset
        assert await read_queue(storage.store, topic) == before[begin:]
        clock.now_s += MINUTE_MS / 1000
        await storage.retention.run_once()
        assert storage.store.reading.queue_state(topic, 0).min_offset > end // 2


async def test_what_is_pinned_within_a_batch_keeps_the_whole_batch(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        leases, _ = leasing(storage)
        topic, _ = await storage.store.topics.create("t", queues=1)
        for text in "abcd":
            await storage.store.publishing.publish(topic, [batch([text * 1000] * 10)])
        await settled(storage)
        topic = await storage.store.topics.change("t", fields={"retention_bytes": 1})
        await leases.take(topic, {0: 15}, MINUTE_MS)
        await storage.retention.run_once()
        assert storage.store.reading.queue_state(topic, 0).min_offset == 10
        await storage.retention.run_once()
        assert storage.store.reading.queue_state(topic, 0).min_offset == 10


async def test_other_queues_and_other_topics_are_not_pinned(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        leases, _ = leasing(storage)
        other, _ = await storage.store.topics.create("other", queues=1)
        topic = await make(storage, queues=2)
        await leases.take(other, {0: 0}, MINUTE_MS)
        await leases.take(topic, {1: 0}, MINUTE_MS)
        await storage.store.topics.change("t", fields={"retention_bytes": 1})
        await storage.retention.run_once()
        states = storage.store.reading.queue_states(topic)
        assert states[0].min_offset == states[0].max_offset
        assert states[1].min_offset == 0


async def test_an_extended_lease_pins_on_and_one_that_is_let_go_does_not(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        leases, clock = leasing(storage)
        topic = await make(storage)
        lease = await leases.take(topic, {0: 0}, MINUTE_MS)
        clock.now_s += 59
        extended = leases.extend(topic, lease.lease_id, MINUTE_MS)
        assert extended.lease_id == lease.lease_id
        clock.now_s += 59
        await storage.retention.run_once()
        assert storage.store.reading.queue_state(topic, 0).min_offset == 0
        assert leases.end(topic, lease.lease_id)
        await storage.retention.run_once()
        assert storage.store.reading.queue_state(topic, 0).min_offset > 0
        with pytest.raises(UnknownReadLease):
            leases.extend(topic, lease.lease_id, MINUTE_MS)


async def test_the_limit_on_the_whole_log_waits_for_nobody(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path, max_total_bytes=2 * MIB)) as storage:
        leases, _ = leasing(storage)
        topic = await filled_topic(storage, segments=4)
        await leases.take(topic, {0: 0}, MINUTE_MS)
        assert await storage.retention.run_once() == 3
        assert storage.store.reading.queue_state(topic, 0).min_offset > 0


async def test_a_disk_without_room_waits_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        leases, _ = leasing(storage)
        topic = await make(storage)
        await leases.take(topic, {0: 0}, MINUTE_MS)
        monkeypatch.setattr(storage.retention, "_is_disk_low", lambda: True)
        await storage.retention.run_once()
        assert storage.store.reading.queue_state(topic, 0).min_offset > 0


async def test_no_lease_is_granted_on_what_is_about_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        leases, _ = leasing(storage)
        topic = await make(storage)
        commit, gate, begun = storage.retention._commit_state, asyncio.Event(), asyncio.Event()

        async def slow(changes: dict[bytes, bytes | None]) -> None:
            begun.set()
            await gate.wait()
            await commit(changes)

        monkeypatch.setattr(storage.retention, "_commit_state", slow)
        retention = asyncio.create_task(storage.retention.run_once())
        await begun.wait()
        taking = asyncio.create_task(leases.take(topic, {0: 0}, MINUTE_MS))
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(OffsetTrimmed) as caught:
            await taking
        await retention
        assert caught.value.min_offset == storage.store.reading.queue_state(topic, 0).min_offset
        assert leases.count() == 0


async def test_a_topic_that_is_deleted_ends_its_leases(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        leases, _ = leasing(storage)
        topic = await make(storage)
        lease = await leases.take(topic, {0: 0}, MINUTE_MS)
        await storage.store.topics.delete("t")
        assert leases.count() == 0
        assert await storage.retention.run_once() == 4
        again, _ = await storage.store.topics.create("t")
        with pytest.raises(UnknownReadLease):
            leases.extend(again, lease.lease_id, MINUTE_MS)


async def test_a_restart_forgets_every_lease(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        topic = await make(storage)
        lease = await storage.store.read_leases.take(topic, {0: 0}, MINUTE_MS)
    async with open_storage(small_config(tmp_path)) as storage:
        with pytest.raises(UnknownReadLease):
            storage.store.read_leases.extend(topic, lease.lease_id, MINUTE_MS)
        await storage.retention.run_once()
        assert storage.store.reading.queue_state(topic, 0).min_offset > 0
