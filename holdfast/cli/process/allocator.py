"""Let the C allocator keep freed memory for the next requests.

By default glibc returns freed memory to the kernel as soon as an arena has more of it than twice
the largest block that was freed before. A read of small batches uses several megabytes for a
moment, so each read gets new pages again. Each new page costs a page fault, which takes 1 to 2 us
on a virtual machine.
"""

import contextlib
import ctypes
import os

#: Each of the allocator's arenas may keep this much freed memory. Nearly all threads have an arena
#: of their own. Without this setting, an arena may keep up to 64 MiB after large requests.
KEPT_BYTES = 16 * 1024 * 1024
#: On machines with little memory, an arena keeps less: one part in this many.
_MEMORY_DIVISOR = 32

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: An operator's own settings. They have priority.
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory(memory_bytes: int) -> bool:
    """Let each arena keep up to KEPT_BYTES of freed memory; less if the process may use only
    `memory_bytes`, and that is little. Return False if the allocator is not glibc's, or if the
    environment has settings for it."""
    size = min(memory_bytes // _MEMORY_DIVISOR, KEPT_BYTES)
    if any(name in os.environ for name in _VARIABLES):
        return False
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        # Larger blocks are mapped and unmapped one by one.
        return bool(mallopt(_M_TRIM_THRESHOLD, size) and mallopt(_M_MMAP_THRESHOLD, size))
    return False
