"""A read of new messages from memory returns what a read from the disk returns."""

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.segments.newest_blocks import NewestBlocks
from holdfast.consumequeue.errors import StoreError
from holdfast.consumequeue.reading.fetched import Fetched
from holdfast.consumequeue.topics import Topic
from holdfast.holdservice.filters import parse_filter
from holdfast.storage.storage import Storage
from tests.support.storage.batches import stamped
from tests.support.storage.stored import batch, bodies, open_storage, settled, small_config

ROUNDS = 150


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    """Yield a storage without a cache of batches, so that each read gets its blocks itself."""
    config = small_config(tmp_path)
    index = replace(config.consumequeue, hot_cache_bytes=0)
    async with open_storage(replace(config, consumequeue=index)) as storage:
        yield storage


async def make_topic(storage: Storage, durability: str) -> Topic:
    topic, _ = await storage.store.topics.create("t", queues=1, fields={"durability": durability})
    return topic


async def read_both(storage: Storage, topic: Topic, offset: int, **wanted: Any) -> tuple[Any, Any]:
    """Read from memory, then with the disk's blocks; return both results in comparable form."""
    reading, log, newest = storage.store.reading, storage.log, storage.log.newest
    found: list[object] = []
    try:
        found.append(comparable(reading.read_hot(topic, 0, offset, **wanted)))
    except StoreError as error:
        found.append((type(error), str(error)))
    log.newest = NewestBlocks(0)
    try:
        found.append(comparable(await reading.read(topic, 0, offset, **wanted)))
    except StoreError as error:
        found.append((type(error), str(error)))
    log.newest = newest
    return found[0], found[1]


def comparable(fetched: Fetched | None) -> object:
    if fetched is None:
        return None
    slices = [
        (each.batch.header, bytes(each.batch.block), list(each.rows), each.text_bytes)
        for each in fetched.slices
    ]
    blocks = [(bytes(each.blocks), each.message_count) for each in fetched.pieces]
    return (*fetched[1:], slices, blocks)


@pytest.mark.parametrize("durability", ["written", "fsync"])
@pytest.mark.parametrize("seed", range(2))
async def test_memory_and_disk_give_the_same(storage: Storage, durability: str, seed: int) -> None:
    topic = await make_topic(storage, durability)
    rng = random.Random(seed)
    (cq_key, from_memory) = (topic.topic_id, 0), 0
    for number in range(ROUNDS):
        for _ in range(rng.choice((1, 1, 1, 3))):
            texts = ["x" * rng.choice((0, 10, 3000)) for _ in range(rng.choice((1, 1, 2, 40)))]
            tag = rng.choice((None, "a", "b"))
            made = batch(texts, tag=tag, key=rng.choice((None, "k")))
            await storage.store.publishing.publish(topic, [made])
        cq = storage.opened.queues[cq_key]
        if number % 40 == 39:
            cq.trim_queue(rng.randint(cq.min_offset, cq.max_offset), cq.min_bytes)
        newest = cq.newest
        assert newest is not None
        for _ in range(4):
            before = rng.choice((newest.base_offset, newest.base_offset, cq.max_offset))
            offset = max(before - rng.choice((0, 0, 0, 1, 5)), 0)
            memory, disk = await read_both(
                storage,
                topic,
                offset,
                max_messages=rng.choice((1, 2, 39, 40, 1000)),
                max_bytes=rng.choice((1, newest.size - 1, newest.size, 1_000_000)),
                filter=rng.choice((None, None, parse_filter("a", None))),
                skip_corrupt=rng.random() < 0.3,
            )
            if memory is not None:  # None is allowed: such a read goes to the disk
                from_memory += 1
                assert memory == disk
    assert from_memory > 3 * ROUNDS


