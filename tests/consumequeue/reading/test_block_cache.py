"""The batches that stay decoded; together they never exceed their memory limit."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.consumequeue.reading.queue_reading import BlockCache, memory_of
from tests.support.batches import stamped


def block(number: int, body_bytes: int = 0) -> Batch:
    return stamped(encode_batch([b"." * body_bytes]), physical_offset=number)


SIZE = memory_of(block(0))
BLOCKS = [[block(number, size * 40) for size in range(10)] for number in range(10)]


def test_a_batch_is_found_by_its_place() -> None:
    cache = BlockCache(10 * SIZE)
    one = block(1)
    cache.put(one)
    cache.put(block(1))
    assert cache.get(1) is one
    assert cache.get(2) is None


def test_what_was_not_used_for_longest_goes_first() -> None:
    cache = BlockCache(2 * SIZE)
    for number in (1, 2):
        cache.put(block(number))
    cache.get(1)
    cache.put(block(3))
    assert cache.get(2) is None
    assert cache.get(1) is not None
    assert cache.get(3) is not None


def test_a_batch_larger_than_the_cache_is_not_kept_and_drives_nothing_out() -> None:
    cache = BlockCache(SIZE)
    cache.put(block(1))
    cache.put(block(2, body_bytes=1000))
    assert cache.get(2) is None
    assert cache.get(1) is not None


def test_a_cache_of_no_room_keeps_nothing() -> None:
    cache = BlockCache(0)
    cache.put(block(1))
    assert cache.get(1) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40))
def test_the_room_is_never_exceeded(puts: list[tuple[int, int]]) -> None:
    cache = BlockCache(5 * SIZE)
    for number, size in puts:
        cache.put(BLOCKS[number][size])
        kept = [found for n in range(10) if (found := cache.get(n)) is not None]
        assert sum(map(memory_of, kept)) <= 5 * SIZE


def test_small_batches_count_for_what_their_objects_take() -> None:
    raw = [bytes(block(number).block) for number in range(500)]
    tracemalloc.start()
    kept = [Batch.decode(each) for each in raw]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken <= sum(memory_of(each) - len(each.block) for each in kept)
