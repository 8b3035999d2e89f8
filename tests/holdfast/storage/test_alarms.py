import asyncio
import errno
import resource
from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.commitlog.errors import DiskFull, DiskLow, LogError, MemoryLow, NoSegment
from holdfast.storage import alarms
from holdfast.storage.alarms import Alarms, disk_low, memory_use
from holdfast.storage.storage import Storage, StorageEvents
from tests.support.storage.stored import small_config, until

MIB = 1024 * 1024


@pytest.mark.parametrize(("free", "is_raised"), [(99, True), (100, False), (101, False)])
def test_a_disk_below_the_limit_stops_publishing(free: int, is_raised: bool) -> None:
    found = disk_low({Path("/log"): 500, Path("/state"): free}, 100)
    assert (found is not None) is is_raised
    if found is not None:
        assert (found.directory, found.free_bytes, found.min_free_bytes) == ("/state", free, 100)


def test_without_a_limit_or_a_disk_nothing_stops() -> None:
    assert disk_low({Path("/log"): 0}, 0) is None
    assert disk_low({}, 100) is None


def _alarms(uncommitted: int = 0, refusal: LogError | None = None, **limits: int) -> Alarms:
    """Return the alarms of a log that created no segment because of `refusal`."""
    committer = SimpleNamespace(failure="no room")
    reput: Any = SimpleNamespace(uncommitted_count=uncommitted, committer=committer)
    log: Any = SimpleNamespace(refusal=refusal, retried=0)

    def retry_refused() -> None:
        log.retried += 1

    log.retry_refused = retry_refused
    given: dict[str, Any] = {
        "min_free_bytes": 0,
        "max_memory_bytes": 0,
        "max_uncommitted_entries": 10,
        **limits,
    }
    return Alarms(directories=[Path("/")], log=log, reput=reput, **given)


@pytest.mark.parametrize(("entries", "is_raised"), [(9, False), (10, False), (11, True)])
def test_a_large_index_backlog_stops_publishing(entries: int, is_raised: bool) -> None:
    found = _alarms(entries).raised().get("index")
    assert (found is not None) is is_raised
    assert found is None or "no room" in str(found)


@pytest.mark.parametrize(("used", "is_raised"), [(99, False), (100, False), (101, True)])
async def test_memory_above_its_limit_stops_publishing(
    used: int, is_raised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarms, "memory_use", lambda limit: (used, limit))
    watch = _alarms(max_memory_bytes=100)
    await watch.start()
    assert isinstance(watch.raised().get("memory"), MemoryLow) is is_raised
    await watch.stop()


async def test_an_alarm_is_raised_and_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms, "INTERVAL_S", 0.001)
    free = 1000
    monkeypatch.setattr(alarms, "free_bytes", lambda directory: free)
    watch = _alarms(min_free_bytes=100)
    await watch.start()
    assert watch.raised() == {}
    free = 99
    await _until(lambda: isinstance(watch.raised().get("disk"), DiskLow))
    free = 100
    await _until(lambda: not watch.raised())
    await watch.stop()
    await watch.stop()


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "files"), RuntimeError("no thread")])
async def test_a_failed_measurement_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    monkeypatch.setattr(alarms, "INTERVAL_S", 0.001)
    failed = 0

    def fails(limit: int) -> tuple[int, int]:
        nonlocal failed
        failed += 1
        raise error

    watch = _alarms(min_free_bytes=2**62)
    await watch.start()
    assert "disk" in watch.raised()
    with monkeypatch.context() as patched:
        patched.setattr(alarms, "free_bytes", lambda directory: 2**63)
        patched.setattr(alarms, "memory_use", fails)
        await _until(lambda: failed > 3)
        assert "disk" in watch.raised()
        assert len([each for each in caplog.messages if "cannot be checked" in each]) == 1
        patched.setattr(alarms, "memory_use", lambda limit: (0, 1))
        await _until(lambda: not watch.raised())
    await watch.stop()


def test_only_the_memory_of_the_process_counts() -> None:
    before, limit = memory_use(1 << 60)
    assert 0 < before < limit
    # A map of its own: the allocator may have free memory that is resident already.
    held = mmap(-1, 64 * MIB, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    for at in range(0, len(held), PAGESIZE):
        held[at] = 1
    after, _ = memory_use(1 << 60)
    assert after - before > len(held) * 0.9
    assert memory_use(5)[1] == 5


def test_an_address_space_limit_lowers_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda of: (1 << 40, 1 << 40))
    limit = memory_use(1 << 60)[1]
    assert (1 << 39) - (1 << 36) < limit < 1 << 39
    assert memory_use(5)[1] == 5


async def test_a_new_limit_of_the_machine_counts_after_some_measurements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alarms, "INTERVAL_S", 0.001)
    machine, reads = 1 << 50, 0

    def machine_bytes() -> int:
        nonlocal reads
        reads += 1
        return machine

    monkeypatch.setattr(alarms, "machine_bytes", machine_bytes)
    watch = _alarms()
    await watch.start()
    assert (watch.raised(), reads) == ({}, 1)
    machine = 100
    await _until(lambda: isinstance(watch.raised().get("memory"), MemoryLow))
    error = watch.raised()["memory"]
    assert isinstance(error, MemoryLow)
    assert error.limit == 80
    machine = 1 << 50
    await _until(lambda: not watch.raised())
    assert reads >= 3
    await watch.stop()


async def test_an_alarm_refuses_only_publishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A48
    monkeypatch.setattr(alarms, "INTERVAL_S", 0.001)
    free = 10
    monkeypatch.setattr(alarms, "free_bytes", lambda directory: free)
    storage = Storage(
        small_config(tmp_path / "data", min_free_bytes=11),
        StorageEvents(on_failure=lambda error: None),
    )
    storage.lock()
    store = await storage.open()
    topic, _ = await store.topics.create("t", queues=1)
    assert list(storage.raised_alarms) == ["disk"]
    with pytest.raises(DiskLow):
        await store.publishing.publish(topic, [])
    stored = await store.offsets.store_offsets("g", topic, {0: 0})
    assert stored.version == 1
    assert isinstance(store.admission.refusal, DiskLow)
    ended = asyncio.get_running_loop().create_future()
    store.admission.alarm_listeners.append(ended.set_result)
    free = 11
    async with asyncio.timeout(10):
        assert await ended is None
    store.admission.check()
    await storage.close()
    assert storage.raised_alarms == {}


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


# D3: the log refused a segment, and so refused publishers, although no alarm was raised


async def test_a_refused_segment_raises_the_disk_alarm() -> None:
    alarms = _alarms(max_memory_bytes=1 << 60)
    log: Any = alarms.log
    await alarms.start()
    assert alarms.raised() == {}
    for error in (DiskLow("/d", 9, 2, 8), DiskFull(8)):
        log.refusal = error
        assert alarms.raised() == {"disk": error}
        assert alarms.by_name["disk"]() is error
    log.refusal = NoSegment("EMFILE")  # not about disk space: it has a fault of its own
    assert alarms.raised() == {}
    await until(lambda: log.retried > 1)
    await alarms.stop()