async def test_a_batch_that_was_recorded_as_lost_is_recorded_as_readable(storage: Storage) -> None:
    topic = await make_topic(storage, "written")
    key = (topic.topic_id, 0)
    await storage.store.publishing.publish(topic, [batch(["0", "1", "2"])])
    reading = storage.store.reading
    reading.damage.record_lost(key, 1, 2, "payload-crc")
    assert reading.damage.lost[key]
    read = reading.read_hot(topic, 0, 0, max_messages=10, max_bytes=1000)
    assert read is not None
    assert bodies(read) == [b"0", b"1", b"2"]
    assert not reading.damage.lost[key]


async def test_a_message_that_waits_for_its_sync_is_not_read(storage: Storage) -> None:
    """The copy exists before the message is visible; a reader must not get it earlier."""
    topic = await make_topic(storage, "fsync")
    await storage.store.publishing.publish(topic, [batch("0")])
    cq = storage.opened.queues[topic.topic_id, 0]
    assert cq.newest is not None
    hidden = stamped(
        bytes(batch("hidden").block),
        physical_offset=cq.newest.end_physical_offset,
        base_offset=1,
        topic_id=topic.topic_id,
    )
    storage.log.newest.add([hidden.header], [hidden.block[:128], hidden.block[128:]])
    assert storage.log.newest.find(hidden.header.physical_offset, hidden.total_size) is not None
    read = storage.store.reading.read_hot(topic, 0, 1, max_messages=9, max_bytes=1000)
    assert read == Fetched((), 1, 0, 1, 0)


async def test_only_the_newest_batch_with_one_message_is_read_alone(storage: Storage) -> None:
    topic = await make_topic(storage, "written")
    key, reading = (topic.topic_id, 0), storage.store.reading

    def alone() -> list[int]:
        """Return the offsets that can be read alone."""
        found = {offset: reading.newest_alone(key, offset) for offset in range(7)}
        return [at for at, each in found.items() if each and each.body(0) == b"%d" % at]

    assert alone() == []
    for texts, expected in (["0"], [0]), (["1"], [1]), (["2", "3"], []), (["4"], [4]):
        await storage.store.publishing.publish(topic, [batch(texts)])
        assert alone() == expected
    reading.damage.record_lost(key, 1, 2, "payload-crc")
    assert alone() == []
    reading.damage.record_readable(key, 1, 2)
    assert alone() == [4]
    cq = storage.opened.queues[key]
    cq.trim_queue(cq.max_offset, cq.min_bytes)
    assert alone() == []


async def test_new_messages_are_read_without_the_disk(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await make_topic(storage, "fsync")

    def refuse(physical_offset: int, size: int) -> Batch | None:
        raise AssertionError("the block is read from the disk")

    monkeypatch.setattr(storage.log, "read_batch_nowait", refuse)
    await storage.store.publishing.publish(topic, [batch("0")])
    await storage.store.publishing.publish(topic, [batch(["1", "2"])])
    await settled(storage)
    for offset, found in ((1, [b"1", b"2"]), (2, [b"2"]), (0, [b"0", b"1", b"2"])):
        read = storage.store.reading.read_hot(topic, 0, offset, max_messages=9, max_bytes=1000)
        assert read is not None
        assert bodies(read) == found


@pytest.mark.parametrize(("queues", "on_loop"), [(2, True), (3, False)])
async def test_a_thread_reads_all_queues_if_their_newest_batches_are_large(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, queues: int, on_loop: bool
) -> None:
    topic, _ = await storage.store.topics.create("t", queues=queues)
    for queue in range(queues):
        await storage.store.publishing.publish(topic, [batch(["x" * 100_000], queue=queue)])
    read_on_loop = storage.log.read_batch_nowait
    read: list[int] = []

    def counted(physical_offset: int, size: int) -> Batch | None:
        read.append(size)
        return read_on_loop(physical_offset, size)

    monkeypatch.setattr(storage.log, "read_batch_nowait", counted)
    offsets = dict.fromkeys(range(queues), 0)
    found = await storage.store.reading.read_many(topic, offsets, max_messages=100, max_bytes=2**24)
    texts = [bodies(each) for each in found.values() if isinstance(each, Fetched)]
    assert texts == [[b"x" * 100_000]] * queues
    assert bool(read) == on_loop
