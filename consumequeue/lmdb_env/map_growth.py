"""Growing a full LMDB map: its size is doubled while no transaction is open.

To change the size of its map, LMDB moves the map. A transaction of this process that is open
meanwhile would read unmapped memory. `live_env.py` prevents that.
"""

import logging
import mmap

import lmdb

_logger = logging.getLogger(__name__)


def grow_map(env: lmdb.Environment) -> bool:
    """Double an environment's map; return False if there is not enough address space. No
    transaction of this process may be open."""
    size = 2 * int(env.info()["map_size"])
    try:
        # LMDB unmaps the old map first. If it could not map the new one, it could not continue. So
        # test first whether the system can map as much.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        mmap.mmap(-1, size, flags=flags, prot=mmap.PROT_READ).close()
    except (OSError, ValueError, OverflowError) as error:
        _logger.error("the map of %s cannot grow to %d bytes: %s", env.path(), size, error)
        return False
    env.set_mapsize(size)
    _logger.info("the map of %s grew to %d bytes", env.path(), size)
    return True
