"""A real storage on a temporary directory, small and fast, and functions that tests use on it."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from holdfast.commitlog.ageing_clock import wall_clock_us
from holdfast.commitlog.append.appender import AppendRequest
from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.disk.disk import Disk
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.segments.newest_blocks import NewestBlocks
from holdfast.config import Config
from holdfast.consumequeue.config import ConsumeQueueConfig, TopicsConfig
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.reading.fetched import Fetched
from holdfast.consumequeue.topics import STATE_TOPIC_ID, QueueKey, Topic
from holdfast.storage.storage import Storage, StorageEvents

MIB = 1024 * 1024
_DEADLINE_S = 20.0


def small_config(data_dir: Path, *, eager_tail: bool = True, **commitlog: Any) -> Config:
    """Return a configuration with segments of 1 MiB, without a space reserve, for manual retention.

    `commitlog` overrides the section's values.
    """
    values = {
        "segment_bytes": MIB,
        "reserve_bytes": 0,
        "min_free_bytes": 0,
        "flush_interval_ms": 5,
        "retention_interval_ms": 3_600_000,
        "sync_timeout_ms": 60_000,  # a busy disk may stall longer than the default of 5 s
        **commitlog,
    }
    return Config(
        data_dir=data_dir,
        commitlog=CommitLogConfig(**values),
        consumequeue=ConsumeQueueConfig(
            commit_interval_ms=5,
            map_size_bytes=256 * MIB,
            state_map_size_bytes=64 * MIB,
            eager_tail=eager_tail,
        ),
        topics=TopicsConfig(default_retention_ms=0),
    )


def forget_newest_blocks(storage: Storage) -> None:
    """Drop the log's copies of its newest blocks, so that readers see a change of their files."""
    storage.log.newest = NewestBlocks(0)


@asynccontextmanager
async def open_storage(
    config: Config,
    *,
    arrived: Callable[[dict[QueueKey, int]], None] = lambda advanced: None,
    now_us: Callable[[], int] = wall_clock_us,
    disk: Disk | None = None,
) -> AsyncIterator[Storage]:
    """Open the storage; close it at the end. The test fails if a part of the storage fails."""
    failures: list[Exception] = []
    events = StorageEvents(failures.append, [arrived])
    storage = Storage(config, events, disk=disk, now_us=now_us)
    storage.lock()
    try:
        await storage.open()
        yield storage
    finally:
        await storage.close()
    assert not failures


def batch(
    bodies: Sequence[bytes | str] | bytes | str,
    queue: int = 0,
    *,
    key: str | None = None,
    tag: str | None = None,
    properties: Mapping[str, str] | None = None,
    **fields: Any,
) -> Batch:
    """Return a batch as a publisher sends it. All its messages have the same key and tag."""
    if isinstance(bodies, bytes | str):
        bodies = [bodies]
    n = len(bodies)
    encoded = encode_batch(
        [body.encode() if isinstance(body, str) else body for body in bodies],
        keys=[key] * n,
        tags=[tag] * n,
        properties=[properties] * n,
        queue_id=queue,
        **fields,
    )
    return Batch.decode(encoded)


def bodies(fetched: Fetched) -> list[bytes]:
    """Return the bodies that a pull returned, in order."""
    return [piece.batch.body(row) for piece in fetched.slices for row in piece.rows]


async def read_queue(
    store: MessageStore, topic: Topic, queue: int = 0, **bounds: Any
) -> list[tuple[int, bytes]]:
    """Return every (offset, body) of a queue, with as many pulls as needed."""
    state = store.reading.queue_state(topic, queue)
    limits = {"max_messages": 100, "max_bytes": MIB, **bounds}
    found = []
    offset = state.min_offset
    while offset < state.max_offset:
        fetched = await store.reading.read(topic, queue, offset, **limits)
        assert fetched.next_offset > offset
        for piece in fetched.slices:
            base = piece.batch.header.base_offset
            found += [(base + row, piece.batch.body(row)) for row in piece.rows]
        offset = fetched.next_offset
    return found


async def until(condition: Callable[[], object]) -> None:
    """Wait until another thread makes a condition true."""
    async with asyncio.timeout(_DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def settled(storage: Storage) -> None:
    """Wait until all submitted data is written, synced, visible, and in the index on disk."""
    # The appender processes requests in order, so this one comes after all earlier ones.
    passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    storage.appender.submit(AppendRequest(STATE_TOPIC_ID, [], durable=False, context=passed))
    await passed
    await until(
        lambda: (
            storage.syncer.durable_offset == storage.log.written_offset
            and storage.opened.reput.reput_offset == storage.log.written_offset
            and storage.opened.reput.uncommitted_count == 0
            and all(cq.pending == 0 for cq in list(storage.opened.reput.queues.values()))
        )
    )


def copy_running(source: Path, target: Path) -> None:
    """Copy a directory while a broker writes it: the copy is the state after a kill now.

    A file that is renamed during the copy, such as the log's next segment, may be missing.
    """

    def copy(file: str, to: str) -> None:
        with suppress(FileNotFoundError):
            shutil.copy2(file, to)

    shutil.copytree(source, target, copy_function=copy)


async def fill_segment(storage: Storage, topic: Topic, queue: int = 0) -> None:
    """Publish to a queue until the log's next segment has begun."""
    before = max(len(storage.log.segments), 1)
    while len(storage.log.segments) <= before:
        await storage.store.publishing.publish(
            topic, [batch(b"." * 100_000, queue)], durability="written"
        )


async def filled_topic(storage: Storage, *, queues: int = 1, segments: int = 3) -> Topic:
    """Create the topic `t` and fill `segments` segments, with one queue per segment in turn."""
    topic, _ = await storage.store.topics.create("t", queues=queues)
    for number in range(segments):
        await fill_segment(storage, topic, number % queues)
    await settled(storage)
    return topic
