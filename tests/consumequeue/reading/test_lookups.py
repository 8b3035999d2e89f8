import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.consumequeue.index.queue_lookup import first_unit_reaching
from holdfast.consumequeue.reading import lookups, queue_reading, splits
from holdfast.consumequeue.reading.key_search import find_key
from tests.support.storage.stored import batch, open_storage, small_config, until


class SlowSearch:
    """A replacement of `find_key` that counts its calls, and lets them wait for `may_end`."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = threading.Event()

    def __call__(self, *args: Any) -> Any:
        self.begun += 1
        self.may_end.wait(20)
        return find_key(*args)


@pytest.fixture
def slow_search(monkeypatch: pytest.MonkeyPatch) -> SlowSearch:
    search = SlowSearch()
    monkeypatch.setattr(lookups, "find_key", search)
    return search


async def test_one_search_runs_at_a_time_beside_reads(
    tmp_path: Path, slow_search: SlowSearch
) -> None:
    """A search uses a reader thread and a segment's tables; many searches must not use all
    threads."""
    async with open_storage(small_config(tmp_path)) as storage:
        store = storage.store
        topic, _ = await store.topics.create("t", queues=1)
        await store.publishing.publish(topic, [batch("found", key="k")])
        searches = [asyncio.create_task(store.lookups.search_key(topic, "k", 10)) for _ in range(8)]
        await until(lambda: slow_search.begun > 0)
        async with asyncio.timeout(10):
            assert (
                await store.lookups.offset_by_time(topic, 0, 0) is not None
            )  # uses a reader thread too
        assert slow_search.begun == 1
        slow_search.may_end.set()
        for found in await asyncio.gather(*searches):
            assert [each.body(row) for each, row in found] == [b"found"]


async def test_a_cancelled_search_still_occupies_its_turn(
    tmp_path: Path, slow_search: SlowSearch
) -> None:
    """Clients that ask and disconnect must not have more running searches than clients that
    wait."""
    async with open_storage(small_config(tmp_path)) as storage:
        store = storage.store
        topic, _ = await store.topics.create("t", queues=1)
        await store.publishing.publish(topic, [batch("found", key="k")])
        searches = []
        for _ in range(5):
            searches.append(asyncio.create_task(store.lookups.search_key(topic, "k", 10)))
            await until(lambda: slow_search.begun > 0)
            for _ in range(10):  # enough iterations to start, if it may
                await asyncio.sleep(0)
            searches[-1].cancel()
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            assert (
                await store.lookups.offset_by_time(topic, 0, 0) is not None
            )  # uses a reader thread too
        assert slow_search.begun == 1
        slow_search.may_end.set()
        await asyncio.wait(searches)
        assert all(each.cancelled() for each in searches)
        assert len(await store.lookups.search_key(topic, "k", 10)) == 1


async def test_a_cancelled_plan_ends_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = 5
    monkeypatch.setattr(queue_reading, "ITEMS_A_CALL", at_once)
    begun, may_go_on = threading.Event(), threading.Event()
    searches = 0

    def counted(*args: Any) -> Any:
        nonlocal searches
        searches += 1
        if searches == at_once + 2:  # in the second portion
            begun.set()
            may_go_on.wait(20)
        return first_unit_reaching(*args)

    monkeypatch.setattr(splits, "first_unit_reaching", counted)
    async with open_storage(small_config(tmp_path)) as storage:
        store = storage.store
        topic, _ = await store.topics.create("t", queues=1)
        count = 10 * at_once
        for number in range(count):
            await store.publishing.publish(topic, [batch(f"body {number}")])
        ask = partial(
            store.lookups.splits,
            topic,
            {0: (0, count)},
            max_bytes=1,
            min_splits=1,
            max_splits=count,
        )
        planning = asyncio.create_task(ask())
        await until(begun.is_set)
        planning.cancel()
        may_go_on.set()
        await asyncio.wait((planning,))
        assert planning.cancelled()
        assert searches <= 2 * at_once + 1
        whole = await ask()
        assert [(each.start_offset, each.end_offset) for each in whole] == [
            (number, number + 1) for number in range(count)
        ]
        assert [each.start_offset for each in await store.lookups.segments(whole)] == [0]


# O8: there was no lag in seconds, and no age of the oldest message.
async def test_store_timestamps_are_found_in_memory_and_on_disk(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    async with open_storage(config) as storage:
        store = storage.store
        topic, _ = await store.topics.create("t", queues=2)
        key = (topic.topic_id, 0)
        for body in ("a", "b", "c"):
            await store.publishing.publish(topic, [batch(body)])
        hot = await store.lookups.stored_at([(key, 0), (key, 1), (key, 2), (key, 3)])
        others = await store.lookups.stored_at([((topic.topic_id, 1), 0), ((99, 0), 0)])
        assert await store.lookups.stored_at([]) == []
    async with open_storage(config) as storage:  # now its entries are only in the index
        cold = await storage.store.lookups.stored_at([(key, 3), (key, 2), (key, 1), (key, 0)])
    assert others == [None, None]
    assert None not in hot[:3]
    assert hot[3] is None
    assert hot[:3] == sorted(hot[:3], key=lambda at: at or 0)
    assert cold == hot[::-1]


@pytest.mark.parametrize(("more", "count"), [(-1, 1), (0, 2), (1, 2)])
async def test_a_search_ends_at_its_byte_limit(tmp_path: Path, more: int, count: int) -> None:
    # M1: a search for a thousand messages of 4 MiB kept all their batches, four gigabytes
    async with open_storage(small_config(tmp_path)) as storage:
        store = storage.store
        topic, _ = await store.topics.create("t", queues=1)
        for number in range(5):
            await store.publishing.publish(topic, [batch(f"body {number}", key="k")])
        ((one, _),) = await store.lookups.search_key(topic, "k", 10, max_bytes=1)
        size = one.header.total_size
        found = await store.lookups.search_key(topic, "k", 10, max_bytes=2 * size + more)
        newest = [b"body 4", b"body 3", b"body 2"]
        assert [each.body(row) for each, row in found] == newest[:count]
        assert len(await store.lookups.search_key(topic, "k", 10)) == 5
