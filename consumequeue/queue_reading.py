"""Reading a queue by offset: from memory on the event loop where that is possible, else from the
disk in a reader thread."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeVar

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.commit_log import CommitLog
from holdfast.commitlog.errors import CorruptRecord
from holdfast.consumequeue.block_cache import BlockCache
from holdfast.consumequeue.cold_reading import ColdReading, Place
from holdfast.consumequeue.consume_queue import ConsumeQueue, CqUnit
from holdfast.consumequeue.damage_book import DamageBook
from holdfast.consumequeue.errors import (
    OffsetBeyondEnd,
    OffsetTrimmed,
    QueueCorrupt,
    StoreError,
    UnknownTopic,
)
from holdfast.consumequeue.fetched import Fetched
from holdfast.consumequeue.index import Index
from holdfast.consumequeue.lost_ranges import LostRange
from holdfast.consumequeue.reader import (
    MessageFilter,
    NeedsDisk,
    ReadBlock,
    Wanted,
    collect,
    filter_cost_us,
    first_match,
)
from holdfast.consumequeue.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey, Topic, check_queue

#: Blocks that a filtered read may look through on the event loop: a few milliseconds' work.
MAX_HOT_SCAN_BYTES = 64 * 1024
MAX_HOT_SCAN_US = 2000
#: Reads given to the threads, or back from them and not yet taken by the loop. A few more than
#: there are threads; without a bound, threads that are quicker than the loop fill the memory.
READS_AT_ONCE = 6
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class QueueState:
    """Where a queue begins and ends. `bytes` are stored bytes from min to max offset."""

    queue: int
    min_offset: int
    max_offset: int
    bytes: int
    newest_timestamp_us: int | None


class QueueReading:
    """Reads queues. Every method is the event loop's."""

    def __init__(
        self,
        *,
        log: CommitLog,
        index: Index,
        queues: Mapping[QueueKey, ConsumeQueue],
        table: TopicTable,
        executor: ThreadPoolExecutor,
        cache_bytes: int,
        damage: DamageBook,
    ) -> None:
        self._damage = damage
        self._log = log
        self._queues = queues
        self._table = table
        self._executor = executor
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        #: Of those that filter one at a time: each keeps the interpreter busy, and together they
        #: would keep the event loop from it.
        self._filtered_reads = asyncio.Semaphore(1)
        self._cold = ColdReading(log, index)
        self._cache = BlockCache(cache_bytes)
        self._loop = asyncio.get_running_loop()

    def max_offset(self, key: QueueKey) -> int | None:
        """Return the next offset of a queue, None when there is no such topic or queue."""
        topic = self._table.by_id(key[0])
        if topic is None or not 0 <= key[1] < topic.queue_count:
            return None
        cq = self._queues.get(key)
        return 0 if cq is None else cq.max_offset

    def queue_state(self, topic: Topic, queue: int) -> QueueState:
        """Return where a queue begins and ends. Raises UnknownQueue."""
        check_queue(topic, queue)
        cq = self._queues.get((topic.topic_id, queue))
        if cq is None:
            return QueueState(queue, 0, 0, 0, None)
        newest = cq.newest
        return QueueState(
            queue,
            cq.min_offset,
            cq.max_offset,
            cq.bytes,
            None if newest is None else newest.store_timestamp_us,
        )

    def queue_states(self, topic: Topic) -> list[QueueState]:
        """Return where each queue of a topic begins and ends."""
        return [self.queue_state(topic, queue) for queue in range(topic.queue_count)]

    def read_hot(
        self,
        topic: Topic,
        queue: int,
        offset: int,
        *,
        max_messages: int,
        max_bytes: int,
        filter: MessageFilter | None = None,
        skip_corrupt: bool = False,
    ) -> Fetched | None:
        """As `read`, but None when the answer would have to wait for the disk."""
        cq = self.readable(topic, queue, offset)
        if cq is None or offset == cq.max_offset:
            end = 0 if cq is None else cq.max_offset
            return Fetched((), offset, 0 if cq is None else cq.min_offset, end, 0)
        max_offset = cq.max_offset
        units = cq.from_tail(offset)
        if units is None:
            return None
        key = (topic.topic_id, queue)
        try:
            fetched = collect(
                units,
                self._hot_reader(filter),
                key,
                offset,
                min_offset=cq.min_offset,
                max_offset=max_offset,
                max_messages=max_messages,
                max_bytes=max_bytes,
                message_filter=filter,
                skip_corrupt=skip_corrupt,
                lost=self._damage.lost.get(key, ()),
            )
        except NeedsDisk:
            return None
        except CorruptRecord as error:
            raise self._unreadable(topic, queue, offset, cq, error) from error
        return self._noted(topic, queue, cq, fetched)

    async def read(
        self,
        topic: Topic,
        queue: int,
        offset: int,
        *,
        max_messages: int,
        max_bytes: int,
        filter: MessageFilter | None = None,
        skip_corrupt: bool = False,
    ) -> Fetched:
        """Deliver messages of a queue from `offset` on.

        At most `max_messages` that match, and after the first one not beyond `max_bytes` of
        message texts. `next_offset` is past all that was scanned. At the end of the queue the
        answer is empty, with `next_offset` equal to `offset`; a filter may also answer empty
        before the end, having scanned its share. Damage ends it before; at `offset` itself it is
        QueueCorrupt, unless `skip_corrupt`: then it is passed over, and told in `skipped`.
        Raises UnknownTopic, UnknownQueue, OffsetTrimmed, OffsetBeyondEnd, QueueCorrupt.
        """
        hot = self.read_hot(
            topic,
            queue,
            offset,
            max_messages=max_messages,
            max_bytes=max_bytes,
            filter=filter,
            skip_corrupt=skip_corrupt,
        )
        if hot is not None:
            return hot
        cq = self.readable(topic, queue, offset)
        assert cq is not None
        key = (topic.topic_id, queue)
        place = Place(key, cq, offset, cq.max_offset, self._damage.lost.get(key, ()))
        wanted = Wanted(max_messages, max_bytes, filter, skip_corrupt)
        try:
            async with self._filtered_reads if filter is not None else nullcontext():
                fetched = await self.in_thread(lambda: self._cold.read(place, wanted))
        except CorruptRecord as error:
            raise self._unreadable(topic, queue, offset, cq, error) from error
        return self._noted(topic, queue, cq, fetched)

    def scan_hot(
        self, key: QueueKey, start: int, end: int, message_filter: MessageFilter
    ) -> int | None:
        """Return the first matching offset from `start` to before `end`, `end` if none does;
        None when that would have to wait for the disk, or would keep the loop for too long."""
        cq = self._queues.get(key)
        units = cq.from_tail(start) if cq is not None else None
        if units is None:
            return None
        left_us = float(MAX_HOT_SCAN_US)

        def read_block(unit: CqUnit) -> Batch:
            nonlocal left_us
            batch = self._read_block_hot(unit)
            rows = min(end, unit.end_offset) - max(start, unit.base_offset)
            left_us -= filter_cost_us(message_filter, batch) * rows / len(batch)
            if left_us < 0:
                raise NeedsDisk
            return batch

        try:
            return first_match(units, read_block, key, start, end, message_filter)
        except NeedsDisk:
            return None

    def readable(self, topic: Topic, queue: int, offset: int) -> ConsumeQueue | None:
        """Return the queue if it may be read from `offset`; None when it never had a message."""
        check_queue(topic, queue)
        cq = self._queues.get((topic.topic_id, queue))
        low, high = (0, 0) if cq is None else (cq.min_offset, cq.max_offset)
        if offset < low:
            raise OffsetTrimmed(topic.name, queue, offset, low, high)
        if offset > high:
            raise OffsetBeyondEnd(topic.name, queue, offset, low, high)
        return cq

    def note_lost(self, topic: Topic, queue: int, lost: LostRange) -> None:
        """Note messages that somebody who looked for them found damaged."""
        if self._table.by_id(topic.topic_id) is not None:
            key = (topic.topic_id, queue)
            self._damage.note_lost(key, lost.start_offset, lost.end_offset, lost.reason)

    async def in_thread(self, function: Callable[[], _T]) -> _T:
        """Run what may wait for the disk in a reader thread, first come first served."""
        async with self._reads:
            return await self._loop.run_in_executor(self._executor, function)

    def _hot_reader(self, message_filter: MessageFilter | None) -> ReadBlock:
        """Return what reads blocks on the loop: with a filter only a few, the rest is a
        reader thread's work, and so is finding out how far a damage goes."""
        left, left_us = MAX_HOT_SCAN_BYTES, float(MAX_HOT_SCAN_US)

        def read_block(unit: CqUnit) -> Batch:
            nonlocal left, left_us
            if message_filter is not None:
                left -= unit.size
                if left < 0:
                    raise NeedsDisk
            try:
                batch = self._read_block_hot(unit)
            except CorruptRecord as error:
                raise NeedsDisk from error
            if message_filter is not None:
                left_us -= filter_cost_us(message_filter, batch)
                if left_us < 0:
                    raise NeedsDisk
            return batch

        return read_block

    def _read_block_hot(self, unit: CqUnit) -> Batch:
        batch = self._cache.get(unit.physical_offset)
        if batch is None:
            batch = self._log.read_batch_nowait(unit.physical_offset, unit.size)
            if batch is None:
                raise NeedsDisk
            self._cache.put(batch)
        return batch

    # -- damage ----------------------------------------------------------------------------

    def _noted(self, topic: Topic, queue: int, cq: ConsumeQueue, fetched: Fetched) -> Fetched:
        """Note what a pull passed over. Raises as `_unreadable` returns when that is no damage."""
        for each in fetched.skipped:
            if not each.accepted:
                error = CorruptRecord(0, each.reason, next_offset=each.end_offset)
                found = self._unreadable(topic, queue, each.start_offset, cq, error)
                if not isinstance(found, QueueCorrupt):
                    raise found
        return fetched

    def _unreadable(
        self, topic: Topic, queue: int, offset: int, cq: ConsumeQueue, error: CorruptRecord
    ) -> StoreError:
        """Return why nothing is there: the topic is gone, or the queue's begin has moved past
        it, or it is damaged. Damage is noted."""
        if self._table.by_id(topic.topic_id) is None:
            return UnknownTopic(topic.name)
        if offset < cq.min_offset:
            return OffsetTrimmed(topic.name, queue, offset, cq.min_offset, cq.max_offset)
        following = error.next_offset if error.next_offset is not None else offset + 1
        self._damage.note_lost((topic.topic_id, queue), offset, following, error.reason)
        return QueueCorrupt(
            topic.name, queue, offset, following, cq.min_offset, cq.max_offset, error.reason
        )
