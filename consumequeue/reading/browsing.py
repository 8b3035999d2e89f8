"""Browse a topic: the messages of several queues in one order, by time, newest or oldest first.

Each queue has a lane, which reads the queue in chunks. The lane whose next message is the newest
(or oldest) comes next. Messages of one queue are in the order of their offsets. Messages of several
queues that were stored at the same time are in the order of their queues; newest first is exactly
the reverse of oldest first. On the event loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec

from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.errors import OffsetTrimmed
from holdfast.consumequeue.lost_ranges import LostRanges, with_lost
from holdfast.consumequeue.reading.fetched import BatchSlice, MessageFilter
from holdfast.consumequeue.reading.lookups import Lookups
from holdfast.consumequeue.reading.queue_reading import QueueReader
from holdfast.consumequeue.topics import Topic

#: A lane reads at most this many messages at once.
CHUNK_MESSAGES = 64
#: The same limit for a lane with a filter, which delivers only some of the messages.
FILTERED_CHUNK_MESSAGES = 1000
#: A lane keeps at most this many bytes of batches, unless it keeps only one batch.
CHUNK_BYTES = 1024 * 1024
#: The batches of the returned messages have at most this many bytes together, unless there is only
#: one. The same limit holds for the batches that all lanes keep, except those of the last one read.
RETAINED_BYTES = 16 * 1024 * 1024
#: One request with a filter examines at most about this many messages, some 0.2 s of work in
#: threads. The next request continues there.
MAX_EXAMINED = 20_000


class Place(NamedTuple):
    """One message: a row of a batch."""

    offset: int
    batch: Batch
    row: int

    @property
    def body_bytes(self) -> int:
        """The size of the message's body."""
        offsets = self.batch.body_offsets
        return int(offsets[self.row + 1] - offsets[self.row])


IsWanted = Callable[[int, int], bool]
"""Returns whether the message at (queue, offset) is wanted."""


class BrowseLimits(NamedTuple):
    """What one request may deliver, and which messages it wants."""

    max_messages: int
    max_bytes: int
    filter: MessageFilter | None = None
    is_wanted: IsWanted | None = None

    @property
    def is_selective(self) -> bool:
        return self.filter is not None or self.is_wanted is not None


class Lane(msgspec.Struct):
    """The progress in one queue. The messages between `at` and the end of the lane are not read."""

    queue: int
    low: int
    high: int
    start: int
    """Where the request begins. Newest first: the offset after the first message. Oldest first:
    the offset of the first message."""
    at: int
    ready: deque[Place] = msgspec.field(default_factory=deque)
    """Messages that are read and not delivered, in ascending order."""
    ready_bytes: int = 0
    """The size of the batches of `ready`, when they were read."""
    bound_us: int = 0
    """No message that is left was stored later (newest first), or earlier (oldest first)."""
    skipped: LostRanges = ()

    def has_more(self, newest: bool) -> bool:
        return bool(self.ready) or (self.at > self.low if newest else self.at < self.high)

    def next_offset(self, newest: bool) -> int:
        """Return the `start` of the next request."""
        if not self.ready:
            return self.at
        return self.ready[-1].offset + 1 if newest else self.ready[0].offset


class Browsed(NamedTuple):
    """The messages in their order, and the lanes by queue."""

    messages: list[BatchSlice]
    lanes: dict[int, Lane]


async def browse(
    reading: QueueReader,
    lookups: Lookups,
    topic: Topic,
    starts: Mapping[int, int],
    limits: BrowseLimits,
    *,
    newest: bool,
) -> Browsed:
    """Return messages of the queues in `starts` (queue -> start).

    If `newest` is set, the messages before the start are returned; otherwise those from it on.
    A start outside of its queue is replaced by the nearest end. At least one message is returned
    even if it exceeds `max_bytes`. If a filter excludes many messages, fewer messages than exist
    are returned, or none: then `has_more` of a lane is true. Damaged messages are skipped, and each
    lane records their ranges. Raises UnknownTopic, UnknownQueue.
    """
    browser = _Browser(reading, lookups, topic, limits, newest)
    lanes = {queue: browser.lane(queue, start) for queue, start in starts.items()}
    await browser.bound([lane for lane in lanes.values() if lane.has_more(newest)])
    return Browsed(await browser.merge(list(lanes.values())), lanes)


