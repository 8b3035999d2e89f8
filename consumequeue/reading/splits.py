"""Plan a parallel read: cut ranges of queues into pieces of about equal stored bytes.

Every index entry has a running count of its queue's stored bytes, so borders are found by binary
search. The number of searches depends on the number of pieces, not on the number of messages, and
is never greater than the number of batches.

Any thread may call these functions; they may wait for the disk. Functions with many look-ups yield
their results piece by piece, so that the caller can stop."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.consumequeue.index.consume_queue import ConsumeQueue
from holdfast.consumequeue.index.index import Index
from holdfast.consumequeue.index.queue_lookup import QUEUE_BYTES, first_unit_reaching, units_from

_Part = tuple[int, ConsumeQueue, int, int]


@dataclass(frozen=True, slots=True)
class Split:
    """The offsets of a queue from `start_offset` to before `end_offset`. `bytes` is the stored size
    of the batches with these offsets. In the log, these batches are between `physical_offset` and
    `end_physical_offset`, mixed with batches of other queues."""

    queue: int
    start_offset: int
    end_offset: int
    bytes: int
    physical_offset: int = field(default=0, compare=False)
    end_physical_offset: int = field(default=0, compare=False)


class _Border(NamedTuple):
    """The start or end of a split. `bytes` is the running count of the queue's stored bytes."""

    offset: int
    bytes: int
    physical_offset: int


_SizedPart = tuple[_Part, _Border, _Border]


def measure_parts(index: Index, topic_id: int, parts: Iterable[_Part]) -> Iterator[_SizedPart]:
    """Yield each part (queue, its index, start, end) with the borders at its start and its end.
    Each part costs two index look-ups."""
    for part in parts:
        queue, cq, start, end = part
        key = (topic_id, queue)
        first = next(units_from(index, key, cq, start), None)
        last = next(units_from(index, key, cq, end - 1), None)
        if first is None or last is None:
            yield part, _Border(start, 0, 0), _Border(end, 0, 0)
            continue
        end_bytes = max(last.end_queue_bytes, first.queue_bytes)
        yield (
            part,
            _Border(start, first.queue_bytes, first.physical_offset),
            _Border(end, end_bytes, last.end_physical_offset),
        )


def choose_piece_bytes(
    parts: Iterable[_SizedPart], *, max_bytes: int | None, min_splits: int, max_splits: int
) -> int:
    """Return the target size of pieces: at most `max_bytes`, and small enough for `min_splits`
    pieces, but large enough for at most `max_splits` pieces plus one per part."""
    total = sum(end.bytes - start.bytes for _, start, end in parts)
    wanted = min(max_bytes or total, -(-total // max(min_splits, 1)))
    return max(wanted, -(-total // max_splits), 1)


def cut_parts(
    index: Index, topic_id: int, parts: Iterable[_SizedPart], target: int
) -> Iterator[Split]:
    """Yield the pieces of parts in order, each about `target` bytes. No piece is empty; together
    the pieces cover every offset of the parts. Each costs at most two index look-ups."""
    for (queue, cq, _, _), start, end in parts:
        size = end.bytes - start.bytes
        pieces = max(1, -(-size // target))
        low, piece = start, 1
        while piece < pieces:
            wanted = start.bytes + size * piece // pieces
            unit = first_unit_reaching(index, (topic_id, queue), cq, QUEUE_BYTES, wanted)
            if unit is None or unit.base_offset >= end.offset:
                break
            if low.offset < unit.base_offset:
                high = _Border(unit.base_offset, unit.queue_bytes, unit.physical_offset)
                yield _split(queue, low, high)
                low = high
            # Millions of pieces may begin in one large batch: skip to the first piece after it.
            after = unit.queue_bytes + 1 - start.bytes
            piece = max(piece + 1, -(-after * pieces // size))
        yield _split(queue, low, end)


def _split(queue: int, low: _Border, high: _Border) -> Split:
    return Split(
        queue,
        low.offset,
        high.offset,
        max(high.bytes - low.bytes, 0),
        low.physical_offset,
        high.physical_offset,
    )
