"""A broker's storage on a simulated disk: opened, closed in order, killed, or out of power.

The storage and its threads are the real ones, and so is LMDB (synced on commit, so a power loss
leaves it as it was committed last); the log's files are on a SimulatedDisk.
"""

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

from holdfast.check import check_data_dir
from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.errors import LogPoisoned
from holdfast.config import Config
from holdfast.consumequeue.config import ConsumeQueueConfig, TopicsConfig
from holdfast.consumequeue.message_store import MessageStore
from holdfast.storage import Storage, StorageEvents
from tests.support.simulated_clock import SimulatedClock
from tests.support.simulated_disk import SimulatedDisk

_MIB = 1024 * 1024
_DEADLINE_S = 30.0

Ending = Literal["close", "kill", "crash"]
"""Closed in order; killed (the page cache stays); or the power is cut."""


class BrokerViolation(AssertionError):
    """The broker did what no right one does, whatever the history says."""


class SimulatedProcess:
    """One storage after another on one data directory. `rng` decides what a crash leaves, and
    how far the threads lag where the two intervals, read at each start, do not say."""

    storage: Storage
    store: MessageStore
    config: Config

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.rng = rng
        self.disk = SimulatedDisk()
        self.clock = SimulatedClock()
        self.boot = 1
        """How often the machine was started."""
        self.flush_interval_ms: int | None = None
        self.commit_interval_ms: int | None = None
        self.faults_to_come: set[str] = set()
        """What the next start says that it found damaged, for what was taken from it."""
        self._data_dir = directory / "data"
        self._kept_lmdb = directory / "lmdb"

    async def open(self) -> bool:
        """Open the storage; return whether the power went once more in between. A start that
        fails for a read is made again."""
        power_lost = False
        while True:
            self.config = self._config()
            failed_reads = self.disk.failed_reads
            self.storage = Storage(
                self.config,
                self._events(),
                disk=self.disk,
                now_us=self.clock.now_us,
                boot_id=self.boot.to_bytes(16, "big"),
            )
            self.storage.lock()
            try:
                self.store: MessageStore = await self.storage.open()
            except OSError:
                await self.storage.close()
                if self.disk.failed_reads > failed_reads:
                    continue  # a start that cannot read takes nothing for damage: it ends
                if not self.disk.frozen:
                    raise
                power_lost = True
                self._lose_power()
                continue
            self._storage_opened()
            if self.storage.degraded and self.disk.failed_reads > failed_reads:
                await self.storage.close()
                continue
            break
        found = [
            fault for fault in self.storage.degraded if fault.reason not in self.faults_to_come
        ]
        if found or self.storage.read_only:
            raise BrokerViolation(f"a crash was taken for damage: {found} {self.storage.read_only}")
        self.faults_to_come.clear()
        return power_lost

    async def end(self, ending: Ending) -> Ending:
        """End the process; return how it ended, since the power may go while it closes."""
        if ending != "close":
            self.disk.freeze()
            self._keep_lmdb()
        await self.close()
        if ending == "close" and self.disk.frozen:
            ending = "crash"
        elif ending != "close":
            self._put_lmdb_back()
        if ending == "kill":
            self._go_on_with(self.disk.kill())
        elif ending == "crash":
            self._lose_power()
        return ending

    async def close(self) -> None:
        """Close the storage; the threads end, whatever state they are in."""
        await self.storage.close()

    def forget(self, name: str) -> None:
        """Delete an LMDB environment: "consumequeue" or "state"."""
        shutil.rmtree(self._data_dir / name)

    def check(self) -> None:
        """Let `holdfast check` look at what is there while no process runs."""
        report = check_data_dir(self._data_dir, disk=self.disk)
        if not report.is_sound:
            raise BrokerViolation(f"check found {report.findings}")

    def _storage_opened(self) -> None:
        """The storage was opened once more, if only to be closed again."""

    def _lose_power(self) -> None:
        """Find the disk as the machine does when it starts again."""
        self.boot += 1
        self._go_on_with(self.disk.crash(self.fork()))

    def _go_on_with(self, disk: SimulatedDisk) -> None:
        self.disk.discard()
        self.disk = disk

    def _keep_lmdb(self) -> None:
        """Copy LMDB as it is committed now: the threads that are about to end may go on."""
        opened = self.storage._opened
        assert opened is not None
        shutil.rmtree(self._kept_lmdb, ignore_errors=True)
        for name, env in (("consumequeue", opened.index._env), ("state", opened.state._env)):
            (self._kept_lmdb / name).mkdir(parents=True)
            env.copy(str(self._kept_lmdb / name))

    def _put_lmdb_back(self) -> None:
        for kept in self._kept_lmdb.iterdir():
            shutil.rmtree(self._data_dir / kept.name)
            kept.rename(self._data_dir / kept.name)

    @property
    def is_dead(self) -> bool:
        """Whether only a restart helps: the power is gone, or a write or sync failed."""
        return (
            self.disk.frozen
            or self.storage.read_only is not None
            or self.storage.appender.poisoned is not None
        )

    @property
    def recovered_blocks(self) -> int:
        """How many blocks the last opening found that the index did not have."""
        assert self.storage._opened is not None
        return self.storage._opened.recovered.blocks

    async def all_written(self) -> bool:
        """Wait until all that was handed to the appender is written; return whether it is."""
        topics = self.store.topics()
        try:
            # The appender takes its work in turn: this comes after all that.
            if topics:
                await bounded(self.store.publish(topics[0], [], durability="written"))
        except LogPoisoned:
            return False
        return True

    async def keeper_done(self) -> None:
        """Wait until the segment thread has done what it was told so far."""
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.storage.keeper.submit(lambda: loop.call_soon_threadsafe(done.set))
        await bounded(done.wait())

    def is_idle(self) -> bool:
        """Whether all that was written is synced and visible, or the process is dead."""
        return self.is_dead or (
            self.storage.syncer.durable_offset == self.storage.log.written_offset
            and self.storage.reput.reput_offset >= self._end_of_blocks()
            and all(cq.pending == 0 for cq in self.storage.reput.queues.values())
        )

    def _end_of_blocks(self) -> int:
        """Where the last block ends; the segment that takes the next one may be empty yet."""
        for segment in self.storage.log.segments[:-3:-1]:
            if segment.written > segment.first_offset:
                return segment.written
        return 0

    def _config(self) -> Config:
        """Small segments, and threads that are now ahead, now far behind."""
        return Config(
            data_dir=self._data_dir,
            commitlog=CommitLogConfig(
                segment_bytes=_MIB,
                reserve_bytes=0,
                flush_interval_ms=self.flush_interval_ms or self.rng.choice((1, 10, 50)),
                retention_interval_ms=3_600_000,
                max_total_bytes=self.rng.choice((0, 4 * _MIB)),
            ),
            consumequeue=ConsumeQueueConfig(
                commit_interval_ms=self.commit_interval_ms or self.rng.choice((1, 10, 10_000)),
                map_size_bytes=64 * _MIB,
                state_map_size_bytes=64 * _MIB,
                tail_entries=2,
                hot_cache_bytes=self.rng.choice((0, _MIB)),
            ),
            topics=TopicsConfig(default_retention_ms=0),
        )

    def _events(self) -> StorageEvents:
        return StorageEvents(arrived=lambda advanced: None, failed=lambda error: None)

    def fork(self) -> random.Random:
        """Return a source of as many draws as it takes, for one draw of `rng`: what is drawn
        later must not depend on what the threads had done by now."""
        return random.Random(self.rng.getrandbits(64))


async def bounded(awaitable: Awaitable[object] | None) -> None:
    """Await something that must not take long, whatever the disk does."""
    assert awaitable is not None
    async with asyncio.timeout(_DEADLINE_S):
        await awaitable


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition of the broker's threads holds; raises TimeoutError."""
    async with asyncio.timeout(_DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)
