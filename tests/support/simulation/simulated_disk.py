"""A disk in memory that can lose its power. It guarantees only what Linux guarantees.

A write changes the page cache. A sync makes durable the data that was written before the sync
began. A directory entry is durable once its directory was synced. After a power loss each dirty
4 KB page is on the disk, or is not, or is torn between two of its 512-byte sectors.

`crash` returns the disk as the machine finds it after a power loss. `kill` returns the disk as the
next process finds it after SIGKILL: all written data is there, but no more of it is durable than
before. Both freeze this disk first: every later change to it fails. So a test can end the threads
of the broker that "died", and they cannot change the data of its successor. Any thread may call any
method.
"""

import errno
import os
import random
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

from holdfast.commitlog.disk.disk import Bytes

SECTOR_BYTES = 512
PAGE_BYTES = 4096
_SECTORS_PER_PAGE = PAGE_BYTES // SECTOR_BYTES

#: A call that changes the disk, by the name of its method.
Change = Literal["create", "write", "sync", "rename", "remove", "sync_directory"]

#: A call that a test can make fail.
Call = Literal[Change, "read"]

_Captured = dict[int, tuple[int, bytes]]
"""The data of a sync: for each sector, the number of its last write and its bytes at that time."""


@dataclass(slots=True)
class _Content:
    """The bytes of one file. Its name is stored elsewhere."""

    cache: bytearray
    """What a read returns."""
    durable: bytearray
    """The bytes after a power loss. Empty until the first sync: the file's size is not durable
    either."""
    cached_pages: set[int] = field(default_factory=set)
    """Pages that were written at least once; SEEK_DATA finds them."""
    durable_pages: set[int] = field(default_factory=set)
    dirty: dict[int, int] = field(default_factory=dict)
    """The sectors that are not durable, each with the number of its last write."""

    def write(self, data: bytes, position: int, number: int) -> None:
        end = position + len(data)
        self.cache[position:end] = data
        self.dirty.update(dict.fromkeys(_covering(position, end, SECTOR_BYTES), number))
        self.cached_pages.update(_covering(position, end, PAGE_BYTES))

    def capture(self) -> _Captured:
        """Return all dirty sectors with their current bytes."""
        return {sector: (number, self._sector(sector)) for sector, number in self.dirty.items()}

    def persist(self, captured: _Captured) -> None:
        """Make captured sectors durable. A sector that was written again since then stays dirty."""
        if not self.durable:
            self.durable = bytearray(len(self.cache))
        for sector, (number, data) in captured.items():
            self.durable[sector * SECTOR_BYTES : sector * SECTOR_BYTES + len(data)] = data
            self.durable_pages.add(sector // _SECTORS_PER_PAGE)
            if self.dirty.get(sector) == number:
                del self.dirty[sector]

    def drop(self, captured: _Captured) -> None:
        """Apply a failed sync: the pages become clean, but are not on the disk."""
        for sector, (number, _) in captured.items():
            if self.dirty.get(sector) == number:
                del self.dirty[sector]

    def after_power_loss(self, rng: random.Random, kept: float) -> "_Content":
        """Return the content after a power loss. Each dirty page is kept with probability
        `kept`."""
        pages: dict[int, list[int]] = defaultdict(list)
        for sector in sorted(self.dirty):
            pages[sector // _SECTORS_PER_PAGE].append(sector)
        left = _Content(bytearray(), self.durable[:], durable_pages=self.durable_pages.copy())
        for sectors in pages.values():
            if 0 < kept < 1 and rng.random() < 0.2:
                sectors = [sector for sector in sectors if rng.random() < 0.5]
            elif rng.random() >= kept:
                continue
            left.persist({sector: (0, self._sector(sector)) for sector in sectors})
        left.cache = left.durable[:]
        left.cached_pages = left.durable_pages.copy()
        return left

    def copy(self) -> "_Content":
        return _Content(
            self.cache[:],
            self.durable[:],
            self.cached_pages.copy(),
            self.durable_pages.copy(),
            self.dirty.copy(),
        )

    def _sector(self, sector: int) -> bytes:
        return bytes(self.cache[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES])


def _covering(start: int, end: int, unit: int) -> range:
    """Return the sectors or pages that contain the bytes from `start` up to but not including
    `end`."""
    return range(start // unit, -(-end // unit))


_Entries = dict[Path, _Content]


@dataclass(frozen=True, slots=True)
class _EntryChange:
    """A change of a directory: the name `gone` is removed and `come` is added; each may be None."""

    gone: Path | None
    come: Path | None
    content: _Content

    def apply(self, entries: _Entries) -> None:
        if self.gone is not None:
            entries.pop(self.gone, None)
        if self.come is not None:
            entries[self.come] = self.content


@dataclass(slots=True)
class _Failure:
    """A planned error: `after` calls succeed first. A failing write writes `share` of its bytes."""

    code: int
    after: int
    share: float


class SimulatedDisk:
    """The Disk of a machine whose power a test can cut."""

    def __init__(self) -> None:
        self.full = False
        """While True, no file can be created."""
        self.frozen = False
        """The process is dead: no change succeeds any more."""
        self.changes = 0
        """The number of calls that changed something, or tried to."""
        self._entries: _Entries = {}
        self._durable_entries: _Entries = {}
        self._entry_changes: list[_EntryChange] = []
        self._freeze_at: int | None = None
        self.failed_reads = 0
        self._failures: dict[Call, _Failure] = {}
        self._holding = False
        self._held = 0
        self._changed = threading.Condition(threading.RLock())

    # -- the Disk protocol -----------------------------------------------------------------

    def names(self, directory: Path) -> list[str]:
        """Return the names in `directory`, sorted."""
        with self._changed:
            return sorted(path.name for path in self._entries if path.parent == directory)

    def create(self, path: Path, size: int) -> "SimulatedFile":
        """Create a file of zeros. Raise OSError(ENOSPC) while the disk is full."""
        with self._change("create"):
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            if path in self._entries:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            content = _Content(bytearray(size), bytearray())
            self._change_entry(_EntryChange(None, path, content))
            return SimulatedFile(self, content)

    def open(self, path: Path) -> "SimulatedFile":
        """Open an existing file."""
        with self._changed:
            if path not in self._entries:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            return SimulatedFile(self, self._entries[path])

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file within its directory and sync the directory."""
        with self._change("rename"):
            self._change_entry(_EntryChange(source, target, self._entries[source]))
        self._sync_directory(target.parent)

    def remove(self, path: Path) -> None:
        """Remove a file and sync its directory. A missing file is not an error."""
        with self._change("remove"):
            content = self._entries.get(path)
            if content is not None:
                self._change_entry(_EntryChange(path, None, content))
        self._sync_directory(path.parent)

    def sync_names(self, directory: Path) -> None:
        """Make the names in a directory durable."""
        self._sync_directory(directory)

    def _change_entry(self, change: _EntryChange) -> None:
        change.apply(self._entries)
        self._entry_changes.append(change)

    def _sync_directory(self, directory: Path) -> None:
        """Make the entries of the directory durable. The power may fail just before."""
        with self._change("sync_directory"):
            kept = []
            for change in self._entry_changes:
                if (change.come or change.gone or directory).parent == directory:
                    change.apply(self._durable_entries)
                else:
                    kept.append(change)
            self._entry_changes = kept

    # -- controls for tests ----------------------------------------------------------------

    def crash(self, rng: random.Random) -> "SimulatedDisk":
        """Cut the power; return the disk as the machine finds it afterwards."""
        with self._changed:
            self.freeze()
            # Sometimes no dirty page is kept, or all pages are: both cases are interesting.
            kept = rng.choice((0.0, 0.2, 0.5, 0.8, 1.0))
            after = SimulatedDisk()
            entries = dict(self._durable_entries)
            for change in self._entry_changes[: rng.randint(0, len(self._entry_changes))]:
                change.apply(entries)
            after._entries = {
                path: content.after_power_loss(rng, kept)
                for path, content in sorted(entries.items())
            }
            after._durable_entries = dict(after._entries)
            return after

    def kill(self) -> "SimulatedDisk":
        """End the process; return the disk as the next process finds it, with the page cache."""
        with self._changed:
            self.freeze()
            after = SimulatedDisk()
            copies: dict[int, _Content] = {}

            def copied(content: _Content) -> _Content:
                return copies.setdefault(id(content), content.copy())

            after._entries = {path: copied(c) for path, c in self._entries.items()}
            after._durable_entries = {path: copied(c) for path, c in self._durable_entries.items()}
            after._entry_changes = [
                _EntryChange(change.gone, change.come, copied(change.content))
                for change in self._entry_changes
            ]
            return after

    def discard(self) -> None:
        """Free the memory of the files; nothing reads them any more.

        A closed storage is a reference cycle that is collected late. Dozens of them would hold a
        gigabyte.
        """
        with self._changed:
            changed = (change.content for change in self._entry_changes)
            for content in chain(self._entries.values(), self._durable_entries.values(), changed):
                content.cache, content.durable = bytearray(), bytearray()

    def freeze(self) -> None:
        """Let every change, and every held sync, fail from now on."""
        with self._changed:
            self.frozen = True
            self._changed.notify_all()

    def freeze_after(self, changes: int | None) -> None:
        """Freeze the disk just before the change that follows `changes` more changes.

        If that change is a write, freeze in the middle of it. None cancels a planned freeze.
        """
        with self._changed:
            self._freeze_at = None if changes is None else self.changes + changes + 1

    def fail(
        self, call: Call, code: int = errno.EIO, *, after: int = 0, share: float = 0.0
    ) -> None:
        """Let one call fail, after `after` calls that succeed.

        A failing write writes `share` of its bytes. A failing sync leaves its pages clean and not
        durable.
        """
        with self._changed:
            self._failures[call] = _Failure(code, after, share)

    def spare(self, call: Call) -> None:
        """Cancel the planned failure of this call."""
        with self._changed:
            self._failures.pop(call, None)

    def mend(self) -> None:
        """Cancel all planned failures, and make room."""
        with self._changed:
            self._failures.clear()
            self.full = False

    def hold_syncs(self) -> None:
        """Let every sync of a file wait until `release_syncs`, as on a slow disk."""
        with self._changed:
            self._holding = True

    def release_syncs(self) -> None:
        """Let the held syncs continue."""
        with self._changed:
            self._holding = False
            self._changed.notify_all()

    @property
    def is_holding(self) -> bool:
        """Whether syncs have to wait."""
        return self._holding

    def wait_for_held_sync(self, timeout_s: float = 10.0) -> None:
        """Return once a sync is held. Raise TimeoutError if none comes."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._held > 0, timeout_s):
                raise TimeoutError("no sync came")

    # -- common steps of every change ------------------------------------------------------

    @contextmanager
    def _change(self, change: Change) -> Iterator[_Failure | None]:
        """Count a change, fail if the disk is frozen, and yield the failure that is due."""
        with self._changed:
            self.changes += 1
            self._refuse_if_frozen()
            failure = self._due_failure(change)
            if failure is not None and change not in ("write", "sync"):
                raise OSError(failure.code, os.strerror(failure.code))
            yield failure

    def _due_failure(self, change: Change) -> _Failure | None:
        if self._freeze_at is not None and self.changes >= self._freeze_at:
            self.freeze()
            if change == "write":
                return _Failure(errno.EIO, 0, 0.5)
            self._refuse_if_frozen()
        return self._planned_failure(change)

    def _planned_failure(self, call: Call) -> _Failure | None:
        failure = self._failures.get(call)
        if failure is not None and failure.after:
            failure.after -= 1
            return None
        return self._failures.pop(call, None)

    def _read(self) -> None:
        """Raise the planned failure of a read. A read is not counted as a change."""
        failure = self._planned_failure("read")
        if failure is not None:
            self.failed_reads += 1
            raise OSError(failure.code, os.strerror(failure.code))

    def _refuse_if_frozen(self) -> None:
        if self.frozen:
            raise OSError(errno.EIO, "the power is gone")

    def _wait_while_held(self) -> None:
        self._held += 1
        self._changed.notify_all()
        self._changed.wait_for(lambda: not self._holding or self.frozen)
        self._held -= 1
        self._refuse_if_frozen()


class SimulatedFile:
    """An open file of a SimulatedDisk. It stays readable after its name is removed."""

    def __init__(self, disk: SimulatedDisk, content: _Content) -> None:
        self._disk = disk
        self._content = content

    def write(self, buffers: Sequence[Bytes], position: int) -> None:
        """Write all of `buffers`. A file never grows."""
        data = b"".join(buffers)
        with self._disk._change("write") as failure:
            if position < 0 or position + len(data) > len(self._content.cache):
                raise OSError(errno.EINVAL, f"{len(data)} bytes at {position}")
            if failure is not None:
                data = data[: int(len(data) * failure.share)]
            self._content.write(data, position, self._disk.changes)
            if failure is not None:
                raise OSError(failure.code, os.strerror(failure.code))

    def read(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""
        if position < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        with self._disk._changed:
            self._disk._read()
            return bytes(self._content.cache[position : position + size])

    def read_nowait(self, size: int, position: int) -> bytes | None:
        """Read like LinuxFile: return None if the range goes beyond the end."""
        data = self.read(size, position)
        return data if len(data) == size else None

    def sync(self) -> None:
        """Make the data durable that was written before the call."""
        with self._disk._change("sync") as failure:
            captured = self._content.capture()
            if self._disk.is_holding:
                self._disk._wait_while_held()
            if failure is not None:
                self._content.drop(captured)
                raise OSError(failure.code, os.strerror(failure.code))
            self._content.persist(captured)

    def size(self) -> int:
        """Return the file's size."""
        return len(self._content.cache)

    def data_end(self, position: int) -> int:
        """Return the end of the last page that was ever written, but at least `position`."""
        with self._disk._changed:
            end = (max(self._content.cached_pages, default=-1) + 1) * PAGE_BYTES
            return max(position, min(end, self.size()))

    def close(self) -> None:
        """Do nothing: the file holds no resources."""
