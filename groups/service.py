"""The entry point to consumer groups: their settings, receiving and settling. On the event loop.

This module connects the parts: serving/group_registry.py keeps the table of groups,
serving/group_server.py serves one group, and serving/group_changes.py changes settings.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import fields
from functools import partial
from typing import Any

from holdfast.consumequeue.errors import UnknownGroup
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.reading.fetched import MessageFilter
from holdfast.consumequeue.slices import LoopBudget, in_slices
from holdfast.consumequeue.topics import QueueKey, Topic, check_name, check_queue
from holdfast.groups.config import GroupsConfig
from holdfast.groups.core.last_values import KnownKeys
from holdfast.groups.core.members import AllInFlight, OnActive
from holdfast.groups.descriptions import GroupReply, LeaseReply, MessageStateReply
from holdfast.groups.errors import TooManyMembers
from holdfast.groups.resolving import MayReceiveById, resolve, topic_of
from holdfast.groups.service_types import (
    ChangeChecks,
    CheckTopic,
    GroupServiceStats,
    GroupState,
    MayConsume,
    Receipt,
    Received,
    ReceiveRequest,
    RedriveOptions,
    RedriveResult,
    SeekTarget,
    Status,
    Verb,
    allow_all,
)
from holdfast.groups.serving import describe as describing
from holdfast.groups.serving import inspecting
from holdfast.groups.serving.auto_delete import AutoDelete
from holdfast.groups.serving.clock import GroupClock
from holdfast.groups.serving.floor_exporter import FloorExporter
from holdfast.groups.serving.group_changes import GroupChanges, MaySubscribe
from holdfast.groups.serving.group_registry import GroupRegistry
from holdfast.groups.serving.group_server import (
    SETTLED_A_TURN,
    GroupServer,
    HeldReceive,
    SharedParts,
    UnfinishedReceive,
)
from holdfast.groups.serving.redriving import Redriver
from holdfast.groups.serving.scanning import Scan
from holdfast.groups.serving.unroutable import distinct_filters
from holdfast.groups.settings import GroupSettings
from holdfast.groups.storage.group_records import GroupRecord
from holdfast.groups.storage.open import OpenedGroups
from holdfast.holdservice.pull_request_hold_service import PullRequestHoldService

#: The floors of at most this many queues are read in one event loop iteration.
FLOORS_A_TURN = 1000
#: The owner of subscriptions when the caller gives no principal.
ANONYMOUS_OWNER = "anonymous"
ALLOW_ALL = ChangeChecks()


class GroupService:
    """All groups that lease messages. Its methods may be called on the event loop only."""

    def __init__(
        self,
        store: MessageStore,
        opened: OpenedGroups,
        config: GroupsConfig,
        *,
        hold: PullRequestHoldService,
        ageing_us: Callable[[], int],
        wall_us: Callable[[], int],
        passed_s: Callable[[], float],
        may_subscribe: MaySubscribe = lambda owner, topic, group: True,
    ) -> None:
        """`ageing_us` is the clock of leases, which smooths jumps of the wall clock. `wall_us` is
        the wall clock, by which messages expire. `passed_s` counts the seconds that really
        elapse."""
        self._store = store
        self._table = opened.table
        self._config = config
        # Start this clock not earlier than the wall clock, which has advanced since the groups
        # were opened. Otherwise the clock would lag behind the wall clock, with which the next
        # start of the broker begins, and leases would end too early there.
        from_ms = max(opened.opened_ms, wall_us() // 1000)
        clock = GroupClock(ageing_us, passed_s, wall_us, from_ms)
        in_flight = AllInFlight(
            config.max_leases, config.max_returned, config.max_returned_per_group
        )
        known_keys = KnownKeys(config.max_last_value_keys)
        shared = SharedParts(store, opened, hold, clock, in_flight, known_keys)
        self.registry = GroupRegistry(shared)
        self.queue_changes = shared.changes
        """Callers report here which queues have new messages or a new first offset."""
        self._by_name = self.registry.by_name
        self.exporter = FloorExporter(store, self._by_name.values, config.mirror_interval_ms / 1000)
        self.changes = GroupChanges(
            store, opened.table, self.registry, config, may_subscribe, self.exporter.export
        )
        self.auto_delete = AutoDelete(self.changes, clock.now_ms)
        self.registry.on_unused = self.auto_delete.report
        self._redriver = Redriver(shared, self.registry, self.changes)
        self._scan = Scan(self._by_name.values, store.reading.max_offset)
        self._is_running = False

    async def start(self) -> None:
        """Serve every stored group, in its stored state."""
        for record in self._table.all():
            await self.registry.restore(record)
        await self.changes.find_topics()
        self._is_running = True
        self.exporter.start()

    def drain(self) -> None:
        """Answer every waiting receive with GroupsStopping. From now on no request can wait."""
        self._redriver.drain()
        for group in self._by_name.values():
            group.drain()

    async def stop(self) -> None:
        """Answer every waiting receive with GroupsStopping, and commit all pending changes. May be
        called twice."""
        if self._is_running:
            self._is_running = False
            await self.auto_delete.stop()
            await self.registry.stop()
            await self.exporter.stop()

    @property
    def gone_count(self) -> int:
        """How many groups, and queues of groups, were removed since the start. This may be read in
        any thread."""
        return self.registry.gone_count

    # -- groups and their settings ---------------------------------------------------------

    def has_leases(self, group: str) -> bool:
        """Return whether the group leases messages. Other groups only store offsets."""
        return group in self._by_name

    def groups(self) -> list[str]:
        """Return the names of the groups with leases, sorted."""
        return sorted(self._by_name)

    def group_state(self, group: str) -> GroupState:
        """Return a group's settings. Raises InvalidName, UnknownGroup."""
        return self._state_of(self._get(group).record)

    async def describe(self, group: str) -> GroupReply:
        """Return a group's settings, progress and members; the caller must add the lag in
        bytes and seconds. Raises InvalidName, UnknownGroup."""
        server, now_ms = self._get(group), self.registry.clock.now_ms()
        await server.watch.catch_up()
        return await describing.describe(server, now_ms)

    async def lags(self, group: str) -> dict[str, int]:
        """Return for each topic of a group how many messages are not settled. Raises InvalidName,
        UnknownGroup."""
        server = self._get(group)
        await server.watch.catch_up()
        found, turn = {}, LoopBudget()
        for topic in server.topics():
            await turn.spend()
            found[topic.name] = 0
            async for lanes in turn.slices(server.lanes_of(topic.topic_id)):
                found[topic.name] += sum([lane.cursor.unsettled for lane in lanes])
        return found

    def groups_of(self, topic_id: int) -> Collection[str]:
        """Return the names of the groups with leases that have a topic. Treat as immutable."""
        return self.registry.names_of(topic_id)

    async def filters_of(self, topic: Topic) -> list[MessageFilter] | None:
        """Return the filters by which groups with leases read a topic, each once. Return None if a
        group reads every message of it, and an empty list if no group reads it. If the topic does
        not exist yet (its id is 0), these are the groups that would get it when it is created."""
        if topic.topic_id:
            return distinct_filters(self.registry.filters_of(topic.topic_id))
        return distinct_filters(await self.changes.filters_of_planned(topic))

    async def leases(
        self, group: str, is_visible: Callable[[str], bool], after: inspecting.Place, limit: int
    ) -> list[LeaseReply]:
        """Return the first `limit` leases of visible topics after a place, in the order of (topic
        id, queue, offset). Raises InvalidName, UnknownGroup."""
        server = self._get(group)
        await server.watch.catch_up()
        return await inspecting.find_leases(server, is_visible, after, limit)

    def message_state(self, group: str, key: QueueKey, offset: int) -> MessageStateReply:
        """Return the state of a message in a group. Raises InvalidName, UnknownGroup."""
        server = self._get(group)
        server.watch.process()
        return inspecting.state_of(server, key, offset, self._store.table)

    def settled_offsets(self, group: str, topic: Topic) -> Callable[[int, int], bool]:
        """Return a function that returns whether the group has settled the message at (queue,
        offset) of this topic. If the group does not exist or does not have the topic, its stored
        offsets count, otherwise nothing is settled. Raises InvalidName."""
        check_name("group", group)
        server = self._by_name.get(group)
        if server is not None and topic.topic_id in server.core.topics:
            core = server.core

            def is_settled(queue: int, offset: int) -> bool:
                lane = core.lane((topic.topic_id, queue))
                return lane is not None and offset in lane.cursor.done

            return is_settled
        offsets: Mapping[int, int] = {}
        with suppress(UnknownGroup):
            stored = self._store.offsets.group_topics(group).get(topic.name)
            offsets = {} if stored is None else stored.offsets
        return lambda queue, offset: offset < offsets.get(queue, 0)

    async def floors(self, group: str, topic: str) -> dict[int, int]:
        """Return the floor of each queue: all messages below it are settled. Raises UnknownGroup;
        raises UnknownTopic also if the group does not subscribe to the topic."""
        server = self._get(group)
        topic_of(server, self._store.table, topic)
        await server.watch.catch_up()
        found: dict[int, int] = {}
        topic_id = topic_of(server, self._store.table, topic).topic_id
        async for lanes in in_slices(server.lanes_of(topic_id), FLOORS_A_TURN):
            found |= {lane.key[1]: lane.cursor.floor for lane in lanes}
        return dict(sorted(found.items()))

    async def put_group(
        self,
        group: str,
        settings: GroupSettings,
        owner: str = ANONYMOUS_OWNER,
        checks: ChangeChecks = ALLOW_ALL,
        *,
        own: bool = False,
    ) -> tuple[GroupState, bool]:
        """Create or change a group, durably. Return the group, and whether it is new.

        The patterns of the settings match only topics that the principal `owner` may consume, now
        and later. The exceptions of the `checks` reach the caller. With `own`, the name may be one
        that only the broker may use.

        A new group begins at the offsets that are stored for its name, or at its `start` if none
        are stored. The same holds for a new topic of an existing group. Raises InvalidName,
        InvalidGroup, InvalidFilter, UnknownTopic, LimitReached, GroupBusy, StateUnavailable. A
        change that has begun is completed even if the caller is cancelled.
        """
        record, is_new = await self.changes.put(group, settings, owner, checks, own=own)
        return self._state_of(record), is_new

    async def delete_group(self, group: str, *, check_topic: CheckTopic = allow_all) -> None:
        """Delete a group with all its state, including stored offsets. Waiting requests get
        UnknownGroup. When the deletion begins, `check_topic` is called with the name of every topic
        that the group has, or on which offsets are stored for it. If it raises, the exception
        reaches the caller and nothing is deleted. Raises UnknownGroup, StateUnavailable."""
        await self.changes.delete(group, check_topic)

    # -- messages ----------------------------------------------------------------------------

    async def receive(self, group: str, request: ReceiveRequest) -> Received:
        """Return messages for a member; wait up to `request.wait_s` for the first message.

        Raises UnknownGroup, UnknownTopic, ExclusiveHeld, FilterNotAllowed, InvalidFilter,
        HoldLimitExceeded, TooManyMembers, StateUnavailable. Raises GroupsStopping instead of
        returning an empty answer when the broker stops before `wait_s` is over. If cancelled, it
        releases the messages that it has leased.
        """
        wanted = None
        if request.filter_text is not None or request.no_local is not None:
            filters = self.registry.filters
            wanted = await filters.parse_wanted(request.filter_text, request.no_local)
        server = self._get(group)
        request = resolve(request, server, self._store.table, wanted)
        if request.browse:
            await server.watch.catch_up()
            shown = await server.browsers.browse(request, self.registry.clock.now_ms())
            return Received(list(shown), server.core.available(request))
        self._check_member(server, request.member)
        if request.lease_ms is not None and not (request.settled or request.bound):
            await self.changes.allow_lease(server, request.lease_ms)
        return await server.receive(request)

    def begin_receive(
        self, group: str, request: ReceiveRequest
    ) -> Received | HeldReceive | UnfinishedReceive | None:
        """Begin to `receive` in this event loop iteration. Return the messages, or an object that
        waits: when its `future` is done, its `result` is the messages, or another such object. To
        give it up, cancel the future and call `give_up`. Raises the errors of `receive`.

        Return None, and lease nothing, if only `receive` can answer the request: it has a filter,
        browses, has a lease that would be the group's longest, needs messages that are not in
        memory, or must wait for a change of the group.
        """
        if request.filter_text is not None or request.no_local is not None or request.browse:
            return None
        server = self._get(group)
        lease_ms = None if request.settled or request.bound else request.lease_ms
        resolved = resolve(request, server, self._store.table)
        self._check_member(server, request.member)
        if lease_ms is not None and not self.changes.allows_lease(server, lease_ms):
            return None
        return server.begin_receive(resolved)

    def release_undelivered(self, group: str, receipts: Sequence[str | Receipt]) -> None:
        """Release the messages of a reply that could not be sent, so that they are available again
        before their leases expire. This does not count as a failure of the messages."""
        server = self._by_name.get(group)
        if server is not None:
            server.give_back(receipts)

    async def settle(
        self,
        group: str,
        verb: Verb,
        receipts: Sequence[str | Receipt],
        *,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
        cumulative: bool = False,
        used_ms: float | None = None,
        check_topic: CheckTopic = allow_all,
    ) -> list[Status]:
        """Settle each receipt, durably; return the status of each receipt, in order. With
        `delay_ms` 0, a nacked message is available again at once; with None, the group's backoff
        table sets its delay.

        `check_topic` is called with the name of the topic of every receipt. If it raises, the
        exception reaches the caller and nothing is settled.

        Raises UnknownGroup. Raises StateUnavailable; then the outcome is unknown, and the caller
        should repeat the call. If the call is cancelled, its settlements are not undone.
        """
        statuses, durable = self.begin_settling(
            group,
            verb,
            receipts,
            delay_ms=delay_ms,
            lease_ms=lease_ms,
            cumulative=cumulative,
            used_ms=used_ms,
            check_topic=check_topic,
        )
        if durable is not None:
            settled = await asyncio.shield(durable)
            statuses = statuses or settled
        return statuses

    async def check_receipts(
        self, group: str, receipts: Sequence[str | Receipt], check_topic: CheckTopic
    ) -> None:
        """Call `check_topic` with the name of the topic of every receipt. If it raises, the
        exception reaches the caller. Raises UnknownGroup."""
        await self._get(group).decode_receipts(receipts, check_topic)

    def begin_settling(
        self,
        group: str,
        verb: Verb,
        receipts: Sequence[str | Receipt],
        *,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
        cumulative: bool = False,
        used_ms: float | None = None,
        reason: str | None = None,
        waits: bool = True,
        check_topic: CheckTopic = allow_all,
    ) -> "tuple[list[Status], asyncio.Future[Any] | None]":
        """Settle all receipts in this event loop iteration, and put the changes into the group's
        next commit. `settle` describes the rest. Return the status of each receipt, in order, and a
        future that completes when the changes are durable. It is None if nothing was settled, or if
        `waits` is false: then the commit may begin a few milliseconds later, to serve more changes.

        All callers whose changes are in one commit get the same future, so they must not cancel it.
        It fails with StateUnavailable; then the outcome is unknown. The dead letters of rejected
        messages name the `reason` instead of "rejected", unless the broker restarts before they are
        appended.

        The receipts are settled in later iterations if there are many, if `cumulative` is true, if
        a lease would be the group's longest, and while a change of the group's settings pauses
        settling. Then the list of statuses is empty, and the future belongs to this call alone; its
        result is the list of statuses. Raises UnknownGroup.
        """
        server = self._get(group)
        is_cumulative = cumulative and verb is Verb.ACK
        longer_ms = lease_ms if verb is Verb.EXTEND else None
        if longer_ms is not None and self.changes.allows_lease(server, longer_ms):
            longer_ms = None
        terms = {"delay_ms": delay_ms, "lease_ms": lease_ms, "used_ms": used_ms, "reason": reason}
        if len(receipts) <= SETTLED_A_TURN and not is_cumulative and longer_ms is None:
            begun = server.begin_settling(
                verb, receipts, terms, waits=waits, check_topic=check_topic
            )
            if begun is not None:
                return begun
        allow_lease = None
        if longer_ms is not None:
            allow_lease = partial(self.changes.allow_lease, server, longer_ms)
        later = server.settle(
            verb,
            receipts,
            terms,
            cumulative=is_cumulative,
            check_topic=check_topic,
            allow_lease=allow_lease,
        )
        return [], asyncio.ensure_future(self._store.state.run_shielded(later))

    def is_leased(self, group: str, receipt: Receipt) -> bool:
        """Return whether the lease of a receipt is live."""
        server = self._by_name.get(group)
        return server is not None and inspecting.is_leased(server, receipt)

    def may_return(self, group: str, receipt: Receipt) -> bool:
        """Return whether the group may deliver the message of a receipt again, now or after the
        message's present lease. Return False if the message is settled or becomes a dead letter, if
        the group was deleted or does not have the queue any more, or if a seek has moved the group
        since the receipt was made."""
        server = self._by_name.get(group)
        return server is not None and inspecting.may_return(server, receipt)

    def would_die(self, group: str, receipt: Receipt) -> bool:
        """Return whether the message of a receipt has `max_attempts - 1` failures, so that one more
        makes it a dead letter. Return False if the group or its queue does not exist any more."""
        server = self._by_name.get(group)
        return server is not None and inspecting.would_die(server, receipt)

    async def seek(
        self, group: str, target: SeekTarget, *, check_topic: CheckTopic = allow_all
    ) -> Mapping[str, Mapping[int, int]]:
        """Move the group to other offsets, durably. Return topic -> queue -> offset for the queues
        in which the group was moved.

        If the target is a mapping, only the queues in it are affected. An offset outside a queue is
        replaced by the nearest offset inside. Receipts from before the seek become stale. If the
        target is not a mapping, `check_topic` is called with the name of every topic of the group.
        If it raises, the exception reaches the caller and nothing is changed.

        Raises UnknownGroup, UnknownTopic, UnknownQueue, StateUnavailable."""
        server = self._get(group)
        await server.watch.catch_up()
        targets: dict[QueueKey, int] = {}
        turn = LoopBudget()
        if isinstance(target, Mapping):
            for name, offsets in target.items():
                topic = topic_of(server, self._store.table, name)
                async for some in turn.slices(offsets.items()):
                    for queue, offset in some:
                        check_queue(topic, queue)
                        targets[topic.topic_id, queue] = offset
        else:
            topics = server.topics()
            for topic in topics:
                check_topic(topic.name)
            for topic in topics:
                await turn.spend()
                async for queues in turn.slices(range(topic.queue_count)):
                    for queue in queues:
                        offset = await self._offset_at(topic, queue, target)
                        targets[topic.topic_id, queue] = offset
        # Skip new queues, which the group adds later at their first offset, and deleted topics.
        reached = await server.seek(
            {key: at for key, at in targets.items() if server.core.lane(key) is not None}
        )
        moved: dict[str, dict[int, int]] = {}
        async for part in turn.slices(reached.items()):
            for (topic_id, queue), offset in part:
                found = self._store.table.by_id(topic_id)
                if found is not None:
                    moved.setdefault(found.name, {})[queue] = offset
        return moved

    async def redrive(self, group: str, ask: RedriveOptions) -> RedriveResult:
        """Publish a group's dead letters to their original topics again. `Redriver.redrive` lists
        the exceptions. The caller must not cancel this call."""
        return await self._redriver.redrive(group, ask)

    def join(self, group: str, member: str, on_active: OnActive = lambda is_active: None) -> bool:
        """Add a member that stays in the group until it leaves, also while it has no request and no
        lease. Return whether the group serves it now: always true in competing and keyed groups.

        Whenever the returned value changes, `on_active` is called with the new value, in a separate
        event loop callback. A member of a single active group becomes the active member when the
        previous active member has no leases left. It becomes active without a notice. If a member
        joins again, its new `on_active` replaces the old one. Raises UnknownGroup, TooManyMembers,
        ExclusiveHeld, GroupsStopping."""
        server = self._get(group)
        self._check_member(server, member)
        return server.join(member, on_active)

    def available(self, group: str, request: ReceiveRequest) -> int:
        """Return how many messages a request could get now, without waiting: 0 if its member is not
        served. It is an upper bound, because filters may not have been applied to all messages yet.
        Raises UnknownGroup, UnknownTopic."""
        server = self._get(group)
        server.watch.process()
        return server.available(resolve(request, server, self._store.table))

    async def leave(
        self, group: str, member: str, *, may_consume: MayConsume | None = None
    ) -> None:
        """Remove a member: make its leased messages available again, and answer its waiting
        requests without messages.

        If `may_consume` permits only some topics, the member keeps its leases of the other topics,
        and the requests that may get messages of the other topics. While it has such a lease or
        request, it stays a member. Raises UnknownGroup, StateUnavailable."""
        server = self._get(group)
        may_end = None
        if may_consume is not None:
            may_end = MayReceiveById(may_consume, self._store.table.by_id)
        await server.leave(member, may_end)
        await server.commits.wait()

    # -- figures -----------------------------------------------------------------------------

    def scan(self) -> int:
        """Serve requests that wait although messages are available. Return their number; any number
        except 0 is a defect of the broker, and the periodic scan counts it as scan rescues."""
        return self._scan.scan_some()

    def stats(self) -> GroupServiceStats:
        """Return the figures for metrics."""
        stats = self._new_stats()
        add_figures(stats, self._by_name.values())
        return stats

    async def stats_in_slices(self) -> GroupServiceStats:
        """Return the figures of `stats`, computed in several event loop iterations. The figures of
        one group are consistent; those of different groups may be from different times."""
        stats = self._new_stats()
        async for groups in in_slices(list(self._by_name.values())):
            add_figures(stats, groups)
        return stats

    def _new_stats(self) -> GroupServiceStats:
        counters = self.registry.counters
        return GroupServiceStats(
            **{each.name: copy(getattr(counters, each.name)) for each in fields(counters)},
            expired_leases_total=self.registry.expired_leases,
            groups=len(self._by_name),
        )

    def _check_member(self, server: GroupServer, member: str) -> None:
        """Raise TooManyMembers if a member is new and the group may have no more."""
        members, most = server.core.members, self._config.max_members
        if len(members) >= most and member not in members:
            raise TooManyMembers("groups.max_members", most, server.record.name)

    def _get(self, name: str) -> GroupServer:
        """Return a group. Raises InvalidName, UnknownGroup."""
        return self._by_name.get(name) or self.registry.get(name)

    def _state_of(self, record: GroupRecord) -> GroupState:
        found = ((self._store.table.by_id(each), wanted) for each, wanted in record.topics.items())
        return GroupState(
            record, {topic.name: wanted for topic, wanted in found if topic is not None}
        )

    async def _offset_at(self, topic: Topic, queue: int, target: str | int) -> int:
        state = self._store.reading.queue_state(topic, queue)
        if target == "earliest":
            return state.min_offset
        if target == "latest":
            return state.max_offset
        offset, _ = await self._store.lookups.offset_by_time(topic, queue, int(target) * 1000)
        return offset


def add_figures(stats: GroupServiceStats, groups: Iterable[GroupServer]) -> None:
    """Add the present figures of these groups."""
    for group in groups:
        leased = group.core.lease_count
        stats.waiting += len(group.core.waiters)
        stats.in_flight += leased
        is_full = leased >= group.record.config.max_in_flight
        if is_full or not group.core.in_flight.may_deliver_new:
            stats.at_limit.append(group.record.name)
