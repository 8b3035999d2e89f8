"""Reads the queues of a group: heads for selection, and batches for deliveries.

A StoreHeads belongs to one group and to the event loop. The methods that the core calls never
block: they return None for data that is not in memory, and the caller then uses `fetch`, which
reads the data in a reader thread. Batches are cached for a while, so that selection and delivery
need only one read. Damaged ranges are skipped and reported as lost; the store records the damage
and the broker logs it.
"""

import asyncio
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from holdfast.commitlog.errors import UNREADABLE
from holdfast.commitlog.format.batch import Batch, key_hash
from holdfast.commitlog.format.batch_header import EXPIRES, KEYS, PROPERTIES, TAGS
from holdfast.consumequeue.errors import OffsetBeyondEnd, OffsetTrimmed, StoreError, UnknownTopic
from holdfast.consumequeue.lost_ranges import LostRanges, overlaps
from holdfast.consumequeue.reading.fetched import BatchSlice, Fetched, MessageFilter, message_sizes
from holdfast.consumequeue.reading.queue_reading import QueueReader
from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.groups.core.given_cost import PROPERTY, parse_cost
from holdfast.groups.cursor.heads import Head, Heads
from holdfast.holdservice.filters import row_values

#: A read from memory returns at most this many bytes.
HOT_BYTES = 256 * 1024
#: A fetch returns at most this many messages.
FETCH_MESSAGES = 1024
#: A fetch returns at most this many bytes, unless its caller gives another limit.
FETCH_BYTES = 1024 * 1024
#: At most this many reads from memory are done in one event loop iteration. Each takes tens of
#: microseconds, so a group with many queues that have messages needs several iterations.
READS_A_TURN = 100
#: At most this many single messages are compared with filters in one event loop iteration. Each
#: takes at least two microseconds.
MATCHES_A_TURN = 1000
#: At most this many keys are read in one event loop iteration, for groups with `last_value`. Each
#: takes about half a microsecond, and up to four if its earlier message is settled.
KEYS_A_TURN = 4096
#: At most this many needed reads are remembered. If there are more, the oldest is forgotten.
MAX_NEEDS = 1024
#: If a read fails on the disk, it is tried again after these pauses.
RETRY_PAUSES_S = (0.05, 0.5, 2.0)
#: Key hashes have 32 bits. This bit is added, so that the number of a key is never 0.
_HAS_KEY = 1 << 32
#: If a batch of one message has none of these columns, the batch's header is enough to make the
#: message's head.
_HEAD_COLUMNS = KEYS | TAGS | PROPERTIES | EXPIRES


def key_number(key: str) -> int:
    """Return the number that represents a key in `Head.key`."""
    return key_hash(key) + _HAS_KEY


class RecentBatches:
    """A cache of recently read batches, by queue and offset, limited in bytes.

    The least recently added batches are dropped first. The newest batch always stays, even if it is
    larger than the limit. So a batch that was just read is still there when the caller needs it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._batches: OrderedDict[tuple[QueueKey, int], Batch] = OrderedDict()
        #: queue -> the base offsets of its batches, ascending.
        self._bases: dict[QueueKey, list[int]] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, queue: QueueKey, batch: Batch) -> None:
        """Add a batch as the newest. If the cache has it already, make it the newest."""
        base = batch.header.base_offset
        if (queue, base) in self._batches:
            self._batches.move_to_end((queue, base))
            return
        self._batches[queue, base] = batch
        insort(self._bases.setdefault(queue, []), base)
        self.size_bytes += batch.total_size
        while self.size_bytes > self._max_bytes and len(self._batches) > 1:
            self._drop(*next(iter(self._batches)))

    def find(self, queue: QueueKey, offset: int) -> Batch | None:
        """Return the batch that contains an offset; None if it is not in the cache."""
        bases = self._bases.get(queue)
        if not bases:
            return None
        at = bisect_right(bases, offset) - 1
        if at < 0:
            return None
        batch = self._batches[queue, bases[at]]
        return batch if offset < bases[at] + batch.header.message_count else None

    def forget_topic(self, topic_id: int) -> None:
        """Drop a topic's batches."""
        for queue in [each for each in self._bases if each[0] == topic_id]:
            for base in list(self._bases[queue]):
                self._drop(queue, base)

    def _drop(self, queue: QueueKey, base: int) -> None:
        batch = self._batches.pop((queue, base))
        self.size_bytes -= batch.total_size
        bases = self._bases[queue]
        if len(bases) == 1:
            del self._bases[queue]
        else:
            del bases[bisect_right(bases, base) - 1]


