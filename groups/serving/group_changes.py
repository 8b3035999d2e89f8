"""Changes of groups: first on the disk, then in the served groups. On the event loop.

One change runs at a time, and is completed even if its caller is cancelled. A change takes effect
with the commit of the group's record. Before that, the cursors of new queues are committed, and
messages that an old filter skipped are made available again. Nothing is leased while a new mode or
filter is stored. So after a crash a group is as it was before the change, or as it is after it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace

from msgspec import UNSET

from holdfast.consumequeue.errors import LimitReached, StateUnavailable
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.reading.fetched import MessageFilter
from holdfast.consumequeue.slices import LoopBudget, in_slices
from holdfast.consumequeue.state.records import group_key
from holdfast.consumequeue.topics import Topic, check_name
from holdfast.groups.config import SHORTEST_LEASE_MS, GroupsConfig
from holdfast.groups.core.subscribing import Match, Subscriptions
from holdfast.groups.errors import GroupBusy, InvalidGroup
from holdfast.groups.service_types import ChangeChecks, CheckTopic, allow_all
from holdfast.groups.serving.group_registry import GroupRegistry
from holdfast.groups.serving.group_server import GroupServer
from holdfast.groups.serving.parsed_filters import Filters, characters_of
from holdfast.groups.serving.queue_watch import GROUP_ITEMS
from holdfast.groups.settings import GroupSettings, Subscription, filter_texts
from holdfast.groups.storage.group_records import GroupRecord, new_record
from holdfast.groups.storage.group_table import GroupTable

_logger = logging.getLogger(__name__)

#: Long loops count their work in items, so that each event loop iteration ends in time. This many
#: topics of a record count as one item.
TOPICS_AN_ITEM = 10

#: At most this many topics and queues are added to groups in one event loop iteration. Each takes
#: about 80 microseconds, for its cursor and its rows.
CHANGED_A_TURN = 125

MaySubscribe = Callable[[str, str, str], bool]
"""A function that returns whether a pattern of a group may match a topic. Its arguments are the
names of the principal that gave the pattern, of the topic, and of the group."""


class GroupChanges:
    """Creates, changes and deletes groups, and finds the topics that match their subscriptions."""

    def __init__(
        self,
        store: MessageStore,
        table: GroupTable,
        registry: GroupRegistry,
        config: GroupsConfig,
        may_subscribe: MaySubscribe,
        store_floors: Callable[[GroupServer, LoopBudget], Awaitable[None]],
    ) -> None:
        """`store_floors` stores the floors of a group as its stored offsets."""
        self._store = store
        self._table = table
        self._registry = registry
        self._config = config
        self._may_subscribe = may_subscribe
        self._store_floors = store_floors
        self._lock = asyncio.Lock()

    async def put(
        self,
        name: str,
        settings: GroupSettings,
        owner: str,
        checks: ChangeChecks,
        *,
        own: bool = False,
    ) -> tuple[GroupRecord, bool]:
        """Create or change a group; GroupService.put_group lists the exceptions."""
        check_name("group", name, own=own)
        filters = None
        if settings.topics is not UNSET:
            if not settings.topics:
                raise InvalidGroup("topics", "a group needs at least one topic")
            texts = filter_texts(settings.topics.values())
            filters = await self._registry.filters.parse(texts)
        return await self._store.state.run_shielded(
            self._put(name, settings, owner, filters, checks)
        )

    async def _put(
        self,
        name: str,
        settings: GroupSettings,
        owner: str,
        filters: Filters | None,
        checks: ChangeChecks,
    ) -> tuple[GroupRecord, bool]:
        await self._wait_before_put(name, settings, owner, checks)
        async with self._lock:
            group, turn = self._registry.by_name.get(name), LoopBudget(CHANGED_A_TURN)
            if group is None:
                now_ms = self._registry.clock.now_ms()
                before = new_record(name, self._table.next_group_id, now_ms)
            else:
                before = group.record
                _check_topics(group, checks.topic)
            record, beyond = await self._match_topics(before.apply(settings, owner), turn)
            if beyond:
                raise LimitReached("groups.max_topics", self._config.max_topics)
            self._check(group, record)
            if record.dead_letter_topic != before.dead_letter_topic:
                await self._check_dead_letters(group, record.dead_letter_topic, checks, turn)
            if filters is None:
                filters = {} if group is None else group.filters
            self._check_filters(group, filters)
            await self._apply(group, record, filters, turn)
            if record.dead_letter_topic != before.dead_letter_topic:
                await self._add_to_pattern_groups(before.dead_letter_topic, turn)
            return record, group is None

    async def _check_dead_letters(
        self, group: GroupServer | None, name: str | None, checks: ChangeChecks, turn: LoopBudget
    ) -> None:
        """Raise the exceptions of the checks if `name` may not become the dead-letter topic."""
        if name is not None:
            checks.dead_letters(name)
        for loser in await self._groups_by_pattern(name, turn):
            if loser is not group:
                checks.loser(loser.record.name)

    async def _apply(
        self, group: GroupServer | None, record: GroupRecord, filters: Filters, turn: LoopBudget
    ) -> None:
        """Store a new or changed record and apply it. Meanwhile the groups that would lose dead
        letters are paused."""
        with ExitStack() as until_changed:
            losers = await self._groups_losing_dead_letters(group, record, turn)
            for loser, topic_ids in losers:
                await self._pause_group(loser, topic_ids, until_changed, turn)
            if group is None:
                await self._add(record, filters, turn)
            else:
                if all(loser is not group for loser, _ in losers):
                    until_changed.enter_context(self._paused_if_needed(group, record))
                await self._change(group, record, filters, turn)
            await self._remove_from_pattern_groups(record, turn)

    async def _add(self, record: GroupRecord, filters: Filters, turn: LoopBudget) -> None:
        """Store the record of a new group, and serve it."""
        cursors = await self._registry.persist_start_offsets(None, record, turn)
        await self._store_records([record], turn)
        group = self._registry.add(record)
        group.take_filters(filters)
        await self._registry.apply_record(group, record, cursors, turn)
        await group.commits.wait()

    async def _change(
        self, group: GroupServer, record: GroupRecord, filters: Filters, turn: LoopBudget
    ) -> None:
        """Store a group's record and apply it. The caller has paused the group if necessary."""
        _check_leases(group, record)  # leases may have been made while dead letters were sent
        cursors = await self._registry.persist_start_offsets(group, record, turn)
        await self._registry.offer_skipped(group, record, turn)
        if record != group.record:
            await self._store_records([record], turn)
        group.take_filters(filters)
        await self._registry.apply_record(group, record, cursors, turn)
        await group.commits.wait()

    # -- dead letters that a change would lose -----------------------------------------------

    async def _wait_before_put(
        self, name: str, settings: GroupSettings, owner: str, checks: ChangeChecks
    ) -> None:
        """Wait until the dead letters that a change would lose are in the dead-letter topic. This
        must be done before the lock is taken, because the creation of a dead-letter topic takes the
        lock, too."""
        group, turn = self._registry.by_name.get(name), LoopBudget()
        if group is None:
            return
        _check_topics(group, checks.topic)
        if group.dead_letters.has_waiting:
            record, _ = await self._match_topics(group.record.apply(settings, owner), turn)
            if (topic_ids := _topics_losing_dead_letters(group, record)) != frozenset():
                await group.dead_letters.wait_for_topics(topic_ids)

    async def _groups_losing_dead_letters(
        self, group: GroupServer | None, record: GroupRecord, turn: LoopBudget
    ) -> list[tuple[GroupServer, Collection[int] | None]]:
        """Return the groups with messages that could not be sent to a dead-letter topic after the
        change, each with the topics of these messages. None means all topics of the group."""
        losers: list[tuple[GroupServer, Collection[int] | None]] = []
        if (
            group is not None
            and (topic_ids := _topics_losing_dead_letters(group, record)) != frozenset()
        ):
            losers.append((group, topic_ids))
        name = record.dead_letter_topic
        for each in await self._groups_by_pattern(name, turn):
            topic = None if name is None else self._store.table.find(name)
            if topic is not None and each is not group:
                losers.append((each, {topic.topic_id}))
        return losers

    async def _pause_group(
        self,
        group: GroupServer,
        topic_ids: Collection[int] | None,
        until_changed: ExitStack,
        turn: LoopBudget,
    ) -> None:
        """Wait until the dead letters of these topics are in the dead-letter topic. Then pause
        leasing and settling in the group until `until_changed` is closed, and store its floors.
        Raises StateUnavailable."""
        await group.dead_letters.wait_for_topics(topic_ids)
        until_changed.enter_context(group.settling_paused())
        until_changed.enter_context(group.deliveries_paused())
        await self._store_floors(group, turn)

    # -- topics that are created, or become or cease to be dead-letter topics -----------------

    async def topic_created(self, topic: Topic) -> None:
        """Add a new topic to every group that subscribes to it. The groups begin at its first
        message."""
        await self._store.state.run_shielded(self._topic_created(topic))

    async def _topic_created(self, topic: Topic) -> None:
        async with self._lock:
            turn = LoopBudget(CHANGED_A_TURN)
            changed = await self._groups_to_add(topic, self._dead_letter_topics(), turn)
            await self._apply_records(changed, turn)

    async def _groups_to_add(
        self, topic: Topic, dead_letter_topics: Container[str], turn: LoopBudget
    ) -> list[tuple[GroupServer, GroupRecord]]:
        """Return the groups to which a topic must be added, each with its new record: their
        subscriptions match it, they do not have it, and the limits allow it."""
        changed: list[tuple[GroupServer, GroupRecord]] = []
        for group in list(self._registry.by_name.values()):
            await turn.spend()
            if topic.topic_id in group.record.topics:
                continue
            match = await self._match(
                group.record, group.subscriptions, topic, dead_letter_topics, turn
            )
            if match is None:
                continue
            await turn.spend(_work_items(group.record))
            topics = self._existing_topics(group.record)
            added = (len(changed) + 1) * topic.queue_count
            if self._has_room(group, len(topics), added, topic):
                topics[topic.topic_id] = match.wanted
                changed.append((group, replace(group.record, topics=topics)))
        return changed

    async def filters_of_planned(self, topic: Topic) -> list[MessageFilter | None]:
        """Return the filter of each group that would get a topic if it were created now."""
        turn = LoopBudget(CHANGED_A_TURN)
        added = await self._groups_to_add(topic, self._dead_letter_topics(), turn)
        filters = self._registry.filters
        return [filters.get(record.topics[topic.topic_id].filter) for _, record in added]

    async def find_topics(self) -> None:
        """Find the topics that match the subscriptions of every group now. This is for the broker's
        start: a crash may have come between the creation of a topic and its addition to groups, or
        a record may be so old that it has no subscriptions. On an added topic, a group continues at
        its stored offsets; without stored offsets it begins at the first message."""
        async with self._lock:
            changed: list[tuple[GroupServer, GroupRecord]] = []
            turn = LoopBudget()
            for group in list(self._registry.by_name.values()):
                before = group.record
                record = _with_subscriptions(before, self._store)
                record, beyond = await self._match_topics(record, turn)
                if beyond:
                    _warn_of_limit(before.name, beyond[0], "groups.max_topics")
                if record != before:
                    changed.append((group, record))
            await self._apply_from_stored_offsets(changed, turn, "earliest")

    async def _groups_by_pattern(self, name: str | None, turn: LoopBudget) -> list[GroupServer]:
        """Return the groups that have the topic `name` only because of a pattern."""
        topic = None if name is None else self._store.table.find(name)
        groups: list[GroupServer] = []
        if topic is None:
            return groups
        for group in list(self._registry.by_name.values()):
            await turn.spend()
            record = group.record
            if topic.topic_id in record.topics and name not in record.subscriptions:
                groups.append(group)
        return groups

    async def _remove_from_pattern_groups(self, named_by: GroupRecord, turn: LoopBudget) -> None:
        """Remove the dead-letter topic of a record from the groups that have it because of a
        pattern. First store the floors of these groups in the topic, as stored offsets, for
        `_add_to_pattern_groups`."""
        name = named_by.dead_letter_topic
        changed: list[tuple[GroupServer, GroupRecord]] = []
        for group in await self._groups_by_pattern(name, turn):
            await self._store_floors(group, turn)
            topic = None if name is None else self._store.table.find(name)
            if topic is None:
                break  # deleted meanwhile, and removed from every group
            await turn.spend(_work_items(group.record))
            topics = self._existing_topics(group.record)
            topics.pop(topic.topic_id, None)
            changed.append((group, replace(group.record, topics=topics)))
            _logger.info(
                "the group %r lost the topic %r, which is the dead-letter topic of %r now",
                group.record.name,
                name,
                named_by.name,
            )
        await self._apply_records(changed, turn)

    async def _add_to_pattern_groups(self, name: str | None, turn: LoopBudget) -> None:
        """Add a topic to the groups whose patterns match it, unless it is still a dead-letter topic
        of any group. A group continues at its stored offsets on the topic; without stored offsets
        it begins at its `start`."""
        topic = None if name is None else self._store.table.find(name)
        if topic is None or name in self._dead_letter_topics():
            return
        changed = await self._groups_to_add(topic, (), turn)
        for group, _ in changed:
            _logger.info(
                "the group %r has the topic %r again, which is not a dead-letter topic any more",
                group.record.name,
                name,
            )
        await self._apply_from_stored_offsets(changed, turn)

    async def _apply_records(
        self, changed: Sequence[tuple[GroupServer, GroupRecord]], turn: LoopBudget
    ) -> None:
        """Store records and apply them. New queues begin at their first offsets. If the records
        cannot be stored, they are applied nevertheless; `find_topics` finds the topics again at the
        next start."""
        async for part in in_slices(changed):
            try:
                await self._store_records([record for _, record in part], turn)
            except StateUnavailable as error:
                _warn_of_store(len(part), error)
            for group, record in part:
                await turn.spend(GROUP_ITEMS)
                await self._registry.apply_record(group, record, {}, turn)

    async def _apply_from_stored_offsets(
        self,
        changed: Sequence[tuple[GroupServer, GroupRecord]],
        turn: LoopBudget,
        start: str | None = None,
    ) -> None:
        """Store records and apply them. On a new topic a group continues at its stored offsets. If
        it has none, it begins at `start`, or at its own `start` if the parameter is None. If a
        record cannot be stored, it is not applied; `find_topics` finds the topics again at the next
        start."""
        for group, record in changed:
            try:
                began = replace(record, start=start or record.start)
                cursors = await self._registry.persist_start_offsets(group, began, turn)
                await self._store_records([record], turn)
            except StateUnavailable as error:
                _warn_of_store(1, error)
                continue
            await self._registry.apply_record(group, record, cursors, turn)

    async def _match_topics(
        self, record: GroupRecord, turn: LoopBudget
    ) -> tuple[GroupRecord, list[str]]:
        """Return the record with the topics that match its subscriptions now. Also return the names
        of the topics that match but exceed the limit `max_topics`."""
        subscriptions = Subscriptions(record.subscriptions)
        dead_letter_topics = self._dead_letter_topics()
        if record.dead_letter_topic is not None:
            dead_letter_topics.add(record.dead_letter_topic)
        topics: Iterable[Topic]
        if subscriptions.patterns:
            topics = self._store.table.all()
        else:
            topics = filter(None, map(self._store.table.find, record.subscriptions))
        found: list[Match[Subscription]] = []
        for topic in list(topics):
            await turn.spend()
            match = await self._match(record, subscriptions, topic, dead_letter_topics, turn)
            if match is not None:
                found.append(match)
        # The limit applies to new topics only: a lowered limit removes no topic from a group.
        had = record.topics.keys() & {match.topic_id for match in found}
        most = max(self._config.max_topics, len(had))
        found.sort(key=lambda match: (match.topic_id not in had, match.rank, match.topic_id))
        topics_found = {match.topic_id: match.wanted for match in found[:most]}
        return replace(record, topics=topics_found), [match.name for match in found[most:]]

    async def _match(
        self,
        record: GroupRecord,
        subscriptions: Subscriptions[Subscription],
        topic: Topic,
        dead_letter_topics: Container[str],
        turn: LoopBudget,
    ) -> Match[Subscription] | None:
        return await subscriptions.match(
            topic,
            turn,
            was_matched=topic.topic_id in record.topics,
            is_dead_letters=topic.name in dead_letter_topics,
            may_match=lambda name: self._may_subscribe(record.owner, name, record.name),
        )

    def _has_room(self, group: GroupServer, topic_count: int, added: int, topic: Topic) -> bool:
        """Return whether a group with `topic_count` topics may have one more. `added` is the number
        of queues that this topic adds to all groups together. If it may not have this topic, log a
        warning, because there is no caller who could get an error."""
        config, name = self._config, None
        if topic_count >= config.max_topics:
            name = "groups.max_topics"
        elif self._registry.cursor_count + added > config.max_cursors:
            name = "groups.max_cursors"
        if name is not None:
            _warn_of_limit(group.record.name, topic.name, name)
        return name is None

    def _existing_topics(self, record: GroupRecord) -> dict[int, Subscription]:
        """Return the topics of a record without the deleted topics."""
        return {
            topic_id: wanted
            for topic_id, wanted in record.topics.items()
            if self._store.table.by_id(topic_id) is not None
        }

    def _dead_letter_topics(self) -> set[str]:
        names = {group.record.dead_letter_topic for group in self._registry.by_name.values()}
        return {name for name in names if name is not None}

    # -- deleting, leases --------------------------------------------------------------------

    async def delete(self, name: str, check_topic: CheckTopic = allow_all) -> None:
        """Delete a group and its stored offsets; GroupService.delete_group lists the exceptions."""
        self._registry.get(name)
        await self._store.state.run_shielded(self._delete(name, check_topic))

    async def delete_unused(self, group: GroupServer) -> bool:
        """Delete a group as `delete` does, unless it is in use when the deletion begins. Return
        whether it was deleted. Nothing is leased while it is being deleted."""
        return await self._store.state.run_shielded(
            self._delete(group.record.name, allow_all, unused=group)
        )

    async def _delete(
        self, name: str, check_topic: CheckTopic, *, unused: GroupServer | None = None
    ) -> bool:
        """If `unused` is given, delete the group only if it is this group, and is not in use."""
        group = self._registry.get(name)
        _check_topics(group, check_topic)
        # Wait before the lock is taken: the creation of a dead-letter topic takes the lock, too.
        await group.dead_letters.wait_for_topics(None)
        async with self._lock:
            group = self._registry.get(name)
            await group.dead_letters.wait_for_topics(None)
            # No await may come between the next line and the beginning of the deletion, because
            # offsets may be stored until then. If offsets are stored later on topics that were not
            # checked, these offsets are not deleted.
            topics = {topic.name for topic in group.topics()} | self._topics_with_offsets(name)
            for topic in topics:
                check_topic(topic)
            if unused is not None and (group is not unused or group.is_used):
                return False
            pause = nullcontext() if unused is None else group.deliveries_paused()
            with group.settling_paused(), pause:
                await self._store.state.commit({group_key(name): None})
                self._table.remove(group.record)
                await self._registry.remove(group)
            await self._store.offsets.forget_offsets(name, topics)
            await self._add_to_pattern_groups(group.record.dead_letter_topic, LoopBudget())
            return True

    def _topics_with_offsets(self, group: str) -> set[str]:
        has_offsets = self._store.table.has_group(group)
        return set(self._store.offsets.group_topics(group)) if has_offsets else set()

    async def allow_lease(self, group: GroupServer, lease_ms: int) -> None:
        """Store `lease_ms` as the group's longest lease if it is longer than the stored one. Call
        this before a lease of `lease_ms` is given. After a power loss the broker waits for the
        longest lease, until all old leases have expired."""
        if not self.allows_lease(group, lease_ms):
            asked = self._limited_lease(lease_ms)
            await self._store.state.run_shielded(self._raise_longest_lease(group, asked))

    def allows_lease(self, group: GroupServer, lease_ms: int) -> bool:
        """Return whether a lease of `lease_ms` may be given without `allow_lease`."""
        return self._limited_lease(lease_ms) <= group.record.config.longest_lease_ms

    def _limited_lease(self, lease_ms: int) -> int:
        return min(max(lease_ms, SHORTEST_LEASE_MS), self._config.max_lease_ms)

    async def _raise_longest_lease(self, group: GroupServer, lease_ms: int) -> None:
        async with self._lock:
            record = group.record
            is_served = self._registry.by_name.get(record.name) is group
            if is_served and lease_ms > record.config.longest_lease_ms:
                record = replace(record, config=replace(record.config, longest_lease_ms=lease_ms))
                await self._store_records([record], LoopBudget())
                await group.configure(record)

    async def _store_records(self, records: Sequence[GroupRecord], turn: LoopBudget) -> None:
        changes: dict[bytes, bytes | None] = {}
        for record in records:
            await turn.spend(_work_items(record))
            changes |= self._table.changes_of(record)
        await self._store.state.commit(changes)
        for record in records:
            self._table.mark_stored(record, changes)

    def _paused_if_needed(
        self, group: GroupServer, record: GroupRecord
    ) -> AbstractContextManager[None]:
        """Return a context that pauses a group's deliveries if the record changes its mode or its
        filters."""
        changes = _changes_mode(group, record) or self._registry.changed_filters(group, record)
        return group.deliveries_paused() if changes else nullcontext()

    def _check(self, group: GroupServer | None, record: GroupRecord) -> None:
        """Raise an error if a change is not allowed: it exceeds a limit, or changes the mode while
        messages are leased, or the dead-letter topic is one of the group's own topics, or
        the mode does not allow `last_value`."""
        config, registry = self._config, self._registry
        if group is None:
            if not record.subscriptions:
                raise InvalidGroup("topics", "a new group needs at least one topic")
            if len(registry.by_name) >= config.max_groups:
                raise LimitReached("groups.max_groups", config.max_groups)
        else:
            _check_leases(group, record)
        if record.dead_letter_topic in record.subscriptions:
            raise InvalidGroup("dead_letter_topic", "it is one of the group's own topics")
        if record.config.last_value and record.config.mode != "competing":
            raise InvalidGroup(
                "last_value", f"it needs the mode competing, not {record.config.mode}"
            )
        had = set() if group is None else set(group.core.topics)
        new = [self._store.table.by_id(each) for each in record.topics if each not in had]
        added = sum(topic.queue_count for topic in new if topic is not None)
        if added and registry.cursor_count + added > config.max_cursors:
            raise LimitReached("groups.max_cursors", config.max_cursors)

    def _check_filters(self, group: GroupServer | None, filters: Filters) -> None:
        """Raise LimitReached if the new filters of a group are longer than its present ones, and
        then the filters of all groups together would exceed the limit."""
        before = 0 if group is None else group.filter_characters
        added, most = characters_of(filters) - before, self._config.max_filter_characters
        if added > 0 and self._registry.filter_characters + added > most:
            raise LimitReached("groups.max_filter_characters", most)


