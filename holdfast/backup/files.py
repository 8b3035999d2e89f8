"""Copy and checksum the files of a backup. Where a file may be sparse, zeros become holes."""

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from holdfast.commitlog.disk.disk import File, make_directory
from holdfast.commitlog.disk.owned_files import create_file, open_file

_CHUNK = 1024 * 1024
_ZEROS = bytes(_CHUNK)

_FICLONE = 0x40049409
_CANNOT_CLONE = {errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY, errno.ENOSYS}

Progress = Callable[[int], None]
"""Called with the number of bytes done since the last call."""


def sum_progress(report: Callable[[int, int], None], total: int) -> Progress:
    """Return a Progress that calls `report` with the sum of the bytes done, and `total`."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        report(min(done, total), total)

    return advance


def chunks(file: File, size: int, start: int = 0) -> Iterator[bytes]:
    """Yield `size` bytes of a file, from the byte `start` on. Raise OSError if the file is
    shorter."""
    at = 0
    while at < size:
        chunk = file.read(min(_CHUNK, size - at), start + at)
        if not chunk:
            raise OSError(f"the file ends after {at} of {size} bytes")
        yield chunk
        at += len(chunk)


def write_file(path: Path, data: Iterable[bytes], **options: Any) -> tuple[int, str]:
    """Create a file and its missing folders, replace an existing file, and do what `fill_file`
    does."""
    make_directory(path.parent)
    return fill_file(create_file(path), data, **options)


def fill_file(
    descriptor: int,
    data: Iterable[bytes],
    *,
    size: int | None = None,
    allocate: bool = False,
    progress: Progress = lambda count: None,
) -> tuple[int, str]:
    """Write a new, open file, sync and close it. Return the number of bytes in `data` and their
    SHA-256. Zeros become holes. `size` extends the file with zeros; with `allocate` the disk space
    for `size` is allocated. OSError propagates; the file then keeps the bytes that were written."""
    checksum = hashlib.sha256()
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


def clone_file(source: Path, copy: int) -> bool:
    """Let the new file with the descriptor `copy` share the disk blocks of the source (copy on
    write), and sync it. Return False if the files are on different file systems, if the file system
    cannot share blocks, or if the source no longer exists. OSError propagates."""
    try:
        descriptor = open_file(source)
    except FileNotFoundError:
        return False
    try:
        fcntl.ioctl(copy, _FICLONE, descriptor)
        os.fsync(copy)
    except OSError as error:
        if error.errno not in _CANNOT_CLONE:
            raise
        return False
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
    yield from read_chunks(open_file(path, may_have_names=True))


def read_chunks(descriptor: int) -> Iterator[bytes]:
    """Yield the bytes of an open file in chunks, then close the descriptor. If the iteration never
    begins, the descriptor stays open."""
    with os.fdopen(descriptor, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def sha256_of(data: Iterable[bytes], progress: Progress = lambda count: None) -> str:
    """Return the SHA-256 of a file, in hex. `data` yields the file's bytes in chunks."""
    checksum = hashlib.sha256()
    for chunk in data:
        checksum.update(chunk)
        progress(len(chunk))
    return checksum.hexdigest()


def sync_tree(directory: Path | str, dir_fd: int | None = None) -> None:
    """Sync a directory and all directories below it; links are not followed."""
    for _, _, _, descriptor in os.fwalk(directory, dir_fd=dir_fd):
        os.fsync(descriptor)
