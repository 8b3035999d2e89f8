"""Find messages by key. In sealed segments, search the sorted key tables; in other segments, search
the hash column of each batch. Any thread may call this; it may wait for the disk."""

import bisect
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from holdfast.commitlog.errors import CorruptRecord
from holdfast.commitlog.format.batch import Batch, key_hash
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.footer import block_header, read_footer
from holdfast.commitlog.segments.segment import Segment
from holdfast.consumequeue.index.consume_queue import ConsumeQueue, CqUnit
from holdfast.consumequeue.index.index import Index
from holdfast.consumequeue.index.queue_lookup import (
    PHYSICAL_OFFSET,
    first_unit_reaching,
    units_from,
)
from holdfast.consumequeue.lost_ranges import LostRange
from holdfast.consumequeue.reading.reader import verified

_Block = tuple[CqUnit, int]
"""A block's index entry and queue id."""


def find_key(
    log: CommitLog,
    index: Index,
    topic_id: int,
    queues: Mapping[int, ConsumeQueue],
    key: str,
    limit: int,
    passed_over: Callable[[int, LostRange], None] = lambda queue, lost: None,
    max_bytes: int = 2**63,
) -> list[tuple[Batch, int]]:
    """Return up to `limit` kept, visible messages with this key, newest first, as (batch, row).

    The search ends before the batches with found messages would exceed `max_bytes` together; the
    first batch is always allowed. Damaged batches are skipped: `passed_over` is called with the
    queue and the range of each damaged batch.
    """
    found: list[tuple[Batch, int]] = []
    size_bytes = 0
    hashed = key_hash(key)
    for segment in reversed(log.segments):
        if len(found) >= limit or size_bytes >= max_bytes:
            break
        tables = read_footer(segment) if segment.sealed else None
        if tables is None:
            blocks = _blocks_by_index(index, topic_id, queues, segment)
        else:
            blocks = _blocks_by_footer(*tables, topic_id, hashed)
        for unit, queue in sorted(blocks, key=_place, reverse=True):
            if len(found) >= limit or size_bytes >= max_bytes:
                break
            cq = queues.get(queue)
            if cq is None or unit.end_offset <= cq.min_offset:
                continue
            try:
                batch = log.read_batch(unit.physical_offset, unit.size)
                rows = list(_rows(verified(batch, unit, (topic_id, queue)), cq, hashed, key))
                if not rows:
                    continue
                if found and size_bytes + unit.size > max_bytes:
                    return found
                found += rows
                size_bytes += unit.size
            except CorruptRecord as error:
                if unit.end_offset > cq.min_offset:  # otherwise retention deleted it meanwhile
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
    """Yield the rows of a batch that have this key and are within the queue, last row first."""
    if batch.key_hashes is None:
        return
    for row in np.flatnonzero(batch.key_hashes == hashed)[::-1].tolist():
        offset = batch.header.base_offset + row
        if cq.min_offset <= offset < cq.max_offset and batch.key(row) == key:
            yield batch, row
