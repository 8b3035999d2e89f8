"""H6: a publish waited without limit for a sync that hung."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.commitlog.errors import SyncTimeout
from holdfast.consumequeue.publishing import Publisher
from holdfast.storage.storage import Storage
from tests.support.damage.standing_syncs import StandingSyncs
from tests.support.storage.stored import batch, open_storage, read_queue, small_config, until

_PRODUCER: dict[str, Any] = {"producer_id": 7, "producer_epoch": 1, "sequence": 0}


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    config = small_config(tmp_path)
    log = dataclasses.replace(config.commitlog, sync_timeout_ms=60_000)
    async with open_storage(dataclasses.replace(config, commitlog=log)) as storage:
        await storage.store.topics.create("t", queues=1)
        yield storage


def _wait_for(storage: Storage, timeout_ms: int) -> None:
    """Set the timeout of publishes from now on."""
    publishing: Publisher = storage.store.publishing
    assert publishing.timeout_ms in (60_000, 50)
    publishing.timeout_ms = timeout_ms


async def test_a_retry_after_a_timeout_is_stored_once(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, topic = storage.store, storage.store.table.get("t")
    syncs = StandingSyncs(monkeypatch)
    syncs.hold()
    _wait_for(storage, 50)
    # the repeated publish waits for the first one's sync, within the same timeout
    for _ in range(2):
        with pytest.raises(SyncTimeout) as timeout:
            await store.publishing.publish(topic, [batch("once", **_PRODUCER)])
        assert (timeout.value.stored, timeout.value.timeout_ms) == ("unknown", 50)
    assert storage.admission.in_flight_bytes > 0, "what nobody waits for is in memory all the same"
    syncs.release()
    _wait_for(storage, 60_000)
    await until(lambda: storage.admission.in_flight_bytes == 0)
    (again,) = await store.publishing.publish(topic, [batch("once", **_PRODUCER)])
    assert (again.base_offset, again.duplicate, again.durable) == (0, True, True)
    assert await read_queue(store, topic) == [(0, b"once")]


async def test_a_written_publish_waits_for_no_sync(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, topic = storage.store, storage.store.table.get("t")
    syncs = StandingSyncs(monkeypatch)
    syncs.hold()
    _wait_for(storage, 50)
    waiting = asyncio.create_task(store.publishing.publish(topic, [batch("durable")]))
    await asyncio.sleep(0)  # the publish has begun to wait
    _wait_for(storage, 60_000)
    (written,) = await store.publishing.publish(topic, [batch("written")], durability="written")
    assert not written.durable
    with pytest.raises(SyncTimeout):
        await waiting
    syncs.release()


async def test_cancelled_publishes_do_not_wait(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, topic = storage.store, storage.store.table.get("t")
    syncs = StandingSyncs(monkeypatch)
    syncs.hold()
    many = [
        asyncio.create_task(store.publishing.publish(topic, [batch(str(n))])) for n in range(10)
    ]
    await asyncio.sleep(0)
    many[3].cancel()
    await until(lambda: storage.log.written_offset > storage.syncer.durable_offset)
    syncs.release()
    done = await asyncio.gather(*many, return_exceptions=True)
    assert [type(each) for each in done].count(asyncio.CancelledError) == 1
    assert sum(isinstance(each, list) for each in done) == 9
