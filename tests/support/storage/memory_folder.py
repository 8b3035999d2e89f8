"""A folder in memory for tests: a sync there costs no time."""

import os
from pathlib import Path

from holdfast.commitlog.disk.disk import File, LinuxDisk, LinuxFile
from holdfast.commitlog.disk.owned_files import open_file

SHARED_MEMORY = Path("/dev/shm")


def folder_in_memory(needed_bytes: int) -> Path | None:
    """Return a folder in memory with this much free space, or None.

    Containers have 64 MiB there by default.
    """
    if not SHARED_MEMORY.is_dir():
        return None
    stats = os.statvfs(SHARED_MEMORY)
    return SHARED_MEMORY if stats.f_bavail * stats.f_frsize >= needed_bytes else None


class MemoryDisk(LinuxDisk):
    """The disk of a folder in memory. A new file has holes, so that it is created at once."""

    def create(self, path: Path, size: int) -> File:
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.ftruncate(descriptor, size)
        return _MemoryFile(descriptor)

    def open(self, path: Path) -> File:
        return _MemoryFile(open_file(path, os.O_RDWR))


class _MemoryFile(LinuxFile):
    def read_nowait(self, size: int, position: int) -> bytes | None:
        """Return what `read` returns: no read waits. Linux does not support RWF_NOWAIT here."""
        return self.read(size, position)
