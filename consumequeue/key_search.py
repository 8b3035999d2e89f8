"""Find messages by key: the sorted key tables of sealed segments, the hash columns of the rest.
For any thread; may wait for the disk."""

import bisect
import logging
from collections.abc import Iterator, Mapping

import numpy as np

from holdfast.commitlog.batch import Batch, key_hash
from holdfast.commitlog.commit_log import CommitLog
from holdfast.commitlog.errors import CorruptRecord
from holdfast.commitlog.segment import Segment
from holdfast.consumequeue.consume_queue import ConsumeQueue
from holdfast.consumequeue.index import Index
from holdfast.consumequeue.queue_lookup import PHYSICAL_OFFSET, first_unit_reaching, units_from

_logger = logging.getLogger(__name__)


def find_key(
    log: CommitLog,
    index: Index,
    topic_id: int,
    queues: Mapping[int, ConsumeQueue],
    key: str,
    limit: int,
) -> list[tuple[Batch, int]]:
    """Return up to `limit` kept, visible messages with this key, newest first, as (batch, row).

    Damaged batches are passed over; `holdfast check` reports them.
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
        for physical_offset, size in sorted(blocks, reverse=True):
            if len(found) >= limit:
                break
            try:
                batch = log.read_batch(physical_offset, size)
            except CorruptRecord as error:
                _logger.warning("a search passed over %s", error)
                continue
            cq = queues.get(batch.header.queue_id)
            if cq is not None:
                found += _rows(batch, cq, hashed, key)
    return found[:limit]


def _blocks_by_footer(
    blocks: "np.ndarray[tuple[int], np.dtype[np.void]]",
    keys: "np.ndarray[tuple[int], np.dtype[np.void]]",
    topic_id: int,
    hashed: int,
) -> Iterator[tuple[int, int]]:
    low = bisect.bisect_left(keys["key_hash"], hashed)
    high = bisect.bisect_right(keys["key_hash"], hashed)
    for row in np.unique(keys["block"][low:high]):
        block = blocks[row]
        if block["topic_id"] == topic_id:
            yield int(block["physical_offset"]), int(block["size"])


def _blocks_by_index(
    index: Index, topic_id: int, queues: Mapping[int, ConsumeQueue], segment: Segment
) -> Iterator[tuple[int, int]]:
    for queue, cq in queues.items():
        key = (topic_id, queue)
        first = first_unit_reaching(index, key, cq, PHYSICAL_OFFSET, segment.start_offset)
        if first is None:
            continue
        for unit in units_from(index, key, cq, first.base_offset):
            if unit.physical_offset >= segment.end_offset:
                break
            yield unit.physical_offset, unit.size


def _rows(batch: Batch, cq: ConsumeQueue, hashed: int, key: str) -> Iterator[tuple[Batch, int]]:
    """Yield the rows of a batch that have this key and are within the queue, newest first."""
    if batch.key_hashes is None:
        return
    for row in np.flatnonzero(batch.key_hashes == hashed)[::-1].tolist():
        offset = batch.header.base_offset + row
        if cq.min_offset <= offset < cq.max_offset and batch.key(row) == key:
            yield batch, row
