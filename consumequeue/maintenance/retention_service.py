"""Runs retention passes at an interval. One pass applies all limits once. Belongs to the event
loop; an executor does the work on the disk."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, TypeVarTuple

import lmdb

from holdfast.commitlog.errors import UnknownFormatVersion
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.segment import Segment
from holdfast.consumequeue.index.consume_queue import ConsumeQueue
from holdfast.consumequeue.index.index import Index
from holdfast.consumequeue.maintenance.read_leases import ReadLeases
from holdfast.consumequeue.maintenance.retention import (
    Begins,
    apply_begins,
    find_expired,
    is_unneeded,
    limit_to_leases,
    queues_by_index,
    queues_in,
)
from holdfast.consumequeue.state.records import encode_kept, kept_key
from holdfast.consumequeue.state.store import Changes
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import STATE_TOPIC_ID, QueueKey

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class InThread(Protocol):
    """Runs a function in a thread without blocking the event loop."""

    def __call__(self, function: Callable[[*_Ts], _T], /, *args: *_Ts) -> Awaitable[_T]:
        """Return the function's result."""


@dataclass(eq=False, kw_only=True)
class RetentionService:
    """Decides what is deleted. `run_once` may be called at any time; passes run one by one.

    `commit_state` makes a change of the state durable. With `keep_unknown_topics`, a topic that
    is not in the table may have been lost instead of deleted, so its messages are kept. `on_trim`
    is called on the loop with the new min offsets of queues.

    A topic's own limits respect `read_leases` unless `is_disk_low` returns True. The limit on the
    whole log ignores leases.
    """

    log: CommitLog
    index: Index
    queues: dict[QueueKey, ConsumeQueue]
    table: TopicTable
    keep_unknown_topics: bool
    commit_state: Callable[[Changes], Awaitable[None]]
    read_leases: ReadLeases
    is_disk_low: Callable[[], bool]
    in_thread: InThread
    max_total_bytes: int
    interval_s: float
    now_us: Callable[[], int]
    on_trim: Callable[[Begins], None] = lambda begins: None

    def __post_init__(self) -> None:
        self._contents: dict[int, Begins] = {}
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.deleted_segments = 0

    def start(self) -> None:
        """Run a pass every `interval_s` from now on."""
        self._task = asyncio.create_task(self._run(), name="retention")

    async def stop(self) -> None:
        """Stop; a pass in progress ends first. May be called twice."""
        if self._task is not None:
            async with self._lock:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s)
            try:
                await self.run_once()
            except Exception:  # the next pass tries again
                _logger.exception("retention failed")

    async def run_once(self) -> int:
        """Run one pass. Return how many segments it deleted."""
        async with self._lock:
            by_topic = self._queues_by_topic()
            now_us = self.now_us()
            for topic in self.table.all():
                queues = by_topic.get(topic.topic_id, {})
                await self._expire(
                    topic.topic_id,
                    queues,
                    await self.in_thread(find_expired, self.index, topic, queues, now_us),
                )
            await self._drop_deleted_topics(by_topic)
            indexed = await self._indexed_segments()
            deleted = await self._delete_unneeded(indexed)
            return deleted + await self._delete_beyond_limit(indexed[deleted:])

    def _queues_by_topic(self) -> dict[int, dict[int, ConsumeQueue]]:
        by_topic: dict[int, dict[int, ConsumeQueue]] = {}
        for (topic_id, queue), cq in list(self.queues.items()):
            by_topic.setdefault(topic_id, {})[queue] = cq
        return by_topic

    async def _expire(
        self, topic_id: int, queues: Mapping[int, ConsumeQueue], begins: Begins
    ) -> None:
        """Raise the min offsets of a topic's queues, as far as read leases allow."""
        if not begins:
            return
        async with self.read_leases.trimming:
            pinned = self.read_leases.pinned(topic_id)
            if pinned is not None and not self.is_disk_low():
                begins = await self.in_thread(
                    limit_to_leases, self.index, queues, begins, pinned.starts
                )
            await self._move(begins)

    async def _move(self, begins: Begins) -> None:
        """Store new min offsets, then apply them. Ignore new offsets that are not above the current
        ones."""
        begins = {
            key: begin
            for key, begin in begins.items()
            if (cq := self.queues.get(key)) is not None and begin > cq.min_offset
        }
        changes: dict[bytes, bytes | None] = {}
        stored = []
        for topic_id in {key[0] for key in begins}:
            kept = dict(self.table.kept.get(topic_id, {}))
            kept.update({key[1]: begin for key, begin in begins.items() if key[0] == topic_id})
            if self.table.by_id(topic_id) is not None:
                self.table.kept[topic_id] = kept
                changes[kept_key(topic_id)] = encode_kept(kept)
                stored.append(topic_id)
        if changes:
            await self.commit_state(changes)
            await self._forget_deleted(stored)
        if begins:
            await self.in_thread(self._apply, begins)
            self.on_trim(begins)

    async def _forget_deleted(self, topic_ids: list[int]) -> None:
        """Delete the records that were just stored, if their topic was deleted meanwhile."""
        deleted = {kept_key(each): None for each in topic_ids if self.table.by_id(each) is None}
        if deleted:
            await self.commit_state(deleted)

    def _apply(self, begins: Begins) -> None:
        try:
            apply_begins(self.index, self.queues, begins)
        except lmdb.Error as error:
            # Entries below a min offset do no harm. The next rise of the min offset deletes them.
            _logger.warning("deleted entries could not be removed from the index: %s", error)

    async def _drop_deleted_topics(self, by_topic: Mapping[int, Mapping[int, object]]) -> None:
        for topic_id, queues in by_topic.items():
            if topic_id == STATE_TOPIC_ID or self.table.by_id(topic_id) is not None:
                continue
            for queue in queues:
                cq = self.queues.pop((topic_id, queue))
                await self.in_thread(_delete_all, self.index, (topic_id, queue), cq.max_offset)

    async def _indexed_segments(self) -> list[Segment]:
        """Return the segments that are completely in the index on disk, oldest first. Only these
        may be deleted, because blocks that are not indexed are in no queue yet and would seem
        unneeded."""
        position = await self.in_thread(self.index.position)
        return [
            segment
            for segment in self.log.segments[:-1]
            if segment.end_offset <= position.segment_start
        ]

    async def _delete_unneeded(self, segments: list[Segment]) -> int:
        """Delete the oldest segments before the first segment that a queue needs. Return the number
        of deleted segments."""
        end = None
        own: Begins = {}
        for segment in segments:
            held = await self._content(segment)
            if not is_unneeded(held, self.queues, self._is_gone):
                break
            own.update((key, last) for key, last in held.items() if key[0] == STATE_TOPIC_ID)
            end = segment.end_offset
        if end is None:
            return 0
        await self._move(own)
        return await self._delete_before(end)

    def _is_gone(self, topic_id: int) -> bool:
        return not self.keep_unknown_topics and self.table.by_id(topic_id) is None

    async def _delete_beyond_limit(self, segments: list[Segment]) -> int:
        """Delete the oldest segments while the whole log is larger than its limit. Return the
        number of deleted segments."""
        if not self.max_total_bytes:
            return 0
        size = self.log.size_bytes
        begins: Begins = {}
        end = None
        for segment in segments:
            if size <= self.max_total_bytes:
                break
            size -= segment.size
            begins.update(await self._content(segment))
            end = segment.end_offset
        if end is None:
            return 0
        await self._move(begins)
        return await self._delete_before(end)

    async def _content(self, segment: Segment) -> Begins:
        held = self._contents.get(segment.start_offset)
        if held is None:
            held = await self.in_thread(self._queues_of, segment)
            self._contents[segment.start_offset] = held
        return held

    def _queues_of(self, segment: Segment) -> Begins:
        """Return the queues in a segment. If its file cannot be read, use the index, so that all
        later files can still be deleted."""
        try:
            return queues_in(segment)
        except (OSError, UnknownFormatVersion) as error:
            _logger.error("%s cannot be read: %s", segment.path.name, error)
            return queues_by_index(self.index, self.queues, segment)

    async def _delete_before(self, end: int) -> int:
        gone = await self.in_thread(self.log.delete_before, end)
        for segment in gone:
            self._contents.pop(segment.start_offset, None)
            _logger.info("retention deleted segment %s", segment.path.name)
        self.deleted_segments += len(gone)
        return len(gone)


def _delete_all(index: Index, key: QueueKey, end: int) -> None:
    while index.delete_before(key, end) > 0:
        pass
