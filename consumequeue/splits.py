"""Plan a parallel read: cut ranges of queues into pieces of about equal stored bytes.

Borders are found by binary search over the running byte count that every index entry carries,
so planning costs pieces, not messages. For any thread; may wait for the disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.consumequeue.consume_queue import ConsumeQueue
from holdfast.consumequeue.index import Index
from holdfast.consumequeue.queue_lookup import QUEUE_BYTES, first_unit_reaching, units_from

_Part = tuple[int, ConsumeQueue, int, int]


@dataclass(frozen=True, slots=True)
class Split:
    """Offsets from `start_offset` to before `end_offset` of a queue; `bytes` counts the stored
    batches that hold them."""

    queue: int
    start_offset: int
    end_offset: int
    bytes: int


def plan_splits(
    index: Index,
    topic_id: int,
    parts: Sequence[_Part],
    max_bytes: int | None,
    min_splits: int,
) -> list[Split]:
    """Return the pieces of `parts`, each (queue, its index, start, end), in order. None is
    empty, and together they cover every offset of the parts."""
    sized = [(part, *_byte_range(index, topic_id, part)) for part in parts]
    total = sum(end - start for _, start, end in sized)
    target = max_bytes or total or 1
    if min_splits > 1:
        target = max(1, min(target, -(-total // min_splits)))
    splits = []
    for part, start, end in sized:
        splits += _cut(index, topic_id, part, start, end, target)
    return splits


def _byte_range(index: Index, topic_id: int, part: _Part) -> tuple[int, int]:
    """Return the running byte counts at the begin and the end of a part."""
    queue, cq, start, end = part
    key = (topic_id, queue)
    first = next(units_from(index, key, cq, start), None)
    last = next(units_from(index, key, cq, end - 1), None)
    if first is None or last is None:
        return 0, 0
    return first.queue_bytes, max(last.end_queue_bytes, first.queue_bytes)


def _cut(
    index: Index, topic_id: int, part: _Part, start_bytes: int, end_bytes: int, target: int
) -> list[Split]:
    queue, cq, start, end = part
    pieces = max(1, -(-(end_bytes - start_bytes) // target))
    borders = [(start, start_bytes)]
    for piece in range(1, pieces):
        wanted = start_bytes + (end_bytes - start_bytes) * piece // pieces
        unit = first_unit_reaching(index, (topic_id, queue), cq, QUEUE_BYTES, wanted)
        if unit is not None and borders[-1][0] < unit.base_offset < end:
            borders.append((unit.base_offset, unit.queue_bytes))
    borders.append((end, end_bytes))
    return [
        Split(queue, low, high, max(high_bytes - low_bytes, 0))
        for (low, low_bytes), (high, high_bytes) in pairwise(borders)
    ]
