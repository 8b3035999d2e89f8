"""Choose the queue of each row of a window. Pure, except that a Partitioner remembers the next
queue.

A window is a section of a partition (windows.py). If a row names a queue, it goes to that queue.
Otherwise, if it has a key, it goes to the queue of its key. All other rows of a window go to one
queue, and all other rows of the next window to the next queue. In a topic with priority levels, a
row goes to a queue of its level.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commitlog.format.checksum import crc32c_each
from holdfast.commitlog.format.header_table import Int64s
from holdfast.commitlog.format.priority import DEFAULT_PRIORITY, HIGHEST_PRIORITY, level_of

UInt32s = npt.NDArray[np.uint32]


@dataclass(eq=False)
class UnroutableRow(Exception):
    """A row names a queue that does not exist or has another priority level. `row` counts from 0 in
    its window."""

    row: int
    column: str
    detail: str


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic to write to, as it was when this attempt first requested it from the broker."""

    name: str
    topic_id: int
    queue_count: int
    levels: int


def key_hashes(keys: pa.Array) -> UInt32s:
    """Return the hash of each key; 0 for a null key."""
    texts = pc.fill_null(keys, "").cast(pa.binary())
    return np.array(crc32c_each(texts.to_pylist()), np.uint32)


class Partitioner:
    """Chooses queues in one topic. `turn` is the first queue for rows without queue and key."""

    def __init__(self, target: TargetTopic, turn: int) -> None:
        self._target = target
        self._indexes = target.queue_count // target.levels
        self._turn = turn % self._indexes
        self._levels = np.array(
            [level_of(priority, target.levels) for priority in range(HIGHEST_PRIORITY + 1)]
        )

    def queues(self, rows: pa.RecordBatch, hashes: UInt32s | None) -> Int64s:
        """Return the queue of each row. `hashes` are the hashes of the key column, if there is one.
        Raises UnroutableRow."""
        names = rows.schema.names
        index = np.full(len(rows), self._turn, np.int64)
        is_free = np.ones(len(rows), bool)
        if hashes is not None:
            is_free = rows.column("key").is_null().to_numpy(zero_copy_only=False)
            index = np.where(is_free, index, hashes % np.uint32(self._indexes)).astype(np.int64)
        priorities = rows.column("priority") if "priority" in names else None
        queues = index * self._target.levels + self._level(len(rows), priorities)
        if "queue" in names:
            given = rows.column("queue")
            has_queue = given.is_valid().to_numpy(zero_copy_only=False)
            self._check(given, priorities)
            queues = np.where(has_queue, pc.fill_null(given, 0).to_numpy(), queues)
            is_free &= ~has_queue
        if is_free.any():
            self._turn = (self._turn + 1) % self._indexes
        return queues

    def _level(self, count: int, priorities: pa.Array | None) -> Int64s:
        if priorities is None:
            return np.full(count, self._levels[DEFAULT_PRIORITY], np.int64)
        found: Int64s = self._levels[pc.fill_null(priorities, DEFAULT_PRIORITY).to_numpy()]
        return found

    def _check(self, queues: pa.Array, priorities: pa.Array | None) -> None:
        """Raise UnroutableRow if a row names a queue that does not exist, or a queue of another
        level than the row's priority."""
        target = self._target
        beyond = _find_first(pc.greater_equal(queues, target.queue_count))
        if beyond is not None:
            raise UnroutableRow(
                beyond,
                "queue",
                f"is {queues[beyond]}, but {target.name!r} has queues 0 to "
                f"{target.queue_count - 1}; use null to let the source choose, or add queues",
            )
        if priorities is None:
            return
        own = pc.fill_null(queues, 0).to_numpy() % target.levels
        is_other = pa.array(own != self._level(len(queues), priorities))
        other = _find_first(pc.and_(is_other, pc.and_(queues.is_valid(), priorities.is_valid())))
        if other is not None:
            raise UnroutableRow(
                other,
                "priority",
                f"is {priorities[other]}, but queue {queues[other]} of {target.name!r} has another "
                "level; make one of the two null",
            )


def _find_first(is_so: pa.Array) -> int | None:
    index = pc.index(is_so, True).as_py()
    return index if index >= 0 else None
