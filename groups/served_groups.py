"""Which groups are served, and what each consists of: topics and queues, by name and by topic.

In step with the records of groups, of which it changes none. On the event loop.
"""

import asyncio
from collections.abc import Mapping

from holdfast.consumequeue.errors import UnknownGroup
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.topics import QueueKey, Topic, check_name
from holdfast.groups.commits import committed
from holdfast.groups.counters import Counters
from holdfast.groups.cursor import Cursor
from holdfast.groups.cursor_rows import take_writes
from holdfast.groups.filter_text import filter_of
from holdfast.groups.group_clock import GroupClock
from holdfast.groups.group_records import GroupRecord
from holdfast.groups.opening import OpenedGroups
from holdfast.groups.receipts import ReceiptCodec
from holdfast.groups.recent_batches import RecentBatches
from holdfast.groups.restoring import QueueRange, begin_cursor
from holdfast.groups.rows import DeleteRange, Write, all_of, key_prefix
from holdfast.groups.served_group import Places, ServedGroup

#: Batches that are kept for the deliveries that follow, of all groups together.
RECENT_BYTES = 32 * 1024 * 1024


class ServedGroups:
    """Every group that is served."""

    def __init__(
        self, store: MessageStore, opened: OpenedGroups, places: Places, clock: GroupClock
    ) -> None:
        self.clock = clock
        self.counters = Counters()
        self._store = store
        self._opened = opened
        self._places = places
        self._recent = RecentBatches(RECENT_BYTES)
        self._codec: ReceiptCodec | None = None
        #: Leases that had run out of groups that are deleted by now.
        self._expired_before = 0
        self.by_name: dict[str, ServedGroup] = {}
        #: Who has a topic: those that an arrival concerns.
        self._by_topic: dict[int, dict[str, ServedGroup]] = {}

    def get(self, name: str) -> ServedGroup:
        """Return a group. Raises InvalidName, UnknownGroup."""
        group = self.by_name.get(name)
        if group is None:
            check_name("group", name)
            raise UnknownGroup(name)
        return group

    @property
    def cursor_count(self) -> int:
        """Queues of all groups together."""
        return sum(len(group.serving) for group in self.by_name.values())

    @property
    def expired_leases(self) -> int:
        """How many leases have run out since the start, of groups that are deleted too."""
        now = sum(group.core.expired_leases for group in self.by_name.values())
        return self._expired_before + now

    # -- coming and going --------------------------------------------------------------------

    def take_up(self, record: GroupRecord) -> None:
        """Serve a group of before the start where it was."""
        group = self.add(record)
        for topic_id in record.topics:
            topic = self._store.topic_by_id(topic_id)
            if topic is not None:
                self._subscribe(group, topic)
                for queue in range(topic.queue_count):
                    self._take_up_queue(group, topic, queue)
        group.pump()

    def _take_up_queue(self, group: ServedGroup, topic: Topic, queue: int) -> None:
        key = (topic.topic_id, queue)
        cursor = self._opened.cursors.pop((group.record.group_id, *key), None)
        if cursor is None:
            self._begin_queue(group, key, self._start_of(group.record, topic, queue))
        else:
            group.add_queue(key, cursor)
            group.core.arrived(key, self._store.max_offset(key) or 0)

    def add(self, record: GroupRecord) -> ServedGroup:
        """Serve a group, of no topic yet; there is a receipt key by now."""
        if self._codec is None:
            assert self._opened.table.receipt_key is not None
            self._codec = ReceiptCodec(self._opened.table.receipt_key)
        group = self.by_name[record.name] = ServedGroup(
            record,
            store=self._store,
            writer=self._opened.store,
            pages=self._opened.page,
            places=self._places,
            recent=self._recent,
            codec=self._codec,
            clock=self.clock,
            counters=self.counters,
        )
        return group

    async def begin(self, group: ServedGroup | None, record: GroupRecord) -> dict[QueueKey, int]:
        """Have it on the disk, before the record is, where the queues begin that are new in it;
        return that. They begin where they were stored, else at the group's start. Raises
        StateFull, StateUnavailable; what is on the disk then belongs to nobody."""
        begins: dict[QueueKey, int] = {}
        # An id that a crash left half used must not bring its rows back.
        rows: list[Write | DeleteRange] = []
        if group is None:
            rows += all_of(record.group_id)
        for topic_id in record.topics:
            topic = self._store.topic_by_id(topic_id)
            if topic is None or (group is not None and topic_id in group.core.topics):
                continue
            rows += all_of(record.group_id, topic_id)
            for queue in range(topic.queue_count):
                key = (topic_id, queue)
                begins[key] = self._start_of(record, topic, queue)
                cursor = self._cursor_at(key, begins[key])
                rows += take_writes(cursor, key_prefix(record.group_id, *key))
        if group is None:
            await committed(self._opened.store, rows, now_ms=self.clock.now_ms())
        elif rows:
            group.commits.write(rows)  # in its order: behind what was deleted before
            await group.commits.wait()
        return begins

    def become(
        self, group: ServedGroup, record: GroupRecord, begins: Mapping[QueueKey, int]
    ) -> None:
        """Bring a group in step with its record; `begins` as `begin` returned it."""
        had = group.core.topics.keys()
        group.record = record
        for topic_id in had - record.topics.keys():
            self._unsubscribe(group, topic_id)
        for topic_id, wanted in record.topics.items():
            topic = self._store.topic_by_id(topic_id)
            if topic is None:
                continue  # deleted meanwhile
            if topic_id in had:
                group.core.set_weight(topic_id, wanted.weight)
                changed = filter_of(wanted.filter)
                if changed != group.core.topics[topic_id].filter:
                    group.core.set_filter(topic_id, changed)
                continue
            self._subscribe(group, topic)
            for queue in range(topic.queue_count):  # one that came meanwhile begins at its begin
                key = (topic_id, queue)
                self._begin_queue(group, key, begins.get(key, 0))
        group.configure(record)

    async def remove(self, group: ServedGroup) -> None:
        """Serve a group no more, and delete its rows; who waits is answered with UnknownGroup."""
        del self.by_name[group.record.name]
        self._expired_before += group.core.expired_leases
        for topic_id in list(group.core.topics):
            self._unsubscribe(group, topic_id)
        await group.stop(UnknownGroup(group.record.name))

    async def stop(self) -> None:
        """Stop all; they can still be looked at."""
        await asyncio.gather(*(group.stop() for group in self.by_name.values()))

    # -- what the storage tells --------------------------------------------------------------

    def arrived(self, advanced: Mapping[QueueKey, int]) -> None:
        """Queues reach to these ends, readable."""
        concerned: dict[str, dict[QueueKey, int]] = {}
        for key, end in advanced.items():
            for name in self._by_topic.get(key[0], ()):
                concerned.setdefault(name, {})[key] = end
        for name, ends in concerned.items():
            group = self.by_name[name]
            for key in ends:
                if key not in group.serving:
                    self._begin_queue(group, key, 0)  # the topic got it after the group came
            group.arrived(ends)

    def trimmed(self, begins: Mapping[QueueKey, int]) -> None:
        """Queues begin at these offsets now."""
        for key, begin in begins.items():
            for group in list(self._by_topic.get(key[0], {}).values()):
                group.trimmed(key, begin)

    def topic_deleted(self, topic_id: int) -> None:
        """A topic is gone, with all its messages."""
        for group in list(self._by_topic.pop(topic_id, {}).values()):
            group.remove_topic(topic_id, all_of(group.core.group_id, topic_id))
        self._recent.forget_topic(topic_id)

    # -- inside ------------------------------------------------------------------------------

    def _subscribe(self, group: ServedGroup, topic: Topic) -> None:
        wanted = group.record.topics[topic.topic_id]
        group.core.add_topic(
            topic.topic_id,
            weight=wanted.weight,
            levels=topic.priority_levels,
            filter=filter_of(wanted.filter),
        )
        self._by_topic.setdefault(topic.topic_id, {})[group.record.name] = group

    def _unsubscribe(self, group: ServedGroup, topic_id: int) -> None:
        groups = self._by_topic.get(topic_id, {})
        groups.pop(group.record.name, None)
        if not groups:
            self._by_topic.pop(topic_id, None)
        group.remove_topic(topic_id, all_of(group.core.group_id, topic_id))

    def _begin_queue(self, group: ServedGroup, key: QueueKey, offset: int) -> None:
        group.add_queue(key, self._cursor_at(key, offset))

    def _cursor_at(self, key: QueueKey, offset: int) -> Cursor:
        """Return a new cursor, at an offset or as close to it as the queue allows."""
        topic = self._store.topic_by_id(key[0])
        assert topic is not None
        state = self._store.queue_state(topic, key[1])
        within = QueueRange(state.min_offset, state.max_offset)
        return begin_cursor(self._opened.boot, self.clock.now_ms(), within, offset)

    def _start_of(self, record: GroupRecord, topic: Topic, queue: int) -> int:
        """Return where a queue that is new in a group begins."""
        name = record.name
        stored = self._store.group_topics(name) if name in self._store.groups() else {}
        if topic.name in stored and queue in stored[topic.name].offsets:
            return stored[topic.name].offsets[queue]
        state = self._store.queue_state(topic, queue)
        return state.min_offset if record.start == "earliest" else state.max_offset
