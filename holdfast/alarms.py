"""What stops publishing before the disk or the memory runs out, and lets it go on by itself.

The disks and the process's memory are looked at twice a second, off the event loop; the index's
backlog whenever somebody asks. An alarm stops publishers only.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from holdfast.commitlog.disk import free_bytes
from holdfast.commitlog.errors import DiskLow, IndexBehind, LogError, MemoryLow
from holdfast.consumequeue.admission import Alarm
from holdfast.consumequeue.reput import ReputService

_logger = logging.getLogger(__name__)

INTERVAL_S = 0.5
#: What publishing leaves of the memory that the process may have: requests that are being
#: decoded, replies, and what the allocator does not give back.
_SHARE = 0.8

DISK, MEMORY, INDEX = "disk", "memory", "index"


class Alarms:
    """Looks at disks and memory while it runs. `raised` tells of each alarm why it is raised.

    `start`, `stop` and the alarms are the event loop's. No limit is 0.
    """

    def __init__(
        self,
        *,
        directories: Sequence[Path],
        min_free_bytes: int,
        max_memory_bytes: int,
        index_behind: Alarm,
    ) -> None:
        self._directories = directories
        self._min_free_bytes = min_free_bytes
        self._max_memory_bytes = max_memory_bytes
        self._raised: dict[str, LogError] = {}
        self._task: asyncio.Task[None] | None = None
        self.by_name: Mapping[str, Alarm] = {
            # Every publish asks them.
            DISK: partial(self._raised.get, DISK),
            MEMORY: partial(self._raised.get, MEMORY),
            INDEX: index_behind,
        }

    async def start(self) -> None:
        """Look once, then now and then."""
        await self._look()
        self._task = asyncio.create_task(self._run(), name="alarms")

    async def stop(self) -> None:
        """Stop looking; may be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def raised(self) -> dict[str, LogError]:
        """Return the alarms that are raised now, by name."""
        found = {name: alarm() for name, alarm in self.by_name.items()}
        return {name: error for name, error in found.items() if error is not None}

    async def _run(self) -> None:
        is_blind = False
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self._look()
                is_blind = False
            except (OSError, RuntimeError) as error:  # for want of a descriptor, or of a thread
                if not is_blind:
                    _logger.warning("disks and memory cannot be looked at now: %s", error)
                is_blind = True

    async def _look(self) -> None:
        found = await asyncio.to_thread(self._measure)
        for name in found.keys() - self._raised.keys():
            _logger.warning("publishing is refused: %s", found[name])
        for name in self._raised.keys() - found.keys():
            _logger.warning("the %s alarm is over, publishing goes on", name)
        self._raised.clear()
        self._raised.update(found)

    def _measure(self) -> dict[str, LogError]:
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
    """Return how much room the file system of each directory has left. One that cannot be asked
    now is left out: whoever writes there will be told."""
    found = {}
    for directory in directories:
        with contextlib.suppress(OSError):
            found[directory] = free_bytes(directory)
    return found


def disk_low(free: Mapping[Path, int], min_free_bytes: int) -> DiskLow | None:
    """Return why the fullest disk stops publishing, None while it has `min_free_bytes`."""
    if not free:
        return None
    directory = min(free, key=free.__getitem__)
    if free[directory] >= min_free_bytes:
        return None
    return DiskLow(str(directory), free[directory], min_free_bytes)


def index_backlog(reput: ReputService, max_entries: int) -> Callable[[], IndexBehind | None]:
    """Return the alarm of an index that more than `max_entries` entries wait for."""

    def alarm() -> IndexBehind | None:
        entries = reput.committer.uncommitted_count
        if entries <= max_entries:
            return None
        return IndexBehind(entries, max_entries, reput.committer.failure)

    return alarm


# -- memory --------------------------------------------------------------------------------


def memory_use(max_memory_bytes: int) -> tuple[int, int]:
    """Return the bytes that this process uses, and how many it may before publishing stops.

    Counted is memory of its own, not pages of files, which the kernel takes back. A limit on
    address space leaves half of what files do not take: allocators reserve more than they use.
    """
    sizes = _own_sizes()
    limit = max_memory_bytes or int(_machine_bytes() * _SHARE)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        of_files = sizes.get("VmSize", 0) - sizes.get("VmData", 0)
        limit = min(limit, max(space - of_files, 0) // 2)
    return sizes.get("RssAnon", 0), limit


def give_memory_back() -> None:
    """Have the allocator return what was freed: it keeps much of it, which would look like use."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _own_sizes() -> dict[str, int]:
    """Return the sizes that the kernel tells of this process, in bytes."""
    sizes = {}
    for line in Path("/proc/self/status").read_text("ascii", "replace").splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            sizes[name] = int(value.split()[0]) * 1024
    return sizes


def _machine_bytes() -> int:
    """Return the memory that this process may have at most: the machine's, or its cgroup's."""
    found = [_physical_bytes()]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            root = Path("/sys/fs/cgroup" if not controllers else f"/sys/fs/cgroup/{controllers}")
            names = ("memory.max",) if not controllers else ("memory.limit_in_bytes",)
            here = root / path.lstrip("/")
            for folder in (here, *here.parents):
                if root not in (folder, *folder.parents):
                    break
                found += [size for name in names if (size := _size_in(folder / name))]
    return min(found)


def _physical_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _size_in(path: Path) -> int:
    """Return the number in a file, 0 where there is none (`max`, or no such file)."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0
