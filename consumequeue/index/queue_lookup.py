"""Look-ups in one queue's index, which is partly in memory and partly on disk. Any thread may call
them. They may wait for the disk, so the event loop calls them through an executor."""

import sys
from collections.abc import Callable, Generator
from contextlib import closing
from itertools import islice
from operator import attrgetter

from holdfast.consumequeue.index.consume_queue import ConsumeQueue, CqUnit, first_reaching
from holdfast.consumequeue.index.entry_columns import EntryColumns
from holdfast.consumequeue.index.index import Index
from holdfast.consumequeue.topics import QueueKey

STORE_TIMESTAMP: Callable[[CqUnit], int] = attrgetter("store_timestamp_us")
QUEUE_BYTES: Callable[[CqUnit], int] = attrgetter("queue_bytes")
PHYSICAL_OFFSET: Callable[[CqUnit], int] = attrgetter("physical_offset")


def units_from(
    index: Index, key: QueueKey, cq: ConsumeQueue, offset: int
) -> Generator[CqUnit, None, None]:
    """Yield the entries, starting with the one that holds `offset`, or with the next one if none
    holds it."""
    # Read memory first: entries leave memory only after they are in LMDB.
    entries = cq.entries
    tail = cq.from_tail(offset)
    if tail is not None:
        yield from tail
        return
    with closing(index.units(key, offset)) as found:
        for unit in found:
            if entries and unit.base_offset >= entries[0].base_offset:
                break
            yield unit
    for unit in entries:
        if unit.end_offset > offset:
            yield unit


def columns_from(
    index: Index,
    key: QueueKey,
    cq: ConsumeQueue,
    offset: int,
    *,
    end_offset: int,
    max_messages: int,
    max_bytes: int,
    max_entries: int = sys.maxsize,
) -> EntryColumns | None:
    """Return consecutive entries, starting with the one that holds `offset`; at most `max_entries`.
    They end at or before `end_offset`, and hold at most `max_messages` and `max_bytes`. One call
    reads only memory or only the disk, so it may return fewer entries than the limits allow. Return
    None if there is none."""
    tail = cq.from_tail(offset)
    found: EntryColumns | None
    if tail is not None:
        found = EntryColumns.of_units(list(islice(tail, min(max_messages, max_entries))))
    else:
        found = index.columns(
            key, offset, max_messages=max_messages, max_bytes=max_bytes, max_entries=max_entries
        )
    return found.within(offset, end_offset, max_messages, max_bytes) if found else None


def queue_bytes_at(index: Index, key: QueueKey, cq: ConsumeQueue, offset: int) -> int:
    """Return the running count of the queue's stored bytes before the entry that holds `offset`. If
    `offset` is at or after the queue's end, return the count at the end."""
    newest = cq.newest
    if newest is None:
        return 0
    if offset >= newest.end_offset:
        return newest.end_queue_bytes
    unit = next(units_from(index, key, cq, offset), newest)
    return unit.queue_bytes


def first_unit_reaching(
    index: Index,
    key: QueueKey,
    cq: ConsumeQueue,
    attribute: Callable[[CqUnit], int],
    value: int,
) -> CqUnit | None:
    """Return the first visible, kept entry whose `attribute` is at least `value`, or None if there
    is none. `attribute` is STORE_TIMESTAMP, QUEUE_BYTES or PHYSICAL_OFFSET."""
    entries = cq.entries
    start, end = cq.min_offset, cq.max_offset
    if entries and attribute(entries[0]) < value:
        found = first_reaching(entries, attribute, value)
    else:
        border = entries[0].base_offset if entries else end
        found = (
            index.first_reaching(key, attribute, value, start, border) if start < border else None
        )
        if found is None and entries:
            found = entries[0]
    if found is None or found.base_offset >= end:
        return None
    if found.end_offset <= start:
        return next(units_from(index, key, cq, start), None)
    return found
