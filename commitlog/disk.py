"""The few calls that the log makes of the operating system. Tests put a simulated disk here.

Files are written with pwritev and synced with fdatasync, never through a mapping: a store to
a mapping on a full or failing disk is a SIGBUS, and msync holds the interpreter lock for the
whole sync. Every method may be called from any thread; OSError passes through.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

Bytes = bytes | bytearray | memoryview


class File(Protocol):
    """An open file of fixed size."""

    def write(self, buffers: Sequence[Bytes], position: int) -> None:
        """Write all of `buffers`, one after another, at `position`."""

    def read(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""

    def read_nowait(self, size: int, position: int) -> bytes | None:
        """Return what `read` would if the page cache has all of it, else None."""

    def sync(self) -> None:
        """Return once all that was written is on the disk."""

    def size(self) -> int:
        """Return the file's size as it is now."""

    def data_end(self, position: int) -> int:
        """Return where the last data at or after `position` ends; `position` if there is none."""

    def close(self) -> None:
        """Give the descriptor back; may be called twice."""


class Disk(Protocol):
    """Where the log's files are."""

    def names(self, directory: Path) -> list[str]:
        """Return the names in `directory`, sorted."""

    def create(self, path: Path, size: int) -> File:
        """Create a file with all its room allocated. OSError(ENOSPC) leaves nothing behind."""

    def open(self, path: Path) -> File:
        """Open an existing file for reading and writing."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file within its directory and sync the directory."""

    def remove(self, path: Path) -> None:
        """Remove a file and sync its directory; a missing file is no error."""

    def sync_names(self, directory: Path) -> None:
        """Return once the names in `directory` are on the disk as they are."""


_IOV_MAX = 1024  # Linux's UIO_MAXIOV


class LinuxFile:
    """A File over a descriptor, which closes with its last reference at the latest: whoever
    reads a segment that retention deletes meanwhile reads to the end, then the room is free."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor

    def write(self, buffers: Sequence[Bytes], position: int) -> None:
        """Write all of `buffers` at `position`, however many calls that takes."""
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
        """Return what `read` would if the page cache has all of it, else None."""
        buffer = bytearray(size)
        try:
            count = os.preadv(self._fd, [buffer], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return None
            raise
        return bytes(buffer) if count == size else None

    def sync(self) -> None:
        """Return once all that was written is on the disk."""
        os.fdatasync(self._fd)

    def size(self) -> int:
        """Return the file's size as it is now."""
        return os.fstat(self._fd).st_size

    def data_end(self, position: int) -> int:
        """Return where the last extent with data at or after `position` ends."""
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
        """Let go of these bytes in the page cache, where they are as on the disk."""
        os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the descriptor; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


class LinuxDisk:
    """The Disk of the machine."""

    def names(self, directory: Path) -> list[str]:
        """Return the names in `directory`, sorted."""
        return sorted(os.listdir(directory))  # noqa: PTH208 - names, not paths

    def create(self, path: Path, size: int) -> File:
        """Create a file with all its room allocated, so that a full disk shows here."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return LinuxFile(descriptor)

    def open(self, path: Path) -> File:
        """Open an existing file for reading and writing."""
        return LinuxFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file within its directory and sync the directory."""
        source.rename(target)
        sync_directory(target.parent)

    def remove(self, path: Path) -> None:
        """Remove a file and sync its directory; a missing file is no error."""
        path.unlink(missing_ok=True)
        sync_directory(path.parent)

    def sync_names(self, directory: Path) -> None:
        """Return once the names in `directory` are on the disk as they are."""
        sync_directory(directory)


def free_bytes(directory: Path) -> int:
    """Return how much room the file system of `directory` has left for this process."""
    stats = os.statvfs(directory)
    return stats.f_bavail * stats.f_frsize


def forget(file: File, size: int, position: int) -> None:
    """Let go of these bytes of a file in the page cache, if they are as on the disk. A hint: what
    is no file of the machine has no such cache."""
    if isinstance(file, LinuxFile):
        file.forget(size, position)


def make_directory(directory: Path) -> None:
    """Make a directory whose name is durable, and its parents; one that exists is left alone."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Make the directory's entries durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
