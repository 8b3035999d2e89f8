"""What a group sees of the queues: heads for selection, rows of batches for deliveries.

One HeadSource belongs to one group and to the event loop. It never waits: what is not in memory
it answers with None, and `fetch` brings it in a reader thread. What was read is kept for a
while: a batch that gave heads is there again when its messages are delivered, so that it is read
once. Damage is passed over, and told as lost; the store notes it, and the broker says so.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from holdfast.commitlog.batch import Batch
from holdfast.consumequeue.errors import OffsetBeyondEnd, OffsetTrimmed, StoreError, UnknownTopic
from holdfast.consumequeue.fetched import BatchSlice, Fetched, message_sizes
from holdfast.consumequeue.lost_ranges import LostRanges, overlaps
from holdfast.consumequeue.reader import MessageFilter
from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.groups.heads import Head, Heads
from holdfast.groups.recent_batches import RecentBatches

#: What one look without the disk takes in at most, and one in a thread that is told nothing else.
HOT_BYTES = 256 * 1024
FETCH_MESSAGES = 1024
FETCH_BYTES = 1024 * 1024
#: Needs that are remembered: of those that nobody fetched the oldest are forgotten.
MAX_NEEDS = 1024
#: Keys have 32-bit hashes; this makes those of messages that have a key differ from "none".
_HAS_KEY = 1 << 32


class Store(Protocol):
    """What is needed of the message store."""

    def topic_by_id(self, topic_id: int) -> Topic | None:
        """Return a topic."""

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
        """Read what is in memory."""

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
        """Read, in a thread if it must be."""


@dataclass(slots=True)
class _Piece:
    """What was read of a queue, from an offset up to another, and how far it was given out."""

    start: int
    scanned: int
    heads: list[Head]
    lost: LostRanges = ()
    given: int = 0


class StoreHeads:
    """Heads of the store's queues. `has_keys` says whether keys matter, `lead_ms` is how far the
    group's time is ahead of the one by which messages grow old; `trimmed` is told where a queue
    begins that was asked for something before that."""

    def __init__(
        self,
        store: Store,
        recent: RecentBatches,
        *,
        has_keys: Callable[[], bool],
        lead_ms: Callable[[], int],
        trimmed: Callable[[QueueKey, int], None],
    ) -> None:
        self._store = store
        self._recent = recent
        self._has_keys = has_keys
        self._lead_ms = lead_ms
        self._trimmed = trimmed
        self._pieces: dict[tuple[QueueKey, object | None], _Piece] = {}
        #: What a None was answered for, by what the core says that it needs.
        self._needed: dict[tuple[QueueKey, int], MessageFilter | None] = {}
        self._fetching: dict[tuple[QueueKey, int], asyncio.Task[Batch | None]] = {}

    # -- for the core ------------------------------------------------------------------------

    def read(
        self, queue: QueueKey, start: int, end: int, most: int, filter: object | None
    ) -> Heads | None:
        """Return up to `most` messages of [start, end) that pass; None: not without the disk."""
        piece = self._pieces.get((queue, filter))
        if piece is None or not piece.start <= start < piece.scanned:
            piece = self._read_one(queue, start, filter) if end == start + 1 else None
            piece = piece or self._read_hot(queue, start, most, filter)
            if piece is None:
                self._need(queue, start, filter)
                return None
        return self._given(piece, (queue, filter), start, end, most)

    def matches(self, queue: QueueKey, offset: int, filter: object) -> bool | None:
        """Say whether one message passes; None: not without the disk."""
        batch = self.batch(queue, offset)
        if batch is None:
            piece = self._pieces.get((queue, None))
            if piece is not None and overlaps(piece.lost, offset, offset + 1):
                return False  # nobody's filter passes what cannot be read
            self._need(queue, offset, None)
            return None
        row = offset - batch.header.base_offset
        return len(_matching(filter, batch, row)) > 0

    # -- for the shell -----------------------------------------------------------------------

    def batch(self, queue: QueueKey, offset: int) -> Batch | None:
        """Return the batch that holds an offset, None when that has to be fetched first."""
        batch = self._recent.find(queue, offset)
        if batch is None:
            self._look(queue, offset, max_messages=1, filter=None)
            batch = self._recent.find(queue, offset)
        return batch

    async def fetch(
        self, queue: QueueKey, offset: int, max_bytes: int = FETCH_BYTES
    ) -> Batch | None:
        """Read what was asked for at an offset, so that asking again gives an answer; return the
        batch that holds it, if it was read: others' reads may push it out before it is looked for.
        Those who want the same share one read, as large as the first of them wants it. Errors of
        the store pass through, but for a queue that begins later by now, of which `trimmed` is
        told, and a topic that is gone."""
        task = self._fetching.get((queue, offset))
        if task is None:
            task = asyncio.create_task(self._fetch(queue, offset, max_bytes), name="group-fetch")
            self._fetching[queue, offset] = task
            task.add_done_callback(lambda done: self._fetched(queue, offset, done))
        return await asyncio.shield(task)

    def forget(self, queue: QueueKey | None = None) -> None:
        """Forget what was read of a queue, or of all."""
        for key in [key for key in self._pieces if queue in (None, key[0])]:
            del self._pieces[key]

    async def stop(self) -> None:
        """Wait for the reads under way."""
        if self._fetching:
            await asyncio.wait(list(self._fetching.values()))

    # -- inside ------------------------------------------------------------------------------

    def _need(self, queue: QueueKey, offset: int, filter: object | None) -> None:
        if len(self._needed) >= MAX_NEEDS:
            del self._needed[next(iter(self._needed))]
        self._needed[queue, offset] = filter  # type: ignore[assignment]

    def _given(
        self,
        piece: _Piece,
        key: tuple[QueueKey, object | None],
        start: int,
        end: int,
        most: int,
    ) -> Heads:
        """Return a part of a piece, and forget the piece once it was all given out."""
        heads, at = piece.heads, piece.given
        if at >= len(heads) or (at and heads[at - 1].offset >= start):
            at = 0
        while at < len(heads) and heads[at].offset < start:
            at += 1
        stop = min(at + most, len(heads))
        while stop > at and heads[stop - 1].offset >= end:
            stop -= 1
        scanned = heads[stop].offset if stop < len(heads) else piece.scanned
        if scanned >= piece.scanned and end >= piece.scanned:
            self._pieces.pop(key, None)
        else:
            piece.given = stop
            self._pieces[key] = piece
        return Heads(heads[at:stop], min(scanned, end), piece.lost)

    def _read_one(self, queue: QueueKey, offset: int, filter: object | None) -> _Piece | None:
        """Look at a single message that was read a while ago."""
        batch = self._recent.find(queue, offset)
        if batch is None:
            return None
        row = offset - batch.header.base_offset
        rows = range(row, row + 1) if filter is None else _matching(filter, batch, row)
        return _Piece(offset, offset + 1, self._heads_of(batch, rows))

    def _read_hot(
        self, queue: QueueKey, start: int, most: int, filter: object | None
    ) -> _Piece | None:
        fetched = self._look(queue, start, max_messages=most, filter=filter)
        if fetched is None or fetched.next_offset <= start:
            return None
        return self._piece(start, fetched)

    def _look(
        self, queue: QueueKey, start: int, *, max_messages: int, filter: object | None
    ) -> Fetched | None:
        """Read without the disk, and keep the batches."""
        topic = self._store.topic_by_id(queue[0])
        if topic is None:
            return None
        try:
            fetched = self._store.read_hot(
                topic,
                queue[1],
                start,
                max_messages=max_messages,
                max_bytes=HOT_BYTES,
                filter=filter,  # type: ignore[arg-type]
                skip_corrupt=True,
            )
        except StoreError:  # `fetch` meets it again, and can tell of it
            return None
        if fetched is not None:
            self._keep(queue, fetched.slices)
        return fetched

    async def _fetch(self, queue: QueueKey, offset: int, max_bytes: int) -> Batch | None:
        filter = self._needed.pop((queue, offset), None)
        topic = self._store.topic_by_id(queue[0])
        if topic is None:
            return None
        try:
            fetched = await self._store.read(
                topic,
                queue[1],
                offset,
                max_messages=FETCH_MESSAGES,
                max_bytes=max_bytes,
                filter=filter,
                skip_corrupt=True,
            )
        except OffsetTrimmed as error:
            self._trimmed(queue, error.min_offset)
            return None
        except (OffsetBeyondEnd, UnknownTopic):
            return None  # the group hears of a topic's end by itself
        self._keep(queue, fetched.slices)
        if fetched.next_offset > offset:
            self._pieces[queue, filter] = self._piece(offset, fetched)
        return next((each.batch for each in fetched.slices if _holds(each.batch, offset)), None)

    def _fetched(self, queue: QueueKey, offset: int, task: "asyncio.Task[Batch | None]") -> None:
        self._fetching.pop((queue, offset), None)
        if not task.cancelled():
            task.exception()  # whoever waits for it gets it

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
        keys = expiries = nothing
        if self._has_keys() and batch.key_hashes is not None and batch.key_offsets is not None:
            has_key = np.diff(batch.key_offsets)[at] > 0
            keys = np.where(has_key, batch.key_hashes[at].astype(np.int64) + _HAS_KEY, 0).tolist()
        expires_us = batch.expires_timestamps_us
        if expires_us is not None:
            lead_ms = self._lead_ms()
            ends = expires_us[at]
            expiries = np.where(ends > 0, -(-ends // 1000) + lead_ms, 0).tolist()
        return [
            Head(base + row, size, key, expires_at_ms)
            for row, size, key, expires_at_ms in zip(rows, sizes, keys, expiries, strict=True)
        ]

    def _head(self, batch: Batch, row: int) -> Head:
        """Return the head of one row: numpy is slow for single ones."""
        size, key = len(batch.body(row)), 0
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
        expires_us = batch.expires_timestamp_us(row)
        expires_at_ms = -(-expires_us // 1000) + self._lead_ms() if expires_us else 0
        return Head(batch.header.base_offset + row, size, key, expires_at_ms)


def _holds(batch: Batch, offset: int) -> bool:
    return 0 <= offset - batch.header.base_offset < len(batch)


def _matching(filter: object, batch: Batch, row: int) -> Sequence[int]:
    """Return the row if it passes the filter."""
    wanted: MessageFilter = filter  # type: ignore[assignment]
    return wanted.matching_rows(batch, row, row + 1)
