"""Plan a parallel read: cut ranges of queues into pieces of about equal stored bytes.

Borders are found by binary search over the running byte count that every index entry carries,
so planning costs pieces, not messages, and never more than the batches that there are. For any
thread; may wait for the disk."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from holdfast.consumequeue.consume_queue import ConsumeQueue
from holdfast.consumequeue.index import Index
from holdfast.consumequeue.queue_lookup import QUEUE_BYTES, first_unit_reaching, units_from

_Part = tuple[int, ConsumeQueue, int, int]


@dataclass(frozen=True, slots=True)
class Split:
    """Offsets from `start_offset` to before `end_offset` of a queue; `bytes` counts the stored
    batches that hold them, which lie in the log at `physical_offset` and before
    `end_physical_offset`, among those of other queues."""

    queue: int
    start_offset: int
    end_offset: int
    bytes: int
    physical_offset: int = field(default=0, compare=False)
    end_physical_offset: int = field(default=0, compare=False)


class _Border(NamedTuple):
    """Where a split begins or ends: a queue offset, the queue's bytes and the log's before it."""

    offset: int
    bytes: int
    physical_offset: int


def plan_splits(
    index: Index,
    topic_id: int,
    parts: Sequence[_Part],
    max_bytes: int | None,
    min_splits: int,
) -> list[Split]:
    """Return the pieces of `parts`, each (queue, its index, start, end), in order. None is
    empty, and together they cover every offset of the parts."""
    sized = [(part, *_ends(index, topic_id, part)) for part in parts]
    total = sum(end.bytes - start.bytes for _, start, end in sized)
    target = max_bytes or total or 1
    if min_splits > 1:
        target = max(1, min(target, -(-total // min_splits)))
    splits = []
    for part, start, end in sized:
        splits += _cut(index, topic_id, part, start, end, target)
    return splits


def _ends(index: Index, topic_id: int, part: _Part) -> tuple[_Border, _Border]:
    """Return where a part begins and ends."""
    queue, cq, start, end = part
    key = (topic_id, queue)
    first = next(units_from(index, key, cq, start), None)
    last = next(units_from(index, key, cq, end - 1), None)
    if first is None or last is None:
        return _Border(start, 0, 0), _Border(end, 0, 0)
    end_bytes = max(last.end_queue_bytes, first.queue_bytes)
    return (
        _Border(start, first.queue_bytes, first.physical_offset),
        _Border(end, end_bytes, last.end_physical_offset),
    )


def _cut(
    index: Index, topic_id: int, part: _Part, start: _Border, end: _Border, target: int
) -> list[Split]:
    queue, cq, _, _ = part
    size = end.bytes - start.bytes
    pieces = max(1, -(-size // target))
    borders = [start]
    piece = 1
    while piece < pieces:
        wanted = start.bytes + size * piece // pieces
        unit = first_unit_reaching(index, (topic_id, queue), cq, QUEUE_BYTES, wanted)
        if unit is None or unit.base_offset >= end.offset:
            break
        if borders[-1].offset < unit.base_offset:
            borders.append(_Border(unit.base_offset, unit.queue_bytes, unit.physical_offset))
        # Millions of pieces may begin in one large batch: on to the first that begins behind it.
        behind = unit.queue_bytes + 1 - start.bytes
        piece = max(piece + 1, -(-behind * pieces // size))
    borders.append(end)
    return [
        Split(
            queue,
            low.offset,
            high.offset,
            max(high.bytes - low.bytes, 0),
            low.physical_offset,
            high.physical_offset,
        )
        for low, high in pairwise(borders)
    ]
