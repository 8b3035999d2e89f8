"""Writes the entries of reput to LMDB, in a thread of its own so that wake-ups do not wait for
LMDB.

Only entries whose blocks are synced are written. The thread that runs reput appends to
`_uncommitted`; the committer's thread removes from it. The committer owns the sequence numbers of
the producers, so that each commit stores them as they were at the committed position.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import lmdb

from holdfast.commitlog.append.producer_sequences import (
    ProducerKey,
    ProducerSequences,
    ProducerState,
)
from holdfast.commitlog.format.batch_header import BatchHeader
from holdfast.consumequeue.index.consume_queue import CqUnit
from holdfast.consumequeue.index.index import Index, ReputPosition
from holdfast.consumequeue.topics import QueueKey

_logger = logging.getLogger(__name__)

#: One transaction takes at most this many entries; a backlog needs several transactions.
_COMMIT_GROUP = 50_000
_FAILED_COMMIT_PAUSE_S = 1.0


class Uncommitted(NamedTuple):
    """A block that is indexed in memory."""

    key: QueueKey | None
    """None if the block's topic was deleted. Then only the position advances."""
    unit: CqUnit
    header: BatchHeader
    position: ReputPosition
    """The position after this block."""


class IndexCommitter:
    """Owns the writes to the index. One other thread at a time may call `add` and
    `uncommitted_count`. Nothing else may call `try_commit` after `start`.

    `durable_offset` returns the physical offset up to which the committer may commit. `committed`
    gets, for each queue, the offset up to which LMDB has the queue's entries. `failed` gets the
    error that ended the thread. All three are called in the committer's thread.
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
        """Why the last commit failed, or None if it succeeded."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-index", daemon=True)

    @property
    def uncommitted_count(self) -> int:
        """The number of entries that are not in LMDB yet."""
        return len(self._uncommitted)

    def add(self, entry: Uncommitted) -> None:
        """Add an entry. Entries must come in log order."""
        self._uncommitted.append(entry)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Commit the durable entries, then end the thread. May be called twice."""
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
        except Exception as error:  # last resort: report any unexpected error
            _logger.exception("the index thread failed")
            self._failed(error)

    def _pause_s(self) -> float:
        """Return the pause before the next commit. After a failure it is longer: retries are
        costly."""
        if self.failure is None:
            return self._interval_s
        return max(self._interval_s, _FAILED_COMMIT_PAUSE_S)

    def try_commit(self, durable_offset: int) -> dict[QueueKey, int]:
        """Commit as `commit` does. If LMDB fails (the disk is full, for example), log the error and
        return an empty dict; the entries stay in memory for the next try."""
        try:
            ends = self.commit(durable_offset)
        except lmdb.Error as error:
            if str(error) != self.failure:
                self.failure = str(error)
                _logger.error("the index could not be committed and is behind the log: %s", error)
            return {}
        if self.failure is not None and ends:
            self.failure = None
            _logger.warning("the index can be committed again")
        return ends

    def commit(self, durable_offset: int) -> dict[QueueKey, int]:
        """Write durable entries to LMDB; return the end offset of each queue that got entries.

        Raises lmdb.Error; then the entries stay in memory.
        """
        group = []
        waiting = self._uncommitted
        # Access by position: reput appends meanwhile, and iterating over a changing deque raises.
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
        """Update the producers' sequence numbers; return the changed producers. Safe to repeat."""
        sequences = self._sequences
        changed: set[ProducerKey] = set()
        for entry in group:
            sequences.record(entry.header)
            changed.update(
                (publish.producer_id, publish.topic_id) for publish in entry.header.idempotent
            )
        changed.update(sequences.expire(group[-1].unit.store_timestamp_us))
        return [(key, sequences.state(key)) for key in changed]
