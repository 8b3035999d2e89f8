"""The data that threads have read and the event loop has not yet used is limited."""

import asyncio
import inspect
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.consumequeue.reading import queue_reading
from holdfast.consumequeue.reading.queue_reading import (
    READS_AT_ONCE,
    BlockCache,
    QueueReader,
    memory_of,
)
from tests.support.storage.batches import stamped


def reading_with(executor: ThreadPoolExecutor) -> QueueReader:
    """Return a QueueReader that has threads and no queues."""
    parts: dict[str, Any] = dict.fromkeys(inspect.signature(QueueReader).parameters)
    return QueueReader(**{**parts, "queues": {}, "cache_bytes": 0, "executor": executor})


async def test_threads_do_not_run_ahead_of_the_loop() -> None:
    begun: list[int] = []
    with ThreadPoolExecutor(4) as executor:
        reading = reading_with(executor)
        reads = [asyncio.create_task(reading.in_thread(lambda: begun.append(1))) for _ in range(50)]
        await asyncio.sleep(0)
        # The event loop is blocked meanwhile; the threads finish all reads that they have started.
        together = threading.Barrier(4, timeout=20)
        for each in [executor.submit(together.wait) for _ in range(4)]:
            each.result()
        assert len(begun) == READS_AT_ONCE
        await asyncio.gather(*reads)
    assert len(begun) == 50


class CountedThread(ThreadPoolExecutor):
    """One thread that records its unfinished calls."""

    def __init__(self) -> None:
        super().__init__(1)
        self.under_way: set[Future[Any]] = set()
        self.most = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> "Future[Any]":
        given = super().submit(fn, *args, **named)
        self.under_way.add(given)
        given.add_done_callback(self.under_way.discard)
        self.most = max(self.most, len(self.under_way))
        return given


async def test_cancelled_reads_count_until_their_threads_end() -> None:
    with CountedThread() as executor:
        reading = reading_with(executor)
        begun, release = threading.Event(), threading.Event()

        def stuck() -> None:
            begun.set()
            release.wait(20)

        reads: list[asyncio.Task[None]] = []
        for _ in range(5):  # clients that ask and disconnect
            some = [asyncio.create_task(reading.in_thread(stuck)) for _ in range(20)]
            assert await asyncio.to_thread(begun.wait, 20)
            await asyncio.sleep(0)
            for each in some:
                each.cancel()
            await asyncio.sleep(0)
            reads += some
        assert executor.most == len(executor.under_way) == READS_AT_ONCE
        release.set()
        await asyncio.wait(reads)
        assert await reading.in_thread(lambda: "read") == "read"
        assert executor.most == READS_AT_ONCE


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 10, 11])
async def test_a_long_list_is_processed_in_parts(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(queue_reading, "ITEMS_A_CALL", 5)
    with ThreadPoolExecutor(1) as executor:
        reading = reading_with(executor)
        taken: list[int] = []
        in_thread = reading.in_thread

        async def counted(function: Any) -> Any:
            found = await in_thread(function)
            taken.append(len(found))
            return found

        monkeypatch.setattr(reading, "in_thread", counted)
        assert await reading.all_in_thread(iter(range(count))) == list(range(count))
    assert max(taken) <= 5
    assert len(taken) == count // 5 + 1


def block(number: int, body_bytes: int = 0) -> Batch:
    return stamped(encode_batch([b"." * body_bytes]), physical_offset=number)


SIZE = memory_of(block(0))
BLOCKS = [[block(number, size * 40) for size in range(10)] for number in range(10)]


def test_a_batch_is_found_by_its_physical_offset() -> None:
    cache = BlockCache(10 * SIZE)
    one = block(1)
    cache.put(one)
    cache.put(block(1))
    assert cache.get(1) is one
    assert cache.get(2) is None


def test_the_least_recently_used_batch_is_dropped() -> None:
    cache = BlockCache(2 * SIZE)
    for number in (1, 2):
        cache.put(block(number))
    cache.get(1)
    cache.put(block(3))
    assert cache.get(2) is None
    assert cache.get(1) is not None
    assert cache.get(3) is not None


def test_a_batch_larger_than_the_cache_is_not_cached() -> None:
    cache = BlockCache(SIZE)
    cache.put(block(1))
    cache.put(block(2, body_bytes=1000))
    assert cache.get(2) is None
    assert cache.get(1) is not None


def test_a_cache_of_size_0_keeps_nothing() -> None:
    cache = BlockCache(0)
    cache.put(block(1))
    assert cache.get(1) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40))
def test_the_limit_of_the_cache_is_never_exceeded(puts: list[tuple[int, int]]) -> None:
    cache = BlockCache(5 * SIZE)
    for number, size in puts:
        cache.put(BLOCKS[number][size])
        kept = [found for n in range(10) if (found := cache.get(n)) is not None]
        assert sum(map(memory_of, kept)) <= 5 * SIZE


def test_the_objects_of_small_batches_are_counted() -> None:
    raw = [bytes(block(number).block) for number in range(500)]
    tracemalloc.start()
    kept = [Batch.decode(each) for each in raw]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken <= sum(memory_of(each) - len(each.block) for each in kept)
