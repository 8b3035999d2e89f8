"""A store of small records in a separate LMDB environment, with group commit.

A thread commits all waiting changes in one synced transaction. While one transaction is synced, new
changes are collected for the next transaction. So on a slower disk each transaction has more
changes. A change never waits for more changes to come.
"""

import logging
import queue
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import lmdb

from holdfast.consumequeue.errors import StateFull, StateUnavailable
from holdfast.consumequeue.lmdb_env.env import CORRUPT, open_env
from holdfast.consumequeue.lmdb_env.live_env import LiveEnv

_logger = logging.getLogger(__name__)

C = TypeVar("C")

Done = Callable[[Exception | None], None]
"""Called with None once a change is durable, or with the error if it is not."""

FORMAT_KEY = b"\0format"
#: One synced transaction has at most this many changes.
MAX_GROUP = 1024
#: After a failed commit, the thread tests at this interval whether commits succeed again.
PROBE_INTERVAL_S = 1.0


class SyncedStore(Generic[C]):
    """The common part of such stores; a change has the type C. Any thread may queue changes."""

    FORMAT: ClassVar[bytes]
    """The value of the record FORMAT_KEY."""
    THREAD_NAME: ClassVar[str]
    CORRUPT_ERROR: ClassVar[type[Exception]]
    """Raised with a reason if the environment is damaged or has another format."""

    def __init__(
        self,
        directory: Path,
        map_size_bytes: int,
        *,
        readonly: bool = False,
        disk_full: Callable[[], None] = lambda: None,
    ) -> None:
        """Open or create the environment. With `readonly` it must exist and is not changed.

        `disk_full` is called in the store's thread when the disk was full for a change; then the
        change is tried once more. Raises CORRUPT_ERROR; other lmdb.Errors and OSError propagate.
        """
        self.failure: str | None = None
        """Why changes cannot be stored now, or None if they can."""
        self._disk_full = disk_full
        self._waiting: queue.SimpleQueue[tuple[C, Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=self.THREAD_NAME, daemon=True)
        try:
            self.env = LiveEnv(partial(open_env, directory, map_size_bytes, readonly=readonly))
        except CORRUPT as error:
            raise self.CORRUPT_ERROR(str(error)) from error
        try:
            with self.env.transaction() as txn:
                found = txn.get(FORMAT_KEY)
                self.is_new = found is None
                """Whether the store was never filled."""
                if found not in (None, self.FORMAT):
                    raise self.CORRUPT_ERROR(f"format {found!r}, not {self.FORMAT!r}")
                self._read(txn)
        except CORRUPT as error:
            self.env.close()
            raise self.CORRUPT_ERROR(str(error)) from error
        except BaseException:
            self.env.close()
            raise

    @abstractmethod
    def _read(self, txn: "lmdb.Transaction[bytes]") -> None:
        """Read records at opening."""

    @abstractmethod
    def _put(self, changes: Sequence[C]) -> None:
        """Store changes in one transaction. If there are none, write something, to find out whether
        commits succeed again."""

    @abstractmethod
    def _on_commit(self, change: C) -> None:
        """Update memory after a change was committed."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Commit the waiting changes, end the thread, close the environment. May be called twice,
        or without `start`."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()
        self.env.close()

    # -- the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        is_closing = False
        while not is_closing:
            group: list[tuple[C, Done]] = []
            for change in self._take():
                if change is None:
                    is_closing = True
                else:
                    group.append(change)
            if group or not is_closing:
                self._commit_group(group)

    def _take(self) -> Iterator[tuple[C, Done] | None]:
        """Wait for a change, then yield the waiting changes, at most MAX_GROUP. A None at the end
        means that the thread must end. Yield nothing when it is time to test whether commits
        succeed again."""
        try:
            change = self._waiting.get(timeout=PROBE_INTERVAL_S if self.failure else None)
        except queue.Empty:
            return
        yield change
        for _ in range(MAX_GROUP - 1):
            if change is None or self._waiting.empty():
                return
            change = self._waiting.get()
            yield change

    def _commit_group(self, group: list[tuple[C, Done]]) -> None:
        error: Exception | None = None
        try:
            self._write([change for change, _ in group])
        except StateUnavailable as failure:
            error = failure
        self._set_failure(None if error is None else str(error))
        for change, done in group:
            if error is None:
                self._on_commit(change)
            done(error)

    def _write(self, changes: Sequence[C]) -> None:
        self._write_with_room(lambda: self._put(changes))

    def _write_with_room(self, put: Callable[[], None]) -> None:
        """Call `put`, which makes one transaction. If the disk is full, call `disk_full` to free
        space and try once more. If the map is full, let it grow. If LMDB fails, raise StateFull or
        StateUnavailable; then nothing is stored."""
        try:
            try:
                self.env.write(put)
            except lmdb.DiskError:
                self._disk_full()
                self.env.write(put)
        except lmdb.Error as failure:
            is_full = isinstance(failure, lmdb.DiskError | lmdb.MapFullError)
            raise (StateFull if is_full else StateUnavailable)(str(failure)) from failure

    def _set_failure(self, failure: str | None) -> None:
        before, self.failure = self.failure, failure
        if failure is not None and failure != before:
            _logger.error("%s: changes cannot be committed: %s", self.THREAD_NAME, failure)
        elif failure is None and before is not None:
            _logger.warning("%s: changes can be committed again", self.THREAD_NAME)
