"""Finding things in the queues: an offset by its time, a message by its id or its key, a plan for
parallel readers. Every method is the event loop's; what waits for the disk does so in a reader
thread."""

import asyncio
from collections.abc import Mapping, Sequence

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.commit_log import CommitLog
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.message_id import parse_message_id
from holdfast.commitlog.segment_format import SEGMENT_HEADER_SIZE, SegmentHeader
from holdfast.consumequeue.consume_queue import ConsumeQueue
from holdfast.consumequeue.errors import UnknownMessage
from holdfast.consumequeue.index import Index
from holdfast.consumequeue.key_search import find_key
from holdfast.consumequeue.lost_ranges import LostRange
from holdfast.consumequeue.queue_lookup import STORE_TIMESTAMP, first_unit_reaching
from holdfast.consumequeue.queue_reading import QueueReading
from holdfast.consumequeue.splits import Split, plan_splits
from holdfast.consumequeue.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey, Topic, check_queue


class LookUps:
    """Look-ups over the queues that `reading` reads."""

    def __init__(
        self,
        *,
        log: CommitLog,
        index: Index,
        queues: Mapping[QueueKey, ConsumeQueue],
        table: TopicTable,
        reading: QueueReading,
    ) -> None:
        self._log = log
        self._index = index
        self._queues = queues
        self._table = table
        self._reading = reading
        #: A search holds the tables of a segment, and a reader thread for as long as it takes.
        self._searching = asyncio.Lock()

    async def offset_by_time(
        self, topic: Topic, queue: int, timestamp_us: int
    ) -> tuple[int, int | None]:
        """Return the first kept offset stored at or after a time, with its store timestamp;
        (max offset, None) when there is none. Raises UnknownQueue."""
        check_queue(topic, queue)
        key = (topic.topic_id, queue)
        cq = self._queues.get(key)
        if cq is None:
            return 0, None
        end = cq.max_offset
        unit = await self._reading.in_thread(
            lambda: first_unit_reaching(self._index, key, cq, STORE_TIMESTAMP, timestamp_us)
        )
        if unit is None or unit.base_offset >= end:
            return end, None
        return max(unit.base_offset, cq.min_offset), unit.store_timestamp_us

    async def message(self, message_id: str) -> tuple[Topic, Batch, int]:
        """Return a message as (topic, batch, row). Raises UnknownMessage, OffsetTrimmed,
        QueueCorrupt."""
        try:
            topic_id, queue, offset = parse_message_id(message_id)
        except ValueError:
            raise UnknownMessage(message_id) from None
        topic = self._table.by_id(topic_id)
        end = self._reading.max_offset((topic_id, queue))
        if topic is None or end is None or offset >= end:
            raise UnknownMessage(message_id)
        fetched = await self._reading.read(topic, queue, offset, max_messages=1, max_bytes=1)
        found = fetched.slices[0] if fetched.slices else None
        if found is None or found.batch.header.base_offset + found.rows[0] != offset:
            raise UnknownMessage(message_id)  # it is lost, and that was accepted
        return topic, found.batch, found.rows[0]

    async def search_key(
        self,
        topic: Topic,
        key: str,
        limit: int,
        *,
        skipped: list[tuple[int, LostRange]] | None = None,
    ) -> list[tuple[Batch, int]]:
        """Return up to `limit` kept messages with this key as (batch, row), newest first.
        `skipped` gets what was passed over because it is damaged: queue and offsets. One search
        goes on at a time, others wait."""
        passed_over: list[tuple[int, LostRange]] = []
        queues = {
            queue: cq
            for queue in range(topic.queue_count)
            if (cq := self._queues.get((topic.topic_id, queue))) is not None
        }
        async with self._searching:
            found = await self._reading.in_thread(
                lambda: find_key(
                    self._log,
                    self._index,
                    topic.topic_id,
                    queues,
                    key,
                    limit,
                    lambda queue, lost: passed_over.append((queue, lost)),
                )
            )
        for queue, lost in passed_over:
            self._reading.note_lost(topic, queue, lost)
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
    ) -> list[Split]:
        """Cut ranges of queues, each (start, end), at batch borders into pieces of about
        `max_bytes` stored bytes, small enough for `min_splits` of about the same size.
        Raises UnknownQueue, OffsetTrimmed, OffsetBeyondEnd."""
        parts = []
        for queue, (start, end) in sorted(ranges.items()):
            self._reading.readable(topic, queue, start)
            cq = self._reading.readable(topic, queue, end)
            if cq is not None and start < end:
                parts.append((queue, cq, start, end))
        return await self._reading.in_thread(
            lambda: plan_splits(self._index, topic.topic_id, parts, max_bytes, min_splits)
        )

    async def segments(self, splits: Sequence[Split]) -> list[SegmentHeader]:
        """Return the header pages of the files that these splits lie in, oldest first; without
        those that are damaged, or deleted meanwhile."""
        return await self._reading.in_thread(lambda: _headers_of(self._log, splits))


def _headers_of(log: CommitLog, splits: Sequence[Split]) -> list[SegmentHeader]:
    if not splits:
        return []
    start = min(split.physical_offset for split in splits)
    end = max(split.end_physical_offset for split in splits)
    found = []
    for segment in log.segments:
        if start < segment.end_offset and segment.start_offset < end:
            try:
                page = segment.read(segment.start_offset, SEGMENT_HEADER_SIZE)
                header = SegmentHeader.decode(page)
            except (CorruptBatch, OSError):
                continue
            if (header.start_offset, header.size) == (segment.start_offset, segment.size):
                found.append(header)
    return found
