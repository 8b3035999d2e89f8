"""Groups as the layers above see them: settings, receiving, settling. On the event loop.

Which groups there are and what they consist of is kept here, in step with their records; how one
is served is served_group.py's.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from holdfast.consumequeue.errors import LimitReached, UnknownGroup, UnknownTopic
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.state_records import group_key
from holdfast.consumequeue.topics import QueueKey, Topic, check_name, check_queue
from holdfast.groups import describing
from holdfast.groups.asking import Ask
from holdfast.groups.config import SHORTEST_LEASE_MS, GroupsConfig
from holdfast.groups.counters import Counters
from holdfast.groups.filter_text import filter_of
from holdfast.groups.group_clock import GroupClock
from holdfast.groups.group_records import GroupRecord
from holdfast.groups.group_specs import changed_record, new_record, state_of
from holdfast.groups.mirror import Mirror
from holdfast.groups.opening import OpenedGroups
from holdfast.groups.receipts import ReceiptCodec
from holdfast.groups.recent_batches import RecentBatches
from holdfast.groups.restoring import QueueRange, begin_cursor
from holdfast.groups.rows import all_of
from holdfast.groups.served_group import Places, ServedGroup
from holdfast.groups.service_types import (
    GroupBusy,
    GroupDescription,
    GroupServiceStats,
    GroupSpec,
    GroupState,
    InvalidGroup,
    ReceiveAsk,
    Received,
    SeekTarget,
    Status,
    Verb,
)

#: Batches that are kept for the deliveries that follow, of all groups together.
RECENT_BYTES = 32 * 1024 * 1024


class GroupService:
    """Every group with leases. All methods are the event loop's."""

    def __init__(
        self,
        store: MessageStore,
        opened: OpenedGroups,
        config: GroupsConfig,
        *,
        places: Places,
        ageing_us: Callable[[], int],
        passed_s: Callable[[], float],
    ) -> None:
        """`ageing_us` is the time by which messages grow old, `passed_s` what really passes."""
        self._store = store
        self._opened = opened
        self._table = opened.table
        self._config = config
        self._places = places
        self._clock = GroupClock(ageing_us, passed_s, opened.opened_ms)
        self._counters = Counters()
        self._recent = RecentBatches(RECENT_BYTES)
        self._codec: ReceiptCodec | None = None
        self._groups: dict[str, ServedGroup] = {}
        #: Who has a topic: those that an arrival concerns.
        self._by_topic: dict[int, dict[str, ServedGroup]] = {}
        self._changing = asyncio.Lock()
        self._mirror = Mirror(store, self._groups.values, config.mirror_interval_ms / 1000)
        #: Ends that were not told of at the last scan.
        self._behind: dict[tuple[str, QueueKey], int] = {}
        self._is_running = False

    async def start(self) -> None:
        """Take up every group where it was."""
        for record in self._table.all():
            group = self._served(record)
            for topic_id in record.topics:
                topic = self._store.topic_by_id(topic_id)
                if topic is not None:
                    self._subscribe(group, topic)
                    for queue in range(topic.queue_count):
                        key = (topic_id, queue)
                        cursor = self._opened.cursors.pop((record.group_id, *key), None)
                        if cursor is None:
                            self._begin_queue(group, key, self._start_of(group, topic, queue))
                        else:
                            group.add_queue(key, cursor)
                            group.core.arrived(key, self._store.max_offset(key) or 0)
            group.start()
        self._is_running = True
        self._mirror.start()

    def drain(self) -> None:
        """Answer every waiting receive with nothing, and let none wait from now on."""
        for group in self._groups.values():
            group.drain()

    async def stop(self) -> None:
        """Answer every waiting receive with nothing, and make durable what waits for that. May
        be called twice."""
        if self._is_running:
            self._is_running = False
            await asyncio.gather(*(group.stop() for group in self._groups.values()))
            await self._mirror.stop()

    # -- which groups there are ------------------------------------------------------------

    def has_leases(self, group: str) -> bool:
        """Say whether a group is one with leases; any other only stores offsets."""
        return group in self._groups

    def groups(self) -> list[str]:
        """Return the names of the groups with leases, sorted."""
        return sorted(self._groups)

    def group_state(self, group: str) -> GroupState:
        """Return a group's configuration. Raises InvalidName, UnknownGroup."""
        return self._state_of(self._group(group).record)

    def describe(self, group: str) -> GroupDescription:
        """Return everything about a group. Raises InvalidName, UnknownGroup."""
        served = self._group(group)
        return describing.describe(served, self._state_of(served.record), self._clock.now_ms())

    def floors(self, group: str, topic: str) -> dict[int, int]:
        """Return by queue below which offset everything is settled. Raises UnknownGroup,
        UnknownTopic (also for a topic that is not the group's)."""
        served = self._group(group)
        lanes = served.core.topics[self._topic_of(served, topic).topic_id].lanes
        return {queue: lanes[queue].cursor.floor for queue in sorted(lanes)}

    async def put_group(self, group: str, spec: GroupSpec) -> tuple[GroupState, bool]:
        """Create a group or change it, durably; return it and whether it is new.

        A new group begins at the offsets that were stored for its name, where there are any, else
        at its `start`; so does a topic that is new in it. Raises InvalidName, InvalidGroup,
        InvalidFilter, UnknownTopic, LimitReached, GroupBusy, StateUnavailable. A change that was
        begun goes on to its end even if the caller is cancelled.
        """
        check_name("group", group)
        return await self._store.to_its_end(self._put_group(group, spec))

    async def delete_group(self, group: str) -> None:
        """Delete a group with all that is known of it, the stored offsets too; what waits is
        answered with UnknownGroup. Raises UnknownGroup, StateUnavailable."""
        self._group(group)
        await self._store.to_its_end(self._delete_group(group))

    # -- messages ----------------------------------------------------------------------------

    async def receive(self, group: str, ask: ReceiveAsk) -> Received:
        """Return messages for a member; wait for the first for up to `ask.wait_s`.

        Raises UnknownGroup, UnknownTopic, ExclusiveHeld, FilterNotAllowed, InvalidFilter,
        HoldLimitExceeded, StateUnavailable. Cancelling gives back what was leased.
        """
        served = self._group(group)
        topics = None
        if ask.topics is not None:
            topics = frozenset(self._topic_of(served, name).topic_id for name in ask.topics)
        wanted = filter_of(ask.filter)
        if ask.browse:
            return await served.browse(
                ask.member, topics, wanted, (ask.max_messages, ask.max_bytes)
            )
        if ask.lease_ms is not None and not ask.settled:
            await self._allow_lease(served, ask.lease_ms)
        return await served.receive(
            Ask(
                ask.member,
                ask.max_messages,
                ask.max_bytes,
                topics,
                wanted,
                ask.lease_ms,
                ask.settled,
                ask.attempt_id,
            ),
            ask.client,
            ask.wait_s,
        )

    def undelivered(self, group: str, received: Received) -> None:
        """A reply could not be sent: its messages are available again at once. That is no
        failure of theirs."""
        served = self._groups.get(group)
        if served is not None:
            served.give_back(received.deliveries)

    async def settle(
        self,
        group: str,
        verb: Verb,
        receipts: Sequence[str],
        *,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
        cumulative: bool = False,
        used_ms: float | None = None,
    ) -> list[Status]:
        """Settle each receipt, durably; return what became of each, in order.

        Raises UnknownGroup, StateUnavailable (then it may hold or not: ask again). Cancelling
        does not undo it.
        """
        served = self._group(group)
        if verb is Verb.EXTEND and lease_ms is not None:
            await self._allow_lease(served, lease_ms)
        return await served.settle(
            verb,
            receipts,
            delay_ms=delay_ms,
            lease_ms=lease_ms,
            used_ms=used_ms,
            cumulative=cumulative,
        )

    async def seek(self, group: str, target: SeekTarget) -> Mapping[str, Mapping[int, int]]:
        """Start again elsewhere, durably; return topic -> queue -> offset for what moved. Queues
        not named by a mapping stay where they are; offsets are brought within the queue. Old
        receipts are stale. Raises UnknownGroup, UnknownTopic, UnknownQueue, StateUnavailable."""
        served = self._group(group)
        targets: dict[QueueKey, int] = {}
        if isinstance(target, Mapping):
            for name, offsets in target.items():
                topic = self._topic_of(served, name)
                for queue, offset in offsets.items():
                    check_queue(topic, queue)
                    targets[topic.topic_id, queue] = offset
        else:
            for topic in served.topics():
                for queue in range(topic.queue_count):
                    offset = await self._offset_at(topic, queue, target)
                    targets[topic.topic_id, queue] = offset
        # Queues that the group has not heard of begin where they begin; topics may have gone.
        lanes = {lane.key for lane in served.lanes()}
        reached = await served.seek({key: at for key, at in targets.items() if key in lanes})
        moved: dict[str, dict[int, int]] = {}
        for (topic_id, queue), offset in reached.items():
            found = self._store.topic_by_id(topic_id)
            if found is not None:
                moved.setdefault(found.name, {})[queue] = offset
        return moved

    async def leave(self, group: str, member: str) -> None:
        """A member goes: what it had leased is available again, what it waits for is answered
        with nothing. Raises UnknownGroup, StateUnavailable."""
        served = self._group(group)
        served.leave(member)
        await served.commits.wait()

    # -- what the storage tells ------------------------------------------------------------

    def arrived(self, advanced: Mapping[QueueKey, int]) -> None:
        """Queues reach to these ends, readable."""
        concerned: dict[str, dict[QueueKey, int]] = {}
        for key, end in advanced.items():
            for name in self._by_topic.get(key[0], ()):
                concerned.setdefault(name, {})[key] = end
        for name, ends in concerned.items():
            group = self._groups[name]
            for key in ends:
                if key[1] not in group.core.topics[key[0]].lanes:
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

    def scan(self) -> int:
        """Look whether somebody waits for what is there; serve it, and return for how many that
        was so. It stays 0: the periodic scan counts it as rescues."""
        rescued = 0
        behind: dict[tuple[str, QueueKey], int] = {}
        for name, group in self._groups.items():
            if not group.waiting_count:
                continue
            rescued += group.scan()
            for lane in group.lanes():
                end = self._store.max_offset(lane.key)
                if end is not None and end > lane.cursor.end:
                    # A message is readable a moment before it is told of: not for a whole scan.
                    if lane.cursor.end < self._behind.get((name, lane.key), 0):
                        rescued += 1
                        group.arrived({lane.key: end})
                    else:
                        behind[name, lane.key] = end
        self._behind = behind
        return rescued

    def stats(self) -> GroupServiceStats:
        """Return the figures for metrics."""
        counters, groups = self._counters, self._groups.values()
        return GroupServiceStats(
            groups=len(groups),
            waiting=sum(group.waiting_count for group in groups),
            in_flight=sum(group.core.lease_count for group in groups),
            delivered_total=counters.delivered,
            redelivered_total=counters.redelivered,
            settled_total=dict(counters.settled),
            dead_letters_total=counters.dead_letters,
            expired_leases_total=counters.expired_leases,
            undelivered_total=counters.undelivered,
            commits_total=counters.commits,
            commit_failures_total=counters.commit_failures,
        )

    # -- inside: what a group consists of --------------------------------------------------

    def _group(self, name: str) -> ServedGroup:
        group = self._groups.get(name)
        if group is None:
            check_name("group", name)
            raise UnknownGroup(name)
        return group

    def _topic_of(self, group: ServedGroup, name: str) -> Topic:
        topic = self._store.topic(name)
        if topic.topic_id not in group.core.topics:
            raise UnknownTopic(name)
        return topic

    def _state_of(self, record: GroupRecord) -> GroupState:
        found = map(self._store.topic_by_id, record.topics)
        names = {topic.topic_id: topic.name for topic in found if topic is not None}
        return state_of(record, names, self._config)

    def _served(self, record: GroupRecord) -> ServedGroup:
        if self._codec is None:
            assert self._table.receipt_key is not None
            self._codec = ReceiptCodec(self._table.receipt_key)
        group = ServedGroup(
            record,
            store=self._store,
            writer=self._opened.store,
            pages=self._opened.page,
            places=self._places,
            recent=self._recent,
            codec=self._codec,
            clock=self._clock,
            counters=self._counters,
        )
        self._groups[record.name] = group
        return group

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
        topic = self._store.topic_by_id(key[0])
        assert topic is not None
        state = self._store.queue_state(topic, key[1])
        within = QueueRange(state.min_offset, state.max_offset)
        cursor = begin_cursor(self._opened.boot, self._clock.now_ms(), within, offset)
        group.add_queue(key, cursor)

    def _start_of(self, group: ServedGroup, topic: Topic, queue: int) -> int:
        """Return where a queue that is new in a group begins."""
        name = group.record.name
        stored = self._store.group_topics(name) if name in self._store.groups() else {}
        if topic.name in stored and queue in stored[topic.name].offsets:
            return stored[topic.name].offsets[queue]
        state = self._store.queue_state(topic, queue)
        return state.min_offset if group.record.start == "earliest" else state.max_offset

    # -- inside: changes -------------------------------------------------------------------

    async def _put_group(self, name: str, spec: GroupSpec) -> tuple[GroupState, bool]:
        async with self._changing:
            topics = {each: self._store.topic(each) for each in spec.topics or ()}
            topic_ids = {each: topic.topic_id for each, topic in topics.items()}
            group = self._groups.get(name)
            before = (
                new_record(name, self._table.next_group_id, self._clock.now_ms())
                if group is None
                else group.record
            )
            record = changed_record(before, spec, topic_ids, self._config)
            self._check_change(group, record)
            if record != before or group is None:
                await self._store_record(record)
            is_new = group is None
            if group is None:
                group = self._served(record)
                # An id that a crash left half used must not bring its rows back.
                group.commits.write(all_of(record.group_id))
            self._become(group, record)
            await group.commits.wait()
            return self._state_of(record), is_new

    def _check_change(self, group: ServedGroup | None, record: GroupRecord) -> None:
        config = self._config
        if group is None and not record.topics:
            raise InvalidGroup("topics", "a new group needs at least one topic")
        if group is None and len(self._groups) >= config.max_groups:
            raise LimitReached("max_groups", config.max_groups)
        if group is not None and group.core.lease_count:
            is_other_mode = record.config.mode != group.record.config.mode
            if is_other_mode:
                raise GroupBusy(record.name, group.core.lease_count)

    async def _store_record(self, record: GroupRecord) -> None:
        changes = self._table.changes_of(record)
        await self._store.commit_state(changes)
        self._table.stored(record, changes)

    def _become(self, group: ServedGroup, record: GroupRecord) -> None:
        """Bring a group in step with its record."""
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
            for queue in range(topic.queue_count):
                self._begin_queue(group, (topic_id, queue), self._start_of(group, topic, queue))
        group.configure(record)

    async def _delete_group(self, name: str) -> None:
        async with self._changing:
            group = self._group(name)
            await self._store.commit_state({group_key(name): None})
            self._table.remove(group.record)
            del self._groups[name]
            for topic_id in list(group.core.topics):
                self._unsubscribe(group, topic_id)
            await group.stop(UnknownGroup(name))
            await self._store.forget_offsets(name)

    async def _allow_lease(self, group: ServedGroup, lease_ms: int) -> None:
        """Have it on the disk how long leases may be, before one is: after a power loss that
        long is waited for them."""
        asked = min(max(lease_ms, SHORTEST_LEASE_MS), self._config.max_lease_ms)
        if asked > group.record.config.longest_lease_ms:
            await self._store.to_its_end(self._raise_longest_lease(group, asked))

    async def _raise_longest_lease(self, group: ServedGroup, lease_ms: int) -> None:
        async with self._changing:
            record = group.record
            if lease_ms > record.config.longest_lease_ms and record.name in self._groups:
                config = replace(record.config, longest_lease_ms=lease_ms)
                record = replace(record, config=config)
                await self._store_record(record)
                group.configure(record)

    async def _offset_at(self, topic: Topic, queue: int, target: str | int) -> int:
        state = self._store.queue_state(topic, queue)
        if target == "earliest":
            return state.min_offset
        if target == "latest":
            return state.max_offset
        offset, _ = await self._store.offset_by_time(topic, queue, int(target) * 1000)
        return offset