class _Piece(msgspec.Struct):
    """Heads that were read for one filter, from the offsets [start, scanned) of a queue."""

    start: int
    scanned: int
    heads: list[Head]
    lost: LostRanges = ()
    #: How many of the heads were returned to the core.
    taken_count: int = 0


_NO_PIECES: dict[object | None, _Piece] = {}


class StoreHeads:
    """A HeadSource that reads from the message store. `topic_by_id` returns None for a topic that
    was deleted. `has_keys` and `has_costs` return whether the group needs keys and given costs in
    heads. `wall_ms` is the wall
    clock. If a read finds that its offset was removed, `on_trimmed` is called with the queue and
    its present first offset."""

    def __init__(
        self,
        topic_by_id: Callable[[int], Topic | None],
        reader: QueueReader,
        recent: RecentBatches,
        *,
        has_keys: Callable[[], bool],
        has_costs: Callable[[], bool],
        wall_ms: Callable[[], int],
        on_trimmed: Callable[[QueueKey, int], None],
    ) -> None:
        self.topic_by_id = topic_by_id
        self._reader = reader
        self._recent = recent
        self._has_keys = has_keys
        self._has_costs = has_costs
        self._wall_ms = wall_ms
        self._on_trimmed = on_trimmed
        #: queue -> filter -> heads that were read, but not all returned to the core yet.
        self._pieces: dict[QueueKey, dict[object | None, _Piece]] = {}
        #: The needed reads, for `fetch`: (queue, offset) -> the filter.
        self._needed: dict[tuple[QueueKey, int], MessageFilter | None] = {}
        #: How many reads from memory, and how many comparisons with filters, this event loop
        #: iteration may still do.
        self._reads_left = READS_A_TURN
        self._matches_left = MATCHES_A_TURN
        #: How many keys this event loop iteration may still read.
        self._keys_left = KEYS_A_TURN
        #: Whether the reset of the three numbers is scheduled for the next iteration.
        self._is_turn_ending = False
        #: Offsets whose comparison with a filter, or whose key, was deferred to the next iteration:
        #: at most MAX_NEEDS.
        self._deferred: set[tuple[QueueKey, int]] = set()
        self._fetching: dict[tuple[QueueKey, int], asyncio.Task[Batch | None]] = {}

    # -- for the core ------------------------------------------------------------------------

    def read(
        self, queue: QueueKey, start: int, end: int, most: int, filter: object | None
    ) -> Heads | None:
        """Return at most `most` matching messages of [start, end); None if a fetch is needed."""
        piece = self._pieces.get(queue, _NO_PIECES).get(filter)
        if piece is None or not piece.start <= start < piece.scanned:
            heads = self._read_one(queue, start, filter) if end == start + 1 else None
            if heads is not None:
                return Heads(heads, end)
            if (queue, start) in self._deferred:
                return None
            piece = self._read_hot(queue, start, most, filter)
            if piece is None:
                self._need(queue, start, filter)
                return None
        return self._take_heads(piece, queue, filter, start, end, most)

    def matches(self, queue: QueueKey, offset: int, filter: object) -> bool | None:
        """Return whether one message matches; None if a fetch is needed."""
        batch = self.batch(queue, offset)
        if batch is None:
            if self._is_lost(queue, offset):
                return False  # an unreadable message matches no filter
            self._need(queue, offset, None)
            return None
        if not self._may_match(queue, offset):
            return None
        row = offset - batch.header.base_offset
        return len(_matching(filter, batch, row)) > 0

    def keys(self, queue: QueueKey, start: int, end: int) -> Sequence[bytes] | None:
        """Return the keys of some messages of [start, end), from `start` on: of one batch. The key
        is b"" if a message has none, or cannot be read. None if a fetch is needed."""
        if self._keys_left <= 0:
            self._defer(queue, start)
            return None
        batch = self._recent.find(queue, start)
        if batch is None and self._is_lost(queue, start):
            self._keys_left -= 1
            self._schedule_turn_end()
            return (b"",)
        if batch is None:
            self._read_memory(queue, start, max_messages=FETCH_MESSAGES, filter=None)
            batch = self._recent.find(queue, start)
        if batch is None:
            self._need(queue, start, None)
            return None
        row = start - batch.header.base_offset
        count = min(len(batch) - row, end - start, self._keys_left)
        self._schedule_turn_end()
        self._keys_left -= count
        return _keys_of(batch, row, row + count)

    def wall_ms(self, now_ms: int) -> int:
        """Return the time of the wall clock, which may differ from the group's time."""
        return self._wall_ms()

    # -- for the callers of the core ---------------------------------------------------------

    def batch(self, queue: QueueKey, offset: int) -> Batch | None:
        """Return the batch that contains an offset; None if a fetch is needed."""
        batch = self._recent.find(queue, offset)
        if batch is None:
            self._read_memory(queue, offset, max_messages=1, filter=None)
            batch = self._recent.find(queue, offset)
        return batch

    async def fetch(
        self, queue: QueueKey, offset: int, max_bytes: int = FETCH_BYTES
    ) -> Batch | None:
        """Read the data that a call of the core needed at this offset, so that the repeated call
        succeeds. Return the batch that contains the offset, if it was read. The caller should use
        this batch, because other reads may evict it from the cache.

        Concurrent fetches of the same offset share one read; its `max_bytes` is that of the first
        caller. Return None if the topic or the offset does not exist. If the offset was removed
        from the queue, also call `on_trimmed`. All other errors of the store are raised."""
        task = self._fetching.get((queue, offset))
        if task is None:
            task = asyncio.create_task(self._fetch(queue, offset, max_bytes), name="group-fetch")
            self._fetching[queue, offset] = task
            task.add_done_callback(lambda done: self._fetch_done(queue, offset, done))
        return await asyncio.shield(task)

    def forget(self, queue: QueueKey | None = None) -> None:
        """Drop the heads that were read from a queue; if it is None, from all queues."""
        if queue is None:
            self._pieces.clear()
        else:
            self._pieces.pop(queue, None)

    async def stop(self) -> None:
        """Wait for the reads in progress."""
        if self._fetching:
            await asyncio.wait(list(self._fetching.values()))

    def _may_match(self, queue: QueueKey, offset: int) -> bool:
        """Count one comparison of a single message with a filter. Return False if this event loop
        iteration has no comparison left. Then the caller must `fetch` the offset, which defers the
        comparison to a later iteration."""
        if self._matches_left <= 0:
            self._defer(queue, offset)
            return False
        self._schedule_turn_end()
        self._matches_left -= 1
        return True

    def _defer(self, queue: QueueKey, offset: int) -> None:
        """Let the next fetch of this offset wait for the next event loop iteration."""
        if len(self._deferred) >= MAX_NEEDS:
            self._deferred.pop()
        self._deferred.add((queue, offset))

    def _is_lost(self, queue: QueueKey, offset: int) -> bool:
        """Return whether the last read without a filter found the offset unreadable."""
        piece = self._pieces.get(queue, _NO_PIECES).get(None)
        return piece is not None and overlaps(piece.lost, offset, offset + 1)

    def _schedule_turn_end(self) -> None:
        if not self._is_turn_ending:
            self._is_turn_ending = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _need(self, queue: QueueKey, offset: int, filter: object | None) -> None:
        if len(self._needed) >= MAX_NEEDS:
            del self._needed[next(iter(self._needed))]
        self._needed[queue, offset] = filter  # type: ignore[assignment]

    def _take_heads(
        self, piece: _Piece, queue: QueueKey, filter: object | None, start: int, end: int, most: int
    ) -> Heads:
        """Return the heads of a piece in [start, end), at most `most`. Drop the piece when all its
        heads have been returned."""
        heads, at = piece.heads, piece.taken_count
        if at >= len(heads) or (at and heads[at - 1].offset >= start):
            at = 0
        while at < len(heads) and heads[at].offset < start:
            at += 1
        stop = min(at + most, len(heads))
        while stop > at and heads[stop - 1].offset >= end:
            stop -= 1
        scanned = heads[stop].offset if stop < len(heads) else piece.scanned
        if scanned >= piece.scanned and end >= piece.scanned:
            pieces = self._pieces.get(queue)
            if pieces is not None:
                pieces.pop(filter, None)
                if not pieces:
                    del self._pieces[queue]
        else:
            piece.taken_count = stop
            self._pieces.setdefault(queue, {})[filter] = piece
        return Heads(heads[at:stop], min(scanned, end), piece.lost)

    def _read_one(self, queue: QueueKey, offset: int, filter: object | None) -> list[Head] | None:
        """Return the head of a single message, or an empty list if the filter does not match it.
        Return None if its batch is neither cached nor the newest one of the queue, or if this event
        loop iteration may not read it or compare it with a filter."""
        batch = self._recent.find(queue, offset)
        if batch is None and self._reads_left > 0:
            batch = self._reader.newest_alone(queue, offset)
            if batch is not None:
                self._schedule_turn_end()
                self._reads_left -= 1
                self._recent.put(queue, batch)
        if batch is None:
            return None
        if filter is not None and not self._may_match(queue, offset):
            return None
        row = offset - batch.header.base_offset
        if filter is not None and not len(_matching(filter, batch, row)):
            return []
        return [self._head(batch, row)]

    def _read_hot(
        self, queue: QueueKey, start: int, most: int, filter: object | None
    ) -> _Piece | None:
        fetched = self._read_memory(queue, start, max_messages=most, filter=filter)
        if fetched is None or fetched.next_offset <= start:
            return None
        return self._piece(start, fetched)

    def _read_memory(
        self, queue: QueueKey, start: int, *, max_messages: int, filter: object | None
    ) -> Fetched | None:
        """Read from memory, and cache the batches. Return None if the disk is needed, or if this
        event loop iteration may not read more."""
        if self._reads_left <= 0:
            return None
        self._schedule_turn_end()
        self._reads_left -= 1
        topic = self.topic_by_id(queue[0])
        if topic is None:
            return None
        try:
            fetched = self._reader.read_hot(
                topic,
                queue[1],
                start,
                max_messages=max_messages,
                max_bytes=HOT_BYTES,
                filter=filter,  # type: ignore[arg-type]
                skip_corrupt=True,
            )
        except StoreError:  # `fetch` gets the same error and raises it
            return None
        if fetched is not None:
            self._keep(queue, fetched.slices)
        return fetched

    def _next_turn(self) -> None:
        self._reads_left = READS_A_TURN
        self._matches_left = MATCHES_A_TURN
        self._keys_left = KEYS_A_TURN
        self._is_turn_ending = False

    async def _fetch(self, queue: QueueKey, offset: int, max_bytes: int) -> Batch | None:
        if (queue, offset) in self._deferred:
            self._deferred.discard((queue, offset))
            batch = self._recent.find(queue, offset)
            if batch is not None:
                return batch
        filter = self._needed.pop((queue, offset), None)
        topic = self.topic_by_id(queue[0])
        if topic is None:
            return None
        try:
            for pause_s in (*RETRY_PAUSES_S, None):
                fetched = await self._reader.read(
                    topic,
                    queue[1],
                    offset,
                    max_messages=FETCH_MESSAGES,
                    max_bytes=max_bytes,
                    filter=filter,
                    skip_corrupt=True,
                )
                if pause_s is None or all(each.reason != UNREADABLE for each in fetched.skipped):
                    break
                # Retry: a failed read may succeed later, but skipped messages are settled forever.
                await asyncio.sleep(pause_s)
        except OffsetTrimmed as error:
            self._on_trimmed(queue, error.min_offset)
            return None
        except (OffsetBeyondEnd, UnknownTopic):
            return None  # `GroupRegistry.topic_deleted` removes a deleted topic
        self._keep(queue, fetched.slices)
        if fetched.next_offset > offset:
            self._pieces.setdefault(queue, {})[filter] = self._piece(offset, fetched)
        return next((each.batch for each in fetched.slices if _holds(each.batch, offset)), None)

    def _fetch_done(self, queue: QueueKey, offset: int, task: "asyncio.Task[Batch | None]") -> None:
        self._fetching.pop((queue, offset), None)
        if not task.cancelled():
            task.exception()  # so that asyncio does not log it; the waiting callers get it

    def _keep(self, queue: QueueKey, slices: Sequence[BatchSlice]) -> None:
        for each in slices:
            self._recent.put(queue, each.batch)

    def _piece(self, start: int, fetched: Fetched) -> _Piece:
        heads: list[Head] = []
        for each in fetched.slices:
            heads += self._heads_of(each.batch, each.rows)
        return _Piece(start, fetched.next_offset, heads, fetched.skipped)

    def _heads_of(self, batch: Batch, rows: Sequence[int]) -> list[Head]:
        if not len(rows):
            return []
        base = batch.header.base_offset
        if len(rows) == 1:
            return [self._head(batch, rows[0])]
        at = slice(rows.start, rows.stop) if isinstance(rows, range) else np.asarray(rows)
        sizes = message_sizes(batch)[at].tolist()
        nothing = [0] * len(rows)
        keys = expiries = costs = nothing
        if self._has_keys() and batch.key_hashes is not None and batch.key_offsets is not None:
            has_key = np.diff(batch.key_offsets)[at] > 0
            keys = np.where(has_key, batch.key_hashes[at].astype(np.int64) + _HAS_KEY, 0).tolist()
        expires_us = batch.expires_timestamps_us
        if expires_us is not None:
            expiries = (-(-expires_us[at] // 1000)).tolist()
        if self._has_costs():
            costs = given_costs(batch, rows)
        offsets: Iterable[int]
        if isinstance(rows, range):
            offsets = range(base + rows.start, base + rows.stop)
        else:
            offsets = [base + row for row in rows]
        return list(map(Head, offsets, sizes, keys, expiries, costs))

    def _head(self, batch: Batch, row: int) -> Head:
        """Return the head of one row. This does not use numpy, which is slow for a single row."""
        header = batch.header
        if header.message_count == 1 and not header.flags & _HEAD_COLUMNS:
            return Head(header.base_offset, header.body_bytes)
        size, key, cost = len(batch.body(row)), 0, 0
        offsets = batch.key_offsets
        if offsets is not None:
            length = int(offsets[row + 1] - offsets[row])
            size += length
            if length and self._has_keys() and batch.key_hashes is not None:
                key = int(batch.key_hashes[row]) + _HAS_KEY
        if batch.tag_offsets is not None:
            size += int(batch.tag_offsets[row + 1] - batch.tag_offsets[row])
        if batch.property_list is not None:
            properties = batch.properties(row)
            size += sum(len(a.encode()) + len(b.encode()) for a, b in properties.items())
        expires_at_ms = -(-batch.expires_timestamp_us(row) // 1000)
        if self._has_costs():
            (cost,) = given_costs(batch, (row,))
        return Head(header.base_offset + row, size, key, expires_at_ms, cost)


def given_costs(batch: Batch, rows: Sequence[int]) -> list[int]:
    """Return the given cost of each of the rows, which must be ascending."""
    values = row_values(batch, rows, frozenset((PROPERTY,)))
    return [parse_cost(found.get(PROPERTY)) for _, found in values]


def _keys_of(batch: Batch, first: int, end: int) -> Sequence[bytes]:
    """Return the keys of the rows [first, end); b"" for a message without a key."""
    if batch.key_offsets is None:
        return [b""] * (end - first)
    offsets = batch.key_offsets[first : end + 1].tolist()
    keys, base = bytes(batch.keys[offsets[0] : offsets[-1]]), offsets[0]
    return [keys[start - base : stop - base] for start, stop in pairwise(offsets)]


def _holds(batch: Batch, offset: int) -> bool:
    return 0 <= offset - batch.header.base_offset < len(batch)


def _matching(filter: object, batch: Batch, row: int) -> Sequence[int]:
    """Return a sequence with the row if it matches the filter, otherwise an empty one."""
    wanted: MessageFilter = filter  # type: ignore[assignment]
    return wanted.matching_rows(batch, row, row + 1)
