"""The store as the layers above see it: publish, read by offset, look up, topics, offsets.

Lives on the event loop: every method is called there, and none of those that are not `async`
ever waits. Disk reads run in a small pool of threads; writes belong to the appender and state
threads, which hand their results back to the loop, a call a commit.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from holdfast.commitlog.appender import Appender, AppendRequest
from holdfast.commitlog.batch import Batch
from holdfast.commitlog.batch_check import MessageLimits
from holdfast.commitlog.commit_log import CommitLog
from holdfast.commitlog.errors import CorruptRecord, LogError
from holdfast.commitlog.message_id import parse_message_id
from holdfast.consumequeue.block_cache import BlockCache
from holdfast.consumequeue.config import TopicsConfig
from holdfast.consumequeue.consume_queue import ConsumeQueue, CqUnit
from holdfast.consumequeue.errors import (
    InvalidTopicChange,
    LimitReached,
    OffsetBeyondEnd,
    OffsetsChanged,
    OffsetTrimmed,
    QueueCorrupt,
    StoreError,
    TopicConflict,
    UnknownMessage,
    UnknownQueue,
    UnknownTopic,
)
from holdfast.consumequeue.index import Index
from holdfast.consumequeue.key_search import find_key
from holdfast.consumequeue.queue_lookup import STORE_TIMESTAMP, first_unit_reaching, units_from
from holdfast.consumequeue.reader import (
    BatchSlice,
    Fetched,
    MessageFilter,
    NeedsDisk,
    ReadBlock,
    collect,
    first_match,
)
from holdfast.consumequeue.splits import Split, plan_splits
from holdfast.consumequeue.state_journal import encode_changes
from holdfast.consumequeue.state_records import (
    NEXT_TOPIC_ID,
    StoredOffsets,
    encode_number,
    encode_offsets,
    encode_topic,
    kept_key,
    offsets_key,
    topic_key,
)
from holdfast.consumequeue.state_store import Changes, StateStore
from holdfast.consumequeue.topic_table import TopicTable
from holdfast.consumequeue.topics import (
    STATE_TOPIC_ID,
    QueueKey,
    Topic,
    TopicConfig,
    check_name,
)

__all__ = [
    "BatchSlice",
    "Fetched",
    "MessageFilter",
    "MessageStore",
    "Published",
    "QueueKey",
    "QueueState",
    "Split",
    "StoredOffsets",
]

_logger = logging.getLogger(__name__)

#: Blocks that a filtered read may look through on the event loop: a few milliseconds' work.
MAX_HOT_SCAN_BYTES = 64 * 1024
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class QueueState:
    """Where a queue begins and ends. `bytes` are stored bytes from min to max offset."""

    queue: int
    min_offset: int
    max_offset: int
    bytes: int
    newest_timestamp_us: int | None


@dataclass(frozen=True, slots=True)
class Published:
    """Where one batch of a publish is. `durable`: it was acknowledged after a sync."""

    queue: int
    base_offset: int
    count: int
    durable: bool
    duplicate: bool
    store_timestamp_us: int


class MessageStore:
    """Publish, read and look up. The composition sets `topic_deleted`.

    A change of topics or stored offsets that was begun goes on to its end even if whoever asked
    for it is cancelled: memory and disk never part. `changes_done` waits for such.
    """

    def __init__(
        self,
        *,
        log: CommitLog,
        appender: Appender,
        index: Index,
        queues: Mapping[QueueKey, ConsumeQueue],
        state: StateStore,
        table: TopicTable,
        config: TopicsConfig,
        executor: ThreadPoolExecutor,
        cache_bytes: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._log = log
        self._appender = appender
        self._index = index
        self._queues = queues
        self._state = state
        self._table = table
        self._config = config
        self._executor = executor
        self._cache = BlockCache(cache_bytes)
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._topic_lock = asyncio.Lock()
        self._offset_locks: WeakValueDictionary[tuple[str, int], asyncio.Lock] = (
            WeakValueDictionary()
        )
        self._changes: set[asyncio.Task[Any]] = set()
        self.topic_deleted: Callable[[int], None] = lambda topic_id: None

    # -- topics ----------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """Return a topic. Raises InvalidName or UnknownTopic."""
        return self._table.get(name)

    def topic_by_id(self, topic_id: int) -> Topic | None:
        """Return a topic by its id, None if there is none."""
        return self._table.by_id(topic_id)

    def topics(self) -> list[Topic]:
        """Return every topic, sorted by name."""
        return self._table.all()

    def limits(self, topic: Topic) -> MessageLimits:
        """Return what a message of this topic may have at most."""
        return MessageLimits(
            topic.config.max_message_bytes,
            self._config.max_key_bytes,
            self._config.max_tag_bytes,
            self._config.max_properties_bytes,
        )

    async def create_topic(
        self, name: str, *, queues: int | None = None, fields: Mapping[str, object] | None = None
    ) -> tuple[Topic, bool]:
        """Create a topic, or ensure that it is as given; return it and whether it is new.

        Fields not given get the configured defaults, and are not compared. Raises InvalidName,
        InvalidTopicChange, LimitReached, TopicConflict, StateUnavailable.
        """
        check_name("topic", name)
        return await self._to_its_end(self._create_topic(name, queues, fields or {}))

    async def _create_topic(
        self, name: str, queues: int | None, given: Mapping[str, object]
    ) -> tuple[Topic, bool]:
        async with self._topic_lock:
            existing = self._table.find(name)
            if existing is not None:
                _compare(existing, queues, given)
                return existing, False
            if len(self._table) >= self._config.max_topics:
                raise LimitReached("max_topics", self._config.max_topics)
            topic = Topic(
                name,
                self._table.next_topic_id,
                self._checked_queues(
                    name, self._config.default_queues if queues is None else queues
                ),
                replace(self._default_config(), **_normal(given)),
                self._now_ms(),
            )
            await self.commit_state(
                {
                    topic_key(name): encode_topic(topic),
                    NEXT_TOPIC_ID: encode_number(topic.topic_id + 1),
                }
            )
            self._table.next_topic_id = topic.topic_id + 1
            self._table.put(topic)
            return topic, True

    async def change_topic(
        self, name: str, *, queues: int | None = None, fields: Mapping[str, object]
    ) -> Topic:
        """Change a topic's settings and return it; queues may only be added.

        Raises UnknownTopic, InvalidTopicChange, LimitReached, StateUnavailable.
        """
        return await self._to_its_end(self._change_topic(name, queues, fields))

    async def _change_topic(
        self, name: str, queues: int | None, fields: Mapping[str, object]
    ) -> Topic:
        async with self._topic_lock:
            topic = self._table.get(name)
            count = topic.queue_count
            if queues is not None:
                if queues < count:
                    raise InvalidTopicChange(
                        name, f"it has {count} queues; queues can be added, never removed"
                    )
                count = self._checked_queues(name, queues)
            changed = replace(
                topic, queue_count=count, config=replace(topic.config, **_normal(fields))
            )
            if changed != topic:
                await self.commit_state({topic_key(name): encode_topic(changed)})
                self._table.put(changed)
            return changed

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, its messages and what groups stored for it. Raises UnknownTopic,
        StateUnavailable."""
        await self._to_its_end(self._delete_topic(name))

    async def _delete_topic(self, name: str) -> None:
        async with self._topic_lock:
            topic = self._table.get(name)
            changes: dict[bytes, bytes | None] = {
                topic_key(name): None,
                kept_key(topic.topic_id): None,
            }
            for group in self._table.groups():
                if topic.topic_id in self._table.group_offsets(group):
                    changes[offsets_key(group, topic.topic_id)] = None
            await self.commit_state(changes)
            self._table.remove(topic)
            self.topic_deleted(topic.topic_id)

    def _checked_queues(self, name: str, queues: int) -> int:
        if queues < 1:
            raise InvalidTopicChange(name, "it needs at least one queue")
        if queues > self._config.max_queues_per_topic:
            raise LimitReached("max_queues_per_topic", self._config.max_queues_per_topic)
        return queues

    def _default_config(self) -> TopicConfig:
        config = self._config
        return TopicConfig(
            config.default_durability,
            config.default_retention_ms or None,
            config.default_retention_bytes or None,
            config.default_max_message_bytes,
        )

    # -- publishing ------------------------------------------------------------------------

    async def publish(
        self, topic: Topic, batches: Sequence[Batch], *, durability: str | None = None
    ) -> list[Published]:
        """Append checked batches, whose queue ids are set; return where each one is, in order,
        once it can be read from there (unless it asks for less than its topic's durability).

        Acknowledged as `durability` says ("fsync" or "written"), else as the topic does. Raises
        UnknownTopic when it was deleted meanwhile, UnknownQueue, and the log's errors.
        Cancelling is safe: the batches may still be stored.
        """
        if self._table.by_id(topic.topic_id) is None:
            raise UnknownTopic(topic.name)
        for batch in batches:
            self._check_queue(topic, batch.header.queue_id)
        durable = (durability or topic.config.durability) == "fsync"
        future: asyncio.Future[None] = self._loop.create_future()
        request = AppendRequest(topic.topic_id, batches, durable, context=future)
        self._appender.submit(request)
        await future
        return [
            Published(
                result.queue_id,
                result.base_offset,
                result.message_count,
                durable,
                result.duplicate,
                result.store_timestamp_us,
            )
            for result in request.results
        ]

    def completed(self, requests: list[AppendRequest]) -> None:
        """Hand finished requests to the loop (called in the reput thread)."""
        try:
            self._loop.call_soon_threadsafe(_finish, requests)
        except RuntimeError:
            _logger.warning("%d publishes ended after the event loop", len(requests))

    # -- reading ---------------------------------------------------------------------------

    def max_offset(self, key: QueueKey) -> int | None:
        """Return the next offset of a queue, None when there is no such topic or queue."""
        topic = self._table.by_id(key[0])
        if topic is None or not 0 <= key[1] < topic.queue_count:
            return None
        cq = self._queues.get(key)
        return 0 if cq is None else cq.max_offset

    def queue_state(self, topic: Topic, queue: int) -> QueueState:
        """Return where a queue begins and ends. Raises UnknownQueue."""
        self._check_queue(topic, queue)
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
    ) -> Fetched | None:
        """As `read`, but None when the answer would have to wait for the disk."""
        cq = self._readable(topic, queue, offset)
        if cq is None or offset == cq.max_offset:
            end = 0 if cq is None else cq.max_offset
            return Fetched([], offset, 0 if cq is None else cq.min_offset, end, 0)
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
            )
            _check_advance(fetched, offset)
            return fetched
        except NeedsDisk:
            return None
        except CorruptRecord as error:
            raise _unreadable(topic, queue, offset, cq, error) from error

    async def read(
        self,
        topic: Topic,
        queue: int,
        offset: int,
        *,
        max_messages: int,
        max_bytes: int,
        filter: MessageFilter | None = None,
    ) -> Fetched:
        """Deliver messages of a queue from `offset` on.

        At most `max_messages` that match, and after the first one not beyond `max_bytes` of
        message texts. `next_offset` is past all that was scanned. At the end of the queue the
        answer is empty, with `next_offset` equal to `offset`; a filter may also answer empty
        before the end, having scanned its share. Raises UnknownQueue, OffsetTrimmed,
        OffsetBeyondEnd, QueueCorrupt.
        """
        hot = self.read_hot(
            topic, queue, offset, max_messages=max_messages, max_bytes=max_bytes, filter=filter
        )
        if hot is not None:
            return hot
        cq = self._readable(topic, queue, offset)
        assert cq is not None
        key = (topic.topic_id, queue)
        max_offset = cq.max_offset

        def read_cold() -> Fetched:
            return collect(
                units_from(self._index, key, cq, offset),
                self._read_block,
                key,
                offset,
                min_offset=cq.min_offset,
                max_offset=max_offset,
                max_messages=max_messages,
                max_bytes=max_bytes,
                message_filter=filter,
            )

        try:
            fetched = await self._in_thread(read_cold)
            _check_advance(fetched, offset)
        except CorruptRecord as error:
            raise _unreadable(topic, queue, offset, cq, error) from error
        return fetched

    def scan_hot(
        self, key: QueueKey, start: int, end: int, message_filter: MessageFilter
    ) -> int | None:
        """Return the first matching offset from `start` to before `end`, `end` if none does;
        None when that would have to wait for the disk."""
        cq = self._queues.get(key)
        units = cq.from_tail(start) if cq is not None else None
        if units is None:
            return None
        try:
            return first_match(units, self._read_block_hot, key, start, end, message_filter)
        except NeedsDisk:
            return None

    def _hot_reader(self, message_filter: MessageFilter | None) -> ReadBlock:
        """Return what reads blocks on the loop: with a filter only a few, the rest is a
        reader thread's work."""
        if message_filter is None:
            return self._read_block_hot
        left = MAX_HOT_SCAN_BYTES

        def read_block(unit: CqUnit) -> Batch:
            nonlocal left
            left -= unit.size
            if left < 0:
                raise NeedsDisk
            return self._read_block_hot(unit)

        return read_block

    def _read_block_hot(self, unit: CqUnit) -> Batch:
        batch = self._cache.get(unit.physical_offset)
        if batch is None:
            batch = self._log.read_batch_nowait(unit.physical_offset, unit.size)
            if batch is None:
                raise NeedsDisk
            self._cache.put(batch)
        return batch

    def _read_block(self, unit: CqUnit) -> Batch:
        return self._log.read_batch(unit.physical_offset, unit.size)

    def _check_queue(self, topic: Topic, queue: int) -> None:
        if not 0 <= queue < topic.queue_count:
            raise UnknownQueue(topic.name, queue, topic.queue_count)

    def _readable(self, topic: Topic, queue: int, offset: int) -> ConsumeQueue | None:
        """Return the queue if it may be read from `offset`; None when it never had a message."""
        self._check_queue(topic, queue)
        cq = self._queues.get((topic.topic_id, queue))
        low, high = (0, 0) if cq is None else (cq.min_offset, cq.max_offset)
        if offset < low:
            raise OffsetTrimmed(topic.name, queue, offset, low, high)
        if offset > high:
            raise OffsetBeyondEnd(topic.name, queue, offset, low, high)
        return cq

    # -- looking up ------------------------------------------------------------------------

    async def offset_by_time(
        self, topic: Topic, queue: int, timestamp_us: int
    ) -> tuple[int, int | None]:
        """Return the first kept offset stored at or after a time, with its store timestamp;
        (max offset, None) when there is none. Raises UnknownQueue."""
        self._check_queue(topic, queue)
        key = (topic.topic_id, queue)
        cq = self._queues.get(key)
        if cq is None:
            return 0, None
        end = cq.max_offset
        unit = await self._in_thread(
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
        end = self.max_offset((topic_id, queue))
        if topic is None or end is None or offset >= end:
            raise UnknownMessage(message_id)
        fetched = await self.read(topic, queue, offset, max_messages=1, max_bytes=1)
        found = fetched.slices[0]
        return topic, found.batch, found.rows[0]

    async def search_key(self, topic: Topic, key: str, limit: int) -> list[tuple[Batch, int]]:
        """Return up to `limit` kept messages with this key as (batch, row), newest first."""
        queues = {
            queue: cq
            for queue in range(topic.queue_count)
            if (cq := self._queues.get((topic.topic_id, queue))) is not None
        }
        return await self._in_thread(
            lambda: find_key(self._log, self._index, topic.topic_id, queues, key, limit)
        )

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
            self._readable(topic, queue, start)
            cq = self._readable(topic, queue, end)
            if cq is not None and start < end:
                parts.append((queue, cq, start, end))
        return await self._in_thread(
            lambda: plan_splits(self._index, topic.topic_id, parts, max_bytes, min_splits)
        )

    # -- stored offsets --------------------------------------------------------------------

    def groups(self) -> list[str]:
        """Return the names of all groups, sorted."""
        return self._table.groups()

    def group_topics(self, group: str) -> dict[str, StoredOffsets]:
        """Return a group's stored offsets by topic name. Raises InvalidName, UnknownGroup."""
        found = {}
        for topic_id, stored in self._table.group_offsets(group).items():
            topic = self._table.by_id(topic_id)
            if topic is not None:
                found[topic.name] = stored
        return found

    def stored_offsets(self, group: str, topic: Topic) -> StoredOffsets:
        """Return a group's offsets on a topic. Raises InvalidName, UnknownGroup."""
        return self._table.group_offsets(group).get(topic.topic_id, StoredOffsets())

    async def store_offsets(
        self,
        group: str,
        topic: Topic,
        offsets: Mapping[int, int],
        *,
        if_version: int | None = None,
    ) -> StoredOffsets:
        """Merge offsets into a group's, durably; the group is created when new.

        Offsets are the group's own business, as in Kafka: one that the queue does not have yet
        is stored as it is. `if_version`: only if this is still the stored version (0: none
        stored). Raises InvalidName, UnknownTopic, UnknownQueue, LimitReached, OffsetsChanged,
        StateUnavailable. Cancelling is safe; the offsets may still be stored.
        """
        check_name("group", group)
        for queue in offsets:
            self._check_queue(topic, queue)
        return await self._to_its_end(self._store_offsets(group, topic, offsets, if_version))

    async def _store_offsets(
        self, group: str, topic: Topic, offsets: Mapping[int, int], if_version: int | None
    ) -> StoredOffsets:
        table, topic_id = self._table, topic.topic_id
        async with self._offset_locks.setdefault((group, topic_id), asyncio.Lock()):
            if table.by_id(topic_id) is None:
                raise UnknownTopic(topic.name)
            before = table.offsets(group, topic_id)
            if if_version is not None and if_version != before.version:
                raise OffsetsChanged(group, topic.name, before.version)
            if not table.has_group(group) and table.group_count >= self._config.max_groups:
                raise LimitReached("max_groups", self._config.max_groups)
            stored = StoredOffsets({**before.offsets, **offsets}, before.version + 1)
            key = offsets_key(group, topic_id)
            await self.commit_state({key: encode_offsets(stored)})
            if table.by_id(topic_id) is None:
                # Deleted meanwhile, with all that groups had stored for it.
                await self.commit_state({key: None})
                raise UnknownTopic(topic.name)
            table.put_offsets(group, topic_id, stored)
            return stored

    # -- the durable state -----------------------------------------------------------------

    async def commit_state(self, changes: Changes) -> None:
        """Make a change of the state durable, then note it in the log's state topic. Raises
        StateUnavailable. Not to be cancelled."""
        future: asyncio.Future[None] = self._loop.create_future()

        def done(error: Exception | None) -> None:
            self._loop.call_soon_threadsafe(_settle, future, error)

        self._state.commit(changes, done)
        await future
        self.journal(changes)

    async def _to_its_end(self, change: Coroutine[Any, Any, _T]) -> _T:
        """Await a change that cancelling must not cut in two."""
        task = self._loop.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_pass_over)
            raise

    async def changes_done(self) -> None:
        """Wait until every change of topics and stored offsets that was begun has ended."""
        while self._changes:
            await asyncio.wait(self._changes)

    def journal(self, changes: Changes) -> None:
        """Append records to the state topic. Best effort: LMDB has them, and the snapshot at
        the next segment repeats them."""
        request = AppendRequest(STATE_TOPIC_ID, [encode_changes(changes)], durable=False)
        try:
            self._appender.submit(request)
        except LogError as error:
            _logger.warning("a change of the state was not noted in the log: %s", error)

    def _in_thread(self, function: Callable[[], _T]) -> Awaitable[_T]:
        return self._loop.run_in_executor(self._executor, function)


