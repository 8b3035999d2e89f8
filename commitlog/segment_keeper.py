"""The segment thread: prepares the next segment, seals ended ones, deletes old ones.

None of it is on a publish's way: the appender makes its own segment when none is ready.
"""

import logging
import queue
import threading
from collections.abc import Callable

from holdfast.commitlog.commit_log import CommitLog
from holdfast.commitlog.errors import DiskFull, DiskLow, NoSegment
from holdfast.commitlog.segment import Segment

_logger = logging.getLogger(__name__)

Task = Callable[[], object]


class SegmentKeeper:
    """Runs small jobs on the log's files, one after another, in a thread of its own."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="holdfast-segments", daemon=True)

    def start(self) -> None:
        """Start the thread; prepares a segment and seals what a crash left unsealed."""
        self.submit(self._log.prepare_next)
        for segment in self._log.segments:
            if segment.ended and not segment.sealed:
                self.submit(lambda segment=segment: self._log.seal(segment))  # type: ignore[misc]
        self._thread.start()

    def stop(self) -> None:
        """Finish what was submitted, then end the thread; may be called twice."""
        self._tasks.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, task: Task) -> None:
        """Run `task` in the thread. Its failure is logged and harms nothing else."""
        self._tasks.put(task)

    def rolled(self, ended: Segment) -> None:
        """A segment ended (called in the appender thread): prepare the next, seal this one."""
        self.submit(self._log.prepare_next)
        self.submit(lambda: self._log.seal(ended))

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except (DiskFull, DiskLow, NoSegment) as error:
                _logger.warning("no segment could be prepared: %s", error)
            except Exception:
                _logger.exception("a job on the segment files failed")
            del task  # what it holds may be a segment that is deleted while this waits
