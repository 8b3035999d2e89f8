"""The storage as a whole: kills, full disks, failed syncs, and producers that retry."""

import asyncio
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.check import check_data_dir
from holdfast.commitlog.append.appender import Appender
from holdfast.commitlog.append.syncer import Syncer
from holdfast.commitlog.disk.disk import LinuxFile
from holdfast.commitlog.errors import DiskFull, LogOverloaded, LogPoisoned
from holdfast.commitlog.format.batch_encoding import Rows
from holdfast.commitlog.segments import commit_log
from holdfast.consumequeue.errors import StateUnavailable
from holdfast.consumequeue.lmdb_env.live_env import ReaderWatch
from holdfast.consumequeue.maintenance.retention_service import RetentionService
from holdfast.consumequeue.maintenance.scrub import Scrub
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.state.journal import state_in_log
from holdfast.consumequeue.state.records import StoredOffsets
from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.storage import storage as storage_module
from holdfast.storage.alarms import Alarms
from holdfast.storage.storage import Storage, StorageEvents
from tests.support.storage.stored import (
    MIB,
    batch,
    fill_segment,
    open_storage,
    read_queue,
    settled,
    small_config,
    until,
)

_DEADLINE_S = 20


def assert_sound(data_dir: Path) -> None:
    report = check_data_dir(data_dir)
    assert report.is_sound, report.findings


# -- kills ---------------------------------------------------------------------------------

_PUBLISHER = """
import asyncio, sys
from pathlib import Path
from tests.support.storage.stored import batch, open_storage, small_config

async def publish(store, topic, name):
    number = 0
    while True:
        number += 1
        bodies = [f"{name}/{number}/{row}" for row in range(number % 4 + 1)]
        queue = number % 3
        fields = dict(producer_id=name, producer_epoch=int(sys.argv[2]), sequence=(number - 1) // 3)
        (published,) = await store.publishing.publish(topic, [batch(bodies, queue, **fields)])
        for row, body in enumerate(bodies):
            print(queue, published.base_offset + row, body)
        sys.stdout.flush()

async def main():
    async with open_storage(small_config(Path(sys.argv[1]))) as storage:
        topic, _ = await storage.store.topics.create("t", queues=3)
        epoch = sys.argv[2]
        print("begun", flush=True)
        await asyncio.gather(*(publish(storage.store, topic, 1 + n) for n in range(8)))

asyncio.run(main())
"""


@pytest.mark.crash
async def test_acknowledged_messages_survive_kills_exactly_once(tmp_path: Path) -> None:
    """Each round publishes new bodies, which contain the round's number, so bodies are unique."""
    rng = random.Random(20261121)
    acknowledged: dict[tuple[int, int], bytes] = {}
    for round_ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", _PUBLISHER, str(tmp_path), str(round_)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"begun\n"
        for _ in range(rng.randrange(1, 400)):
            _note(child.stdout.readline(), acknowledged)
        child.send_signal(signal.SIGKILL)
        for line in child.stdout.read().splitlines(keepends=True):
            _note(line, acknowledged)
        child.stdout.close()
        child.wait()
        assert_sound(tmp_path)
        async with open_storage(small_config(tmp_path)) as storage:
            assert not storage.degraded
            topic = storage.store.table.get("t")
            for queue in range(3):
                found = await read_queue(storage.store, topic, queue)
                assert [offset for offset, _ in found] == list(range(len(found)))
                promised = {at: body for (q, at), body in acknowledged.items() if q == queue}
                assert promised.items() <= dict(found).items()
        assert_sound(tmp_path)
    assert acknowledged


def _note(line: bytes, acknowledged: dict[tuple[int, int], bytes]) -> None:
    if line.endswith(b"\n"):  # otherwise the kill cut the line
        queue, offset, body = line.split()
        assert (int(queue), int(offset)) not in acknowledged
        acknowledged[int(queue), int(offset)] = body


# -- producers -----------------------------------------------------------------------------


