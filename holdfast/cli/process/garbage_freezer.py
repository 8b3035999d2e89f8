"""Limit the pauses that the garbage collector causes in the broker to a few milliseconds.

A collection of the oldest generation visits every object that may be part of a cycle, and the rest
of the program must wait: 240 ms with 10,000 queues of a group. A broker keeps nearly all its
objects for a long time. So after a collection that took long, all surviving objects are frozen:
later collections do not visit them. A frozen object is still freed when its last reference is
dropped, unless it is part of a cycle, like the remains of a deleted group. Therefore all objects
are unfrozen and visited again after MOST_GONE deletions, or after MOST_S seconds.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONG_S = 0.002  # after a longer collection, the surviving objects are frozen
#: The threshold for a collection of the oldest generation, in collections of the middle generation.
#: Each of these adds about 7,000 objects to the oldest generation. Python's default of 10 would
#: give 70,000 objects, and a collection of these takes 20 ms.
MIDDLE_ONES = 3
#: After this number of deleted groups and queues of groups, all objects are visited again. Until
#: then, each deleted group or queue may keep at most about 6 KiB of memory in cycles.
MOST_GONE = 10_000
#: After this time all objects are visited again in any case, because of other cycles.
MOST_S = 6 * 3600.0
OLDEST = 2  # the collector's oldest generation


@contextmanager
def no_collections() -> Iterator[None]:
    """Collect no garbage in this block, and freeze its objects at the end. The imports of a broker
    make hundreds of thousands of objects, and nearly all of them stay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


class GarbageFreezer:
    """Freezes old objects. `on_collection` runs in the thread in which the collector runs."""

    def __init__(
        self,
        gone: Callable[[], int],
        *,
        now_s: Callable[[], float] = time.monotonic,
        used_s: Callable[[], float] = time.thread_time,
        freeze: Callable[[], None] = gc.freeze,
        unfreeze: Callable[[], None] = gc.unfreeze,
    ) -> None:
        """`gone` returns how many groups and queues of groups the broker has deleted since its
        start."""
        self._gone = gone
        self._now_s = now_s
        self._used_s = used_s
        self._freeze = freeze
        self._unfreeze = unfreeze
        self._began_s = 0.0
        self._thawed_s = now_s()
        self._gone_before = gone()

    def start(self) -> None:
        """Freeze all current objects, and watch collections from now on."""
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*self._thresholds[:2], MIDDLE_ONES)
        self._freeze()
        gc.callbacks.append(self.on_collection)

    def stop(self) -> None:
        """Stop freezing. May be called twice."""
        if self.on_collection in gc.callbacks:
            gc.callbacks.remove(self.on_collection)
            gc.set_threshold(*self._thresholds)

    def on_collection(self, phase: str, info: dict[str, int]) -> None:
        """Handle the start or the end of a collection. At the start, unfreeze all objects if
        MOST_GONE or MOST_S is reached. At the end, freeze them if the collection took long."""
        if info["generation"] != OLDEST:
            return
        if phase == "start":
            self._began_s = self._used_s()
            now_s, gone = self._now_s(), self._gone()
            if gone - self._gone_before >= MOST_GONE or now_s - self._thawed_s >= MOST_S:
                self._gone_before, self._thawed_s = gone, now_s
                self._unfreeze()
        elif self._used_s() - self._began_s >= LONG_S:
            self._freeze()
