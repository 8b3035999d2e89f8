"""Copy and checksum the files of a backup. Zeros take no room where a file may be sparse."""

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from holdfast.commitlog.disk import make_directory

_CHUNK = 1024 * 1024
_ZEROS = bytes(_CHUNK)

_FICLONE = 0x40049409
_CANNOT_CLONE = {errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY, errno.ENOSYS}

Progress = Callable[[int], None]
"""Called with bytes done since the last call."""


class Readable(Protocol):
    """What `commitlog.disk.File` is to those who only read."""

    def read(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end."""


def chunks(file: Readable, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file; OSError when it ends before."""
    at = 0
    while at < size:
        chunk = file.read(min(_CHUNK, size - at), at)
        if not chunk:
            raise OSError(f"the file ends after {at} of {size} bytes")
        yield chunk
        at += len(chunk)


def write_file(
    path: Path,
    data: Iterable[bytes],
    *,
    size: int | None = None,
    allocate: bool = False,
    progress: Progress = lambda count: None,
) -> tuple[int, str]:
    """Write a new file and sync it; return how many bytes `data` had, and their SHA-256.

    Zeros are left out of the file's extents; `size` lengthens it by zeros, with their room taken
    from the disk if `allocate`. Replaces a file that is there. OSError passes through, and what
    was written so far stays.
    """
    make_directory(path.parent)
    checksum = hashlib.sha256()
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    try:
        if allocate and size is not None:
            os.posix_fallocate(descriptor, 0, size)
        at = 0
        for chunk in data:
            checksum.update(chunk)
            if chunk != _ZEROS[: len(chunk)]:
                _write_all(descriptor, chunk, at)
            at += len(chunk)
            progress(len(chunk))
        os.ftruncate(descriptor, size if size is not None else at)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return at, checksum.hexdigest()


def clone_file(source: Path, path: Path) -> bool:
    """Let a new file share the source's blocks until one of them is written to, and sync it; False
    where that cannot be: on another file system, on one that does not share, for a source that is
    gone. OSError passes through."""
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        make_directory(path.parent)
        path.unlink(missing_ok=True)
        copy = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            fcntl.ioctl(copy, _FICLONE, descriptor)
            os.fsync(copy)
        except OSError as error:
            if error.errno not in _CANNOT_CLONE:
                raise
            path.unlink()
            return False
        finally:
            os.close(copy)
    finally:
        os.close(descriptor)
    return True


def _write_all(descriptor: int, chunk: bytes, at: int) -> None:
    view = memoryview(chunk)
    while view:
        written = os.pwrite(descriptor, view, at)
        view = view[written:]
        at += written


def file_chunks(path: Path) -> Iterator[bytes]:
    """Yield a file's bytes."""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def sha256_of(path: Path, progress: Progress = lambda count: None) -> str:
    """Return the SHA-256 of a file."""
    checksum = hashlib.sha256()
    for chunk in file_chunks(path):
        checksum.update(chunk)
        progress(len(chunk))
    return checksum.hexdigest()


def sync_tree(directory: Path) -> None:
    """Make the entries of a directory and of all below it durable."""
    for folder, _, _ in os.walk(directory):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
