"""Reading a queue by offset: from memory on the event loop if possible, otherwise from the disk
in a reader thread."""

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from holdfast.commitlog.errors import CorruptRecord
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.consumequeue.damage.damage_book import DamageBook
from holdfast.consumequeue.errors import (
    OffsetBeyondEnd,
    OffsetTrimmed,
    QueueCorrupt,
    StoreError,
    UnknownQueue,
    UnknownTopic,
)
from holdfast.consumequeue.index.consume_queue import ConsumeQueue, CqUnit
from holdfast.consumequeue.index.index import Index
from holdfast.consumequeue.lost_ranges import LostRange, overlaps
from holdfast.consumequeue.reading.disk_reader import DiskReader
from holdfast.consumequeue.reading.fetched import (
    Fetched,
    MessageFilter,
    Shares,
    Wanted,
    reading_order,
)
from holdfast.consumequeue.reading.reader import (
    NeedsDisk,
    Place,
    ReadBlock,
    collect,
    filter_cost_us,
    first_match,
)
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.thread_calls import call_in_thread
from holdfast.consumequeue.topics import QueueKey, QueueState, Topic

#: A filtered read on the event loop scans at most this many bytes.
MAX_HOT_SCAN_BYTES = 64 * 1024
#: A filtered read on the event loop takes at most about this long.
MAX_HOT_SCAN_US = 2000
#: A read without a filter on the event loop reads at most this many blocks.
MAX_HOT_BLOCKS = 64
#: If the blocks of such a read have more bytes than this, a reader thread reads them, unless there
#: is only one block or the first block is cached.
MAX_HOT_BYTES = 256 * 1024
#: At most this many reads are in a reader thread, or have a result that the event loop has not
#: fetched yet: otherwise threads that are faster than the loop would fill the memory with results.
#: This is slightly more than the number of threads.
READS_AT_ONCE = 6
#: One call in a thread processes at most this many items of a long list, with two index look-ups
#: each. This takes about 10 ms.
ITEMS_A_CALL = 50
_T = TypeVar("_T")

#: Reasons why one queue of a `read_many` cannot be read.
Unreadable = OffsetTrimmed | OffsetBeyondEnd | QueueCorrupt


