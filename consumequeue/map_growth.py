"""A map of LMDB that is full grows: to twice its size, while nobody looks through it.

LMDB maps its file at one size, and moves the map to change it: a transaction of this process that
is open meanwhile would read where nothing is any more. `MapGuard` lets transactions in, and keeps
them out while the map moves; whoever is inside for too long is not waited for, and the map grows
another time.
"""

import logging
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import lmdb

_logger = logging.getLogger(__name__)

#: How long to wait for open transactions. Who is kept out meanwhile waits as long.
_PATIENCE_S = 2.0


class MapGuard:
    """Counts the open transactions of one environment. Any thread; one grows at a time."""

    def __init__(self, env: lmdb.Environment) -> None:
        self._env = env
        self._changed = threading.Condition()
        self._open = 0
        self._is_moving = False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Be inside; every transaction of the environment is to be."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_moving)
            self._open += 1
        try:
            yield
        finally:
            with self._changed:
                self._open -= 1
                if self._is_moving:
                    self._changed.notify_all()

    def grow(self) -> bool:
        """Double the map, outside of any transaction; return whether it grew."""
        with self._changed:
            self._is_moving = True
            try:
                if not self._changed.wait_for(lambda: self._open == 0, _PATIENCE_S):
                    _logger.warning("the map of %s is in use, it grows later", self._env.path())
                    return False
                return grow_map(self._env)
            finally:
                self._is_moving = False
                self._changed.notify_all()


def grow_map(env: lmdb.Environment) -> bool:
    """Double an environment's map; return False where there is no address space for it. No
    transaction of this process may be open."""
    size = 2 * int(env.info()["map_size"])
    try:
        # LMDB lets go of the old map first: without the new one it could not go on.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        mmap.mmap(-1, size, flags=flags, prot=mmap.PROT_READ).close()
    except (OSError, ValueError, OverflowError) as error:
        _logger.error("the map of %s cannot grow to %d bytes: %s", env.path(), size, error)
        return False
    env.set_mapsize(size)
    _logger.info("the map of %s grew to %d bytes", env.path(), size)
    return True
