"""How much memory this process may use."""

import contextlib
import os
from pathlib import Path


def machine_bytes() -> int:
    """Return the most bytes of memory that this process may use: the memory of the machine, or the
    limit of the process's cgroup (version 1 or 2) if that is less."""
    found = [_physical_bytes()]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            root = Path("/sys/fs/cgroup" if not controllers else f"/sys/fs/cgroup/{controllers}")
            names = ("memory.max",) if not controllers else ("memory.limit_in_bytes",)
            here = root / path.lstrip("/")
            for folder in (here, *here.parents):
                if root not in (folder, *folder.parents):
                    break
                found += [size for name in names if (size := _size_in(folder / name))]
    return min(found)


def _physical_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _size_in(path: Path) -> int:
    """Return the number in a file. Return 0 if the file contains another text, such as `max`, or
    cannot be read."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0
