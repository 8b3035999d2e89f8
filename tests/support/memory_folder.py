"""A folder in memory for tests: a sync there costs no time."""

import os
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def folder_in_memory(needed_bytes: int) -> Path | None:
    """Return a folder in memory with this much free space, or None.

    Containers have 64 MiB there by default.
    """
    if not SHARED_MEMORY.is_dir():
        return None
    stats = os.statvfs(SHARED_MEMORY)
    return SHARED_MEMORY if stats.f_bavail * stats.f_frsize >= needed_bytes else None
