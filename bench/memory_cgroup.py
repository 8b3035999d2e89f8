"""A memory cgroup (version 1 or 2) that limits the memory of processes. Only root may create
one."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


class NoCgroup(Exception):
    """A memory cgroup cannot be created here."""


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """Create a cgroup. The kernel kills its processes if they use more than `limit_bytes`.

    Yield the cgroup's folder. A process whose id is written to the file cgroup.procs in this folder
    joins the cgroup. Raise NoCgroup.
    """
    is_old = (_ROOT / "memory").is_dir()
    folder = (_ROOT / "memory" if is_old else _ROOT) / f"holdfast-{os.getpid()}"
    try:
        folder.mkdir()
        name = "memory.limit_in_bytes" if is_old else "memory.max"
        (folder / name).write_text(str(limit_bytes))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise NoCgroup(str(error)) from error
    try:
        yield folder
    finally:
        deadline = time.monotonic() + 10
        while True:
            try:
                folder.rmdir()
                break
            except OSError:  # a killed process remains in the cgroup for a moment
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
