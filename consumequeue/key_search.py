"""Find messages by key: the sorted key tables of sealed segments, the hash columns of the rest.
For any thread; may wait for the disk."""

import bisect
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from holdfast.commitlog.batch import Batch, key_hash
from holdfast.commitlog.commit_log import CommitLog, block_header
from holdfast.commitlog.errors import CorruptRecord
from holdfast.commitlog.segment import Segment
from holdfast.consumequeue.consume_queue import ConsumeQueue, CqUnit
from holdfast.consumequeue.index import Index
from holdfast.consumequeue.lost_ranges import LostRange
from holdfast.consumequeue.queue_lookup import PHYSICAL_OFFSET, first_unit_reaching, units_from
from holdfast.consumequeue.reader import verified

_Block = tuple[CqUnit, int]
"""A block's entry and its queue."""


def find_key(
    log: CommitLog,
    index: Index,
    topic_id: int,
    queues: Mapping[int, ConsumeQueue],
    key: str,
    limit: int,
    passed_over: Callable[[int, LostRange], None] = lambda queue, lost: None,
) -> list[tuple[Batch, int]]:
    """Return up to `limit` kept, visible messages with this key, newest first, as (batch, row).

    Damaged batches are passed over, and told to `passed_over` with their queue.
    """
    found: list[tuple[Batch, int]] = []
    hashed = key_hash(key)
    for segment in reversed(log.segments):
        if len(found) >= limit:
            break
        tables = log.footer(segment) if segment.sealed else None
        if tables is None:
            blocks = _blocks_by_index(index, topic_id, queues, segment)
        else:
            blocks = _blocks_by_footer(*tables, topic_id, hashed)
        for unit, queue in sorted(blocks, key=_place, reverse=True):
            if len(found) >= limit:
                break
            cq = queues.get(queue)
            if cq is None or unit.end_offset <= cq.min_offset:
                continue
            try:
                batch = log.read_batch(unit.physical_offset, unit.size)
                found += _rows(verified(batch, unit, (topic_id, queue)), cq, hashed, key)
            except CorruptRecord as error:
                if unit.end_offset > cq.min_offset:  # else retention took it meanwhile
                    passed_over(queue, LostRange(unit.base_offset, unit.end_offset, error.reason))
    return found[:limit]


def _blocks_by_footer(
    blocks: "np.ndarray[tuple[int], np.dtype[np.void]]",
    keys: "np.ndarray[tuple[int], np.dtype[np.void]]",
    topic_id: int,
    hashed: int,
) -> Iterator[_Block]:
    low = bisect.bisect_left(keys["key_hash"], hashed)
    high = bisect.bisect_right(keys["key_hash"], hashed)
    for row in np.unique(keys["block"][low:high]):
        block = blocks[row]
        if block["topic_id"] == topic_id:
            header = block_header(block)
            unit = CqUnit(
                header.base_offset,
                header.physical_offset,
                header.total_size,
                header.message_count,
                header.store_timestamp_us,
                header.tag_summary,
                0,
            )
            yield unit, header.queue_id


def _blocks_by_index(
    index: Index, topic_id: int, queues: Mapping[int, ConsumeQueue], segment: Segment
) -> Iterator[_Block]:
    for queue, cq in queues.items():
        key = (topic_id, queue)
        first = first_unit_reaching(index, key, cq, PHYSICAL_OFFSET, segment.start_offset)
        if first is None:
            continue
        for unit in units_from(index, key, cq, first.base_offset):
            if unit.physical_offset >= segment.end_offset:
                break
            yield unit, queue


def _place(block: _Block) -> int:
    return block[0].physical_offset


def _rows(batch: Batch, cq: ConsumeQueue, hashed: int, key: str) -> Iterator[tuple[Batch, int]]:
    """Yield the rows of a batch that have this key and are within the queue, newest first."""
    if batch.key_hashes is None:
        return
    for row in np.flatnonzero(batch.key_hashes == hashed)[::-1].tolist():
        offset = batch.header.base_offset + row
        if cq.min_offset <= offset < cq.max_offset and batch.key(row) == key:
            yield batch, row
