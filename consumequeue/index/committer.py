"""Writes the entries of reput to LMDB. Only entries whose blocks are synced are written.

The thread that runs a pass of reput adds entries. The reput thread commits them; it owns the
sequence numbers of the producers, so that each commit stores them as they were at the committed
position.
"""

import logging
from collections import deque
from collections.abc import Sequence
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
COMMIT_GROUP = 50_000


class Uncommitted(NamedTuple):
    """A block that is indexed in memory."""

    key: QueueKey | None
    """None if the block's topic was deleted. Then only the position advances."""
    unit: CqUnit
    header: BatchHeader
    position: ReputPosition
    """The position after this block."""


class IndexCommitter:
    """Owns the writes to the index. One thread at a time may call `add`, and one thread at a time
    `commit` and `try_commit`; these two threads may differ."""

    def __init__(self, index: Index, sequences: ProducerSequences) -> None:
        self._index = index
        self._sequences = sequences
        self._uncommitted: deque[Uncommitted] = deque()
        self.failure: str | None = None
        """Why the last commit failed, or None if it succeeded."""

    def add(self, entry: Uncommitted) -> None:
        """Add an entry. Entries must come in log order."""
        self._uncommitted.append(entry)

    def try_commit(self, durable_offset: int) -> Sequence[Uncommitted]:
        """Commit as `commit` does. If LMDB fails (the disk is full, for example), log the error and
        return no entries; they stay in memory for the next try."""
        try:
            group = self.commit(durable_offset)
        except lmdb.Error as error:
            if str(error) != self.failure:
                self.failure = str(error)
                _logger.error("the index could not be committed and is behind the log: %s", error)
            return []
        if self.failure is not None and group:
            self.failure = None
            _logger.warning("the index can be committed again")
        return group

    def commit(self, durable_offset: int) -> Sequence[Uncommitted]:
        """Write the oldest entries that are durable to LMDB, at most COMMIT_GROUP; return them.

        Raises lmdb.Error; then the entries stay in memory.
        """
        group: list[Uncommitted] = []
        waiting = self._uncommitted
        # Access by position: a pass appends meanwhile, and iterating over a changing deque raises.
        for at in range(min(len(waiting), COMMIT_GROUP)):
            entry = waiting[at]
            if entry.unit.end_physical_offset > durable_offset:
                break
            group.append(entry)
        if group:
            self._index.commit(
                [(entry.key, entry.unit) for entry in group if entry.key is not None],
                group[-1].position,
                self._record_producers(group),
            )
            for _ in group:
                waiting.popleft()
        return group

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
