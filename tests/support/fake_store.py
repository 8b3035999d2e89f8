"""A MessageStore in memory, with dicts and lists in place of the log and LMDB.

It answers like the real store, by the same reading code, and a test can make it fail:

    store = FakeStore()
    store.publish_error = DiskFull(4096)
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from holdfast.commitlog.errors import CorruptRecord, LogError
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_check import MessageLimits
from holdfast.commitlog.format.batch_encoding import Rows, as_batch
from holdfast.commitlog.format.message_id import parse_message_id
from holdfast.commitlog.format.segment_format import SegmentHeader
from holdfast.consumequeue.config import ConsumeQueueConfig, TopicsConfig
from holdfast.consumequeue.errors import (
    InvalidTopicChange,
    OffsetBeyondEnd,
    OffsetsChanged,
    OffsetTrimmed,
    QueueCorrupt,
    TopicConflict,
    UnknownGroup,
    UnknownMessage,
    UnknownQueue,
    UnknownTopic,
)
from holdfast.consumequeue.index.consume_queue import CqUnit
from holdfast.consumequeue.lost_ranges import LostRange
from holdfast.consumequeue.maintenance.read_leases import ReadLeases
from holdfast.consumequeue.message_store import (
    Fetched,
    MessageFilter,
    MessageStore,
    QueueKey,
    QueueState,
    Split,
    StoredBatch,
    StoredOffsets,
)
from holdfast.consumequeue.publishing import TopicRoom
from holdfast.consumequeue.reading.fetched import Shares, Wanted, reading_order
from holdfast.consumequeue.reading.queue_reading import Unreadable
from holdfast.consumequeue.reading.reader import collect, first_match
from holdfast.consumequeue.topics import Topic, TopicConfig, check_name


@dataclass
class FakeQueue:
    """One queue: its units and its first offset."""

    units: list[CqUnit] = field(default_factory=list)
    min_offset: int = 0

    @property
    def max_offset(self) -> int:
        return self.units[-1].end_offset if self.units else 0


class FakeStore:
    """A fake store. After each publish it calls `arrived` with the new ends of queues, as reput
    does."""

    def __init__(self, config: TopicsConfig | None = None) -> None:
        self.config = config or TopicsConfig()
        self.arrived: Any = lambda advanced: None
        self.topic_deleted: Any = lambda topic_id: None
        self.alarm: LogError | None = None
        self.publish_error: Exception | None = None
        self.state_error: Exception | None = None
        self.damaged: set[int] = set()
        """Physical offsets of batches whose reads report damage."""
        self.publish_gate: asyncio.Event | None = None
        """If set, publishes are stored at once but acknowledged only after this event is set."""
        self.publishes: list[tuple[str, list[Batch], str | None]] = []
        self._topics: dict[str, Topic] = {}
        self._queues: dict[QueueKey, FakeQueue] = {}
        self._blocks: dict[int, Batch] = {}
        self._offsets: dict[str, dict[int, StoredOffsets]] = {}
        self._next_topic_id = 1
        #: The parts of a MessageStore: this class has the methods of all of them.
        self.table = self.topics = self.publishing = self.admission = self
        self.reading = self.lookups = self.offsets = self
        self.read_leases = ReadLeases(
            readable=self._readable,
            limits=ConsumeQueueConfig(max_read_leases=3, max_leased_queues=100),
            now_ms=lambda: time.time_ns() // 1_000_000,
        )

        self.topic_room = TopicRoom(
            lambda topic: sum(state.bytes for state in self.queue_states(topic)), time.monotonic
        )

    def as_store(self) -> MessageStore:
        """Return this object with the type that it replaces."""
        return cast(MessageStore, self)

    # -- topics ----------------------------------------------------------------------------

    def get(self, name: str) -> Topic:
        if name not in self._topics:
            check_name("topic", name)
            raise UnknownTopic(name)
        return self._topics[name]

    def find(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def by_id(self, topic_id: int) -> Topic | None:
        return next((t for t in self._topics.values() if t.topic_id == topic_id), None)

    def all(self) -> list[Topic]:
        return sorted(self._topics.values(), key=lambda topic: topic.name)

    def limits(self, topic: Topic) -> MessageLimits:
        return MessageLimits(
            topic.config.max_message_bytes,
            self.config.max_key_bytes,
            self.config.max_tag_bytes,
            self.config.max_properties_bytes,
        )

    async def create(
        self,
        name: str,
        *,
        queues: int | None = None,
        priority_levels: int | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> tuple[Topic, bool]:
        check_name("topic", name)
        existing = self._topics.get(name)
        if existing is not None:
            if queues is not None and queues != existing.queues_per_level:
                raise TopicConflict(name, "queues", queues, existing.queues_per_level)
            if priority_levels not in (None, existing.priority_levels):
                found = existing.priority_levels
                raise TopicConflict(name, "priority_levels", priority_levels, found)
            for key, value in (fields or {}).items():
                if (found := getattr(existing.config, key)) != value:
                    raise TopicConflict(name, key, value, found)
            return existing, False
        await self._commit()
        config = TopicConfig(
            self.config.default_durability,
            self.config.default_retention_ms or None,
            self.config.default_retention_bytes or None,
            self.config.default_max_message_bytes,
            self.config.default_max_bytes or None,
        )
        topic = Topic(
            name,
            self._next_topic_id,
            (queues or self.config.default_queues) * (priority_levels or 1),
            replace(config, **(fields or {})),
            1_700_000_000_000,
            priority_levels or 1,
        )
        self._next_topic_id += 1
        self._topics[name] = topic
        return topic, True

    async def change(
        self,
        name: str,
        *,
        queues: int | None = None,
        priority_levels: int | None = None,
        fields: Mapping[str, Any],
    ) -> Topic:
        topic = self.get(name)
        if priority_levels not in (None, topic.priority_levels):
            raise InvalidTopicChange(name, "levels stay as they are")
        if queues is not None and queues < topic.queues_per_level:
            raise InvalidTopicChange(name, "queues can be added, never removed")
        await self._commit()
        changed = replace(
            topic,
            queue_count=(queues or topic.queues_per_level) * topic.priority_levels,
            config=replace(topic.config, **fields),
        )
        self._topics[name] = changed
        return changed

    async def delete(self, name: str) -> None:
        topic = self.get(name)
        await self._commit()
        del self._topics[name]
        for stored in self._offsets.values():
            stored.pop(topic.topic_id, None)
        self.read_leases.end_topic(topic.topic_id)
        self.topic_deleted(topic.topic_id)

    async def _commit(self) -> None:
        await asyncio.sleep(0)
        if self.state_error is not None:
            raise self.state_error

    # -- publishing ------------------------------------------------------------------------

    def check(self) -> None:
        if self.alarm is not None:
            raise self.alarm

    async def publish(
        self,
        topic: Topic,
        batches: Sequence[Batch | Rows],
        *,
        durability: str | None = None,
        client: str = "",
        refusal: Exception | None = None,
    ) -> list[StoredBatch]:
        if refusal is not None:
            raise refusal
        if self.publish_error is not None:
            raise self.publish_error
        stored = [as_batch(each) if isinstance(each, Rows) else each for each in batches]
        self.publishes.append((topic.name, stored, durability))
        durable = (durability or topic.config.durability) == "fsync"
        published = [self._append(topic, batch, durable) for batch in stored]
        self.arrived(
            {(topic.topic_id, each.queue): each.base_offset + each.count for each in published}
        )
        if self.publish_gate is not None:
            await self.publish_gate.wait()
        return published

    def _append(self, topic: Topic, batch: Batch, durable: bool) -> StoredBatch:
        header = batch.header
        self._check_queue(topic, header.queue_id)
        queue = self._queues.setdefault((topic.topic_id, header.queue_id), FakeQueue())
        at = 4096 * (1 + len(self._blocks))
        now_us = time.time_ns() // 1000
        stamped = header.stamped(
            physical_offset=at,
            durable_offset=0,
            base_offset=queue.max_offset,
            topic_id=topic.topic_id,
            queue_id=header.queue_id,
            store_timestamp_us=now_us,
            tag_summary=header.tag_summary,
        )
        block = bytes(stamped.encode()) + bytes(batch.block[len(stamped.encode()) :])
        self._blocks[at] = Batch.decode(block)
        queue.units.append(
            CqUnit(
                queue.max_offset,
                at,
                header.total_size,
                len(batch),
                now_us,
                header.tag_summary,
                queue.units[-1].end_queue_bytes if queue.units else 0,
            )
        )
        return StoredBatch(header.queue_id, stamped.base_offset, len(batch), durable, False, now_us)

    # -- reading ---------------------------------------------------------------------------

    def trim(self, topic: str, queue: int, min_offset: int) -> None:
        """Trim the queue as retention does: delete messages below `min_offset`."""
        self._queues[self._topics[topic].topic_id, queue].min_offset = min_offset

    def max_offset(self, key: QueueKey) -> int | None:
        topic = self.by_id(key[0])
        if topic is None or not 0 <= key[1] < topic.queue_count:
            return None
        return self._queue(key).max_offset

    def queue_state(self, topic: Topic, queue: int) -> QueueState:
        self._check_queue(topic, queue)
        found = self._queue((topic.topic_id, queue))
        newest = found.units[-1].store_timestamp_us if found.units else None
        size = sum(unit.size for unit in found.units)
        return QueueState(queue, found.min_offset, found.max_offset, size, newest)

    def queue_states(self, topic: Topic) -> list[QueueState]:
        return [self.queue_state(topic, queue) for queue in range(topic.queue_count)]

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
        found = self._readable(topic, queue, offset)
        try:
            return collect(
                [unit for unit in found.units if unit.end_offset > offset],
                self._read_block,
                (topic.topic_id, queue),
                offset,
                min_offset=found.min_offset,
                max_offset=found.max_offset,
                max_messages=max_messages,
                max_bytes=max_bytes,
                message_filter=filter,
                skip_corrupt=skip_corrupt,
            )
        except CorruptRecord as error:
            assert error.next_offset is not None
            raise QueueCorrupt(
                topic.name,
                queue,
                offset,
                error.next_offset,
                found.min_offset,
                found.max_offset,
                error.reason,
            ) from error

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
        wanted = Wanted(max_messages, max_bytes, filter, skip_corrupt)
        shares = Shares(len(offsets), wanted, whole_batches=whole_batches)
        found: dict[int, Fetched | Unreadable] = {}
        for queue in reading_order(offsets, whole_batches=whole_batches):
            share = shares.next_share()
            place = self.queue_state(topic, queue)
            if share is None:
                found[queue] = Fetched((), offsets[queue], place.min_offset, place.max_offset, 0)
                continue
            try:
                found[queue] = fetched = await self.read(
                    topic,
                    queue,
                    offsets[queue],
                    max_messages=share.max_messages,
                    max_bytes=share.max_bytes,
                    filter=filter,
                    skip_corrupt=skip_corrupt,
                )
                shares.subtract(fetched)
            except (OffsetTrimmed, OffsetBeyondEnd, QueueCorrupt) as error:
                shares.subtract(None)
                found[queue] = error
        return found

    def scan_hot(
        self, key: QueueKey, start: int, end: int, message_filter: MessageFilter
    ) -> int | None:
        units = [unit for unit in self._queue(key).units if unit.end_offset > start]
        return first_match(units, self._read_block, key, start, end, message_filter)

    def _read_block(self, unit: CqUnit) -> Batch:
        if unit.physical_offset in self.damaged:
            raise CorruptRecord(unit.physical_offset, "payload-crc", "damaged on purpose")
        return self._blocks[unit.physical_offset]

    def _queue(self, key: QueueKey) -> FakeQueue:
        return self._queues.get(key) or FakeQueue()

    def _check_queue(self, topic: Topic, queue: int) -> None:
        if not 0 <= queue < topic.queue_count:
            raise UnknownQueue(topic.name, queue, topic.queue_count)

    def _readable(self, topic: Topic, queue: int, offset: int) -> FakeQueue:
        self._check_queue(topic, queue)
        found = self._queue((topic.topic_id, queue))
        if offset < found.min_offset:
            raise OffsetTrimmed(topic.name, queue, offset, found.min_offset, found.max_offset)
        if offset > found.max_offset:
            raise OffsetBeyondEnd(topic.name, queue, offset, found.min_offset, found.max_offset)
        return found

    # -- looking up ------------------------------------------------------------------------

    async def offset_by_time(
        self, topic: Topic, queue: int, timestamp_us: int
    ) -> tuple[int, int | None]:
        self._check_queue(topic, queue)
        found = self._queue((topic.topic_id, queue))
        for unit in found.units:
            if unit.store_timestamp_us >= timestamp_us and unit.end_offset > found.min_offset:
                return max(unit.base_offset, found.min_offset), unit.store_timestamp_us
        return found.max_offset, None

    async def stored_at(self, places: Sequence[tuple[QueueKey, int]]) -> list[int | None]:
        found: list[int | None] = []
        for key, offset in places:
            units = self._queue(key).units
            after = (unit.store_timestamp_us for unit in units if unit.end_offset > offset)
            found.append(next(after, None))
        return found

    async def message(self, message_id: str) -> tuple[Topic, Batch, int]:
        try:
            topic_id, queue, offset = parse_message_id(message_id)
        except ValueError:
            raise UnknownMessage(message_id) from None
        topic = self.by_id(topic_id)
        end = self.max_offset((topic_id, queue))
        if topic is None or end is None or offset >= end:
            raise UnknownMessage(message_id)
        fetched = await self.read(topic, queue, offset, max_messages=1, max_bytes=1)
        return topic, fetched.slices[0].batch, fetched.slices[0].rows[0]

    async def search_key(
        self,
        topic: Topic,
        key: str,
        limit: int,
        *,
        skipped: list[tuple[int, LostRange]] | None = None,
        max_bytes: int = 2**63,
    ) -> list[tuple[Batch, int]]:
        found = [
            (self._blocks[unit.physical_offset], row)
            for queue in range(topic.queue_count)
            for unit in self._queue((topic.topic_id, queue)).units
            for row in range(unit.message_count)
            if self._blocks[unit.physical_offset].key(row) == key
        ]
        found.sort(key=lambda each: (each[0].header.store_timestamp_us, each[1]), reverse=True)
        return found[:limit]

    async def splits(
        self,
        topic: Topic,
        ranges: Mapping[int, tuple[int, int]],
        *,
        max_bytes: int | None,
        min_splits: int,
        max_splits: int,
    ) -> list[Split]:
        splits = []
        for queue, (start, end) in sorted(ranges.items()):
            self._readable(topic, queue, start)
            for unit in self._readable(topic, queue, end).units:
                low, high = max(start, unit.base_offset), min(end, unit.end_offset)
                if low < high:
                    splits.append(Split(queue, low, high, unit.size))
        return splits

    async def segments(self, splits: Sequence[Split]) -> list[SegmentHeader]:
        return []

    # -- stored offsets --------------------------------------------------------------------

    def groups(self) -> list[str]:
        return sorted(self._offsets)

    def group_topics(self, group: str) -> dict[str, StoredOffsets]:
        found = {}
        for topic_id, stored in self._group(group).items():
            topic = self.by_id(topic_id)
            assert topic is not None
            found[topic.name] = stored
        return found

    def stored_offsets(self, group: str, topic: Topic) -> StoredOffsets:
        return self._group(group).get(topic.topic_id, StoredOffsets())

    def _group(self, group: str) -> dict[int, StoredOffsets]:
        if group not in self._offsets:
            check_name("group", group)
            raise UnknownGroup(group)
        return self._offsets[group]

    async def forget_offsets(self, group: str, topics: Collection[str] | None = None) -> None:
        await self._commit()
        stored = self._offsets.get(group, {})
        for topic_id in list(stored):
            topic = self.by_id(topic_id)
            if topics is None or (topic is not None and topic.name in topics):
                del stored[topic_id]
        if not stored:
            self._offsets.pop(group, None)

    def check_offsets(self, topic: Topic, offsets: Mapping[int, int]) -> None:
        for queue, offset in offsets.items():
            state = self.queue_state(topic, queue)
            if offset > state.max_offset:
                raise OffsetBeyondEnd(topic.name, queue, offset, state.min_offset, state.max_offset)

    async def store_offsets(
        self,
        group: str,
        topic: Topic,
        offsets: Mapping[int, int],
        *,
        if_version: int | None = None,
    ) -> StoredOffsets:
        for queue in offsets:
            self.queue_state(topic, queue)
        before = self._offsets.get(group, {}).get(topic.topic_id, StoredOffsets())
        if if_version is not None and if_version != before.version:
            raise OffsetsChanged(group, topic.name, before.version)
        self.check_offsets(topic, offsets)
        await self._commit()
        stored = StoredOffsets({**before.offsets, **offsets}, before.version + 1)
        self._offsets.setdefault(group, {})[topic.topic_id] = stored
        return stored

    # -- what tests look at ----------------------------------------------------------------

    def snapshot(self) -> tuple[object, ...]:
        """Return all state that a refused request must not change."""
        return (
            dict(self._topics),
            {key: list(queue.units) for key, queue in self._queues.items()},
            {group: dict(stored) for group, stored in self._offsets.items()},
        )
