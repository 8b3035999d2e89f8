"""The storage of a broker on a simulated disk: opened, closed in order, killed, or without power.

The storage, its threads and LMDB are real. LMDB is synced on commit, so a power loss leaves it as
it was last committed. The log's files are on a SimulatedDisk.
"""

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

from holdfast.check import check_data_dir
from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.errors import DiskFull, LogPoisoned
from holdfast.config import Config
from holdfast.consumequeue.config import ConsumeQueueConfig, TopicsConfig
from holdfast.consumequeue.message_store import MessageStore
from holdfast.storage.storage import Storage, StorageEvents
from tests.support.simulation.simulated_clock import SimulatedClock
from tests.support.simulation.simulated_disk import SimulatedDisk

_MIB = 1024 * 1024
_DEADLINE_S = 30.0

Ending = Literal["close", "kill", "crash"]
""""close": closed in order; "kill": killed, the page cache stays; "crash": the power is cut."""


class BrokerViolation(AssertionError):
    """The broker did something that no correct broker does, whatever the history contains."""


class SimulatedProcess:
    """Opens one storage after another on one data directory. `rng` decides what a crash leaves on
    the disk, and how far the threads lag behind."""

    storage: Storage
    store: MessageStore
    config: Config

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.rng = rng
        self.disk = SimulatedDisk()
        self.clock = SimulatedClock()
        self.boot = 1
        """The number of machine starts."""
        self.eager_tail = False
        """Changes at each start, so that a run has starts with and without the eager tail."""
        self.flush_interval_ms: int | None = None
        self.commit_interval_ms: int | None = None
        self.faults_to_come: set[str] = set()
        """Damage that the next start will report, because the test deleted data."""
        self._data_dir = directory / "data"
        self._kept_lmdb = directory / "lmdb"

    async def open(self) -> bool:
        """Open the storage, again after read errors; return whether the power failed meanwhile."""
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
                    continue  # a start with a read error ends; it does not report damage
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
        """End the process; return how it ended, because the power may fail while it closes."""
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
        """Close the storage; its threads end in any state."""
        await self.storage.close()

    def forget(self, name: str) -> None:
        """Delete an LMDB environment: "consumequeue" or "state"."""
        shutil.rmtree(self._data_dir / name)

    def check(self) -> None:
        """Run `holdfast check` on the data while no process runs."""
        report = check_data_dir(self._data_dir, disk=self.disk)
        if not report.is_sound:
            raise BrokerViolation(f"check found {report.findings}")

    def _storage_opened(self) -> None:
        """Called after each opening of the storage, even one that is closed again at once."""

    def _lose_power(self) -> None:
        """Replace the disk by its state after a power loss and a restart of the machine."""
        self.boot += 1
        self._go_on_with(self.disk.crash(self.fork()))

    def _go_on_with(self, disk: SimulatedDisk) -> None:
        self.disk.discard()
        self.disk = disk

    def _keep_lmdb(self) -> None:
        """Copy LMDB in its committed state, because threads that are ending may still change it."""
        opened = self.storage.opened
        assert opened is not None
        shutil.rmtree(self._kept_lmdb, ignore_errors=True)
        for name, env in (("consumequeue", opened.index.env), ("state", opened.state.env)):
            (self._kept_lmdb / name).mkdir(parents=True)
            env.copy(self._kept_lmdb / name)

    def _put_lmdb_back(self) -> None:
        for kept in self._kept_lmdb.iterdir():
            shutil.rmtree(self._data_dir / kept.name)
            kept.rename(self._data_dir / kept.name)

    @property
    def is_dead(self) -> bool:
        """Whether only a restart helps: the power failed, or a write or sync failed."""
        return (
            self.disk.frozen
            or self.storage.read_only is not None
            or self.storage.appender.poisoned is not None
        )

    @property
    def recovered_blocks(self) -> int:
        """The number of blocks that the last opening found and that the index did not have."""
        return self.storage.opened.recovered.blocks

    async def alarms_over(self) -> None:
        """Wait until the process is dead, its disk is full, or the next segment was created."""
        await until(lambda: self.is_dead or self.disk.full or not self.storage.raised_alarms)

    async def all_written(self) -> bool:
        """Wait until the appender has written all its requests; return whether it has."""
        await self.alarms_over()
        topics = self.store.table.all()
        try:
            # The appender processes its requests in order, so this one comes after all earlier
            # ones.
            if topics:
                await bounded(self.store.publishing.publish(topics[0], [], durability="written"))
        except LogPoisoned:
            return False
        except DiskFull:
            # The alarm refuses every publish, so no request has come since the earlier ones.
            if not self.disk.full:
                raise
        return True

    async def keeper_done(self) -> None:
        """Wait until the segment thread has done all work that was submitted so far."""
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.storage.keeper.submit(lambda: loop.call_soon_threadsafe(done.set))
        await bounded(done.wait())

    def is_idle(self) -> bool:
        """Whether all written data is synced and visible, or the process is dead."""
        return self.is_dead or (
            self.storage.syncer.durable_offset == self.storage.log.written_offset
            and self.storage.opened.reput.reput_offset >= self._end_of_blocks()
            and all(cq.pending == 0 for cq in self.storage.opened.reput.queues.values())
        )

    def _end_of_blocks(self) -> int:
        """Return the end of the last block. The active segment may still be empty."""
        for segment in self.storage.log.segments[:-3:-1]:
            if segment.written > segment.first_offset:
                return segment.written
        return 0

    def _config(self) -> Config:
        """Return a configuration with small segments and random intervals for the threads."""
        self.eager_tail = not self.eager_tail
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
                eager_tail=self.eager_tail,
                hot_cache_bytes=self.rng.choice((0, _MIB)),
            ),
            topics=TopicsConfig(default_retention_ms=0),
        )

    def _events(self) -> StorageEvents:
        return StorageEvents(on_failure=lambda error: None)

    def fork(self) -> random.Random:
        """Return a new random source, so that threads do not change the later draws of `rng`."""
        return random.Random(self.rng.getrandbits(64))


async def bounded(awaitable: Awaitable[object] | None) -> None:
    """Await something with a deadline, so that a hanging disk fails the test."""
    assert awaitable is not None
    async with asyncio.timeout(_DEADLINE_S):
        await awaitable


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition of the broker's threads holds. Raise TimeoutError if it does not."""
    async with asyncio.timeout(_DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)
