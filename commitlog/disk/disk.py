"""The system calls of the log, and a limit of its open files. Tests use a simulated disk instead.

Files are written with pwritev and synced with fdatasync, never through a memory mapping: a write
to a mapped page on a full or failing disk causes SIGBUS, and msync holds the interpreter lock
during the whole sync. Any thread may call any method; OSError propagates.

A PooledDisk lets a log of any length use few descriptors: it opens a file when the file is used.
If too many files are open, the clock algorithm chooses which file to close: a file that was used
since the last check stays open until the next check. A file with unsynced writes stays open,
because the kernel reports a failed write of its pages only to open descriptors.
"""

import errno
import os
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from holdfast.commitlog.disk.owned_files import DIRECTORY_MODE, open_file

Bytes = bytes | bytearray | memoryview


class File(Protocol):
    """An open file of fixed size."""

    def write(self, buffers: Sequence[Bytes], position: int) -> None:
        """Write all of `buffers`, one after another, at `position`."""

    def read(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""

    def read_nowait(self, size: int, position: int) -> bytes | None:
        """Return what `read` would return, or None if that is not all in the page cache."""

    def sync(self) -> None:
        """Return when all writes to the file are on the disk."""

    def size(self) -> int:
        """Return the current size of the file in bytes."""

    def data_end(self, position: int) -> int:
        """Return the end of the file's data; only a hole (unwritten zeros) follows it. Return
        `position` if there is no data at or after `position`."""

    def close(self) -> None:
        """Close the descriptor; may be called twice."""


class Disk(Protocol):
    """Access to the directories and files of the log."""

    def names(self, directory: Path) -> list[str]:
        """Return the names in `directory`, sorted."""

    def create(self, path: Path, size: int) -> File:
        """Create a file of `size` bytes and allocate its room. If OSError(ENOSPC) is raised, no
        file remains."""

    def open(self, path: Path) -> File:
        """Open an existing file for reading and writing."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file within its directory and sync the directory."""

    def remove(self, path: Path) -> None:
        """Remove a file and sync its directory; a missing file is no error."""

    def sync_names(self, directory: Path) -> None:
        """Return when the current names in `directory` are on the disk."""


_IOV_MAX = 1024  # Linux's UIO_MAXIOV


class LinuxFile:
    """A File with a descriptor. The descriptor closes at the latest when the last reference to the
    object is dropped. So readers can finish if retention deletes a segment; the segment's room
    becomes free after that."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor

    def write(self, buffers: Sequence[Bytes], position: int) -> None:
        for at in range(0, len(buffers), _IOV_MAX):
            part = buffers[at : at + _IOV_MAX]
            size = sum(map(len, part))
            written = os.pwritev(self._fd, part, position)
            if written < size:
                self._write_rest(b"".join(part)[written:], position + written)
            position += size

    def _write_rest(self, rest: bytes, position: int) -> None:
        while rest:
            written = os.pwrite(self._fd, rest, position)
            rest = rest[written:]
            position += written

    def read(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        rest = self.read(size - len(data), position + len(data))
        return data + rest

    def read_nowait(self, size: int, position: int) -> bytes | None:
        buffer = bytearray(size)
        try:
            count = os.preadv(self._fd, [buffer], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return None
            raise
        return bytes(buffer) if count == size else None

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def data_end(self, position: int) -> int:
        end = position
        while True:
            try:
                start = os.lseek(self._fd, end, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return end
                raise
            end = os.lseek(self._fd, start, os.SEEK_HOLE)

    def forget(self, size: int, position: int) -> None:
        """Drop these bytes from the page cache, as far as they are written to the disk."""
        os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


class LinuxDisk:
    """The Disk that calls the operating system."""

    def names(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))  # noqa: PTH208 - names, not paths

    def create(self, path: Path, size: int) -> File:
        """Create a file of `size` bytes and allocate its room, so that a full disk is reported here
        and not by a later write."""
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return LinuxFile(descriptor)

    def open(self, path: Path) -> File:
        return LinuxFile(open_file(path, os.O_RDWR))

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)
        sync_directory(target.parent)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        sync_directory(path.parent)

    def sync_names(self, directory: Path) -> None:
        sync_directory(directory)


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
        file = self._open_inner(for_write=True)
        try:
            file.write(buffers, position)
        finally:
            with self._lock:
                self._writes += 1
                self._is_dirty = True

    def read(self, size: int, position: int) -> bytes:
        self.was_used = True
        return (self._file or self._open_inner()).read(size, position)

    def read_nowait(self, size: int, position: int) -> bytes | None:
        """Return what `read` would return, or None if that is not all in the page cache or the
        file is not open now."""
        self.was_used = True
        file = self._file
        return None if file is None else file.read_nowait(size, position)

    def sync(self) -> None:
        file = self._open_inner(for_write=True)
        writes = self._writes
        file.sync()
        with self._lock:
            if self._writes == writes:
                self._is_dirty = False

    def size(self) -> int:
        return self._open_inner().size()

    def data_end(self, position: int) -> int:
        return self._open_inner().data_end(position)

    def forget(self, size: int, position: int) -> None:
        """Drop these bytes from the page cache, as far as they are written to the disk."""
        forget(self._open_inner(), size, position)

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
        self._open_inner()

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

    def _open_inner(self, *, for_write: bool = False) -> File:
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
        return self._register(path, self.inner.create(path, size))

    def open(self, path: Path) -> File:
        return self._register(path, self.inner.open(path))

    def rename(self, source: Path, target: Path) -> None:
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

    def _register(self, path: Path, file: File) -> File:
        pooled = PooledFile(self, path, file)
        with self._lock:
            self._by_path[path] = pooled
        self.register_open(pooled)
        return pooled


def free_bytes(directory: Path) -> int:
    """Return the free bytes that unprivileged processes may use in the file system of
    `directory`."""
    stats = os.statvfs(directory)
    return stats.f_bavail * stats.f_frsize


def forget(file: File, size: int, position: int) -> None:
    """Drop these bytes of a file from the page cache, as far as they are written to the disk. Do
    nothing for a File that has no method `forget`."""
    do_forget = getattr(file, "forget", None)
    if do_forget is not None:
        do_forget(size, position)


def make_directory(directory: Path) -> None:
    """Create a directory and its missing parents, and sync their names. Leave existing directories
    unchanged."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(DIRECTORY_MODE, exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Make the directory's entries durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def most_open_files(configured: int) -> int:
    """Return how many files may stay open: `configured`, but at most a quarter of this process's
    limit of open files, and at least 1."""
    import resource  # imported here, because clients on Windows import this module

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return configured if soft == resource.RLIM_INFINITY else max(min(configured, soft // 4), 1)