@pytest.mark.parametrize("forgotten", [(), ("consumequeue",), ("consumequeue", "state")], ids=str)
async def test_a_retry_after_a_restart_is_still_a_duplicate(
    tmp_path: Path, forgotten: tuple[str, ...]
) -> None:
    def attempt(sequence: int) -> Any:
        return [batch([f"{sequence}", "x"], 1, producer_id=7, producer_epoch=2, sequence=sequence)]

    async with open_storage(small_config(tmp_path)) as storage:
        topic, _ = await storage.store.topics.create("t", queues=2)
        first = [(await storage.store.publishing.publish(topic, attempt(n)))[0] for n in range(7)]
        await settled(storage)
    for name in forgotten:
        shutil.rmtree(tmp_path / name)
    for _ in range(2):
        async with open_storage(small_config(tmp_path)) as storage:
            topic = storage.store.table.get("t")
            for sequence in (6, 2, 4):
                (again,) = await storage.store.publishing.publish(topic, attempt(sequence))
                assert again.duplicate
                assert again.base_offset == first[sequence].base_offset
                assert again.store_timestamp_us == first[sequence].store_timestamp_us
            assert storage.store.reading.queue_state(topic, 1).max_offset == 14
    async with open_storage(small_config(tmp_path)) as storage:
        (following,) = await storage.store.publishing.publish(
            storage.store.table.get("t"), attempt(7)
        )
        assert (following.base_offset, following.duplicate) == (14, False)


@pytest.mark.parametrize("forgotten", [(), ("consumequeue",), ("consumequeue", "state")], ids=str)
async def test_a_retry_of_a_shared_batch_is_still_a_duplicate(
    tmp_path: Path, forgotten: tuple[str, ...]
) -> None:
    def attempt(producer_id: int, sequence: int) -> list[Rows]:
        return [Rows(1, [b"a", b"b"], 10**15, producer_id=producer_id, sequence=sequence)]

    first = {}
    async with open_storage(small_config(tmp_path)) as storage:
        topic, _ = await storage.store.topics.create("t", queues=2)
        for sequence in range(3):
            answers = await asyncio.gather(
                *(
                    storage.store.publishing.publish(topic, attempt(number, sequence))
                    for number in range(5)
                )
            )
            first.update({(number, sequence): answers[number][0] for number in range(5)})
        assert storage.log.segments[-1].block_count < 15, "none shared a batch"
        await settled(storage)
    for name in forgotten:
        shutil.rmtree(tmp_path / name)
    for _ in range(2):
        async with open_storage(small_config(tmp_path)) as storage:
            topic = storage.store.table.get("t")
            for number, sequence in ((1, 2), (4, 0), (2, 1)):
                (again,) = await storage.store.publishing.publish(topic, attempt(number, sequence))
                assert again.duplicate
                assert again.base_offset == first[number, sequence].base_offset
                assert again.message_count == 2
            assert storage.store.reading.queue_state(topic, 1).max_offset == 30
    async with open_storage(small_config(tmp_path)) as storage:
        (following,) = await storage.store.publishing.publish(
            storage.store.table.get("t"), attempt(1, 3)
        )
        assert (following.base_offset, following.duplicate) == (30, False)


# -- a stop during the start ---------------------------------------------------------------


async def test_a_cancelled_start_closes_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_measuring = asyncio.Event()

    async def measure_for_ever(_: Alarms) -> None:
        is_measuring.set()
        await asyncio.Event().wait()

    storage = Storage(small_config(tmp_path), StorageEvents(on_failure=lambda _: None))
    storage.lock()
    with monkeypatch.context() as patched:
        patched.setattr(Alarms, "start", measure_for_ever)
        start = asyncio.create_task(storage.open())
        await is_measuring.wait()
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
    await storage.close()
    async with open_storage(small_config(tmp_path)) as again:  # the lock was released
        assert not again.degraded
    assert_sound(tmp_path)


