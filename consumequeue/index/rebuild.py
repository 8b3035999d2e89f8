"""At a start of the broker, index the blocks that the scan of the log finds. The scan returns
tables of block headers.

Blocks that are proven durable are committed to LMDB many at a time. Their queue positions are
computed with arrays, without one object per block. The reput service indexes the other blocks,
which were written last, one by one. If LMDB fails (the disk is full, for example), the reput
service indexes all blocks that are left.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

import lmdb
import numpy as np
import numpy.typing as npt

from holdfast.commitlog.append.producer_sequences import ProducerSequences
from holdfast.commitlog.format.batch_header import BatchHeader
from holdfast.commitlog.format.header_table import (
    NO_RUN,
    Headers,
    Run,
    block_ends,
    headers_in,
    keyed_message_count,
)
from holdfast.consumequeue.index.consume_queue import ConsumeQueue
from holdfast.consumequeue.index.entry_columns import UNIT_DTYPE, Units, unit_at
from holdfast.consumequeue.index.index import Index, ReputPosition
from holdfast.consumequeue.topics import QueueKey

_logger = logging.getLogger(__name__)

#: When this many blocks wait, the durable ones are committed. The waiting blocks use about 40 MB.
_GROUP = 100_000

NoteGap = Callable[[QueueKey, int, int], None]
"""Called with a queue and a range of offsets that no block has: its start, and its end (exclusive).
"""


@dataclass(eq=False)
class IndexRebuild:
    """Adds the blocks of one scan to an index. Single-threaded; no other code may use `queues` yet.

    `is_known` returns whether a topic with this id exists. For a block of an unknown topic, only
    the position advances. `sequences` must be as the index has stored them. Raises IndexCorrupt.
    """

    index: Index
    queues: dict[QueueKey, ConsumeQueue]
    sequences: ProducerSequences
    _: KW_ONLY
    is_known: Callable[[int], bool]
    segment_start: Callable[[int], int]
    note_gap: NoteGap

    def __post_init__(self) -> None:
        self._waiting: list[Run] = []
        self._waiting_count = 0
        self._commit_at = _GROUP
        self._durable_offset = 0
        self._has_failed = False

    def add(self, run: Run) -> None:
        """Add the next blocks of the log."""
        self._waiting.append(run)
        self._waiting_count += len(run.headers)
        durable_offset = int(run.headers["durable_offset"].max())
        self._durable_offset = max(self._durable_offset, durable_offset)
        if self._waiting_count >= self._commit_at and not self._has_failed:
            self._commit()

    def end(self) -> None:
        """Commit the durable blocks that were added. Do not call `add` after this."""
        if not self._has_failed:
            self._commit()

    def rest(self) -> Iterator[BatchHeader]:
        """Yield the blocks that are not in the index, oldest first. Call this after `end`, and
        index each block before you request the next one."""
        for run in self._waiting:
            for header in headers_in(run):
                key = (header.topic_id, header.queue_id)
                expected = _next_offset(self.queues.get(key))
                if header.base_offset > expected and self.is_known(header.topic_id):
                    self.note_gap(key, expected, header.base_offset)
                yield header

    def _commit(self) -> None:
        durable, left = _split(self._waiting, self._durable_offset)
        self._waiting, self._waiting_count = [left], len(left.headers)
        # The blocks that are not durable yet are kept. The next call comes when twice as many
        # blocks are kept, because every call copies those that remain.
        self._commit_at = max(_GROUP, 2 * len(left.headers))
        group = durable.headers
        if not len(group):
            return
        units, gaps = place(group[self._of_known_topics(group)], self.queues)
        producers = self.sequences.record_all(durable.publishes)
        forgotten = self.sequences.expire(int(group["store_timestamp_us"][-1]))
        changed = {*producers, *forgotten}
        try:
            self.index.commit_table(
                units,
                self._position_after(group),
                [(key, self.sequences.state(key)) for key in changed],
            )
        except lmdb.Error as error:
            _logger.error("the index could not be committed and is behind the log: %s", error)
            self._has_failed = True
            self._waiting.insert(0, durable)
            return
        for key, start, end in gaps:
            self.note_gap(key, start, end)
        for row in _last_rows(units):
            unit = units[row]
            key = (int(unit["topic_id"]), int(unit["queue_id"]))
            cq = self.queues.setdefault(key, ConsumeQueue(None, 0, 0))
            cq.indexed = cq.newest = unit_at(unit)
            cq.max_offset = cq.newest.end_offset

    def _of_known_topics(self, group: Headers) -> npt.NDArray[np.bool_]:
        ids = np.unique(group["topic_id"])
        return np.isin(group["topic_id"], [each for each in ids if self.is_known(int(each))])

    def _position_after(self, group: Headers) -> ReputPosition:
        before = self.index.position()
        last = int(group["physical_offset"][-1])
        start = self.segment_start(last)
        here = group[group["physical_offset"] >= start]
        is_same = start == before.segment_start
        return ReputPosition(
            int(block_ends(group)[-1]),
            start,
            (before.block_count if is_same else 0) + len(here),
            (before.key_count if is_same else 0) + keyed_message_count(here),
        )


def _split(runs: Sequence[Run], offset: int) -> tuple[Run, Run]:
    """Return the blocks that end at or before a physical offset, and the other blocks."""
    headers = np.concatenate([NO_RUN.headers, *(run.headers for run in runs)])
    publishes = np.concatenate([NO_RUN.publishes, *(run.publishes for run in runs)])
    count = int(np.searchsorted(block_ends(headers), offset, side="right"))
    before = int(np.searchsorted(block_ends(publishes), offset, side="right"))
    return Run(headers[:count], publishes[:before]), Run(headers[count:], publishes[before:])


def place(
    headers: Headers, queues: dict[QueueKey, ConsumeQueue]
) -> tuple[Units, list[tuple[QueueKey, int, int]]]:
    """Return the index entries of blocks, and the gaps before these blocks.

    A gap has the form of the arguments of NoteGap. The entries are sorted by queue, and within a
    queue in log order. They continue at the ends of `queues`, which this function does not change.
    """
    order = np.lexsort((headers["queue_id"], headers["topic_id"]))
    headers = headers[order]
    units = np.zeros(len(headers), UNIT_DTYPE)
    for name in UNIT_DTYPE.names or ():
        if name in (headers.dtype.names or ()):
            units[name] = headers[name]
    units["size"] = headers["total_size"]
    if not len(units):
        return units, []
    firsts = np.concatenate([[0], _last_rows(units)[:-1] + 1])
    keys = [
        (int(topic_id), int(queue_id))
        for topic_id, queue_id in zip(
            units["topic_id"][firsts], units["queue_id"][firsts], strict=True
        )
    ]
    found = [queues.get(key) for key in keys]
    lengths = np.diff(np.append(firsts, len(units)))
    # For each block, compute the running count of its queue's bytes, and the expected base offset.
    sizes = units["size"].astype(np.uint64)
    before = np.cumsum(sizes) - sizes
    begins = np.array([_queue_bytes_end(cq) for cq in found], np.uint64)
    units["queue_bytes"] = before + np.repeat(begins - before[firsts], lengths)
    expected = np.empty(len(units), np.int64)
    expected[1:] = units["base_offset"][:-1] + units["message_count"][:-1]
    expected[firsts] = [_next_offset(cq) for cq in found]
    gaps = [
        (
            (int(units["topic_id"][row]), int(units["queue_id"][row])),
            int(expected[row]),
            int(units["base_offset"][row]),
        )
        for row in np.flatnonzero(units["base_offset"] > expected)
    ]
    return units, gaps


def _last_rows(units: Units) -> npt.NDArray[np.int64]:
    """Return the last row of each queue, in a table that is grouped by queue."""
    ids = units["topic_id"].astype(np.uint64) << np.uint64(32) | units["queue_id"]
    return np.append(np.flatnonzero(ids[1:] != ids[:-1]), len(units) - 1)[: len(units)]


def _queue_bytes_end(cq: ConsumeQueue | None) -> int:
    return cq.indexed.end_queue_bytes if cq is not None and cq.indexed is not None else 0


def _next_offset(cq: ConsumeQueue | None) -> int:
    if cq is None:
        return 0
    return cq.min_offset if cq.indexed is None else cq.indexed.end_offset