def _settle(future: "asyncio.Future[None]", error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _finish(requests: list[AppendRequest]) -> None:
    for request in requests:
        if isinstance(request.context, asyncio.Future):
            _settle(request.context, request.error)


def _pass_over(task: "asyncio.Task[Any]") -> None:
    """Take a failure that nobody is left to be told of."""
    if not task.cancelled() and task.exception() is not None:
        _logger.warning("a change that nobody waits for failed: %s", task.exception())


def _check_advance(fetched: Fetched, offset: int) -> None:
    """Raise CorruptRecord when nothing is indexed from `offset` up to the end: the log lost its
    tail."""
    if fetched.next_offset == offset < fetched.max_offset:
        raise CorruptRecord(0, "missing-block", "no intact block", fetched.max_offset)


def _unreadable(
    topic: Topic, queue: int, offset: int, cq: ConsumeQueue, error: CorruptRecord
) -> StoreError:
    """Return why nothing is there: the queue's begin has moved past it, or it is damaged."""
    if offset < cq.min_offset:
        return OffsetTrimmed(topic.name, queue, offset, cq.min_offset, cq.max_offset)
    following = error.next_offset if error.next_offset is not None else offset + 1
    damaged = QueueCorrupt(
        topic.name, queue, offset, following, cq.min_offset, cq.max_offset, error.reason
    )
    _logger.error("%s", damaged)
    return damaged


def _normal(fields: Mapping[str, object]) -> dict[str, Any]:
    """Return topic fields with "no limit" as None."""
    return {
        name: None if name.startswith("retention") and not value else value
        for name, value in fields.items()
    }


def _compare(topic: Topic, queues: int | None, given: Mapping[str, object]) -> None:
    """Raise TopicConflict for the first field given that differs."""
    if queues is not None and queues != topic.queue_count:
        raise TopicConflict(topic.name, "queues", queues, topic.queue_count)
    for name, value in _normal(given).items():
        existing = getattr(topic.config, name)
        if value != existing:
            raise TopicConflict(topic.name, name, value, existing)
