"""Reading a queue by offset: from memory on the event loop where that is possible, else from the
disk in a reader thread."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
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
from holdfast.consumequeue.shares import Shares, reading_order
from holdfast.consumequeue.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey, Topic, check_queue

#: Blocks that a filtered read may look through on the event loop: a few milliseconds' work.
MAX_HOT_SCAN_BYTES = 64 * 1024
MAX_HOT_SCAN_US = 2000
#: What one read without a filter takes in on the event loop: some milliseconds' work.
MAX_HOT_BLOCKS = 64
MAX_HOT_BYTES = 256 * 1024
#: Reads given to the threads, or back from them and not yet taken by the loop. A few more than
#: there are threads; without a bound, threads that are quicker than the loop fill the memory.
READS_AT_ONCE = 6
_T = TypeVar("_T")

#: Why one queue of many cannot be read.
Unreadable = OffsetTrimmed | OffsetBeyondEnd | QueueCorrupt


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
        """As `read`, but None when the answer would have to wait for the disk, or is so much that
        it would keep the loop for too long."""
        place = self._place(topic, queue, offset)
        wanted = Wanted(max_messages, max_bytes, filter, skip_corrupt)
        return (
            self._read_hot(topic, place, wanted) if place else self._nothing(topic, queue, offset)
        )

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
        place = self._place(topic, queue, offset)
        if place is None:
            return self._nothing(topic, queue, offset)
        wanted = Wanted(max_messages, max_bytes, filter, skip_corrupt)
        hot = self._read_hot(topic, place, wanted)
        if hot is not None:
            return hot
        try:
            async with self._filtered_reads if filter is not None else nullcontext():
                fetched = await self.in_thread(lambda: self._cold.read(place, wanted))
        except CorruptRecord as error:
            raise self._unreadable(topic, place, error) from error
        return self._noted(topic, place, fetched)

    async def read_many(
        self,
        topic: Topic,
        offsets: Mapping[int, int],
        *,
        max_messages: int,
        max_bytes: int,
        filter: MessageFilter | None = None,
        skip_corrupt: bool = False,
        whole_batches: bool = False,
    ) -> dict[int, Fetched | Unreadable]:
        """Deliver messages of several queues, each from its offset on, as `read` does.

        They share the bounds as `shares` has it, which says what `whole_batches` means. A queue
        that cannot be read has its OffsetTrimmed, OffsetBeyondEnd or QueueCorrupt in place of
        what was found. However many need the disk, they are one thread's work.
        Raises UnknownTopic, UnknownQueue.
        """
        found: dict[int, Fetched | Unreadable] = {}
        places = self._places(
            topic, offsets, reading_order(offsets, whole_batches=whole_batches), found
        )
        wanted = Wanted(max_messages, max_bytes, filter, skip_corrupt)
        shares = Shares(len(places), wanted, whole_batches=whole_batches)
        cold = self._read_hot_places(topic, places, shares, found)
        if cold:
            async with self._filtered_reads if filter is not None else nullcontext():
                reads = await self.in_thread(lambda: self._cold.read_many(cold, shares))
            for place, read in zip(cold, reads, strict=True):
                try:
                    if isinstance(read, CorruptRecord):
                        raise self._unreadable(topic, place, read) from read
                    found[place.key[1]] = self._noted(topic, place, read)
                except (OffsetTrimmed, QueueCorrupt) as error:
                    found[place.key[1]] = error
        return found

    def _places(
        self,
        topic: Topic,
        offsets: Mapping[int, int],
        order: Iterable[int],
        found: dict[int, Fetched | Unreadable],
    ) -> list[Place]:
        """Return where there is something to read, in this order; `found` gets the others."""
        places = []
        topic_id, queues, lost = topic.topic_id, self._queues, self._damage.lost
        check_queue(topic, min(offsets))
        check_queue(topic, max(offsets))
        for queue in order:
            offset, key = offsets[queue], (topic_id, queue)
            cq = queues.get(key)
            low, high = (0, 0) if cq is None else (cq.min_offset, cq.max_offset)
            if offset < low:
                found[queue] = OffsetTrimmed(topic.name, queue, offset, low, high)
            elif offset > high:
                found[queue] = OffsetBeyondEnd(topic.name, queue, offset, low, high)
            elif cq is None or offset == high:
                found[queue] = Fetched((), offset, low, high, 0)
            else:
                places.append(Place(key, cq, offset, high, lost.get(key, ())))
        return places

    def _read_hot_places(
        self,
        topic: Topic,
        places: list[Place],
        shares: Shares,
        found: dict[int, Fetched | Unreadable],
    ) -> list[Place]:
        """Read one place after the other into `found`; return those from the first on that needs
        the disk, or that is too much for the loop with those before it."""
        left = MAX_HOT_BYTES
        for number, place in enumerate(places):
            wanted = shares.wanted()
            if wanted is None:
                found[place.key[1]] = place.nothing()
                continue
            try:
                fetched = self._read_hot(topic, place, wanted) if left > 0 else None
            except (OffsetTrimmed, QueueCorrupt) as error:
                shares.taken(None)
                found[place.key[1]] = error
                continue
            if fetched is None:
                return places[number:]
            shares.taken(fetched)
            left -= fetched.block_bytes
            found[place.key[1]] = fetched
        return []

    def _read_hot(self, topic: Topic, place: Place, wanted: Wanted) -> Fetched | None:
        units = self._hot_units(place, wanted)
        if units is None:
            return None
        try:
            fetched = collect(
                units,
                self._hot_reader(wanted.filter),
                place.key,
                place.offset,
                min_offset=place.cq.min_offset,
                max_offset=place.max_offset,
                max_messages=wanted.max_messages,
                max_bytes=wanted.max_bytes,
                message_filter=wanted.filter,
                skip_corrupt=wanted.skip_corrupt,
                lost=place.lost,
            )
        except NeedsDisk:
            return None
        except CorruptRecord as error:
            raise self._unreadable(topic, place, error) from error
        return self._noted(topic, place, fetched)

    def _hot_units(self, place: Place, wanted: Wanted) -> Iterable[CqUnit] | None:
        """Return a place's entries if they are in memory and no more than the loop should read:
        of many, or of large ones that nobody has read yet, a reader thread makes less."""
        tail = place.cq.from_tail(place.offset)
        if tail is None or wanted.filter is not None:
            return tail
        units = list(islice(tail, MAX_HOT_BLOCKS + 1))
        if len(units) > min(MAX_HOT_BLOCKS, wanted.max_messages):
            if wanted.max_messages > MAX_HOT_BLOCKS:
                return None
            del units[wanted.max_messages + 1 :]
        size = min(sum([unit.size for unit in units]), wanted.max_bytes)
        is_large = len(units) > 1 and size > MAX_HOT_BYTES
        return None if is_large and units[0].physical_offset not in self._cache else units

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

    def _place(self, topic: Topic, queue: int, offset: int) -> Place | None:
        """Return where a read begins, None when there is nothing. Raises as `readable`."""
        cq = self.readable(topic, queue, offset)
        if cq is None or offset == cq.max_offset:
            return None
        key = (topic.topic_id, queue)
        return Place(key, cq, offset, cq.max_offset, self._damage.lost.get(key, ()))

    def _nothing(self, topic: Topic, queue: int, offset: int) -> Fetched:
        """Return the answer at a queue's end."""
        cq = self._queues.get((topic.topic_id, queue))
        return Fetched((), offset, 0 if cq is None else cq.min_offset, offset, 0)

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

    def _noted(self, topic: Topic, place: Place, fetched: Fetched) -> Fetched:
        """Note what a pull passed over. Raises as `_unreadable` returns when that is no damage."""
        for each in fetched.skipped:
            if not each.accepted:
                error = CorruptRecord(0, each.reason, next_offset=each.end_offset)
                start = place._replace(offset=each.start_offset)
                found = self._unreadable(topic, start, error)
                if not isinstance(found, QueueCorrupt):
                    raise found
        return fetched

    def _unreadable(self, topic: Topic, place: Place, error: CorruptRecord) -> StoreError:
        """Return why nothing is there: the topic is gone, or the queue's begin has moved past
        it, or it is damaged. Damage is noted."""
        cq, queue, offset = place.cq, place.key[1], place.offset
        if self._table.by_id(topic.topic_id) is None:
            return UnknownTopic(topic.name)
        if offset < cq.min_offset:
            return OffsetTrimmed(topic.name, queue, offset, cq.min_offset, cq.max_offset)
        following = error.next_offset if error.next_offset is not None else offset + 1
        self._damage.note_lost(place.key, offset, following, error.reason)
        return QueueCorrupt(
            topic.name, queue, offset, following, cq.min_offset, cq.max_offset, error.reason
        )
