"""The system calls of the log. Tests replace them with a simulated disk.

Files are written with pwritev and synced with fdatasync, never through a memory mapping: a write
to a mapped page on a full or failing disk causes SIGBUS, and msync holds the interpreter lock
during the whole sync. Any thread may call any method; OSError propagates.
"""

import errno
import os
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
        """Write all of `buffers` at `position`, with as many system calls as necessary."""
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
        """Return up to `size` bytes; fewer only at the end of the file."""
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        rest = self.read(size - len(data), position + len(data))
        return data + rest

    def read_nowait(self, size: int, position: int) -> bytes | None:
        """Return what `read` would return, or None if that is not all in the page cache."""
        buffer = bytearray(size)
        try:
            count = os.preadv(self._fd, [buffer], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return None
            raise
        return bytes(buffer) if count == size else None

    def sync(self) -> None:
        """Return when all writes to the file are on the disk."""
        os.fdatasync(self._fd)

    def size(self) -> int:
        """Return the current size of the file in bytes."""
        return os.fstat(self._fd).st_size

    def data_end(self, position: int) -> int:
        """Return the end of the file's last extent with data. Return `position` if there is no
        data at or after `position`."""
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
        """Close the descriptor; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


class LinuxDisk:
    """The Disk that calls the operating system."""

    def names(self, directory: Path) -> list[str]:
        """Return the names in `directory`, sorted."""
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
        """Open an existing file for reading and writing."""
        return LinuxFile(open_file(path, os.O_RDWR))

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file within its directory and sync the directory."""
        source.rename(target)
        sync_directory(target.parent)

    def remove(self, path: Path) -> None:
        """Remove a file and sync its directory; a missing file is no error."""
        path.unlink(missing_ok=True)
        sync_directory(path.parent)

    def sync_names(self, directory: Path) -> None:
        """Return when the current names in `directory` are on the disk."""
        sync_directory(directory)


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