@dataclass(eq=False, kw_only=True)
class QueueReader:
    """Reads queues. Call every method on the event loop."""

    log: CommitLog
    index: Index
    queues: Mapping[QueueKey, ConsumeQueue]
    table: TopicTable
    executor: ThreadPoolExecutor
    cache_bytes: int
    damage: DamageBook

    def __post_init__(self) -> None:
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        #: Only one filtered read runs at a time. A filter keeps the interpreter busy, and several
        #: filters together would block the event loop.
        self._filtered_reads = asyncio.Semaphore(1)
        self._disk_reader = DiskReader(self.log, self.index)
        self._cache = BlockCache(self.cache_bytes)

    def max_offset(self, key: QueueKey) -> int | None:
        """Return the next offset of a queue, or None if there is no such topic or queue."""
        topic = self.table.by_id(key[0])
        if topic is None or not 0 <= key[1] < topic.queue_count:
            return None
        cq = self.queues.get(key)
        return 0 if cq is None else cq.max_offset

    def bounds(self, key: QueueKey) -> tuple[int, int] | None:
        """Return the first and the next offset of a queue, or None if there is no such topic or
        queue."""
        topic = self.table.by_id(key[0])
        if topic is None or not 0 <= key[1] < topic.queue_count:
            return None
        cq = self.queues.get(key)
        return (0, 0) if cq is None else (cq.min_offset, cq.max_offset)

    def queue_state(self, topic: Topic, queue: int) -> QueueState:
        """Return where a queue begins and ends. Raises UnknownQueue."""
        if not 0 <= queue < topic.queue_count:
            raise UnknownQueue(topic.name, queue, topic.queue_count)
        cq = self.queues.get((topic.topic_id, queue))
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
        """Read as `read` does, but return None if the read would have to wait for the disk or is
        so large that it would block the loop for too long."""
        cq = self.readable(topic, queue, offset)
        if cq is None or offset == (max_offset := cq.max_offset):
            return Fetched((), offset, 0 if cq is None else cq.min_offset, offset, 0)
        key = (topic.topic_id, queue)
        place = Place(key, cq, offset, max_offset, self.damage.lost.get(key, ()))
        wanted = Wanted(max_messages, max_bytes, filter, skip_corrupt)
        return self._read_hot(topic, place, wanted)

    async def read(
        self,
        topic: Topic,
        queue: int,
        offset: int,
        *,
        max_messages: int,
        max_bytes: int,
        filter: MessageFilter | None = None,
        filter_end: int = sys.maxsize,
        skip_corrupt: bool = False,
    ) -> Fetched:
        """Return messages of a queue from `offset` on.

        The result has at most `max_messages` matching messages. Their bodies, keys, tags and
        properties have at most `max_bytes` together, but one message is always allowed. The read
        has examined all messages before `next_offset`. At the end of the queue the result is empty
        and `next_offset` equals `offset`. With a filter the result may also be empty before the
        end, because one read scans only a limited amount. It examines no batch that begins at
        `filter_end` or later.

        If a message after `offset` is damaged, the result ends before this message. If the message
        at `offset` is damaged, QueueCorrupt is raised. With `skip_corrupt`, damaged messages are
        skipped and their ranges are reported in `skipped`. Raises UnknownTopic, UnknownQueue,
        OffsetTrimmed, OffsetBeyondEnd, QueueCorrupt.
        """
        wanted = Wanted(
            max_messages, max_bytes, filter, skip_corrupt=skip_corrupt, filter_end=filter_end
        )
        fetched = (await self._read_wanted(topic, {queue: offset}, wanted))[queue]
        if isinstance(fetched, Fetched):
            return fetched
        raise fetched

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
        rebuilt: bool = False,
    ) -> dict[int, Fetched | Unreadable]:
        """Return messages of several queues, each from its own offset on, as `read` does.

        The queues share the limits; `Shares` explains how, and what `whole_batches` means;
        `Wanted` explains `rebuilt`. A queue that cannot be read gets its OffsetTrimmed,
        OffsetBeyondEnd or QueueCorrupt as its result.
        One thread reads all queues that need the disk. Raises UnknownTopic, UnknownQueue.
        """
        wanted = Wanted(max_messages, max_bytes, filter, skip_corrupt, rebuilt)
        return await self._read_wanted(topic, offsets, wanted, whole_batches=whole_batches)

    async def _read_wanted(
        self,
        topic: Topic,
        offsets: Mapping[int, int],
        wanted: Wanted,
        *,
        whole_batches: bool = False,
    ) -> dict[int, Fetched | Unreadable]:
        found: dict[int, Fetched | Unreadable] = {}
        places = self._locate_all(
            topic, offsets, reading_order(offsets, whole_batches=whole_batches), found
        )
        shares = Shares(len(places), wanted, whole_batches=whole_batches)
        cold = self._read_hot_places(topic, places, shares, found)
        if cold:
            async with self._filtered_reads if wanted.filter is not None else nullcontext():
                reads = await self.in_thread(lambda: self._disk_reader.read_many(cold, shares))
            for place, read in zip(cold, reads, strict=True):
                try:
                    if isinstance(read, CorruptRecord):
                        raise self._read_error(topic, place, read) from read
                    found[place.key[1]] = self._record_damage(topic, place, read)
                except (OffsetTrimmed, QueueCorrupt) as error:
                    found[place.key[1]] = error
        return found

    def _locate_all(
        self,
        topic: Topic,
        offsets: Mapping[int, int],
        order: Iterable[int],
        found: dict[int, Fetched | Unreadable],
    ) -> list[Place]:
        """Return a place for each queue that has something to read, in the given order. Put the
        results of the other queues into `found`."""
        places = []
        topic_id, queues, lost = topic.topic_id, self.queues, self.damage.lost
        for queue in (min(offsets), max(offsets)):
            if not 0 <= queue < topic.queue_count:
                raise UnknownQueue(topic.name, queue, topic.queue_count)
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
        """Read the places in order, and put the results into `found`. Stop at the first place that
        needs the disk or exceeds what the loop may read. Return this place and all later places."""
        left = MAX_HOT_BYTES
        if self._exceeds_loop(places, left):
            return places
        for number, place in enumerate(places):
            wanted = shares.next_share()
            if wanted is None:
                found[place.key[1]] = place.nothing()
                continue
            try:
                fetched = self._read_hot(topic, place, wanted) if left > 0 else None
            except (OffsetTrimmed, QueueCorrupt) as error:
                shares.subtract(None)
                found[place.key[1]] = error
                continue
            if fetched is None:
                return places[number:]
            shares.subtract(fetched)
            found[place.key[1]] = fetched
            if number + 1 < len(places):
                left -= fetched.block_bytes
        return []

    def _exceeds_loop(self, places: list[Place], most_bytes: int) -> bool:
        """Return whether a reader thread would read these places faster than the event loop: the
        newest blocks of several places have more than `most_bytes` together, and the first of
        these blocks is not in memory."""
        if len(places) < 2:
            return False
        first, size = places[0].cq.newest, 0
        for place in places:
            size += place.cq.newest.size if place.cq.newest is not None else 0
            if size > most_bytes:
                return first is None or self._find_block(first) is None
        return False

    def _read_hot(self, topic: Topic, place: Place, wanted: Wanted) -> Fetched | None:
        newest = self._read_newest(place, wanted)
        if newest is not None:
            return newest
        units = self._hot_units(place, wanted)
        if units is None:
            return None
        try:
            fetched = collect(units, self._hot_reader(wanted.filter), place, wanted)
        except NeedsDisk:
            return None
        except CorruptRecord as error:
            raise self._read_error(topic, place, error) from error
        return self._record_damage(topic, place, fetched)

    def _read_newest(self, place: Place, wanted: Wanted) -> Fetched | None:
        """Return the result if the read gets exactly the newest batch of the queue, and this batch
        is in memory; otherwise return None. Most requests that waited for a message are such
        reads, and this is a shorter way than `collect` with the same result."""
        unit = place.newest_only(wanted)
        batch = None if unit is None else self._find_block(unit)
        return None if batch is None else place.whole(batch)

    def newest_alone(self, key: QueueKey, offset: int) -> Batch | None:
        """Return the newest batch of a queue, if it is in memory and has only the message at
        `offset`; otherwise None. A message that wakes a waiting request usually is such a batch."""
        cq = self.queues.get(key)
        unit = None if cq is None else cq.newest
        if cq is None or unit is None or unit.base_offset != offset or unit.message_count != 1:
            return None
        if offset < cq.min_offset or self.damage.lost.get(key):
            return None
        return self._find_block(unit)

    def _hot_units(self, place: Place, wanted: Wanted) -> Iterable[CqUnit] | None:
        """Return a place's entries if they are in memory and the loop may read all their blocks.
        Return None if there are too many entries, or if the blocks are large and not in the cache:
        a reader thread reads these faster."""
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
        """Return the first matching offset from `start` to before `end`, or `end` if none matches.
        Return None if the scan would have to wait for the disk or block the loop for too long."""
        cq = self.queues.get(key)
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
        """Return the queue if `offset` is within its bounds (max_offset included), or None if the
        queue never had a message. Raises UnknownQueue, OffsetTrimmed, OffsetBeyondEnd."""
        if not 0 <= queue < topic.queue_count:
            raise UnknownQueue(topic.name, queue, topic.queue_count)
        cq = self.queues.get((topic.topic_id, queue))
        low, high = (0, 0) if cq is None else (cq.min_offset, cq.max_offset)
        if offset < low:
            raise OffsetTrimmed(topic.name, queue, offset, low, high)
        if offset > high:
            raise OffsetBeyondEnd(topic.name, queue, offset, low, high)
        return cq

    def record_lost(self, topic: Topic, queue: int, lost: LostRange) -> None:
        """Record messages that a look-up found damaged, unless their topic was deleted."""
        if self.table.by_id(topic.topic_id) is not None:
            key = (topic.topic_id, queue)
            self.damage.record_lost(key, lost.start_offset, lost.end_offset, lost.reason)

    async def in_thread(self, function: Callable[[], _T]) -> _T:
        """Run a function in a reader thread, where it may wait for the disk. Functions start in
        order of arrival. Cancelling takes effect when the thread is done; until then the function
        counts as one of READS_AT_ONCE."""
        async with self._reads:
            return await call_in_thread(function, executor=self.executor)

    async def all_in_thread(self, items: Iterator[_T]) -> list[_T]:
        """Return all items of an iterator that may wait for the disk at each item. A reader thread
        takes ITEMS_A_CALL items at a time. Between two calls, other reads may run and cancelling
        takes effect, so the iterator must not hold a lock or a transaction between items."""
        found: list[_T] = []
        while True:
            more = await self.in_thread(lambda: list(islice(items, ITEMS_A_CALL)))
            found += more
            if len(more) < ITEMS_A_CALL:
                return found

    def _hot_reader(self, message_filter: MessageFilter | None) -> ReadBlock:
        """Return a function that reads blocks on the loop. It raises NeedsDisk at damage, because
        finding the end of the damage takes long. With a filter it also raises NeedsDisk when the
        blocks are more than the loop may scan."""
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
        batch = self._find_block(unit)
        if batch is None:
            batch = self.log.read_batch_nowait(unit.physical_offset, unit.size)
            if batch is None:
                raise NeedsDisk
            self._cache.put(batch)
        return batch

    def _find_block(self, unit: CqUnit) -> Batch | None:
        """Return the batch of an entry if the cache or the log's newest blocks have it."""
        batch = self._cache.get(unit.physical_offset)
        if batch is None:
            batch = self.log.newest.find(unit.physical_offset, unit.size)
            if batch is not None:
                self._cache.put(batch)
        return batch

    # -- damage ----------------------------------------------------------------------------

    def _record_damage(self, topic: Topic, place: Place, fetched: Fetched) -> Fetched:
        """Record the damage that a read skipped. If the read could read a range that was recorded
        as damaged, forget this range: the disk may have failed only once. If a skipped range was
        not damaged but deleted, raise the error of `_read_error`."""
        if place.lost and overlaps(place.lost, place.offset, fetched.next_offset):
            for piece in fetched.slices:
                base = piece.batch.header.base_offset
                self.damage.record_readable(place.key, base, base + len(piece.batch))
        for each in fetched.skipped:
            if not each.accepted:
                error = CorruptRecord(0, each.reason, next_offset=each.end_offset)
                start = place._replace(offset=each.start_offset)
                found = self._read_error(topic, start, error)
                if not isinstance(found, QueueCorrupt):
                    raise found
        return fetched

    def _read_error(self, topic: Topic, place: Place, error: CorruptRecord) -> StoreError:
        """Return the error for a `place` that cannot be read: its topic was deleted, or retention
        deleted the offset, or the block is damaged. Record damage."""
        cq, queue, offset = place.cq, place.key[1], place.offset
        if self.table.by_id(topic.topic_id) is None:
            return UnknownTopic(topic.name)
        if offset < cq.min_offset:
            return OffsetTrimmed(topic.name, queue, offset, cq.min_offset, cq.max_offset)
        following = error.next_offset if error.next_offset is not None else offset + 1
        self.damage.record_lost(place.key, offset, following, error.reason)
        return QueueCorrupt(
            topic.name, queue, offset, following, cq.min_offset, cq.max_offset, error.reason
        )


#: A decoded batch needs about this much memory in addition to its block.
OBJECTS_BYTES = 1600


def memory_of(batch: Batch) -> int:
    """Return about how many bytes of memory a decoded batch takes."""
    return batch.header.total_size + OBJECTS_BYTES


class BlockCache:
    """The most recently used batches by physical offset, up to `max_bytes`. Decoded batches are
    cached because many pulls wait for the same message."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._batches: OrderedDict[int, Batch] = OrderedDict()

    def get(self, physical_offset: int) -> Batch | None:
        """Return a batch, or None if it is not in the cache."""
        batch = self._batches.get(physical_offset)
        if batch is not None:
            self._batches.move_to_end(physical_offset)
        return batch

    def __contains__(self, physical_offset: int) -> bool:
        return physical_offset in self._batches

    def put(self, batch: Batch) -> None:
        """Add a verified batch, and drop the least recently used ones above the limit."""
        size = memory_of(batch)
        if size > self._max_bytes or batch.header.physical_offset in self._batches:
            return
        self._batches[batch.header.physical_offset] = batch
        self._bytes += size
        while self._bytes > self._max_bytes:
            _, oldest = self._batches.popitem(last=False)
            self._bytes -= memory_of(oldest)
