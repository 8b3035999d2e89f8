"""Which offsets of which queues a table has. Pure.

A range begins and ends at an offset or at a time; it has the begin and not the end. The ends are
fixed before the first message is read. So a table never waits for messages, and messages that are
published meanwhile do not change it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.client.errors import OffsetBeyondEnd, OffsetTrimmed, UnknownQueue

#: One offset, which needs a queue, or an offset for each named queue.
Offsets = int | Mapping[int, int]


class QueueBounds(NamedTuple):
    """The offsets that a queue has now: [min_offset, max_offset)."""

    min_offset: int
    max_offset: int


class QueueSlice(NamedTuple):
    """The offsets to read in one queue: [start, end)."""

    queue: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a range begins or ends: an offset, a time in milliseconds, or neither: then it is the
    queue's first or last message."""

    offset: Offsets | None = None
    timestamp_ms: int | None = None

    def offset_in(self, queue: int) -> int | None:
        """Return the offset that the caller gave for a queue; None if there is none."""
        return self.offset.get(queue) if isinstance(self.offset, Mapping) else self.offset


@dataclass(frozen=True, slots=True)
class TableRange:
    """The range of a table: one queue, or all queues if `queue` is None. The constructor raises
    ValueError for bounds that contradict each other."""

    topic: str
    queue: int | None
    start: Bound
    end: Bound

    def __post_init__(self) -> None:
        for side, bound in (("start", self.start), ("end", self.end)):
            if bound.offset is not None and bound.timestamp_ms is not None:
                raise ValueError(f"give either {side}_offset= or {side}_timestamp_ms=, not both")
            if isinstance(bound.offset, int) and self.queue is None:
                raise ValueError(
                    f"{side}_offset={bound.offset} belongs to one queue: give queue= too, or an "
                    "offset for each queue, such as {0: 12, 1: 40}"
                )
        first, last = self.start.timestamp_ms, self.end.timestamp_ms
        if first is not None and last is not None and first > last:
            raise ValueError(f"start_timestamp_ms={first} is after end_timestamp_ms={last}")

    def queues_of(self, bounds: Mapping[int, QueueBounds]) -> list[int]:
        """Return the queues to read, in order. `bounds` has every queue of the topic. Raises
        UnknownQueue for a queue that the topic does not have."""
        named = [self.queue] if self.queue is not None else []
        for bound in (self.start, self.end):
            named += bound.offset if isinstance(bound.offset, Mapping) else ()
        for queue in named:
            if queue not in bounds:
                raise UnknownQueue(
                    404,
                    "unknown-queue",
                    "Unknown queue",
                    f"{self.topic} has {len(bounds)} queues, and no queue {queue}",
                    {"queue_count": len(bounds)},
                )
        return sorted(bounds) if self.queue is None else [self.queue]

    def slice_of(
        self, queue: int, bounds: QueueBounds, start_at_time: int | None, end_at_time: int | None
    ) -> QueueSlice:
        """Return the offsets to read in a queue; start == end if there is nothing to read.

        `start_at_time` and `end_at_time` are the offsets that belong to the times of the bounds,
        or None for a bound without a time. Raises OffsetTrimmed if a given start was trimmed,
        OffsetBeyondEnd for a given offset beyond the queue's end, and ValueError for a given start
        after the given end.
        """
        low, high = bounds
        first, last = self.start.offset_in(queue), self.end.offset_in(queue)
        for given in (first, last):
            if given is not None and given > high:
                raise beyond_end(self.topic, queue, given, high)
        if first is not None and last is not None and first > last:
            raise ValueError(f"queue {queue}: start_offset={first} is after end_offset={last}")
        start = first if first is not None else start_at_time
        end = last if last is not None else end_at_time
        end = high if end is None else end
        if first is not None and first < min(low, end):
            raise OffsetTrimmed(
                410,
                "offset-trimmed",
                "Offset trimmed",
                f"queue {queue} of {self.topic} begins at offset {low}; offset {first} is gone",
                {"min_offset": low, "max_offset": high},
            )
        start = low if start is None else max(start, low)
        return QueueSlice(queue, min(start, end), end)


def beyond_end(topic: str, queue: int, offset: int, max_offset: int) -> OffsetBeyondEnd:
    """Return the error for an offset that the queue does not have."""
    return OffsetBeyondEnd(
        416,
        "offset-beyond-end",
        "Offset beyond the end",
        f"queue {queue} of {topic} ends at offset {max_offset}, before offset {offset}",
        {"max_offset": max_offset},
    )
