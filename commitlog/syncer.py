"""The sync thread: makes what was written durable, and tells who waited for it.

One fdatasync covers all that was written before it began. Without a waiter a sync still comes
within the flush interval. The first failed sync is the last: what it covered is unknown, and
a second one would lie (the kernel drops the pages and reports success).
"""

import logging
import threading
from collections.abc import Callable

from holdfast.commitlog.appender import AppendRequest
from holdfast.commitlog.commit_log import CommitLog
from holdfast.commitlog.errors import LogPoisoned

_logger = logging.getLogger(__name__)


class Syncer:
    """Owns the durable mark. `written` may be called from the appender thread, `flush` from any.

    Callbacks, in the sync thread: `advanced` with the new mark, before `completed` with the
    requests that it covers, and `all_told` behind them; `failed` once, with the error of the sync
    that failed, before all waiting requests are given up with LogPoisoned.
    """

    def __init__(
        self,
        log: CommitLog,
        *,
        durable_offset: int,
        flush_interval_s: float,
        advanced: Callable[[int], None],
        completed: Callable[[list[AppendRequest]], None],
        failed: Callable[[Exception], None],
        all_told: Callable[[], None] = lambda: None,
        observe: Callable[[float], None] = lambda seconds: None,
        monotonic: Callable[[], float],
    ) -> None:
        self._log = log
        self._durable_offset = durable_offset
        self._flush_interval_s = flush_interval_s
        self._advanced = advanced
        self._completed = completed
        self._failed = failed
        self._all_told = all_told
        self._observe = observe
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._waiting: list[AppendRequest] = []
        self._unsynced = False
        self._closing = False
        self._poisoned: str | None = None
        self._timing = False
        self._thread = threading.Thread(target=self._run, name="holdfast-sync", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Sync what is written, then end the thread; may be called twice."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def durable_offset(self) -> int:
        """Physical offset below which everything is on the disk. It only grows."""
        return self._durable_offset

    def written(self, requests: list[AppendRequest]) -> None:
        """Something was written; `requests` wait for the sync that covers them."""
        with self._changed:
            if self._poisoned is None:
                self._waiting += requests
                self._unsynced = True
                # With nobody waiting, the flush interval (already running or not) is soon enough.
                if requests or not self._timing:
                    self._changed.notify()
                return
        self._give_up(requests)

    def _run(self) -> None:
        try:
            self._sync_what_comes()
        except Exception as error:  # the thread's last resort
            _logger.exception("the sync thread failed")
            self._poison(error, f"{type(error).__name__}: {error}", [])

    def _sync_what_comes(self) -> None:
        while True:
            with self._changed:
                while not self._unsynced and not self._closing:
                    self._changed.wait()
                if not self._waiting and not self._closing:
                    self._timing = True
                    self._changed.wait_for(
                        lambda: bool(self._waiting) or self._closing, self._flush_interval_s
                    )
                    self._timing = False
                if not self._unsynced and self._closing:
                    return
                waiting, self._waiting = self._waiting, []
                self._unsynced = False
            # All that waits was written before it was handed over: the mark covers it.
            mark = self._log.written_offset
            try:
                started = self._monotonic()
                self._sync(mark)
                self._observe(self._monotonic() - started)
            except OSError as error:
                _logger.critical("a sync of the log failed, it is read-only now: %s", error)
                self._poison(error, str(error), waiting)
                return
            self._durable_offset = mark
            self._advanced(mark)
            if waiting:
                self._completed(waiting)
            self._all_told()

    def _sync(self, mark: int) -> None:
        """Sync every segment that holds something between the durable offset and `mark`."""
        for segment in self._log.segments:
            if segment.end_offset > self._durable_offset and segment.start_offset < mark:
                segment.sync()

    def _poison(self, error: Exception, cause: str, waiting: list[AppendRequest]) -> None:
        with self._changed:
            self._poisoned = cause
            waiting = [*waiting, *self._waiting]
            self._waiting = []
        try:
            self._failed(error)  # first: whoever is told finds that nothing more is taken
        finally:
            self._give_up(waiting)

    def _give_up(self, requests: list[AppendRequest]) -> None:
        for request in requests:
            request.error = LogPoisoned(self._poisoned or "sync")
        if requests:
            self._completed(requests)
            self._all_told()
