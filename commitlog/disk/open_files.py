"""A Disk that limits the number of open files, so that a log of any length needs few descriptors.

A file is opened when it is used. If too many files are open, the clock algorithm chooses which
file to close: a file that was used since the last check stays open until the next check. A file
with unsynced writes stays open, because the kernel reports a failed write of its pages only to
open descriptors.
"""

import errno
import os
import resource
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from holdfast.commitlog.disk.disk import Bytes, Disk, File, forget


class PooledFile:
    """A File whose descriptor the pool may close; the next use opens it again. Any thread."""

    def __init__(self, pool: "PooledDisk", path: Path, file: File | None) -> None:
        self._pool = pool
        self._path = path
        self.registered_path = path
        """The path under which the pool knows the file. Written under the pool's lock."""
        self._file = file
        self._lock = threading.Lock()
        self._writes = 0
        self._is_dirty = False
        self._must_stay_open = False
        self._is_closed = False
        self.was_used = True
        """Whether the file was used since the pool's last call of `try_close`."""

    def write(self, buffers: Sequence[Bytes], position: int) -> None:
        """Write all of `buffers`, one after another, at `position`."""
        file = self._opened(for_write=True)
        try:
            file.write(buffers, position)
        finally:
            with self._lock:
                self._writes += 1
                self._is_dirty = True

    def read(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""
        self.was_used = True
        return (self._file or self._opened()).read(size, position)

    def read_nowait(self, size: int, position: int) -> bytes | None:
        """Return what `read` would return, or None if that is not all in the page cache or the
        file is not open now."""
        self.was_used = True
        file = self._file
        return None if file is None else file.read_nowait(size, position)

    def sync(self) -> None:
        """Return when all writes to the file are on the disk."""
        file = self._opened(for_write=True)
        writes = self._writes
        file.sync()
        with self._lock:
            if self._writes == writes:
                self._is_dirty = False

    def size(self) -> int:
        """Return the current size of the file in bytes."""
        return self._opened().size()

    def data_end(self, position: int) -> int:
        """Return the end of the file's data; only a hole (unwritten zeros) follows it. Return
        `position` if there is no data at or after `position`."""
        return self._opened().data_end(position)

    def forget(self, size: int, position: int) -> None:
        """Drop these bytes from the page cache, as far as they are written to the disk."""
        forget(self._opened(), size, position)

    def close(self) -> None:
        """Close the file for good; may be called twice. Later use raises OSError(EBADF)."""
        with self._lock:
            file, self._file, self._is_closed = self._file, None, True
        self._pool.unregister(self)
        if file is not None:
            file.close()

    # -- for the pool ----------------------------------------------------------------------

    def keep_open(self) -> None:
        """Open the file and keep it open, so that reads still work after its name is deleted or
        changed."""
        self._must_stay_open = True
        self._opened()

    def set_path(self, path: Path) -> None:
        """Set the new path after a rename, and allow the pool to close the file again."""
        self._path = path
        self._must_stay_open = False

    def try_close(self) -> bool:
        """Close the file until its next use, and return True. Return False if the file must stay
        open, or was used since the last call. Reads in progress can finish."""
        with self._lock:
            if self.was_used or self._is_dirty or self._must_stay_open:
                self.was_used = False
                return False
            self._file = None  # the descriptor closes when its last user is done
            return True

    def _opened(self, *, for_write: bool = False) -> File:
        self.was_used = True
        with self._lock:
            if self._is_closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self._path))
            if for_write:
                self._is_dirty = True
                self._writes += 1
            file = self._file
            is_new = file is None
            if file is None:
                file = self._file = self._pool.inner.open(self._path)
        if is_new:
            self._pool.register_open(self)
        return file


class PooledDisk:
    """A Disk that opens the files of another Disk on demand."""

    def __init__(self, inner: Disk, most: int) -> None:
        """At most `most` files stay open, plus files that must stay open: files with unsynced
        writes, and files for which `keep_open` was called."""
        self.inner = inner
        self._most = most
        self._lock = threading.Lock()
        self._open: deque[PooledFile] = deque()
        self._by_path: dict[Path, PooledFile] = {}
        self.names = inner.names
        self.sync_names = inner.sync_names

    @property
    def open_count(self) -> int:
        """Number of files that are open now."""
        return len(self._open)

    def create(self, path: Path, size: int) -> File:
        """Create a file of `size` bytes and allocate its room. If OSError(ENOSPC) is raised, no
        file remains."""
        return self._pooled(path, self.inner.create(path, size))

    def open(self, path: Path) -> File:
        """Open an existing file for reading and writing."""
        return self._pooled(path, self.inner.open(path))

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file within its directory and sync the directory."""
        with self._lock:
            replaced, file = self._by_path.pop(target, None), self._by_path.pop(source, None)
            if file is not None:
                self._by_path[target] = file
                file.registered_path = target
        if replaced is not None:
            replaced.keep_open()
        if file is not None:
            file.keep_open()  # if the directory cannot be synced, it is unknown which name is valid
        self.inner.rename(source, target)
        if file is not None:
            file.set_path(target)

    def remove(self, path: Path) -> None:
        """Remove a file and sync its directory; a missing file is no error."""
        with self._lock:
            file = self._by_path.get(path)
        if file is not None:
            file.keep_open()
        self.inner.remove(path)
        if file is not None:
            self.unregister(file)

    def register_open(self, file: PooledFile) -> None:
        """Register a file that was opened, and close other files if too many are open."""
        with self._lock:
            self._open.append(file)
            for _ in range(2 * len(self._open)):
                if len(self._open) <= self._most:
                    return
                oldest = self._open.popleft()
                if oldest is file or not oldest.try_close():
                    self._open.append(oldest)

    def unregister(self, file: PooledFile) -> None:
        """Unregister a file that was closed for good or removed. Reads of a removed file can
        finish; its descriptor closes after the last read."""
        with self._lock:
            if file in self._open:
                self._open.remove(file)
            if self._by_path.get(file.registered_path) is file:
                del self._by_path[file.registered_path]

    def _pooled(self, path: Path, file: File) -> File:
        pooled = PooledFile(self, path, file)
        with self._lock:
            self._by_path[path] = pooled
        self.register_open(pooled)
        return pooled


def most_open_files(configured: int) -> int:
    """Return how many files may stay open: `configured`, but at most a quarter of this process's
    limit of open files, and at least 1."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return configured if soft == resource.RLIM_INFINITY else max(min(configured, soft // 4), 1)
