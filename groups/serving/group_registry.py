"""All served groups, found by name and by topic, with the topics and queues of each group.

This module applies the records of groups to the groups, and does not change the records. On the
event loop.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import cast

from holdfast.consumequeue.errors import KeyedBacklog, UnknownGroup
from holdfast.consumequeue.reading.fetched import MessageFilter
from holdfast.consumequeue.slices import LoopBudget, in_slices
from holdfast.consumequeue.topics import QueueKey, QueueState, Topic, check_name
from holdfast.groups.cursor.cursor import Cursor
from holdfast.groups.cursor.rows import DeleteRange, Write, all_of, key_prefix, take_writes
from holdfast.groups.serving.commits import commit_rows
from holdfast.groups.serving.group_server import GroupServer, SharedParts
from holdfast.groups.serving.parsed_filters import ParsedFilters
from holdfast.groups.serving.queue_watch import GROUP_ITEMS
from holdfast.groups.storage.group_records import GroupRecord
from holdfast.groups.storage.restore import QueueRange, begin_cursor

#: When a group loses a topic, this many queues are freed together.
FREED_AT_ONCE = 50
#: An error message names at most this many groups.
MOST_NAMED = 10


class GroupRegistry:
    """All groups that are served."""

    def __init__(self, shared: SharedParts) -> None:
        self._shared = shared
        self._store = shared.store
        self._opened = shared.opened
        self.clock = shared.clock
        self.counters = shared.counters
        self.filters = ParsedFilters()
        #: How many leases expired in groups that were deleted afterwards.
        self._expired_before = 0
        self.by_name: dict[str, GroupServer] = {}
        #: The number of queues of all groups together. A queue counts once in each group.
        self.cursor_count = 0
        #: How many groups, and queues of groups, were removed since the start.
        self.gone_count = 0
        #: The highest epoch and lease number of removed cursors. New cursors begin above both, so
        #: that an old receipt is not valid for any of their leases.
        self._last_epoch = self._last_lease = 0
        #: topic id -> the groups that have the topic.
        self._by_topic: dict[int, dict[str, GroupServer]] = {}
        #: Called with a group that has had no member for its `auto_delete_after_ms`.
        #: Set before the first group is added.
        self.on_unused: Callable[[GroupServer], None] = lambda group: None
        self._forgetting: set[asyncio.Task[None]] = set()

    def get(self, name: str) -> GroupServer:
        """Return a group. Raises InvalidName, UnknownGroup."""
        group = self.by_name.get(name)
        if group is None:
            check_name("group", name)
            raise UnknownGroup(name)
        return group

    def names_of(self, topic_id: int) -> Collection[str]:
        """Return the names of the groups that have a topic. Treat as immutable."""
        return self._by_topic.get(topic_id, {}).keys()

    def filters_of(self, topic_id: int) -> Iterator[MessageFilter | None]:
        """Yield the filter of each group that has a topic; not of groups that are being deleted."""
        for name, group in self._by_topic.get(topic_id, {}).items():
            if self.by_name.get(name) is group:
                yield cast(MessageFilter | None, group.core.topics[topic_id].filter)

    @property
    def filter_characters(self) -> int:
        """The length of the filter texts of all groups together. A text that several groups use
        counts for each of them."""
        return sum(group.filter_characters for group in self.by_name.values())

    @property
    def expired_leases(self) -> int:
        """How many leases have expired since the start, including those of deleted groups."""
        now = sum(group.core.expired_leases for group in self.by_name.values())
        return self._expired_before + now

    # -- creating and removing ---------------------------------------------------------------

    async def restore(self, record: GroupRecord) -> None:
        """Serve a group that was stored before the broker's start, in its stored state. The limits
        of the configuration are not applied."""
        given = (*record.subscriptions.values(), *record.topics.values())
        filters = await self.filters.parse(each.filter for each in given)
        group = self.add(record)
        group.take_filters(filters)
        for topic_id in record.topics:
            topic = self._store.table.by_id(topic_id)
            if topic is not None:
                self._subscribe(group, topic)
                for queue in range(topic.queue_count):
                    key = (topic_id, queue)
                    cursor = self._opened.cursors.pop((record.group_id, *key), None)
                    if cursor is None:
                        cursor = self._cursor_at(key, self._starts_of(record, topic)(queue))
                    self._add_queue(group, key, cursor)
        active = self._opened.active.get(record.group_id)
        if active is not None:
            group.core.resume(active, self.clock.now_ms())
        group.process_deadlines()

    def add(self, record: GroupRecord) -> GroupServer:
        """Add a group without topics, and serve it. The receipt key must exist."""
        group = GroupServer(record, self._shared, self._begin_queue, self.on_unused)
        self.by_name[record.name] = group
        return group

    async def persist_start_offsets(
        self, group: GroupServer | None, record: GroupRecord, turn: LoopBudget
    ) -> dict[QueueKey, Cursor]:
        """Create and commit the cursors of the queues that are new in the record, and return them.
        This must be done before the record is written. A cursor begins at the group's stored offset
        of the queue, or at the group's `start`. Raises StateFull, StateUnavailable; rows that were
        written before the error stay unused."""
        cursors: dict[QueueKey, Cursor] = {}
        # Delete rows of this group id or topic id that an earlier crash may have left.
        rows: list[Write | DeleteRange] = []
        if group is None:
            rows += all_of(record.group_id)
        for topic_id in record.topics:
            await turn.spend()
            topic = self._store.table.by_id(topic_id)
            if topic is None or (group is not None and topic_id in group.core.topics):
                continue
            rows += all_of(record.group_id, topic_id)
            start_of = self._starts_of(record, topic)
            async for queues in turn.slices(range(topic.queue_count)):
                if self._store.table.by_id(topic_id) is None:
                    break  # deleted meanwhile
                for queue in queues:
                    key = (topic_id, queue)
                    cursor = cursors[key] = self._cursor_at(key, start_of(queue))
                    rows += take_writes(cursor, key_prefix(record.group_id, *key))
        if group is None:
            await commit_rows(self._opened.store, rows, now_ms=self.clock.now_ms())
        elif rows:
            group.commits.write(rows)  # not with `commit_rows`: earlier deletions must come first
            await group.commits.wait()
        return cursors

    def changed_filters(self, group: GroupServer, record: GroupRecord) -> list[int]:
        """Return the ids of the group's topics whose filter differs in the record."""
        return [
            topic_id
            for topic_id, topic in group.core.topics.items()
            if topic_id in record.topics
            and self.filters.get(record.topics[topic_id].filter) != topic.filter
        ]

    async def offer_skipped(
        self, group: GroupServer, record: GroupRecord, turn: LoopBudget
    ) -> None:
        """Make the messages that the present filters skipped available again, durably. This must
        be done before new filters are stored, while deliveries are paused. Raises
        StateUnavailable."""
        for topic_id in self.changed_filters(group, record):
            async for lanes in turn.slices(group.lanes_of(topic_id)):
                if topic_id not in group.core.topics:
                    break  # deleted meanwhile
                for lane in lanes:
                    group.core.offer_skipped(lane)
                await group.commits.wait()

    async def apply_record(
        self,
        group: GroupServer,
        record: GroupRecord,
        cursors: Mapping[QueueKey, Cursor],
        turn: LoopBudget,
    ) -> None:
        """Change a group to match its record. `cursors` are the result of `persist_start_offsets`;
        a new queue without such a cursor begins at its first offset. The caller must make sure that
        nothing else changes the group meanwhile."""
        group.record = record
        group.prepared_cursors = dict(cursors)
        for topic_id in group.core.topics.keys() - record.topics.keys():
            await self._drop_topic(group, topic_id, turn)
        for topic_id, wanted in record.topics.items():
            await turn.spend()
            topic = self._store.table.by_id(topic_id)
            if topic is None:
                continue  # deleted meanwhile
            if topic_id in group.core.topics:
                group.core.fair.set_weight(topic_id, wanted.weight)
                await self._change_filter(group, topic_id, self.filters.get(wanted.filter), turn)
                continue
            self._subscribe(group, topic)
            async for queues in turn.slices(range(topic.queue_count)):
                if topic_id not in group.core.topics:
                    break  # deleted meanwhile
                for queue in queues:
                    if (topic_id, queue) not in group.rates:
                        self._begin_queue(group, (topic_id, queue))
                group.after_change()
        group.prepared_cursors.clear()
        await group.configure(record)

    async def _change_filter(
        self, group: GroupServer, topic_id: int, wanted: object | None, turn: LoopBudget
    ) -> None:
        topic = group.core.topics[topic_id]
        if wanted == topic.filter:
            return
        topic.filter = wanted
        async for lanes in turn.slices(group.lanes_of(topic_id)):
            if topic_id not in group.core.topics:
                break  # deleted meanwhile
            for lane in lanes:
                group.core.set_filter(lane, wanted)

    async def remove(self, group: GroupServer) -> None:
        """Stop serving a group, and delete its rows. Waiting requests get UnknownGroup."""
        del self.by_name[group.record.name]
        self.gone_count += 1
        self._expired_before += group.core.expired_leases
        group.drain(UnknownGroup(group.record.name))
        turn = LoopBudget()
        for topic_id in list(group.core.topics):
            await self._drop_topic(group, topic_id, turn)
        await group.stop(UnknownGroup(group.record.name))

    async def stop(self) -> None:
        """Stop all groups; their state can still be read."""
        if self._forgetting:
            await asyncio.wait(self._forgetting)
        await asyncio.gather(*(group.stop() for group in self.by_name.values()))

    # -- events of the storage ---------------------------------------------------------------

    async def check_new_queues(self, topic: Topic) -> None:
        """Raise KeyedBacklog if a keyed group has unsettled messages of a topic. Then the topic may
        not get more queues: later messages of a key could go to another queue than earlier ones,
        and there is no order between two queues."""
        behind: list[str] = []
        for group in list(self._by_topic.get(topic.topic_id, {}).values()):
            if group.record.config.mode == "keyed" and len(behind) < MOST_NAMED:
                await group.watch.catch_up()
                async for lanes in in_slices(group.lanes_of(topic.topic_id)):
                    if any(lane.cursor.unsettled for lane in lanes):
                        behind.append(group.record.name)
                        break
        if behind:
            raise KeyedBacklog(topic.name, sorted(behind))

    def topic_deleted(self, topic_id: int) -> None:
        """Remove a deleted topic from its groups, in later event loop iterations."""
        self._shared.recent.forget_topic(topic_id)
        self._shared.changes.by_topic.pop(topic_id, None)
        groups = list(self._by_topic.pop(topic_id, {}).values())
        if groups:
            task = asyncio.create_task(self._forget_topic(topic_id, groups), name="groups-topic")
            self._forgetting.add(task)
            task.add_done_callback(self._forgetting.discard)

    async def _forget_topic(self, topic_id: int, groups: Sequence[GroupServer]) -> None:
        turn = LoopBudget()
        for group in groups:
            await turn.spend(GROUP_ITEMS)
            await self._drop_topic(group, topic_id, turn)

    def _subscribe(self, group: GroupServer, topic: Topic) -> None:
        wanted = group.record.topics[topic.topic_id]
        group.core.add_topic(
            topic.topic_id,
            weight=wanted.weight,
            levels=topic.priority_levels,
            filter=self.filters.get(wanted.filter),
        )
        self._by_topic.setdefault(topic.topic_id, {})[group.record.name] = group
        group.watch.add_topic(topic.topic_id)

    async def _drop_topic(self, group: GroupServer, topic_id: int, turn: LoopBudget) -> None:
        """Remove a topic and its rows from a group."""
        await turn.spend()
        if topic_id not in group.core.topics:
            return
        groups = self._by_topic.get(topic_id, {})
        groups.pop(group.record.name, None)
        if not groups:
            self._by_topic.pop(topic_id, None)
            self._shared.changes.by_topic.pop(topic_id, None)
        group.watch.remove_topic(topic_id)
        lanes = group.remove_topic(topic_id, all_of(group.core.group_id, topic_id))
        while lanes:  # freeing the lanes takes longest; `lanes` has the last references to them
            part = lanes[-FREED_AT_ONCE:]
            await turn.spend(len(part))
            for lane in part:
                self._last_epoch = max(self._last_epoch, lane.cursor.epoch)
                self._last_lease = max(self._last_lease, lane.cursor.last_lease)
            del lanes[-FREED_AT_ONCE:]
            group.forget([lane.key for lane in part])
            self.cursor_count -= len(part)
            self.gone_count += len(part)

    def _begin_queue(self, group: GroupServer, key: QueueKey) -> None:
        """Add a queue that is new in a group."""
        cursor = group.prepared_cursors.pop(key, None)
        self._add_queue(group, key, cursor or self._cursor_at(key, 0))

    def _add_queue(self, group: GroupServer, key: QueueKey, cursor: Cursor) -> None:
        state = self._queue_state(key)
        cursor.trim(state.min_offset)
        group.add_queue(key, cursor)
        self.cursor_count += 1
        group.core.note_end(key, state.max_offset)

    def _queue_state(self, key: QueueKey) -> QueueState:
        topic = self._store.table.by_id(key[0])
        assert topic is not None
        return self._store.reading.queue_state(topic, key[1])

    def _cursor_at(self, key: QueueKey, offset: int) -> Cursor:
        """Return a new cursor at an offset. If the offset is outside the queue, take the nearest
        offset inside."""
        state = self._queue_state(key)
        within = QueueRange(state.min_offset, state.max_offset)
        return begin_cursor(
            self._opened.boot,
            self.clock.now_ms(),
            within,
            offset,
            last_epoch=self._last_epoch,
            last_lease=self._last_lease,
        )

    def _starts_of(self, record: GroupRecord, topic: Topic) -> Callable[[int], int]:
        """Return a function that maps each queue of a topic to the offset at which the group begins
        if the queue is new in the group."""
        stored: Mapping[int, int] = {}
        if self._store.table.has_group(record.name):
            stored = self._store.offsets.stored_offsets(record.name, topic).offsets

        def start_of(queue: int) -> int:
            if queue in stored:
                return stored[queue]
            state = self._store.reading.queue_state(topic, queue)
            return state.min_offset if record.start == "earliest" else state.max_offset

        return start_of
