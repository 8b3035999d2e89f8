"""Look-ups in the queues: an offset by its time, a message by its id or key, a plan for parallel
readers. Call every method on the event loop. Methods that need the disk use a reader thread."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.message_id import parse_message_id
from holdfast.commitlog.format.segment_format import SEGMENT_HEADER_SIZE, SegmentHeader
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.segment import Segment
from holdfast.consumequeue.errors import UnknownMessage
from holdfast.consumequeue.index.consume_queue import ConsumeQueue
from holdfast.consumequeue.index.index import Index
from holdfast.consumequeue.index.queue_lookup import (
    STORE_TIMESTAMP,
    first_unit_reaching,
    units_from,
)
from holdfast.consumequeue.lost_ranges import LostRange
from holdfast.consumequeue.reading.key_search import find_key
from holdfast.consumequeue.reading.queue_reading import QueueReader
from holdfast.consumequeue.reading.splits import Split, choose_piece_bytes, cut_parts, measure_parts
from holdfast.consumequeue.slices import in_slices
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey, Topic, check_queue


@dataclass(eq=False, kw_only=True)
class Lookups:
    """Look-ups in the queues that `reading` reads."""

    log: CommitLog
    index: Index
    queues: Mapping[QueueKey, ConsumeQueue]
    table: TopicTable
    reading: QueueReader

    def __post_init__(self) -> None:
        #: Only one key search runs at a time, because it needs memory for a segment's tables and
        #: occupies a reader thread.
        self._searching = asyncio.Lock()

    async def offset_by_time(
        self, topic: Topic, queue: int, timestamp_us: int
    ) -> tuple[int, int | None]:
        """Return the offset and the store timestamp of the first kept message that was stored at or
        after a time. Return (max offset, None) if there is no such message. Raises UnknownQueue.
        """
        check_queue(topic, queue)
        key = (topic.topic_id, queue)
        cq = self.queues.get(key)
        if cq is None:
            return 0, None
        end = cq.max_offset
        unit = await self.reading.in_thread(
            lambda: first_unit_reaching(self.index, key, cq, STORE_TIMESTAMP, timestamp_us)
        )
        if unit is None or unit.base_offset >= end:
            return end, None
        return max(unit.base_offset, cq.min_offset), unit.store_timestamp_us

    async def stored_at(self, places: Sequence[tuple[QueueKey, int]]) -> list[int | None]:
        """For each place (a queue and an offset), return the store timestamp in microseconds of the
        first message at or after this offset, or None if there is no such message. One reader
        thread looks up all places that are not in memory. Only index entries are read."""
        found: list[int | None] = []
        cold: list[tuple[int, QueueKey, ConsumeQueue, int]] = []
        for number, (key, offset) in enumerate(places):
            cq = self.queues.get(key)
            found.append(None)
            if cq is None or max(offset, cq.min_offset) >= cq.max_offset:
                continue
            tail = cq.from_tail(max(offset, cq.min_offset))
            if tail is None:
                cold.append((number, key, cq, max(offset, cq.min_offset)))
            else:
                unit = next(tail, None)
                found[number] = None if unit is None else unit.store_timestamp_us
        if cold:
            stored = await self.reading.in_thread(lambda: self._stored_at(cold))
            for (number, *_), stored_us in zip(cold, stored, strict=True):
                found[number] = stored_us
        return found

    def _stored_at(
        self, places: Sequence[tuple[int, QueueKey, ConsumeQueue, int]]
    ) -> list[int | None]:
        units = (next(units_from(self.index, key, cq, at), None) for _, key, cq, at in places)
        return [None if unit is None else unit.store_timestamp_us for unit in units]

    async def message(self, message_id: str) -> tuple[Topic, Batch, int]:
        """Return a message as (topic, batch, row). Raises UnknownMessage, OffsetTrimmed,
        QueueCorrupt."""
        try:
            topic_id, queue, offset = parse_message_id(message_id)
        except ValueError:
            raise UnknownMessage(message_id) from None
        topic = self.table.by_id(topic_id)
        end = self.reading.max_offset((topic_id, queue))
        if topic is None or end is None or offset >= end:
            raise UnknownMessage(message_id)
        fetched = await self.reading.read(topic, queue, offset, max_messages=1, max_bytes=1)
        found = fetched.slices[0] if fetched.slices else None
        if found is None or found.batch.header.base_offset + found.rows[0] != offset:
            raise UnknownMessage(message_id)  # the message is lost, and the loss was accepted
        return topic, found.batch, found.rows[0]

    async def search_key(
        self,
        topic: Topic,
        key: str,
        limit: int,
        *,
        skipped: list[tuple[int, LostRange]] | None = None,
        max_bytes: int = 2**63,
    ) -> list[tuple[Batch, int]]:
        """Return up to `limit` kept messages with this key as (batch, row), newest first.

        The batches have at most `max_bytes` together, but one batch is always allowed. Damaged
        batches are skipped; the queue and the offsets of each damaged batch are added to
        `skipped`. Only one search runs at a time; other searches wait.
        """
        passed_over: list[tuple[int, LostRange]] = []
        queues = {
            queue: cq
            for queue in range(topic.queue_count)
            if (cq := self.queues.get((topic.topic_id, queue))) is not None
        }
        async with self._searching:
            found = await self.reading.in_thread(
                lambda: find_key(
                    self.log,
                    self.index,
                    topic.topic_id,
                    queues,
                    key,
                    limit,
                    lambda queue, lost: passed_over.append((queue, lost)),
                    max_bytes,
                )
            )
        for queue, lost in passed_over:
            self.reading.record_lost(topic, queue, lost)
        if skipped is not None:
            skipped += passed_over
        return found

    async def splits(
        self,
        topic: Topic,
        ranges: Mapping[int, tuple[int, int]],
        *,
        max_bytes: int | None,
        min_splits: int,
        max_splits: int,
    ) -> list[Split]:
        """Cut ranges of queues, each (start, end), at batch borders into splits.

        A split has at most about `max_bytes` stored bytes. Splits are smaller if there would
        otherwise be fewer than `min_splits`, and larger if there would otherwise be more than about
        `max_splits` plus one per queue. Cancelling takes effect soon. Raises UnknownQueue,
        OffsetTrimmed, OffsetBeyondEnd.
        """
        parts = []
        async for some in in_slices(sorted(ranges.items())):
            for queue, (start, end) in some:
                self.reading.readable(topic, queue, start)
                cq = self.reading.readable(topic, queue, end)
                if cq is not None and start < end:
                    parts.append((queue, cq, start, end))
        index, topic_id = self.index, topic.topic_id
        sized = await self.reading.all_in_thread(measure_parts(index, topic_id, parts))
        target = choose_piece_bytes(
            sized, max_bytes=max_bytes, min_splits=min_splits, max_splits=max_splits
        )
        return await self.reading.all_in_thread(cut_parts(index, topic_id, sized, target))

    async def segments(self, splits: Sequence[Split]) -> list[SegmentHeader]:
        """Return the header pages of the files that hold these splits, oldest first. Files that are
        damaged, or were deleted meanwhile, are left out. Cancelling takes effect soon."""
        if not splits:
            return []
        start = min(split.physical_offset for split in splits)
        end = max(split.end_physical_offset for split in splits)
        headers = await self.reading.all_in_thread(_read_headers(self.log.segments, start, end))
        return [header for header in headers if header is not None]


def _read_headers(
    segments: Iterable[Segment], start: int, end: int
) -> Iterator[SegmentHeader | None]:
    """Yield the header page of each file that has a part of the log between two offsets. Yield None
    for a file that is damaged or was deleted."""
    for segment in segments:
        if start < segment.end_offset and segment.start_offset < end:
            yield _read_header(segment)


def _read_header(segment: Segment) -> SegmentHeader | None:
    try:
        page = segment.read(segment.start_offset, SEGMENT_HEADER_SIZE)
        header = SegmentHeader.decode(page)
    except (CorruptBatch, OSError):
        return None
    is_its_own = (header.start_offset, header.size) == (segment.start_offset, segment.size)
    return header if is_its_own else None
