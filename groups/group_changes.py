"""Changes of groups: on the disk first, then in what is served. On the event loop.

One change at a time, and each goes on to its end even if whoever asked for it is cancelled. The
group's record decides, in one commit: where new cursors begin is on the disk before it, and while a
new mode is stored nothing is leased. So a crash leaves a group as it was or as it is to be.
"""

import asyncio
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from holdfast.consumequeue.errors import LimitReached
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.state_records import group_key
from holdfast.consumequeue.topics import Topic, check_name
from holdfast.groups.config import SHORTEST_LEASE_MS, GroupsConfig
from holdfast.groups.group_records import GroupRecord
from holdfast.groups.group_specs import changed_record, new_record
from holdfast.groups.group_table import GroupTable
from holdfast.groups.served_group import ServedGroup
from holdfast.groups.served_groups import ServedGroups
from holdfast.groups.service_types import GroupBusy, GroupSpec, InvalidGroup


class GroupChanges:
    """Creates, changes and deletes groups."""

    def __init__(
        self, store: MessageStore, table: GroupTable, served: ServedGroups, config: GroupsConfig
    ) -> None:
        self._store = store
        self._table = table
        self._served = served
        self._config = config
        self._lock = asyncio.Lock()

    async def put(self, name: str, spec: GroupSpec) -> tuple[GroupRecord, bool]:
        """Create or change a group; GroupService.put_group says what is raised."""
        check_name("group", name)
        return await self._store.to_its_end(self._put(name, spec))

    async def _put(self, name: str, spec: GroupSpec) -> tuple[GroupRecord, bool]:
        async with self._lock:
            topics = {each: self._store.topic(each) for each in spec.topics or ()}
            topic_ids = {each: topic.topic_id for each, topic in topics.items()}
            group = self._served.by_name.get(name)
            before = (
                new_record(name, self._table.next_group_id, self._served.clock.now_ms())
                if group is None
                else group.record
            )
            record = changed_record(before, spec, topic_ids, self._config)
            self._check(group, record, list(topics.values()))
            if group is None:
                begins = await self._served.begin(None, record)
                await self._store_record(record)
                is_new, group = True, self._served.add(record)
                self._served.become(group, record, begins)
            else:
                is_new = False
                with self._still(group, record):
                    begins = await self._served.begin(group, record)
                    if record != before:
                        await self._store_record(record)
                    self._served.become(group, record, begins)
            await group.commits.wait()
            return record, is_new

    async def delete(self, name: str) -> None:
        """Delete a group and its stored offsets. Raises UnknownGroup, StateUnavailable."""
        self._served.get(name)
        await self._store.to_its_end(self._delete(name))

    async def _delete(self, name: str) -> None:
        async with self._lock:
            group = self._served.get(name)
            await self._store.commit_state({group_key(name): None})
            self._table.remove(group.record)
            await self._served.remove(group)
            await self._store.forget_offsets(name)

    async def allow_lease(self, group: ServedGroup, lease_ms: int) -> None:
        """Have it on the disk how long leases may be, before one is: after a power loss that
        long is waited for them."""
        asked = min(max(lease_ms, SHORTEST_LEASE_MS), self._config.max_lease_ms)
        if asked > group.record.config.longest_lease_ms:
            await self._store.to_its_end(self._raise_longest_lease(group, asked))

    async def _raise_longest_lease(self, group: ServedGroup, lease_ms: int) -> None:
        async with self._lock:
            record = group.record
            is_served = self._served.by_name.get(record.name) is group
            if is_served and lease_ms > record.config.longest_lease_ms:
                record = replace(record, config=replace(record.config, longest_lease_ms=lease_ms))
                await self._store_record(record)
                group.configure(record)

    async def _store_record(self, record: GroupRecord) -> None:
        changes = self._table.changes_of(record)
        await self._store.commit_state(changes)
        self._table.stored(record, changes)

    def _still(self, group: ServedGroup, record: GroupRecord) -> AbstractContextManager[None]:
        """Keep a group whose mode changes from leasing anything until it has changed."""
        return group.standing_still() if _changes_mode(group, record) else nullcontext()

    def _check(self, group: ServedGroup | None, record: GroupRecord, topics: list[Topic]) -> None:
        """Raise what speaks against a change: limits, leases where the mode changes, dead letters
        that would come back to the group."""
        config, served = self._config, self._served
        if group is None:
            if not record.topics:
                raise InvalidGroup("topics", "a new group needs at least one topic")
            if len(served.by_name) >= config.max_groups:
                raise LimitReached("groups.max_groups", config.max_groups)
        elif _changes_mode(group, record) and (in_flight := group.in_flight):
            raise GroupBusy(record.name, in_flight)
        own = [topic.name for topic in map(self._store.topic_by_id, record.topics) if topic]
        if record.dead_letter_topic in own:
            raise InvalidGroup("dead_letter_topic", "it is one of the group's own topics")
        had = set() if group is None else set(group.core.topics)
        added = sum(topic.queue_count for topic in topics if topic.topic_id not in had)
        if added and served.cursor_count + added > config.max_cursors:
            raise LimitReached("groups.max_cursors", config.max_cursors)


def _changes_mode(group: ServedGroup, record: GroupRecord) -> bool:
    return record.config.mode != group.record.config.mode
