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
from functools import partial
from pathlib import Path

from holdfast.commitlog.disk.disk import free_bytes
from holdfast.commitlog.errors import DiskFull, DiskLow, IndexBehind, LogError, MemoryLow
from holdfast.consumequeue.admission import PublishAlarm
from holdfast.consumequeue.index.reput import ReputService
from holdfast.machine_memory import machine_bytes

_logger = logging.getLogger(__name__)

INTERVAL_S = 0.5
#: Publishing stops at this share of the memory that the process may use. The remainder is for
#: requests that are being decoded, replies, and freed memory that the allocator keeps.
_SHARE = 0.8

DISK, MEMORY, INDEX = "disk", "memory", "index"


class Alarms:
    """Measures disks and memory while it runs. `raised` returns the error of each raised alarm.

    Call `start`, `stop` and the alarms on the event loop. If `min_free_bytes` is 0, there is no
    limit. If `max_memory_bytes` is 0, the limit is a share of the memory that the process may use.
    """

    def __init__(
        self,
        *,
        directories: Sequence[Path],
        min_free_bytes: int,
        max_memory_bytes: int,
        index_behind: PublishAlarm,
        no_segment: PublishAlarm = lambda: None,
        make_segment: Callable[[], None] = lambda: None,
    ) -> None:
        """`no_segment` returns the error if the log could not create a segment that a publish
        needed, else None. `make_segment` tries again to create the segment; it is not called on
        the event loop."""
        self._no_segment = no_segment
        self._make_segment = make_segment
        self._directories = directories
        self._min_free_bytes = min_free_bytes
        self._max_memory_bytes = max_memory_bytes
        self._raised: dict[str, LogError] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_index_behind = False
        self.by_name: Mapping[str, PublishAlarm] = {
            # Every publish calls these.
            DISK: self._disk,
            MEMORY: partial(self._raised.get, MEMORY),
            INDEX: index_behind,
        }

    async def start(self) -> None:
        """Measure once, then every INTERVAL_S."""
        await self._look()
        self._task = asyncio.create_task(self._run(), name="alarms")

    async def stop(self) -> None:
        """Stop measuring; may be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _disk(self) -> LogError | None:
        """Return the error if a disk has less room than the limit, or if it had no room for a
        segment that a publish needed: then every publish would fail."""
        refusal = self._no_segment()
        return refusal if isinstance(refusal, DiskFull | DiskLow) else self._raised.get(DISK)

    def raised(self) -> dict[str, LogError]:
        """Return the raised alarms by name."""
        found = {name: alarm() for name, alarm in self.by_name.items()}
        return {name: error for name, error in found.items() if error is not None}

    async def _run(self) -> None:
        is_blind = False
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self._look()
                is_blind = False
            except (OSError, RuntimeError) as error:  # no file descriptor or thread was available
                if not is_blind:
                    _logger.warning("disks and memory cannot be checked now: %s", error)
                is_blind = True

    async def _look(self) -> None:
        found = await asyncio.to_thread(self._measure)
        self._log_index()
        for name in found.keys() - self._raised.keys():
            _logger.warning("publishing is refused: %s", found[name])
        for name in self._raised.keys() - found.keys():
            _logger.warning("the %s alarm is over, publishing continues", name)
        self._raised.clear()
        self._raised.update(found)

    def _log_index(self) -> None:
        """Log when the index's alarm is raised or ends. Publishes query this alarm, too, but do
        not log."""
        behind = self.by_name[INDEX]()
        if behind is not None and not self._is_index_behind:
            _logger.warning("publishing is refused: %s", behind)
        if behind is None and self._is_index_behind:
            _logger.warning("the %s alarm is over, publishing continues", INDEX)
        self._is_index_behind = behind is not None

    def _measure(self) -> dict[str, LogError]:
        self._make_segment()
        found: dict[str, LogError] = {}
        low = disk_low(free_by_directory(self._directories), self._min_free_bytes)
        if low is not None:
            found[DISK] = low
        used, limit = memory_use(self._max_memory_bytes)
        if used > limit:
            give_memory_back()
            used, limit = memory_use(self._max_memory_bytes)
        if used > limit:
            found[MEMORY] = MemoryLow(used, limit)
        return found


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


def index_backlog(reput: ReputService, max_entries: int) -> Callable[[], IndexBehind | None]:
    """Return an alarm that is raised while more than `max_entries` entries are uncommitted."""

    def alarm() -> IndexBehind | None:
        entries = reput.uncommitted_count
        if entries <= max_entries:
            return None
        return IndexBehind(entries, max_entries, reput.committer.failure)

    return alarm


# -- memory --------------------------------------------------------------------------------


def memory_use(max_memory_bytes: int) -> tuple[int, int]:
    """Return the bytes that this process uses, and the limit at which publishing stops.

    Only the process's own (anonymous) memory counts, not pages of files, which the kernel can
    reclaim. If the process's address space is limited, the limit returned is at most half of the
    address space that mapped files leave, because allocators reserve more than they use.
    """
    sizes = _own_sizes()
    limit = max_memory_bytes or int(machine_bytes() * _SHARE)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        of_files = sizes.get("VmSize", 0) - sizes.get("VmData", 0)
        limit = min(limit, max(space - of_files, 0) // 2)
    return sizes.get("RssAnon", 0), limit


def give_memory_back() -> None:
    """Make the allocator return freed memory to the kernel. By itself it keeps much of this
    memory, which then still counts as used."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _own_sizes() -> dict[str, int]:
    """Return the sizes that the kernel reports for this process, in bytes."""
    sizes = {}
    for line in Path("/proc/self/status").read_text("ascii", "replace").splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            sizes[name] = int(value.split()[0]) * 1024
    return sizes
