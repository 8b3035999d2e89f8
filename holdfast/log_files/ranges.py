"""Ranges of queues, and where they are in the segment files. Pure."""

from typing import NamedTuple, Protocol


class QueueState(NamedTuple):
    """The offsets that a queue holds now: [min_offset, max_offset)."""

    min_offset: int
    max_offset: int


class OffsetRange(NamedTuple):
    """The offsets to read in a queue: [start, end)."""

    start: int
    end: int


class SegmentRange(NamedTuple):
    """The physical offsets from `first` to before `end` in one segment file.

    The header page of the file must have the same `start_offset` and `created_timestamp_us`;
    otherwise it is another file. `blocks` is empty for a segment with a footer. For a segment
    without a footer, the planner had to read the header of each block. Then `blocks` has one row
    for each block of the range, in the format of a footer's block table, so that tasks need not
    read the headers again. But `blocks` is empty, too, if there are too many rows to send.
    """

    start_offset: int
    created_timestamp_us: int
    first: int
    end: int
    blocks: bytes = b""


class QueuePart(Protocol):
    """The range [start, end) of one queue."""

    @property
    def topic_id(self) -> int: ...

    @property
    def queue(self) -> int: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


class FilePart(QueuePart, Protocol):
    """The range [start, end) of one queue, and where it is in the segment files."""

    @property
    def segments(self) -> tuple[SegmentRange, ...]: ...


def join_segments(
    segments: tuple[SegmentRange, ...], more: tuple[SegmentRange, ...]
) -> tuple[SegmentRange, ...]:
    """Return both lists as one. If the last range of `segments` and the first range of `more` are
    in the same segment, they become one range."""
    if not segments or not more or segments[-1].start_offset != more[0].start_offset:
        return (*segments, *more)
    last, first = segments[-1], more[0]
    blocks = last.blocks + first.blocks if last.blocks and first.blocks else b""
    return (*segments[:-1], last._replace(end=first.end, blocks=blocks), *more[1:])