class _Browser(msgspec.Struct):
    reading: QueueReader
    lookups: Lookups
    topic: Topic
    limits: BrowseLimits
    newest: bool
    kept_bytes: int = 0
    """The sum of `ready_bytes` of all lanes."""

    def lane(self, queue: int, start: int) -> Lane:
        state = self.reading.queue_state(self.topic, queue)
        at = min(max(start, state.min_offset), state.max_offset)
        return Lane(queue, state.min_offset, state.max_offset, at, at)

    async def bound(self, lanes: list[Lane]) -> None:
        """Find the time of the next message of each lane in the index."""
        newest = self.newest
        places = [
            ((self.topic.topic_id, lane.queue), lane.at - 1 if newest else lane.at)
            for lane in lanes
        ]
        stored = await self.lookups.stored_at(places)
        for lane, stored_us in zip(lanes, stored, strict=True):
            lane.bound_us = stored_us or 0

    async def merge(self, lanes: list[Lane]) -> list[BatchSlice]:
        limits, newest = self.limits, self.newest
        heap = [self._entry(lane) for lane in lanes if lane.has_more(newest)]
        heapify(heap)
        found: list[BatchSlice] = []
        batches: set[int] = set()  # the ids of the batches of the found messages
        size = batch_bytes = examined = 0
        while heap and len(found) < limits.max_messages and examined < MAX_EXAMINED:
            lane = heap[0][-1]
            is_read = not lane.ready
            if is_read:
                before = lane.at
                await self._read_chunk(lane)
                if limits.is_selective:
                    examined += abs(lane.at - before)
                await asyncio.sleep(0)
            else:
                place = self._next(lane)
                size += place.body_bytes
                if id(place.batch) not in batches:
                    batches.add(id(place.batch))
                    batch_bytes += place.batch.header.total_size
                if found and (size > limits.max_bytes or batch_bytes > RETAINED_BYTES):
                    break
                self._take(lane)
                found.append(BatchSlice(place.batch, [place.row]))
            heappop(heap)
            if not lane.has_more(newest):
                continue
            if not lane.ready:
                await self.bound([lane])
            elif is_read and self._must_put_back(lane, heap):
                self._put_back(lane)
            heappush(heap, self._entry(lane))
        return found

    def _next(self, lane: Lane) -> Place:
        return lane.ready[-1 if self.newest else 0]

    def _take(self, lane: Lane) -> None:
        """Remove the lane's next message."""
        if self.newest:
            lane.ready.pop()
        else:
            lane.ready.popleft()
        if not lane.ready:
            self._set_ready_bytes(lane, 0)

    def _must_put_back(self, lane: Lane, heap: list[tuple[int, int, Lane]]) -> bool:
        """Return whether the lanes keep too much memory, and another lane comes before this one."""
        is_too_much = self.kept_bytes > RETAINED_BYTES
        return is_too_much and bool(heap) and self._entry(lane) > heap[0]

    def _put_back(self, lane: Lane) -> None:
        """Forget the messages that were read, to free their memory. They are read again when the
        lane's next message comes next."""
        place = self._next(lane)
        lane.bound_us = place.batch.header.store_timestamp_us
        lane.at = place.offset + 1 if self.newest else place.offset
        lane.ready.clear()
        self._set_ready_bytes(lane, 0)

    def _set_ready_bytes(self, lane: Lane, size: int) -> None:
        self.kept_bytes += size - lane.ready_bytes
        lane.ready_bytes = size

    def _entry(self, lane: Lane) -> tuple[int, int, Lane]:
        """Return the lane with its rank: the lane with the lowest rank comes next."""
        stored_us = lane.bound_us
        if lane.ready:
            stored_us = self._next(lane).batch.header.store_timestamp_us
        return (-stored_us, -lane.queue, lane) if self.newest else (stored_us, lane.queue, lane)

    async def _read_chunk(self, lane: Lane) -> None:
        """Read the lane's next messages into `ready`, and move `at`."""
        count = self._chunk_messages(lane)
        if self.newest:
            start, end = max(lane.at - count, lane.low), lane.at
        else:
            start, end = lane.at, min(lane.at + count, lane.high)
        try:
            reached, first = await self._read_range(lane, start, end)
        except OffsetTrimmed as error:  # retention was faster
            lane.low = error.min_offset
            lane.at = max(lane.at, lane.low)
            lane.high = max(lane.high, lane.low)
            return
        lane.at = first if self.newest else reached

    async def _read_range(self, lane: Lane, start: int, end: int) -> tuple[int, int]:
        """Read the messages in [start, end) into `ready`, without exceeding CHUNK_BYTES.

        Return the offset up to which was read, and the first offset of which all later ones are in
        `ready` or not wanted. To stay below CHUNK_BYTES, the oldest messages are dropped if
        `newest` is set; otherwise the reading ends.
        """
        limits, at, first, size = self.limits, start, start, 0
        while at < end and (self.newest or size < CHUNK_BYTES):
            fetched = await self.reading.read(
                self.topic,
                lane.queue,
                at,
                max_messages=end - at,
                max_bytes=CHUNK_BYTES,
                filter=limits.filter,
                filter_end=end,
                skip_corrupt=True,
            )
            for lost in fetched.skipped:
                lane.skipped = with_lost(lane.skipped, lost)
            ready = lane.ready
            for place in _places(fetched.slices, end):
                if limits.is_wanted is None or limits.is_wanted(lane.queue, place.offset):
                    if not ready or ready[-1].batch is not place.batch:
                        size += place.batch.header.total_size
                    ready.append(place)
            while self.newest and size > CHUNK_BYTES and ready[0].batch is not ready[-1].batch:
                dropped = ready.popleft()
                if ready[0].batch is not dropped.batch:
                    size -= dropped.batch.header.total_size
                first = dropped.offset + 1
            self._set_ready_bytes(lane, size)
            if fetched.next_offset <= at:
                return end, first  # the queue became shorter
            at = fetched.next_offset
        return min(at, end), first

    def _chunk_messages(self, lane: Lane) -> int:
        if self.limits.is_selective:
            return FILTERED_CHUNK_MESSAGES
        state = self.reading.queue_state(self.topic, lane.queue)
        average = state.bytes // max(state.max_offset - state.min_offset, 1)
        return max(min(CHUNK_MESSAGES, CHUNK_BYTES // max(average, 1)), 1)


def _places(slices: list[BatchSlice], end: int) -> list[Place]:
    """Return the rows of slices as places, without those at `end` and beyond."""
    return [
        Place(each.batch.header.base_offset + int(row), each.batch, int(row))
        for each in slices
        for row in each.rows
        if each.batch.header.base_offset + int(row) < end
    ]
