"""Retention: compute the first kept offsets (min offsets) of queues, and find the segment files
that can be deleted.

For each topic, limits by age and by size raise the min offsets of its queues, always to the start
of a batch. The new min offsets are stored before anything is deleted. Only whole segments are
deleted, oldest first, when every block in them is below its queue's min offset. The limit on the
size of the whole log deletes the oldest segments even if readers have pinned their messages
(read_leases.py). The event loop calls these functions through an executor, one at a time, while
messages arrive.
"""

from collections.abc import Callable, Mapping

import numpy as np

from holdfast.commitlog.format.gap_block import GAP_TOPIC_ID
from holdfast.commitlog.format.segment_format import end_offset
from holdfast.commitlog.segments.footer import block_tables, read_footer
from holdfast.commitlog.segments.segment import Segment
from holdfast.consumequeue.index.consume_queue import ConsumeQueue
from holdfast.consumequeue.index.index import Index
from holdfast.consumequeue.index.queue_lookup import (
    PHYSICAL_OFFSET,
    STORE_TIMESTAMP,
    first_unit_reaching,
    queue_bytes_at,
    units_from,
)
from holdfast.consumequeue.topics import STATE_TOPIC_ID, QueueKey, Topic

Begins = dict[QueueKey, int]
"""New min offsets of queues."""

#: A segment may be deleted although it has blocks of these topics: every segment begins with a
#: snapshot of the broker's own topic, and no queue reads the blocks that a repair wrote in place of
#: damage.
_UNREAD_TOPICS = (STATE_TOPIC_ID, GAP_TOPIC_ID)


def find_expired(
    index: Index, topic: Topic, queues: Mapping[int, ConsumeQueue], now_us: int
) -> Begins:
    """Return the new min offsets that a topic's own limits require. Queues whose min offset does
    not change are not included."""
    config = topic.config
    oldest_us = 0
    if config.retention_ms is not None:
        oldest_us = now_us - config.retention_ms * 1000
    if (
        config.retention_bytes is not None
        and _count_bytes_since(index, topic, queues, oldest_us) > config.retention_bytes
    ):
        oldest_us = _find_cutoff_us(index, topic, queues, oldest_us, config.retention_bytes)
    if oldest_us <= 0:
        return {}
    begins = {}
    for queue, cq in queues.items():
        key = (topic.topic_id, queue)
        end = cq.max_offset  # read before the search: messages that arrive later are not too old
        unit = first_unit_reaching(index, key, cq, STORE_TIMESTAMP, oldest_us)
        begin = end if unit is None else unit.base_offset
        if begin > cq.min_offset:
            begins[key] = begin
    return begins


def limit_to_leases(
    index: Index, queues: Mapping[int, ConsumeQueue], begins: Begins, pins: Mapping[int, int]
) -> Begins:
    """Return the new min offsets of one topic's queues, as far as read leases allow. `pins` has the
    lowest pinned offset of queues. If a new min offset is above the pinned offset, return instead
    the start of the batch that holds the pinned offset."""
    kept = dict(begins)
    for key, begin in begins.items():
        pin = pins.get(key[1], begin)
        if pin < begin:
            unit = next(units_from(index, key, queues[key[1]], pin), None)
            kept[key] = pin if unit is None else min(pin, unit.base_offset)
    return kept


def _count_bytes_since(
    index: Index, topic: Topic, queues: Mapping[int, ConsumeQueue], timestamp_us: int
) -> int:
    """Return how many bytes a topic has stored since a time."""
    total = 0
    for queue, cq in queues.items():
        newest = cq.newest
        unit = first_unit_reaching(
            index, (topic.topic_id, queue), cq, STORE_TIMESTAMP, timestamp_us
        )
        if unit is not None and newest is not None:
            total += newest.end_queue_bytes - unit.queue_bytes
    return total


def _find_cutoff_us(
    index: Index, topic: Topic, queues: Mapping[int, ConsumeQueue], low: int, limit: int
) -> int:
    """Return the earliest time since which a topic has stored at most `limit` bytes. Retention then
    deletes the messages from before this time in all its queues."""
    high = max(cq.newest.store_timestamp_us for cq in queues.values() if cq.newest) + 1
    while low < high:
        middle = (low + high) // 2
        if _count_bytes_since(index, topic, queues, middle) <= limit:
            high = middle
        else:
            low = middle + 1
    return low


def queues_in(segment: Segment) -> Begins:
    """Return the queues in a sealed segment, and for each queue the offset after its last message
    there. Read the segment's footer or scan its blocks. OSError propagates."""
    tables = read_footer(segment)
    blocks = tables[0] if tables is not None else block_tables(segment)[0]
    ends: Begins = {}
    if len(blocks):
        # Sorted by topic, queue and offset, so the last block of each queue has the queue's end.
        keys = np.stack([blocks["topic_id"], blocks["queue_id"]], axis=1)
        last = np.flatnonzero(np.any(np.diff(keys, axis=0) != 0, axis=1)).tolist()
        for row in [*last, len(blocks) - 1]:
            block = blocks[row]
            ends[int(block["topic_id"]), int(block["queue_id"])] = end_offset(block)
    return ends


def queues_by_index(
    index: Index, queues: Mapping[QueueKey, ConsumeQueue], segment: Segment
) -> Begins:
    """Return what `queues_in` returns, for a segment that cannot be read. The first index entry of
    a queue after the segment shows where the queue's messages in the segment end. The segment must
    be indexed to its end, and no queue may need earlier segments."""
    ends: Begins = {}
    for key, cq in list(queues.items()):
        end = cq.max_offset
        unit = first_unit_reaching(index, key, cq, PHYSICAL_OFFSET, segment.end_offset)
        ends[key] = end if unit is None else unit.base_offset
    return ends


def is_unneeded(
    ends: Begins,
    queues: Mapping[QueueKey, ConsumeQueue],
    is_gone: Callable[[int], bool],
) -> bool:
    """Return whether a segment can be deleted: each queue begins after its messages in the segment.
    `ends` is the result of `queues_in`.

    The segment must be indexed to its end. Messages after the end of their queue are damaged and do
    not prevent the deletion. `is_gone` returns whether the topic with an id was deleted.
    """
    for key, end in ends.items():
        if key[0] in _UNREAD_TOPICS or is_gone(key[0]):
            continue
        cq = queues.get(key)
        if cq is None or cq.min_offset < min(end, cq.max_offset):
            return False
    return True


def apply_begins(index: Index, queues: Mapping[QueueKey, ConsumeQueue], begins: Begins) -> None:
    """Raise the queues' min offsets in memory, then delete the index entries below them."""
    for key, begin in begins.items():
        cq = queues.get(key)
        if cq is None or begin <= cq.min_offset:
            continue
        cq.trim_queue(begin, queue_bytes_at(index, key, cq, begin))
        last = index.last(key)
        if last is not None:
            # Keep the newest committed entry: after a restart it shows where the queue continues.
            # Newer entries are only in memory, and a power loss may lose them.
            while index.delete_before(key, min(begin, last.base_offset)) > 0:
                pass