def _work_items(record: GroupRecord) -> int:
    """Return the number of items that a loop over a record's topics counts as. Encoding the record
    counts as the same number."""
    return 1 + (len(record.topics) + len(record.subscriptions)) // TOPICS_AN_ITEM


def _topics_losing_dead_letters(group: GroupServer, record: GroupRecord) -> frozenset[int] | None:
    """Return the topics whose messages could not be sent to the dead-letter topic after a change to
    this record. If the dead-letter topic changes, return None, which means all topics."""
    if record.dead_letter_topic != group.record.dead_letter_topic:
        return None
    return frozenset(group.core.topics.keys() - record.topics.keys())


def _check_leases(group: GroupServer, record: GroupRecord) -> None:
    """Raise GroupBusy if a group's mode changes while it has leases."""
    if _changes_mode(group, record) and (in_flight := group.in_flight):
        raise GroupBusy(record.name, in_flight)


def _changes_mode(group: GroupServer, record: GroupRecord) -> bool:
    return record.config.mode != group.record.config.mode


def _with_subscriptions(record: GroupRecord, store: MessageStore) -> GroupRecord:
    """Return a record with subscriptions. If an old record has none, the names of its topics become
    its subscriptions."""
    if record.subscriptions:
        return record
    named = ((store.table.by_id(each), wanted) for each, wanted in record.topics.items())
    return replace(
        record, subscriptions={topic.name: wanted for topic, wanted in named if topic is not None}
    )


def _warn_of_store(count: int, error: StateUnavailable) -> None:
    _logger.warning("the topics of %d groups were not stored: %s", count, error)


def _warn_of_limit(group: str, topic: str, limit: str) -> None:
    _logger.warning(
        "group %r does not get the topic %r that its subscription matches: the group, or all "
        "groups together, reached the limit %s",
        group,
        topic,
        limit,
    )


def _check_topics(group: GroupServer, check_topic: CheckTopic) -> None:
    """Call `check_topic` for every topic of the group."""
    for topic in group.topics():
        check_topic(topic.name)
