"""The catalog of a data directory: topics and queues, read only from its segment files.

If a broker runs, this catalog shows new messages slightly later than the broker. In a topic with
fsync durability, it shows only messages that are on the disk. A group's offsets are those that the
log recorded last.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Self

import numpy as np

from holdfast.commitlog.format.segment_format import Blocks, end_offset
from holdfast.consumequeue.topics import Topic
from holdfast.log_files.descriptions import Split, StoredOffsets, TopicState
from holdfast.log_files.errors import FilesUnreadable, RangeMissing, TopicMissing, TopicReplaced
from holdfast.log_files.file_reading import FoundBlocks, MissingRange, read_segments
from holdfast.log_files.log_files import LogFiles, LogSegment
from holdfast.log_files.log_state import LogState
from holdfast.log_files.ranges import (
    OffsetRange,
    QueuePart,
    QueueState,
    SegmentRange,
    join_segments,
)
from holdfast.log_files.sealed_blocks import ROWS_AT_ONCE
from holdfast.log_files.segment_file import SegmentFile
from holdfast.log_files.walked_blocks import WalkedBlocks

#: After retention has deleted a file, it takes a moment until the log records the new first offsets
#: of the queues. The catalog reads the log at most this many times to find them.
_TRIM_ATTEMPTS = 4
_TRIM_PAUSE_S = 0.05  # between two of these reads
#: A plan sends at most this many rows of the block table with a part (about 450 KiB).
MAX_ROWS_SENT = 8192


class FileCatalog:
    """The catalog of a data directory. Repeated calls read only new data. Close it, or use it as a
    context manager. Use it from one thread at a time.

    Every method raises FilesUnreadable if the directory cannot be read, UnknownFormatVersion if a
    newer Holdfast wrote it, and TopicMissing if the topic does not exist.
    """

    def __init__(
        self,
        path: str,
        *,
        may_map: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """With `may_map`, files on a local file system may be mapped into memory."""
        self._path = path
        self._log = LogFiles(path, may_map=may_map)
        self._state = LogState(path, self._log)
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._log.close()

    def topic_names(self) -> Iterator[str]:
        """Return the names of all topics, sorted."""
        self._refresh()
        return iter(self._state.topics())

    def describe(self, topic: str) -> TopicState:
        """Return the topic's id and the current range of each queue."""
        for attempt in range(1, _TRIM_ATTEMPTS + 1):
            self._refresh()
            found = self._topic(topic)
            bounds = self._bounds(found, self._durable(found))
            if attempt == _TRIM_ATTEMPTS or not self._lacks_new_start(found, bounds):
                break
            self._sleep(_TRIM_PAUSE_S)
        queues = {queue: bounds.get(queue, QueueState(0, 0)) for queue in range(found.queue_count)}
        levels = found.priority_levels if found.priority_levels > 1 else None
        return TopicState(topic, found.topic_id, queues, levels)

    def offset_at(self, topic: str, queue: int, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time, or the queue's end if
        there is no such message. `describe` must have been called before."""
        found = self._topic(topic)
        bounds = self._bounds(found, self._durable(found))
        low, high = bounds.get(queue, QueueState(0, 0))
        for _, rows in self._log.rows(found.topic_id, queue, low, high):
            first = int(np.searchsorted(rows["store_timestamp_us"], timestamp_ms * 1000))
            if first < len(rows):
                return max(int(rows[first]["base_offset"]), low)
        return high

    def stored_offsets(self, group: str, topic: str) -> StoredOffsets | None:
        """Return a group's offsets, or None if the group does not exist. The offsets of a group
        with leases are its floors: all messages below a floor are settled."""
        stored = self._state.offsets(group, self._topic(topic).topic_id)
        return None if stored is None else StoredOffsets(stored.offsets, f'"{stored.version}"')

    def splits(
        self,
        topic: str,
        topic_id: int,
        ranges: Mapping[int, OffsetRange],
        *,
        max_bytes: int,
        min_splits: int,
        lease_ms: int = 0,
    ) -> list[Split]:
        """Return the ranges cut into parts of about `max_bytes`, at least `min_splits` in all,
        ordered by queue and offset. Files cannot be leased, so `lease_ms` has no effect. Raises
        TopicReplaced, and RangeMissing if a queue does not have its complete range."""
        self._check_ranges(topic, topic_id, ranges)
        cuts = [
            _RangeCutter(self._log, topic_id, queue, part)
            for queue, part in sorted(ranges.items())
            if part.start < part.end
        ]
        total = sum(cut.size_bytes for cut in cuts)
        target = max(1, min(max_bytes, -(-total // max(min_splits, 1))))
        try:
            return [split for cut in cuts for split in cut.splits(target)]
        except OSError as error:
            raise FilesUnreadable(self._path, str(error)) from error

    def read(self, topic: str, part: QueuePart) -> Iterator[FoundBlocks | MissingRange]:
        """Yield the blocks of a range, as `read_files` does, but from the files that are open.
        Raises what `splits` raises, and UnknownFormatVersion."""
        wanted = OffsetRange(part.start, part.end)
        self._check_ranges(topic, part.topic_id, {part.queue: wanted})
        yield from read_segments(part, self._segments_of(part), self._open_segment)

    # -- the log and its state ------------------------------------------------------

    def _check_ranges(self, topic: str, topic_id: int, ranges: Mapping[int, OffsetRange]) -> None:
        """Raise TopicReplaced or RangeMissing if the topic does not have these ranges now."""
        self._refresh()
        found = self._topic(topic)
        if found.topic_id != topic_id:
            raise TopicReplaced(topic, topic_id, found.topic_id)
        bounds = self._bounds(found, None)  # no limit: the ranges were durable when they were fixed
        for queue, part in ranges.items():
            low, high = bounds.get(queue, QueueState(0, 0))
            if part.start < low or part.end > high:
                raise RangeMissing(topic, queue, part.start, part.end)

    def _segments_of(self, part: QueuePart) -> Iterator[SegmentRange]:
        """Yield where the blocks of a range are, with their rows of the block table."""
        try:
            for segment, rows in self._log.rows(part.topic_id, part.queue, part.start, part.end):
                for at in range(0, len(rows), ROWS_AT_ONCE):
                    yield _segment_range(segment, rows[at : at + ROWS_AT_ONCE], has_rows=True)
        except OSError as error:
            raise FilesUnreadable(self._path, str(error)) from error

    def _open_segment(self, segment: SegmentRange) -> AbstractContextManager[SegmentFile]:
        return nullcontext(self._log.file(segment.start_offset))

    def _refresh(self) -> None:
        self._log.refresh()
        try:
            self._state.refresh()
        except OSError as error:
            raise FilesUnreadable(self._path, str(error)) from error

    def _topic(self, name: str) -> Topic:
        if not self._log.segments:
            self._refresh()
        topic = self._state.topic(name)
        if topic is None:
            raise TopicMissing(name, self._path)
        return topic

    def _durable(self, topic: Topic) -> int | None:
        """Return the physical offset below which the topic's messages may be read; None means that
        there is no limit."""
        return self._log.durable_offset() if topic.config.durability == "fsync" else None

    def _bounds(self, topic: Topic, durable: int | None) -> dict[int, QueueState]:
        """Return the range of each queue that has messages below the physical offset `durable`;
        None means that there is no limit."""
        first_offsets = self._state.first_offsets(topic.topic_id)
        ends = dict(first_offsets)
        lost_ends = self._state.lost_ends(topic.topic_id)
        visible_ends = self._visible_ends(topic.topic_id, durable)
        for queue, end in chain(lost_ends.items(), visible_ends.items()):
            ends[queue] = max(ends.get(queue, 0), end)
        return {queue: QueueState(first_offsets.get(queue, 0), end) for queue, end in ends.items()}

    def _visible_ends(self, topic_id: int, durable: int | None) -> dict[int, int]:
        """Return the end of each queue that has blocks. Only blocks below the physical offset
        `durable` count; None means that all blocks count."""
        ends: dict[int, int] = {}
        for segment in self._log.segments:
            for queue, (first, end) in segment.blocks.queues(topic_id).items():
                if durable is not None and segment.file.end_offset > durable:
                    end = _durable_end(segment, topic_id, queue, (first, end), durable)
                ends[queue] = max(ends.get(queue, 0), end)
        return ends

    def _lacks_new_start(self, topic: Topic, bounds: Mapping[int, QueueState]) -> bool:
        """Return True if a queue's first messages were deleted with the oldest files, but the log
        does not yet record the queue's new first offset."""
        segments = self._log.segments
        if not segments or segments[0].file.start_offset == 0:
            return False
        firsts: dict[int, int] = {}
        for segment in segments:
            for queue, (first, _) in segment.blocks.queues(topic.topic_id).items():
                firsts.setdefault(queue, first)
        return any(
            bounds[queue].min_offset < first for queue, first in firsts.items() if queue in bounds
        )


def _durable_end(
    segment: LogSegment, topic_id: int, queue: int, offsets: tuple[int, int], durable: int
) -> int:
    """Return the end of a queue's messages in a segment below the physical offset `durable`."""
    end = offsets[0]
    for rows in segment.blocks.rows(topic_id, queue, *offsets):
        below = rows[rows["physical_offset"] + rows["size"] <= durable]
        if len(below):
            end = end_offset(below[-1])
    return end


class _RangeCutter:
    """Cuts a range of one queue by bytes, at block borders. It reads the rows of the block table
    twice, to save memory."""

    def __init__(self, log: LogFiles, topic_id: int, queue: int, part: OffsetRange) -> None:
        self._log = log
        self._topic_id = topic_id
        self._queue = queue
        self._part = part
        self.size_bytes = sum(int(rows["size"].sum(dtype=np.int64)) for _, rows in self._rows())
        """The stored bytes of the blocks that contain the range."""

    def _rows(self) -> Iterator[tuple[LogSegment, Blocks]]:
        return self._log.rows(self._topic_id, self._queue, *self._part)

    def splits(self, target: int) -> Iterator[Split]:
        """Yield the parts of the range, of about `target` bytes each. None of them is empty."""
        pieces = max(1, -(-self.size_bytes // target))
        wanted = [self.size_bytes * piece // pieces for piece in range(1, pieces)]
        start, start_bytes, at_bytes = self._part.start, 0, 0
        segments: tuple[SegmentRange, ...] = ()
        for segment, rows in self._rows():
            begins = at_bytes + np.cumsum(rows["size"], dtype=np.int64) - rows["size"]
            at_bytes = int(begins[-1]) + int(rows["size"][-1])
            done = 0
            while wanted and wanted[0] <= begins[-1]:
                row = int(np.searchsorted(begins, wanted.pop(0)))
                border = int(rows["base_offset"][row])
                if border <= start:
                    continue
                segments = join_segments(segments, _sent_range(segment, rows[done:row]))
                size = int(begins[row]) - start_bytes
                yield Split(self._queue, start, border, size, segments)
                start, start_bytes, done = border, int(begins[row]), row
                segments = ()
            segments = join_segments(segments, _sent_range(segment, rows[done:]))
        size = self.size_bytes - start_bytes
        yield Split(self._queue, start, self._part.end, size, segments)


def _sent_range(segment: LogSegment, rows: Blocks) -> tuple[SegmentRange, ...]:
    """Return the physical range of these blocks, or nothing if there are no blocks. Without a
    footer, it has the rows of the block table, unless there are too many to send with a plan."""
    if not len(rows):
        return ()
    has_rows = isinstance(segment.blocks, WalkedBlocks) and len(rows) <= MAX_ROWS_SENT
    return (_segment_range(segment, rows, has_rows=has_rows),)


def _segment_range(segment: LogSegment, rows: Blocks, *, has_rows: bool) -> SegmentRange:
    """Return the physical range of these blocks, which are at least one."""
    first = int(rows["physical_offset"][0])
    end = int(rows["physical_offset"][-1]) + int(rows["size"][-1])
    return SegmentRange(*segment.file.identity, first, end, rows.tobytes() if has_rows else b"")
