"""Puts what reput has indexed into LMDB, off the wake path: only what the log has synced.

Between reput and the committer: `_uncommitted` is appended to by whoever makes a pass and taken
from by the committer's thread; the producers' sequences belong to the committer, so that it stores
them as they were at the position that it commits.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import lmdb

from holdfast.commitlog.batch_header import BatchHeader
from holdfast.commitlog.producer_sequences import ProducerKey, ProducerSequences, ProducerState
from holdfast.consumequeue.consume_queue import CqUnit
from holdfast.consumequeue.index import Index, ReputPosition
from holdfast.consumequeue.topics import QueueKey

_logger = logging.getLogger(__name__)

#: One transaction takes at most so many: a backlog goes in piece by piece.
_COMMIT_GROUP = 50_000
_FAILED_COMMIT_PAUSE_S = 1.0


class Uncommitted(NamedTuple):
    """A block that is indexed in memory."""

    key: QueueKey | None
    """None: a block of a topic that is gone; only the position moves on."""
    unit: CqUnit
    header: BatchHeader
    position: ReputPosition
    """The position after it."""


class IndexCommitter:
    """Owns the writes to the index. `add` and `uncommitted_count` may be called by any one other
    thread at a time; `try_commit` by nobody once it was started.

    `durable_offset` is asked how far it may go; `committed` is told up to where each queue is in
    LMDB, and `failed` of a thread that ends early; both in the committer's thread.
    """

    def __init__(
        self,
        index: Index,
        sequences: ProducerSequences,
        *,
        interval_s: float,
        durable_offset: Callable[[], int],
        committed: Callable[[dict[QueueKey, int]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._index = index
        self._sequences = sequences
        self._interval_s = interval_s
        self._durable_offset = durable_offset
        self._committed = committed
        self._failed = failed
        self._uncommitted: deque[Uncommitted] = deque()
        self.failure: str | None = None
        """Why the last commit failed, None when it did not."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-index", daemon=True)

    @property
    def uncommitted_count(self) -> int:
        """Entries that are not in LMDB yet."""
        return len(self._uncommitted)

    def add(self, entry: Uncommitted) -> None:
        """Take an entry, in log order."""
        self._uncommitted.append(entry)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Commit what is durable, end the thread. May be called twice."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    # -- the committer's thread ------------------------------------------------------------

    def _run(self) -> None:
        closing = False
        try:
            while not closing:
                closing = self._closing.wait(self._pause_s())
                while ends := self.try_commit(self._durable_offset()):
                    self._committed(ends)
        except Exception as error:  # the thread's last resort
            _logger.exception("the index thread failed")
            self._failed(error)

    def _pause_s(self) -> float:
        """A disk without room is asked seldom: each try is all of the work."""
        if self.failure is None:
            return self._interval_s
        return max(self._interval_s, _FAILED_COMMIT_PAUSE_S)

    def try_commit(self, durable_offset: int) -> dict[QueueKey, int]:
        """As `commit`; when LMDB cannot (the disk is full), the entries stay in memory, and the
        next round has them."""
        try:
            ends = self.commit(durable_offset)
        except lmdb.Error as error:
            if str(error) != self.failure:
                self.failure = str(error)
                _logger.error("the index could not be committed, it lags behind: %s", error)
            return {}
        if self.failure is not None and ends:
            self.failure = None
            _logger.warning("the index can be committed again")
        return ends

    def commit(self, durable_offset: int) -> dict[QueueKey, int]:
        """Put what is durable into LMDB; return up to where each queue got entries in it.

        lmdb.Error passes through; nothing is lost then.
        """
        group = []
        waiting = self._uncommitted
        # By their places: a pass appends meanwhile, which ends an iteration by an error.
        for at in range(min(len(waiting), _COMMIT_GROUP)):
            entry = waiting[at]
            if entry.unit.end_physical_offset > durable_offset:
                break
            group.append(entry)
        if not group:
            return {}
        self._index.commit(
            [(entry.key, entry.unit) for entry in group if entry.key is not None],
            group[-1].position,
            self._record_producers(group),
        )
        for _ in group:
            self._uncommitted.popleft()
        return {entry.key: entry.unit.end_offset for entry in group if entry.key is not None}

    def _record_producers(
        self, group: Sequence[Uncommitted]
    ) -> list[tuple[ProducerKey, ProducerState | None]]:
        """Note the producers' batches; return what changed. May be repeated."""
        sequences = self._sequences
        changed: set[ProducerKey] = set()
        for entry in group:
            sequences.record(entry.header)
            changed.update(
                (publish.producer_id, publish.topic_id) for publish in entry.header.idempotent
            )
        changed.update(sequences.expire(group[-1].unit.store_timestamp_us))
        return [(key, sequences.state(key)) for key in changed]
