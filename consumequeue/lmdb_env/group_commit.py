"""Group commit: a thread that commits all waiting changes to LMDB in one synced transaction.

While one transaction is synced, new changes are collected for the next transaction. So on a slower
disk each transaction has more changes. A change never waits for more changes to come.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import lmdb

from holdfast.consumequeue.errors import StateFull, StateUnavailable
from holdfast.consumequeue.lmdb_env.live_env import LiveEnv

_logger = logging.getLogger(__name__)

C = TypeVar("C")

Done = Callable[[Exception | None], None]
"""Called with None once a change is durable, or with the error if it is not."""

#: After a failed commit, the thread tests at this interval whether commits succeed again.
PROBE_INTERVAL_S = 1.0


class GroupCommit(Generic[C]):
    """Passes submitted changes to `commit`, in order, at most `max_group` at a time."""

    def __init__(
        self, name: str, max_group: int, commit: Callable[[list[tuple[C, Done]]], None]
    ) -> None:
        """`commit` is called in the thread named `name`. It must call `set_failure` and the `Done`
        of every change, and must not raise. While `failure` is set, `commit` is also called without
        changes; it must then write something to find out whether commits succeed again."""
        self._name = name
        self.failure: str | None = None
        """Why the last commit failed, or None if it succeeded."""
        self._max_group = max_group
        self._commit = commit
        self._waiting: queue.SimpleQueue[tuple[C, Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Commit the waiting changes and end the thread. May be called twice, or without
        `start`."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()

    def set_failure(self, error: Exception | None) -> None:
        """Set `failure` after a commit. Call it in the thread that commits."""
        before, self.failure = self.failure, None if error is None else str(error)
        if self.failure == before:
            return
        if self.failure is not None:
            _logger.error("%s: changes cannot be committed: %s", self._name, self.failure)
        else:
            _logger.warning("%s: changes can be committed again", self._name)

    def submit(self, change: C, done: Done) -> None:
        """Queue a change, which is stored completely or not at all. Any thread may call this."""
        self._waiting.put((change, done))

    def _run(self) -> None:
        closing = False
        while not closing:
            group: list[tuple[C, Done]] = []
            for change in self._take():
                if change is None:
                    closing = True
                else:
                    group.append(change)
            if group or not closing:
                self._commit(group)

    def _take(self) -> Iterator[tuple[C, Done] | None]:
        """Wait for a change, then yield the waiting changes, at most `max_group`. A None at the end
        means that the thread must end. Yield nothing when it is time to test whether commits
        succeed again."""
        try:
            change = self._waiting.get(timeout=PROBE_INTERVAL_S if self.failure else None)
        except queue.Empty:
            return
        yield change
        for _ in range(self._max_group - 1):
            if change is None or self._waiting.empty():
                return
            change = self._waiting.get()
            yield change


def write_with_room(env: LiveEnv, put: Callable[[], None], disk_full: Callable[[], None]) -> None:
    """Call `put`, which makes one transaction. If the disk is full, call `disk_full` to free space
    and try once more. If the map is full, let it grow. If LMDB fails, raise StateFull or
    StateUnavailable; then nothing is stored."""
    try:
        try:
            env.write(put)
        except lmdb.DiskError:
            disk_full()
            env.write(put)
    except lmdb.Error as failure:
        is_full = isinstance(failure, lmdb.DiskError | lmdb.MapFullError)
        raise (StateFull if is_full else StateUnavailable)(str(failure)) from failure
