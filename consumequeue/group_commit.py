"""Many changes to a sync: a thread that commits to LMDB whatever waits, in one transaction.

While one transaction is being synced, the changes of others gather: the slower the disk, the
larger the groups. Nothing waits to be gathered.
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import lmdb

from holdfast.consumequeue.errors import StateFull, StateUnavailable
from holdfast.consumequeue.map_growth import grow_map

_logger = logging.getLogger(__name__)

C = TypeVar("C")

Done = Callable[[Exception | None], None]
"""Called with None once a change is durable, or with the reason why it is not."""


class GroupCommit(Generic[C]):
    """Hands what was submitted to `commit`, in order, up to `max_group` changes at a time."""

    def __init__(
        self, name: str, max_group: int, commit: Callable[[list[tuple[C, Done]]], None]
    ) -> None:
        """`commit` is called in the thread of this name; it calls every `Done`, and raises
        nothing."""
        self._max_group = max_group
        self._commit = commit
        self._waiting: queue.SimpleQueue[tuple[C, Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Commit what waits and end the thread; may be called twice, or without `start`."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()

    def submit(self, change: C, done: Done) -> None:
        """Queue a change; any thread. All of it is stored or nothing."""
        self._waiting.put((change, done))

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            group = [first]
            closing = False
            while len(group) < self._max_group and not self._waiting.empty():
                following = self._waiting.get()
                if following is None:
                    closing = True
                    break
                group.append(following)
            self._commit(group)
            if closing:
                return


def write_with_room(
    env: lmdb.Environment, put: Callable[[], None], disk_full: Callable[[], None]
) -> None:
    """Call `put`, which makes a transaction; once more when the disk was full and `disk_full` has
    made room, and in a larger map when that was full: no other transaction may be open. Raises
    StateFull or StateUnavailable, chained to LMDB's reason; then nothing is stored."""
    try:
        _write(env, put, disk_full)
    except lmdb.Error as failure:
        _logger.error("a change of the state could not be committed: %s", failure)
        is_full = isinstance(failure, lmdb.DiskError | lmdb.MapFullError)
        raise (StateFull if is_full else StateUnavailable)(str(failure)) from failure


def _write(env: lmdb.Environment, put: Callable[[], None], disk_full: Callable[[], None]) -> None:
    try:
        put_growing(env, put)
    except lmdb.DiskError:
        disk_full()
        put_growing(env, put)


def put_growing(env: lmdb.Environment, put: Callable[[], None]) -> None:
    """Call `put`, which makes a transaction, and again in a larger map as often as that is full:
    no other transaction may be open. lmdb.Error passes through; then nothing is stored."""
    while True:
        try:
            return put()
        except lmdb.MapFullError:
            if not grow_map(env):
                raise
