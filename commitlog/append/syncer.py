"""The sync thread: makes writes durable and completes the publishes that wait for durability.

An fdatasync of a segment makes every write durable that ended before the fdatasync began, so many
publishes share one. If no publish waits, the log is still synced within the flush interval. After
a failed sync the thread never syncs again. It is then unknown which bytes are durable, and another
sync would falsely report success, because the kernel has dropped the pages.
"""

import logging
import threading
from collections.abc import Callable

from holdfast.commitlog.append.appender import AppendRequest, ReputInbox
from holdfast.commitlog.errors import LogPoisoned
from holdfast.commitlog.segments.commit_log import CommitLog

_logger = logging.getLogger(__name__)


class Syncer:
    """Owns the durable offset. The appender calls `put_written`, from one thread at a time.

    The sync thread calls `observe` with the seconds that a sync took. Then it reports to `inbox`
    the new durable offset and the requests below it, and flushes it. After a failed sync it calls
    `on_failure` once, with the error, and then fails every waiting request with LogPoisoned. From
    then on, `put_written` fails the requests that it gets, in the thread of its caller.
    """

    def __init__(
        self,
        log: CommitLog,
        *,
        durable_offset: int,
        flush_interval_s: float,
        inbox: ReputInbox,
        on_failure: Callable[[Exception], None],
        observe: Callable[[float], None] = lambda seconds: None,
        monotonic: Callable[[], float],
    ) -> None:
        self._log = log
        self.durable_offset = durable_offset
        """Physical offset below which every byte is on the disk. It never decreases."""
        self._flush_interval_s = flush_interval_s
        self._inbox = inbox
        self._on_failure = on_failure
        self._observe = observe
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._waiting: list[AppendRequest] = []
        #: How many requests the last sync completed, not counting syncs for which none waited.
        self._last_count = 0
        self._unsynced = False
        self._closing = False
        self._poisoned: str | None = None
        self._timing = False
        self._thread = threading.Thread(target=self._run, name="holdfast-sync", daemon=True)

    @property
    def has_single_requests(self) -> bool:
        """Whether no request waits for the next sync, and the last sync completed at most one
        request. Any thread may call this."""
        return self._last_count <= 1 and not self._waiting

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Sync all writes, then end the thread; may be called twice."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def put_written(self, requests: list[AppendRequest]) -> None:
        """Notify the sync thread of new writes. After the sync that covers these writes, it
        completes `requests`."""
        if self._unsynced and not requests:
            return  # The thread clears `_unsynced` before it reads how far the log is written.
        with self._changed:
            if self._poisoned is None:
                self._waiting += requests
                self._unsynced = True
                # Without requests, no extra wake-up is needed while the flush interval runs.
                if requests or not self._timing:
                    self._changed.notify()
                return
        self._fail_requests(requests)

    def _run(self) -> None:
        try:
            self._sync_until_closed()
        except Exception as error:  # last resort: an unexpected error makes the log read-only
            _logger.exception("the sync thread failed")
            self._poison(error, f"{type(error).__name__}: {error}", [])

    def _sync_until_closed(self) -> None:
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
                self._last_count = len(waiting) or self._last_count
                self._unsynced = False
            # Requests are handed over after they were written, so the mark covers all of them.
            mark = self._log.written_offset
            try:
                started = self._monotonic()
                self._sync(mark)
                self._observe(self._monotonic() - started)
            except OSError as error:
                _logger.critical("a sync of the log failed, the log is read-only now: %s", error)
                self._poison(error, str(error), waiting)
                return
            self.durable_offset = mark
            self._inbox.put_durable_offset(mark)
            if waiting:
                self._inbox.put_finished(waiting)
            self._inbox.flush()

    def _sync(self, mark: int) -> None:
        """Sync every segment that overlaps the range from the durable offset to `mark`."""
        for segment in self._log.segments:
            if segment.end_offset > self.durable_offset and segment.start_offset < mark:
                segment.sync()

    def _poison(self, error: Exception, cause: str, waiting: list[AppendRequest]) -> None:
        try:
            # Before any request fails: its caller must find a read-only log. Until `_poisoned` is
            # set, new requests are only collected.
            self._on_failure(error)
        finally:
            with self._changed:
                self._poisoned = cause
                waiting = [*waiting, *self._waiting]
                self._waiting = []
            self._fail_requests(waiting)

    def _fail_requests(self, requests: list[AppendRequest]) -> None:
        for request in requests:
            request.error = LogPoisoned(self._poisoned or "sync")
        if requests:
            self._inbox.put_finished(requests)
            self._inbox.flush()
