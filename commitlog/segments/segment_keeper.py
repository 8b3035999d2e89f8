"""The segment thread: prepares the next segment and seals ended segments.

A publish never waits for this thread: the appender creates the next segment if none is prepared.
"""

import logging
import queue
import threading
from collections.abc import Callable

from holdfast.commitlog.errors import DiskFull, DiskLow, NoSegment
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.footer import seal_segment
from holdfast.commitlog.segments.segment import Segment

_logger = logging.getLogger(__name__)

Task = Callable[[], object]


class SegmentKeeper:
    """Runs small jobs on the segment files, one after another, in its own thread."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="holdfast-segments", daemon=True)

    def start(self) -> None:
        """Start the thread. Its first jobs prepare the next segment and seal the ended segments
        that a crash left unsealed."""
        self.submit(self._log.prepare_next)
        for segment in self._log.segments:
            if segment.ended and not segment.sealed:
                self.submit(lambda segment=segment: seal_segment(segment))  # type: ignore[misc]
        self._thread.start()

    def stop(self) -> None:
        """Finish the submitted jobs, then end the thread; may be called twice."""
        self._tasks.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, task: Task) -> None:
        """Run `task` in the thread. An exception from it is logged; the thread continues."""
        self._tasks.put(task)

    def seal_ended(self, ended: Segment) -> None:
        """Prepare the next segment and seal `ended`. The appender thread calls this after a
        roll."""
        self.submit(self._log.prepare_next)
        self.submit(lambda: seal_segment(ended))

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except (DiskFull, DiskLow, NoSegment) as error:
                _logger.warning("the next segment could not be prepared: %s", error)
            except Exception:
                _logger.exception("a job on the segment files failed")
            del task  # otherwise `task` would keep a deleted segment open during the next `get`
