"""Groups as the layers above see them: settings, receiving, settling. On the event loop.

This puts the parts together: which groups there are is served_groups.py's, how one is served is
served_group.py's, and settings change in group_changes.py.
"""

from collections.abc import Callable, Mapping, Sequence

from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.topics import QueueKey, Topic, check_queue
from holdfast.groups import describing
from holdfast.groups.asking import Ask
from holdfast.groups.config import GroupsConfig
from holdfast.groups.filter_text import filter_of
from holdfast.groups.group_changes import GroupChanges
from holdfast.groups.group_clock import GroupClock
from holdfast.groups.group_records import GroupRecord
from holdfast.groups.group_specs import state_of
from holdfast.groups.mirror import Mirror
from holdfast.groups.opening import OpenedGroups
from holdfast.groups.served_group import Places, ServedGroup
from holdfast.groups.served_groups import ServedGroups
from holdfast.groups.service_types import (
    GroupDescription,
    GroupServiceStats,
    GroupSpec,
    GroupState,
    NotSubscribed,
    ReceiveAsk,
    Received,
    SeekTarget,
    Status,
    TooManyMembers,
    Verb,
)


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
        self._table = opened.table
        self._config = config
        clock = GroupClock(ageing_us, passed_s, opened.opened_ms)
        self._served = ServedGroups(store, opened, places, clock)
        self._changes = GroupChanges(store, opened.table, self._served, config)
        self._mirror = Mirror(store, self._served.by_name.values, config.mirror_interval_ms / 1000)
        #: Ends that were not told of at the last scan.
        self._behind: dict[tuple[str, QueueKey], int] = {}
        self._is_running = False
        self.arrived = self._served.arrived
        self.trimmed = self._served.trimmed
        self.topic_deleted = self._served.topic_deleted

    async def start(self) -> None:
        """Take up every group where it was."""
        for record in self._table.all():
            self._served.take_up(record)
        self._is_running = True
        self._mirror.start()

    def drain(self) -> None:
        """Answer every waiting receive with nothing, and let none wait from now on."""
        for group in self._served.by_name.values():
            group.drain()

    async def stop(self) -> None:
        """Answer every waiting receive with nothing, and make durable what waits for that. May
        be called twice."""
        if self._is_running:
            self._is_running = False
            await self._served.stop()
            await self._mirror.stop()

    # -- which groups there are ------------------------------------------------------------

    def has_leases(self, group: str) -> bool:
        """Say whether a group is one with leases; any other only stores offsets."""
        return group in self._served.by_name

    def groups(self) -> list[str]:
        """Return the names of the groups with leases, sorted."""
        return sorted(self._served.by_name)

    def group_state(self, group: str) -> GroupState:
        """Return a group's configuration. Raises InvalidName, UnknownGroup."""
        served = self._served.get(group)
        names = self._names_of(served.record)
        shown = served.shown
        if shown is None or shown[0] is not served.record or shown[1] != names:
            state = state_of(served.record, names, self._config)
            shown = served.shown = served.record, names, state
        return shown[2]

    def describe(self, group: str) -> GroupDescription:
        """Return everything about a group. Raises InvalidName, UnknownGroup."""
        served, now_ms = self._served.get(group), self._served.clock.now_ms()
        return describing.describe(served, self._state_of(served.record), now_ms)

    def floors(self, group: str, topic: str) -> dict[int, int]:
        """Return by queue below which offset everything is settled. Raises UnknownGroup,
        UnknownTopic (also for a topic that is not the group's)."""
        served = self._served.get(group)
        lanes = served.core.topics[self._topic_of(served, topic).topic_id].lanes
        return {queue: lanes[queue].cursor.floor for queue in sorted(lanes)}

    async def put_group(self, group: str, spec: GroupSpec) -> tuple[GroupState, bool]:
        """Create a group or change it, durably; return it and whether it is new.

        A new group begins at the offsets that were stored for its name, where there are any, else
        at its `start`; so does a topic that is new in it. Raises InvalidName, InvalidGroup,
        InvalidFilter, UnknownTopic, LimitReached, GroupBusy, StateUnavailable. A change that was
        begun goes on to its end even if the caller is cancelled.
        """
        record, is_new = await self._changes.put(group, spec)
        return self._state_of(record), is_new

    async def delete_group(self, group: str) -> None:
        """Delete a group with all that is known of it, the stored offsets too; what waits is
        answered with UnknownGroup. Raises UnknownGroup, StateUnavailable."""
        await self._changes.delete(group)

    # -- messages ----------------------------------------------------------------------------

    async def receive(self, group: str, ask: ReceiveAsk) -> Received:
        """Return messages for a member; wait for the first for up to `ask.wait_s`.

        Raises UnknownGroup, UnknownTopic, ExclusiveHeld, FilterNotAllowed, InvalidFilter,
        HoldLimitExceeded, TooManyMembers, StateUnavailable. Cancelling gives back what was leased.
        """
        served = self._served.get(group)
        topics = None
        if ask.topics is not None:
            topics = frozenset(self._topic_of(served, name).topic_id for name in ask.topics)
        wanted = filter_of(ask.filter)
        if ask.browse:
            shown = await served.browsers.browse(
                ask.member,
                topics,
                wanted,
                max_messages=ask.max_messages,
                max_bytes=ask.max_bytes,
                now_ms=self._served.clock.now_ms(),
            )
            return Received(list(shown), served.core.available(topics))
        members, most = served.core.members, self._config.max_members
        if len(members) >= most and ask.member not in members:
            raise TooManyMembers(group, most)
        if ask.lease_ms is not None and not ask.settled:
            await self._changes.allow_lease(served, ask.lease_ms)
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

    def undelivered(self, group: str, receipts: Sequence[str]) -> None:
        """A reply could not be sent: its messages are available again at once. That is no
        failure of theirs."""
        served = self._served.by_name.get(group)
        if served is not None:
            served.give_back(receipts)

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
        served = self._served.get(group)
        if verb is Verb.EXTEND and lease_ms is not None:
            await self._changes.allow_lease(served, lease_ms)
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
        served = self._served.get(group)
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
        served = self._served.get(group)
        served.leave(member)
        await served.commits.wait()

    # -- figures -----------------------------------------------------------------------------

    def scan(self) -> int:
        """Look whether somebody waits for what is there; serve it, and return for how many that
        was so. It stays 0: the periodic scan counts it as rescues."""
        rescued = 0
        behind: dict[tuple[str, QueueKey], int] = {}
        for name, group in self._served.by_name.items():
            if not len(group.waiting):
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
        counters, groups = self._served.counters, self._served.by_name.values()
        return GroupServiceStats(
            groups=len(groups),
            waiting=sum(len(group.waiting) for group in groups),
            in_flight=sum(group.core.lease_count for group in groups),
            delivered_total=counters.delivered,
            redelivered_total=counters.redelivered,
            settled_total=dict(counters.settled),
            dead_letters_total=counters.dead_letters,
            expired_leases_total=self._served.expired_leases,
            undelivered_total=counters.undelivered,
            commits_total=counters.commits,
            commit_failures_total=counters.commit_failures,
        )

    # -- inside ------------------------------------------------------------------------------

    def _topic_of(self, group: ServedGroup, name: str) -> Topic:
        topic = self._store.topic(name)
        if topic.topic_id not in group.core.topics:
            raise NotSubscribed(group.record.name, name)
        return topic

    def _state_of(self, record: GroupRecord) -> GroupState:
        return state_of(record, self._names_of(record), self._config)

    def _names_of(self, record: GroupRecord) -> dict[int, str]:
        found = map(self._store.topic_by_id, record.topics)
        return {topic.topic_id: topic.name for topic in found if topic is not None}

    async def _offset_at(self, topic: Topic, queue: int, target: str | int) -> int:
        state = self._store.queue_state(topic, queue)
        if target == "earliest":
            return state.min_offset
        if target == "latest":
            return state.max_offset
        offset, _ = await self._store.offset_by_time(topic, queue, int(target) * 1000)
        return offset
