"""The offsets that groups store. Belongs to the event loop. A change is durable before it is
visible."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from weakref import WeakValueDictionary

from holdfast.consumequeue.config import TopicsConfig
from holdfast.consumequeue.errors import LimitReached, OffsetBeyondEnd, OffsetsChanged, UnknownTopic
from holdfast.consumequeue.slices import in_slices
from holdfast.consumequeue.state.changes import StateChanges
from holdfast.consumequeue.state.records import StoredOffsets, encode_offsets, offsets_key
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueState, Topic, check_name, check_queue


class GroupOffsets:
    """Reads and changes the stored offsets of groups."""

    def __init__(
        self,
        table: TopicTable,
        config: TopicsConfig,
        state: StateChanges,
        queue_state: Callable[[Topic, int], QueueState],
    ) -> None:
        """`queue_state` returns where a queue begins and ends."""
        self._queue_state = queue_state
        self._table = table
        self._config = config
        self._state = state
        self._locks: WeakValueDictionary[tuple[str, int], asyncio.Lock] = WeakValueDictionary()

    def group_topics(self, group: str) -> dict[str, StoredOffsets]:
        """Return a group's stored offsets by topic name. Raises InvalidName, UnknownGroup."""
        found = {}
        for topic_id, stored in self._table.group_offsets(group).items():
            topic = self._table.by_id(topic_id)
            if topic is not None:
                found[topic.name] = stored
        return found

    def stored_offsets(self, group: str, topic: Topic) -> StoredOffsets:
        """Return a group's offsets on a topic, with version 0 if the group has stored none for this
        topic. Raises InvalidName, UnknownGroup."""
        return self._table.group_offsets(group).get(topic.topic_id, StoredOffsets())

    async def store_offsets(
        self,
        group: str,
        topic: Topic,
        offsets: Mapping[int, int],
        *,
        if_version: int | None = None,
    ) -> StoredOffsets:
        """Add offsets to a group's stored offsets, durably. A new group is created.

        No offset may be beyond the end of its queue, because a consumer that continued there would
        skip new messages. With `if_version`, store only if the stored offsets still have this
        version; version 0 means that none are stored. Raises InvalidName, UnknownTopic,
        UnknownQueue, OffsetBeyondEnd, LimitReached, OffsetsChanged, StateUnavailable. Cancelling is
        safe; the offsets may still be stored.
        """
        check_name("group", group)
        for queue in offsets:
            check_queue(topic, queue)
        return await self._state.run_shielded(
            self._store_offsets(group, topic, offsets, if_version)
        )

    def check_offsets(self, topic: Topic, offsets: Mapping[int, int]) -> None:
        """Raise UnknownQueue, or OffsetBeyondEnd for an offset beyond the end of its queue."""
        for queue, offset in offsets.items():
            state = self._queue_state(topic, queue)
            if offset > state.max_offset:
                raise OffsetBeyondEnd(topic.name, queue, offset, state.min_offset, state.max_offset)

    async def _store_offsets(
        self, group: str, topic: Topic, offsets: Mapping[int, int], if_version: int | None
    ) -> StoredOffsets:
        table, topic_id = self._table, topic.topic_id
        async with self._lock(group, topic_id):
            if table.by_id(topic_id) is None:
                raise UnknownTopic(topic.name)
            before = table.offsets(group, topic_id)
            if if_version is not None and if_version != before.version:
                raise OffsetsChanged(group, topic.name, before.version)
            # Check the offsets after the version, because a consumer whose offset was set back
            # at the start of the broker must get OffsetsChanged, not OffsetBeyondEnd.
            async for part in in_slices(offsets.items()):
                self.check_offsets(topic, dict(part))
            if table.by_id(topic_id) is None:
                raise UnknownTopic(topic.name)
            if not table.has_group(group) and table.group_count >= self._config.max_groups:
                raise LimitReached("max_groups", self._config.max_groups)
            stored = StoredOffsets({**before.offsets, **offsets}, before.version + 1)
            key = offsets_key(group, topic_id)
            await self._state.commit({key: encode_offsets(stored)})
            if table.by_id(topic_id) is None:
                # The topic was deleted meanwhile, with all offsets that groups had stored for it.
                await self._state.commit({key: None})
                raise UnknownTopic(topic.name)
            table.put_offsets(group, topic_id, stored)
            return stored

    async def forget_offsets(self, group: str, topics: Collection[str] | None = None) -> None:
        """Durably delete the offsets that a group has stored on these topics, or on all topics if
        `topics` is None. A group without offsets no longer exists. Raises StateUnavailable."""
        await self._state.run_shielded(self._forget_offsets(group, topics))

    async def _forget_offsets(self, group: str, topics: Collection[str] | None) -> None:
        if not self._table.has_group(group):
            return
        topic_ids = sorted(self._table.group_offsets(group))
        if topics is not None:
            topic_ids = [each for each in topic_ids if self._name_of(each) in topics]
        if topic_ids:
            async with AsyncExitStack() as locks:
                for topic_id in topic_ids:
                    await locks.enter_async_context(self._lock(group, topic_id))
                await self._state.commit({offsets_key(group, each): None for each in topic_ids})
                self._table.remove_offsets(group, topic_ids)

    def _name_of(self, topic_id: int) -> str | None:
        topic = self._table.by_id(topic_id)
        return None if topic is None else topic.name

    def _lock(self, group: str, topic_id: int) -> asyncio.Lock:
        return self._locks.setdefault((group, topic_id), asyncio.Lock())
