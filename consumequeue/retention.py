"""Retention: where queues begin, and which segment files nobody needs any more.

Per topic, by age and by size, a queue's min offset moves up to a batch border; it is stored
before anything is deleted. Only whole segments go, oldest first, when every block in them is
below its queue's min offset. A limit on the whole log deletes the oldest segments regardless,
also of what readers have pinned (read_leases.py).
Called by the event loop through an executor, one pass at a time, while messages arrive.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from holdfast.commitlog.commit_log import CommitLog, block_tables
from holdfast.commitlog.gap_block import GAP_TOPIC_ID
from holdfast.commitlog.segment import Segment
from holdfast.commitlog.segment_format import end_offset
from holdfast.consumequeue.consume_queue import ConsumeQueue
from holdfast.consumequeue.index import Index
from holdfast.consumequeue.queue_lookup import (
    PHYSICAL_OFFSET,
    STORE_TIMESTAMP,
    first_unit_reaching,
    queue_bytes_at,
    units_from,
)
from holdfast.consumequeue.topics import STATE_TOPIC_ID, QueueKey, Topic

Begins = dict[QueueKey, int]
"""New min offsets."""

#: Topics whose blocks keep no segment: each begins with a snapshot of the broker's own topic, and
#: what a repair has put in the place of damage is nobody's.
_KEPT_FOR_NOBODY = (STATE_TOPIC_ID, GAP_TOPIC_ID)


def expired(index: Index, topic: Topic, queues: Mapping[int, ConsumeQueue], now_us: int) -> Begins:
    """Return where a topic's queues should begin by its own limits, where that moves up."""
    config = topic.config
    oldest_us = 0
    if config.retention_ms is not None:
        oldest_us = now_us - config.retention_ms * 1000
    if (
        config.retention_bytes is not None
        and _bytes_since(index, topic, queues, oldest_us) > config.retention_bytes
    ):
        oldest_us = _time_that_keeps(index, topic, queues, oldest_us, config.retention_bytes)
    if oldest_us <= 0:
        return {}
    begins = {}
    for queue, cq in queues.items():
        key = (topic.topic_id, queue)
        end = cq.max_offset  # read first: what arrives from now on is not too old
        unit = first_unit_reaching(index, key, cq, STORE_TIMESTAMP, oldest_us)
        begin = end if unit is None else unit.base_offset
        if begin > cq.min_offset:
            begins[key] = begin
    return begins


def held_back(
    index: Index, queues: Mapping[int, ConsumeQueue], begins: Begins, pins: Mapping[int, int]
) -> Begins:
    """Return begins of one topic that leave every queue that is pinned from its pin on: they are
    moved down to the border of the batch that the pin is in."""
    kept = dict(begins)
    for key, begin in begins.items():
        pin = pins.get(key[1], begin)
        if pin < begin:
            unit = next(units_from(index, key, queues[key[1]], pin), None)
            kept[key] = pin if unit is None else min(pin, unit.base_offset)
    return kept


def _bytes_since(
    index: Index, topic: Topic, queues: Mapping[int, ConsumeQueue], timestamp_us: int
) -> int:
    """Return a topic's stored bytes from a time on."""
    total = 0
    for queue, cq in queues.items():
        newest = cq.newest
        unit = first_unit_reaching(
            index, (topic.topic_id, queue), cq, STORE_TIMESTAMP, timestamp_us
        )
        if unit is not None and newest is not None:
            total += newest.end_queue_bytes - unit.queue_bytes
    return total


def _time_that_keeps(
    index: Index, topic: Topic, queues: Mapping[int, ConsumeQueue], low: int, limit: int
) -> int:
    """Return the earliest time from which a topic's messages take at most `limit` bytes, so
    that its queues lose their oldest messages evenly in time."""
    high = max(cq.newest.store_timestamp_us for cq in queues.values() if cq.newest) + 1
    while low < high:
        middle = (low + high) // 2
        if _bytes_since(index, topic, queues, middle) <= limit:
            high = middle
        else:
            low = middle + 1
    return low


@dataclass(frozen=True, slots=True)
class SegmentQueues:
    """Up to which queue offset each queue's messages in one segment go."""

    segment: Segment
    ends: Begins


def queues_in(log: CommitLog, segment: Segment) -> SegmentQueues:
    """Return what a sealed segment holds, from its footer or by walking it. OSError passes
    through."""
    tables = log.footer(segment)
    blocks = tables[0] if tables is not None else block_tables(segment)[0]
    ends: Begins = {}
    if len(blocks):
        # Sorted by topic, queue and offset: the last block of each queue has its end.
        keys = np.stack([blocks["topic_id"], blocks["queue_id"]], axis=1)
        last = np.flatnonzero(np.any(np.diff(keys, axis=0) != 0, axis=1)).tolist()
        for row in [*last, len(blocks) - 1]:
            block = blocks[row]
            ends[int(block["topic_id"]), int(block["queue_id"])] = end_offset(block)
    return SegmentQueues(segment, ends)


def queues_by_index(
    index: Index, queues: Mapping[QueueKey, ConsumeQueue], segment: Segment
) -> SegmentQueues:
    """Return what a segment holds by what queues have behind it: as good as `queues_in` for one
    that is indexed to its end, once no queue needs those before it."""
    ends: Begins = {}
    for key, cq in list(queues.items()):
        end = cq.max_offset
        unit = first_unit_reaching(index, key, cq, PHYSICAL_OFFSET, segment.end_offset)
        ends[key] = end if unit is None else unit.base_offset
    return SegmentQueues(segment, ends)


def unneeded(
    held: SegmentQueues,
    queues: Mapping[QueueKey, ConsumeQueue],
    is_gone: Callable[[int], bool],
) -> bool:
    """Return whether every queue in a segment begins after what it has there.

    Only for a segment that is indexed to its end: what its queues do not have of it is damaged.
    `is_gone` tells of a topic id whether that topic was deleted.
    """
    for key, end in held.ends.items():
        if key[0] in _KEPT_FOR_NOBODY or is_gone(key[0]):
            continue
        cq = queues.get(key)
        if cq is None or cq.min_offset < min(end, cq.max_offset):
            return False
    return True


def apply_begins(index: Index, queues: Mapping[QueueKey, ConsumeQueue], begins: Begins) -> None:
    """Move queues' begins up in memory, then drop their index entries below."""
    for key, begin in begins.items():
        cq = queues.get(key)
        if cq is None or begin <= cq.min_offset:
            continue
        cq.trim_queue(begin, queue_bytes_at(index, key, cq, begin))
        last = index.last(key)
        if last is not None:
            # The newest entry that is committed stays: it says where the queue goes on after a
            # restart. What is newer than that, a power loss may take.
            while index.delete_before(key, min(begin, last.base_offset)) > 0:
                pass
