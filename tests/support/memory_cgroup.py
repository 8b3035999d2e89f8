"""A memory cgroup of its own for a process, of version 1 or 2. Only root may make one."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """Make a cgroup that kills what takes more than so much; return its file of processes. Skips
    the test where that cannot be."""
    is_old = (_ROOT / "memory").is_dir()
    folder = (_ROOT / "memory" if is_old else _ROOT) / f"holdfast-{os.getpid()}"
    try:
        folder.mkdir()
        name = "memory.limit_in_bytes" if is_old else "memory.max"
        (folder / name).write_text(str(limit_bytes))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no memory cgroup can be made: {error}")
    try:
        yield folder / "cgroup.procs"
    finally:
        deadline = time.monotonic() + 10
        while True:
            try:
                folder.rmdir()
                break
            except OSError:  # a process that was killed is in it for a moment
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
