"""Retention over a real log: files are deleted when they are unneeded, and only then."""

import asyncio
import errno
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import lmdb
import pytest

from holdfast.commitlog.disk.disk import File
from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.errors import OffsetTrimmed
from holdfast.consumequeue.index.index import Index
from holdfast.consumequeue.state.records import kept_key
from holdfast.consumequeue.state.store import Changes
from holdfast.consumequeue.topics import Topic
from holdfast.storage.storage import Storage
from tests.support.storage.stored import (
    MIB,
    batch,
    fill_segment,
    filled_topic,
    open_storage,
    read_queue,
    settled,
    small_config,
    until,
)


def files(data_dir: Path) -> list[int]:
    """Return the starts of the segment files, in MiB."""
    return sorted(int(path.name) // MIB for path in (data_dir / "commitlog").iterdir())


def live(storage: Storage) -> list[int]:
    return [segment.start_offset // MIB for segment in storage.log.segments]


async def test_without_limits_everything_stays(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        topic = await filled_topic(storage)
        assert await storage.retention.run_once() == 0
        assert live(storage) == [0, 1, 2, 3]
        assert storage.store.reading.queue_state(topic, 0).min_offset == 0


async def test_files_of_expired_messages_are_deleted(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        topic = await filled_topic(storage, queues=2)
        ends = [storage.store.reading.queue_state(topic, queue).max_offset for queue in (0, 1)]
        topic = await storage.store.topics.change("t", fields={"retention_ms": 1})
        await until(lambda: storage.retention.now_us() > _newest_us(storage, topic) + 1000)
        assert await storage.retention.run_once() == 3
        assert live(storage) == [3]
        assert 0 not in files(tmp_path)
        for queue, end in enumerate(ends):
            state = storage.store.reading.queue_state(topic, queue)
            assert (state.min_offset, state.max_offset, state.bytes) == (end, end, 0)
            with pytest.raises(OffsetTrimmed) as caught:
                await storage.store.reading.read(topic, queue, end - 1, max_messages=1, max_bytes=1)
            assert (caught.value.min_offset, caught.value.max_offset) == (end, end)
        await storage.store.publishing.publish(topic, [batch("next", 1)])
        await settled(storage)
        assert await read_queue(storage.store, topic, 1) == [(ends[1], b"next")]


def _newest_us(storage: Storage, topic: Topic) -> int:
    return max(
        state.newest_timestamp_us or 0 for state in storage.store.reading.queue_states(topic)
    )


async def test_a_topic_over_its_size_loses_its_oldest_messages(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        topic = await filled_topic(storage, segments=4)
        before = await read_queue(storage.store, topic)
        topic = await storage.store.topics.change("t", fields={"retention_bytes": 2 * MIB})
        assert await storage.retention.run_once() == 2
        state = storage.store.reading.queue_state(topic, 0)
        assert 2 * MIB - 200_000 < state.bytes <= 2 * MIB
        assert await read_queue(storage.store, topic) == before[state.min_offset :]
        assert await storage.retention.run_once() == 0


async def test_a_needed_segment_and_all_later_segments_stay(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        store = storage.store
        keeper, _ = await store.topics.create("keeper", queues=1)
        topic = await filled_topic(storage, segments=2)
        await store.publishing.publish(keeper, [batch("precious")])
        await fill_segment(storage, topic)
        await settled(storage)
        await store.topics.change("t", fields={"retention_bytes": 1})
        assert await storage.retention.run_once() == 2
        assert live(storage) == [2, 3]
        assert await read_queue(store, keeper) == [(0, b"precious")]


async def test_the_segments_of_a_deleted_topic_are_deleted(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        topic = await filled_topic(storage)
        await storage.store.topics.delete("t")
        assert await storage.retention.run_once() == 3
        assert [key for key in storage.opened.reput.queues if key[0] == topic.topic_id] == []
        assert storage.opened.index.queues() == [(0, 0)]


async def test_the_limit_of_the_log_deletes_the_oldest_segments(tmp_path: Path) -> None:
    config = small_config(tmp_path, max_total_bytes=2 * MIB)
    async with open_storage(config) as storage:
        topic = await filled_topic(storage, queues=2, segments=4)
        before = [await read_queue(storage.store, topic, queue) for queue in (0, 1)]
        assert await storage.retention.run_once() == 3
        assert live(storage) == [3, 4]
        for queue in (0, 1):
            state = storage.store.reading.queue_state(topic, queue)
            assert state.min_offset > 0
            assert (
                await read_queue(storage.store, topic, queue) == before[queue][state.min_offset :]
            )
        begins = [state.min_offset for state in storage.store.reading.queue_states(topic)]
    async with open_storage(config) as storage:
        topic = storage.store.table.get("t")
        assert [state.min_offset for state in storage.store.reading.queue_states(topic)] == begins


async def test_the_limit_of_the_log_lowers_no_min_offset(tmp_path: Path) -> None:
    """For this queue, the oldest segment ends before the queue's current first offset."""
    config = small_config(tmp_path, max_total_bytes=3 * MIB)
    async with open_storage(config) as storage:
        store = storage.store
        keeper, _ = await store.topics.create("keeper", queues=1)
        await store.publishing.publish(keeper, [batch("holds the first segment")])
        topic = await filled_topic(storage, segments=3)
        await store.topics.change("t", fields={"retention_bytes": 300_000})
        await storage.retention.run_once()
        begin = store.reading.queue_state(topic, 0).min_offset
        assert live(storage)[0] > 0
    async with open_storage(config) as storage:
        assert (
            storage.store.reading.queue_state(storage.store.table.get("t"), 0).min_offset == begin
        )


async def test_min_offsets_survive_a_restart_and_a_lost_index(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    async with open_storage(config) as storage:
        topic = await filled_topic(storage, queues=2)
        await storage.store.topics.change("t", fields={"retention_bytes": MIB})
        await storage.retention.run_once()
        states = storage.store.reading.queue_states(topic)
        contents = [await read_queue(storage.store, topic, queue) for queue in (0, 1)]
    for forget_index in (False, True):
        if forget_index:
            for path in (tmp_path / "consumequeue").iterdir():
                path.unlink()
        async with open_storage(config) as storage:
            topic = storage.store.table.get("t")
            assert storage.store.reading.queue_states(topic) == states
            for queue in (0, 1):
                assert await read_queue(storage.store, topic, queue) == contents[queue]


async def test_min_offsets_are_stored_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        topic = await filled_topic(storage)
        await storage.store.topics.change("t", fields={"retention_bytes": MIB})

        class Crash(Exception):
            pass

        def crash(physical_offset: int) -> list[object]:
            raise Crash

        with monkeypatch.context() as patched:
            patched.setattr(storage.log, "delete_before", crash)
            with pytest.raises(Crash):
                await storage.retention.run_once()
        begin = storage.store.reading.queue_state(topic, 0).min_offset
        assert begin > 0
    async with open_storage(small_config(tmp_path)) as storage:
        assert (
            storage.store.reading.queue_state(storage.store.table.get("t"), 0).min_offset == begin
        )
        assert await storage.retention.run_once() == 2


async def test_a_segment_not_yet_indexed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that reput has not reached are in no queue, so their segment would look unneeded."""
    stalled = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stall(self: Index, *_: object) -> None:
        loop.call_soon_threadsafe(stalled.set)
        raise lmdb.MapFullError("full")

    async with open_storage(small_config(tmp_path, max_total_bytes=2 * MIB)) as storage:
        await storage.store.topics.create("t", queues=1)
        await settled(storage)
        with monkeypatch.context() as patched:
            patched.setattr(Index, "commit", stall)
            topic = storage.store.table.get("t")
            for _ in range(4):
                await fill_segment(storage, topic)
            await stalled.wait()
            assert await storage.retention.run_once() == 0
            assert live(storage) == [0, 1, 2, 3, 4]
        await settled(storage)
        assert await storage.retention.run_once() == 3


class Unreadable:
    """The file of a segment whose reads fail."""

    def __init__(self, file: File) -> None:
        self._file = file

    def read(self, size: int, position: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("limit", ["topic", "log"])
async def test_an_unreadable_segment_is_deleted_if_unneeded(tmp_path: Path, limit: str) -> None:
    config = small_config(tmp_path, max_total_bytes=2 * MIB if limit == "log" else 0)
    async with open_storage(config) as storage:
        store = storage.store
        keeper, _ = await store.topics.create("keeper", queues=1)
        topic = await filled_topic(storage, queues=2, segments=3)
        await store.publishing.publish(keeper, [batch("precious")])
        await fill_segment(storage, topic)
        await settled(storage)
        before = await read_queue(store, topic)
        segment = storage.log.segments[1]
        segment.file = cast(File, Unreadable(segment.file))
        if limit == "topic":
            await store.topics.change("t", fields={"retention_bytes": 1})
        assert await storage.retention.run_once() == 3
        assert live(storage) == [3, 4]
        assert await read_queue(store, keeper) == [(0, b"precious")]
        begin = store.reading.queue_state(topic, 0).min_offset
        assert begin > 0
        assert await read_queue(store, topic) == before[begin:]


async def test_no_min_offset_is_kept_of_a_deleted_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        topic = await filled_topic(storage)
        await storage.store.topics.change("t", fields={"retention_bytes": 1})
        commit_state = storage.retention.commit_state

        async def deleted_meanwhile(changes: Changes) -> None:
            if storage.store.table.by_id(topic.topic_id) is not None:
                await storage.store.topics.delete("t")
            await commit_state(changes)

        monkeypatch.setattr(storage.retention, "commit_state", deleted_meanwhile)
        await storage.retention.run_once()
        assert kept_key(topic.topic_id) not in storage.opened.state.records


async def test_segments_of_possibly_lost_topics_stay(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    async with open_storage(config) as storage:
        await filled_topic(storage)
        storage.retention.keep_unknown_topics = True
        await storage.store.topics.delete("t")
        assert await storage.retention.run_once() == 0


async def test_a_deleted_file_is_closed_after_its_last_read(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        topic = await filled_topic(storage)
        reading = storage.log.segments[0]
        first = await storage.store.reading.read(topic, 0, 0, max_messages=1, max_bytes=1)
        await storage.store.topics.delete("t")
        await storage.retention.run_once()
        assert Batch.decode(reading.read(first.slices[0].batch.header.physical_offset, 1 << 17))
        only = [f"{reading.path} (deleted)"]
        await until(lambda: _deleted_but_open(tmp_path) == only)
        del reading
        await until(lambda: _deleted_but_open(tmp_path) == [])


def _deleted_but_open(directory: Path) -> list[str]:
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            targets.append(str(descriptor.readlink()))
    return [target for target in targets if str(directory) in target and "(deleted)" in target]


async def test_passes_continue_after_a_failed_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_storage(small_config(tmp_path, retention_interval_ms=10)) as storage:
        service = storage.retention
        run_once = service.run_once
        runs = 0

        async def failing_first() -> int:
            nonlocal runs
            runs += 1
            if runs == 1:
                raise OSError("for a test")
            return await run_once()

        monkeypatch.setattr(service, "run_once", failing_first)
        await filled_topic(storage, segments=2)
        await storage.store.topics.change("t", fields={"retention_bytes": 1})
        await until(lambda: service.deleted_segments == 2)
        assert "retention failed" in caplog.text
        assert live(storage) == [2]


async def test_stop_waits_for_the_running_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage(small_config(tmp_path, retention_interval_ms=10)) as storage:
        service = storage.retention
        begun, go_on = asyncio.Event(), asyncio.Event()
        ended: list[str] = []

        async def slow() -> int:
            begun.set()
            await go_on.wait()
            ended.append("pass")
            return 0

        monkeypatch.setattr(service, "_delete_unneeded", lambda segments: slow())
        await begun.wait()
        stopping = asyncio.create_task(service.stop())
        stopping.add_done_callback(lambda task: ended.append("stop"))
        await asyncio.sleep(0)
        go_on.set()
        await stopping
        assert ended == ["pass", "stop"]
        await service.stop()
