"""Alarms: they stop publishing before disk or memory is used up. They end by themselves.

Disks and the process's memory are measured twice a second, in another thread than that of the event
loop. The index's backlog is measured at each query. An alarm stops only publishing.
"""

import asyncio
import contextlib
import ctypes
import logging
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from mmap import PAGESIZE
from pathlib import Path

from holdfast.commitlog.disk.disk import free_bytes
from holdfast.commitlog.errors import DiskFull, DiskLow, IndexBehind, LogError, MemoryLow
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.consumequeue.index.reput import ReputService
from holdfast.consumequeue.publishing import PublishAlarm
from holdfast.storage.machine_memory import machine_bytes

_logger = logging.getLogger(__name__)

INTERVAL_S = 0.5
#: Publishing stops at this share of the memory that the process may use. The remainder is for
#: requests that are being decoded, replies, and freed memory that the allocator keeps.
_SHARE = 0.8
#: Only every 20th measurement reads the memory of the machine and of the cgroup: it changes seldom,
#: and reading it costs several times as much as the rest of a measurement.
_MACHINE_MEASUREMENTS = 20

DISK, MEMORY, INDEX = "disk", "memory", "index"


@dataclass(eq=False, kw_only=True)
class Alarms:
    """Measures disks and memory while it runs. `raised` returns the error of each raised alarm.

    Call `start`, `stop` and the alarms on the event loop. If `min_free_bytes` is 0, there is no
    limit. If `max_memory_bytes` is 0, the limit is a share of the memory that the process may use,
    which is read every 10 s. An alarm is raised if more than `max_uncommitted_entries` entries of
    `reput` are not in LMDB. If `log` has no segment for the next publish, the measuring thread lets
    it try again. After each measurement, `on_measured` is called on the event loop.
    """

    directories: Sequence[Path]
    min_free_bytes: int
    max_memory_bytes: int
    log: CommitLog
    reput: ReputService
    max_uncommitted_entries: int
    on_measured: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._measured: dict[str, LogError] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_index_behind = False
        self._share_bytes = self._measurements = 0
        self.by_name: Mapping[str, PublishAlarm] = {
            # Every publish calls these.
            DISK: self._disk_error,
            MEMORY: partial(self._measured.get, MEMORY),
            INDEX: self._index_error,
        }

    async def start(self) -> None:
        """Measure once, then every INTERVAL_S."""
        await self._update()
        self._task = asyncio.create_task(self._run(), name="alarms")

    async def stop(self) -> None:
        """Stop measuring; may be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def raised(self) -> dict[str, LogError]:
        found = {name: alarm() for name, alarm in self.by_name.items()}
        return {name: error for name, error in found.items() if error is not None}

    def _disk_error(self) -> LogError | None:
        """Return the error if a disk has less room than the limit, or if it had no room for a
        segment that a publish needed: then every publish would fail."""
        refusal = self.log.refusal
        return refusal if isinstance(refusal, DiskFull | DiskLow) else self._measured.get(DISK)

    def _index_error(self) -> LogError | None:
        entries = self.reput.uncommitted_count
        if entries <= self.max_uncommitted_entries:
            return None
        return IndexBehind(entries, self.max_uncommitted_entries, self.reput.committer.failure)

    async def _run(self) -> None:
        has_failed = False
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self._update()
                has_failed = False
            except (OSError, RuntimeError) as error:  # no file descriptor or thread was available
                if not has_failed:
                    _logger.warning("disks and memory cannot be checked now: %s", error)
                has_failed = True

    async def _update(self) -> None:
        """Measure, then log which alarms were raised or ended. Publishes query the index's alarm,
        too, but do not log."""
        found = await asyncio.to_thread(self._measure)
        behind = self._index_error()
        raised = {**found, **({INDEX: behind} if behind is not None else {})}
        before = {*self._measured, *([INDEX] if self._is_index_behind else [])}
        for name in raised.keys() - before:
            _logger.warning("publishing is refused: %s", raised[name])
        for name in before - raised.keys():
            _logger.warning("the %s alarm has ended, publishing continues", name)
        self._is_index_behind = behind is not None
        self._measured.clear()
        self._measured.update(found)
        self.on_measured()

    def _measure(self) -> dict[str, LogError]:
        self.log.retry_refused()
        found: dict[str, LogError] = {}
        low = disk_low(free_by_directory(self.directories), self.min_free_bytes)
        if low is not None:
            found[DISK] = low
        most_bytes = self.max_memory_bytes or self._share()
        used, limit = memory_use(most_bytes)
        if used > limit:
            trim_memory()
            used, limit = memory_use(most_bytes)
        if used > limit:
            found[MEMORY] = MemoryLow(used, limit)
        return found

    def _share(self) -> int:
        """Return the limit that is a share of the memory that the process may use. Read this memory
        again in every 20th call."""
        if self._measurements % _MACHINE_MEASUREMENTS == 0:
            self._share_bytes = int(machine_bytes() * _SHARE)
        self._measurements += 1
        return self._share_bytes


def free_by_directory(directories: Sequence[Path]) -> dict[Path, int]:
    """Return the free bytes of each directory's file system. Leave out directories that cannot be
    queried now: writing there will report the error."""
    found = {}
    for directory in directories:
        with contextlib.suppress(OSError):
            found[directory] = free_bytes(directory)
    return found


def disk_low(free: Mapping[Path, int], min_free_bytes: int) -> DiskLow | None:
    """Return the alarm for the disk with the fewest free bytes, None if that disk has at least
    `min_free_bytes`."""
    if not free:
        return None
    directory = min(free, key=free.__getitem__)
    if free[directory] >= min_free_bytes:
        return None
    return DiskLow(str(directory), free[directory], min_free_bytes)


# -- memory --------------------------------------------------------------------------------


def memory_use(most_bytes: int) -> tuple[int, int]:
    """Return the bytes that this process uses, and the limit at which publishing stops: at most
    `most_bytes`.

    Only the process's own (anonymous) memory counts, not pages of files, which the kernel can
    reclaim. If the process's address space is limited, the limit is at most half of the address
    space that mapped files do not use, because allocators reserve more than they use.
    """
    # Numbers of pages: the address space, all that are resident, the resident ones of files and
    # shared memory, code, 0, data and stack, 0.
    statm = Path("/proc/self/statm").read_bytes()
    size, resident, shared, _, _, data, _ = map(int, statm.split())
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        most_bytes = min(most_bytes, max(space - (size - data) * PAGESIZE, 0) // 2)
    return (resident - shared) * PAGESIZE, most_bytes


def trim_memory() -> None:
    """Make the allocator return freed memory to the kernel. Otherwise the allocator keeps much of
    this memory, and it still counts as used."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