class StartFailed(Exception):
    """A part of the storage cannot be created or started."""


def fail_start(*_: Any, **__: Any) -> None:
    raise StartFailed


@pytest.mark.parametrize(
    "name",
    [
        "Syncer",
        "Alarms",
        "Appender",
        "MessageStore",
        "RetentionService",
        "Scrub",
        "ReaderWatch",
        "DamageKeeper",
    ],
)
async def test_a_start_without_a_part_closes_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(storage_module, name, fail_start)
    await check_a_failed_start_closes(tmp_path, monkeypatch)


@pytest.mark.parametrize("part", [Syncer, Alarms, Appender, RetentionService, Scrub, ReaderWatch])
async def test_a_start_with_a_part_that_cannot_start_closes_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: type
) -> None:
    monkeypatch.setattr(part, "start", fail_start)
    await check_a_failed_start_closes(tmp_path, monkeypatch)


async def check_a_failed_start_closes(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a start fails, and that the next start, without the fault, does not."""
    storage = Storage(small_config(data_dir), StorageEvents(on_failure=lambda _: None))
    storage.lock()
    with pytest.raises(StartFailed):
        await storage.open()
    await storage.close()
    await storage.close()
    monkeypatch.undo()
    async with open_storage(small_config(data_dir)) as again:  # the lock was released
        assert not again.degraded
    assert_sound(data_dir)


# -- notifications to higher layers --------------------------------------------------------


async def test_listeners_are_called_when_messages_are_readable(tmp_path: Path) -> None:
    arrivals: list[tuple[dict[QueueKey, int], dict[QueueKey, int | None]]] = []
    store: MessageStore

    def arrived(advanced: dict[QueueKey, int]) -> None:
        arrivals.append(
            (advanced, {key: store.reading.max_offset(key) for key in advanced if key[0]})
        )

    async with open_storage(small_config(tmp_path), arrived=arrived) as storage:
        store = storage.store
        topic, _ = await store.topics.create("t", queues=2)
        for number in range(10):
            await store.publishing.publish(topic, [batch(["a", "b"], number % 2)])
        await until(lambda: sum(len(now) for _, now in arrivals) >= 10)
    for advanced, now in arrivals:
        for key, offset in now.items():
            assert offset is not None
            assert offset >= advanced[key]
    ends = [advanced[topic.topic_id, 0] for advanced, now in arrivals if (topic.topic_id, 0) in now]
    assert ends == sorted(set(ends))
    assert ends[-1] == 10


# -- the state's copy in the log -----------------------------------------------------------


async def test_a_segment_begins_with_the_state_under_load(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path, max_waiting_bytes=MIB)) as storage:
        store = storage.store
        topic, _ = await store.topics.create("t", queues=1, fields={"durability": "written"})
        refused = 0

        async def publisher() -> None:
            nonlocal refused
            while len(storage.log.segments) < 4:
                try:
                    await store.publishing.publish(topic, [batch(b"x" * 100_000)])
                except LogOverloaded:
                    refused += 1
                    await asyncio.sleep(0)

        await asyncio.gather(*(publisher() for _ in range(30)))
        assert refused
        await settled(storage)
        for segment in storage.log.segments[1:]:
            alone = type("Log", (), {"segments": (segment,)})()
            assert state_in_log(alone)[0] == storage.opened.state.records


# -- a disk that fails ---------------------------------------------------------------------


async def test_a_failed_sync_stops_only_publishing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        store = storage.store
        topic, _ = await store.topics.create("t", queues=1)
        await store.publishing.publish(topic, [batch("before")])
        await settled(storage)

        def fail(self: LinuxFile) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(LinuxFile, "sync", fail)
            waiting = [store.publishing.publish(topic, [batch(f"lost {n}")]) for n in range(5)]
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(each, LogPoisoned) for each in ended)
        assert storage.read_only is not None
        await until(lambda: isinstance(store.admission.refusal, LogPoisoned))
        with pytest.raises(LogPoisoned):
            await store.publishing.publish(topic, [batch("after")], durability="written")
        assert await read_queue(store, topic) == [(0, b"before")]
        assert await store.offsets.store_offsets("g", topic, {0: 1}) == StoredOffsets({0: 1}, 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 24 MiB; only root may do this."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    mounted = tmp_path / "disk"
    mounted.mkdir()
    ended = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(mounted)], capture_output=True
    )
    if ended.returncode:
        pytest.skip(f"cannot mount: {ended.stderr.decode().strip()}")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def take_all_room(directory: Path) -> Path:
    """Fill the disk to its last block."""
    ballast = directory / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC
    return ballast


async def publish_until_full(storage: Storage, topic: Topic) -> int:
    """Publish until the disk is full; return the number of acknowledged messages."""
    for count in range(10_000):
        try:
            await storage.store.publishing.publish(topic, [batch(b"x" * 100_000)])
        except DiskFull:
            return count
    raise AssertionError("the disk never was full")


async def test_a_full_disk_refuses_only_publishes(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "DISK_FULL_RETRY_S", 0.0)
    data_dir = small_disk / "data"
    config = small_config(data_dir, reserve_bytes=4 * MIB)
    async with open_storage(config) as storage:
        store = storage.store
        topic, _ = await store.topics.create("t", queues=1)
        await store.publishing.publish(topic, [batch("first")])
        ballast = take_all_room(small_disk)
        count = await publish_until_full(storage, topic)
        with pytest.raises(DiskFull):
            await store.publishing.publish(topic, [batch(b"x" * 400_000)])
        # The reserve file is deleted: offsets, topics and retention still work.
        assert not (data_dir / "reserve").exists()
        for offset in range(min(count, 50)):
            stored = await store.offsets.store_offsets("g", topic, {0: offset})
        await store.topics.create("another", queues=1)
        assert len(await read_queue(store, topic)) == count + 1
        assert storage.read_only is None
        assert set(storage.raised_alarms) == {"disk"}
        ballast.unlink()
        await until(lambda: not storage.raised_alarms)
        await fill_segment(storage, topic)
        assert (data_dir / "reserve").exists()
        await settled(storage)
        assert store.offsets.stored_offsets("g", topic) == stored
    assert_sound(data_dir)


async def test_a_broker_starts_and_serves_on_a_full_disk(small_disk: Path) -> None:
    data_dir = small_disk / "data"
    config = small_config(data_dir, reserve_bytes=2 * MIB)
    async with open_storage(config) as storage:
        topic, _ = await storage.store.topics.create("t", queues=1)
        for number in range(100):
            await storage.store.publishing.publish(topic, [batch(str(number))])
        await settled(storage)
    for path in (data_dir / "consumequeue").iterdir():
        path.unlink()
    take_all_room(small_disk)
    async with open_storage(config) as storage:
        store, topic = storage.store, storage.store.table.get("t")
        assert len(await read_queue(store, topic)) == 100
        assert (await store.offsets.store_offsets("g", topic, {0: 7})).version == 1
        assert (await store.offsets.store_offsets("g", topic, {0: 9})).version == 2


async def test_without_a_reserve_a_full_disk_refuses_offsets_too(small_disk: Path) -> None:
    config = small_config(small_disk / "data")
    async with open_storage(config) as storage:
        store = storage.store
        topic, _ = await store.topics.create("t", queues=1)
        ballast = take_all_room(small_disk)
        refused = 0
        for number in range(2000):
            try:
                await store.offsets.store_offsets(f"group-{number}", topic, {0: 0})
            except StateUnavailable:
                refused += 1
                break
        assert refused
        groups = store.table.groups()
        ballast.unlink()
        await store.offsets.store_offsets("last", topic, {0: 0})
    async with open_storage(config) as storage:
        assert storage.store.table.groups() == sorted([*groups, "last"])
