"""The offsets that groups store. On the event loop; a change is durable before it is seen."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from weakref import WeakValueDictionary

from holdfast.consumequeue.config import TopicsConfig
from holdfast.consumequeue.errors import LimitReached, OffsetsChanged, UnknownTopic
from holdfast.consumequeue.state_changes import StateChanges
from holdfast.consumequeue.state_records import StoredOffsets, encode_offsets, offsets_key
from holdfast.consumequeue.topic_table import TopicTable
from holdfast.consumequeue.topics import Topic, check_name, check_queue


class GroupOffsets:
    """Groups, and where each of them is on its topics."""

    def __init__(self, table: TopicTable, config: TopicsConfig, state: StateChanges) -> None:
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
            check_queue(topic, queue)
        return await self._state.to_its_end(self._store_offsets(group, topic, offsets, if_version))

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
            if not table.has_group(group) and table.group_count >= self._config.max_groups:
                raise LimitReached("max_groups", self._config.max_groups)
            stored = StoredOffsets({**before.offsets, **offsets}, before.version + 1)
            key = offsets_key(group, topic_id)
            await self._state.commit({key: encode_offsets(stored)})
            if table.by_id(topic_id) is None:
                # Deleted meanwhile, with all that groups had stored for it.
                await self._state.commit({key: None})
                raise UnknownTopic(topic.name)
            table.put_offsets(group, topic_id, stored)
            return stored

    async def forget_offsets(self, group: str) -> None:
        """Forget all that a group has stored, durably; a group without any is none. Raises
        StateUnavailable."""
        await self._state.to_its_end(self._forget_offsets(group))

    async def _forget_offsets(self, group: str) -> None:
        if self._table.has_group(group):
            topic_ids = sorted(self._table.group_offsets(group))
            async with AsyncExitStack() as locks:
                for topic_id in topic_ids:
                    await locks.enter_async_context(self._lock(group, topic_id))
                await self._state.commit({offsets_key(group, each): None for each in topic_ids})
                self._table.remove_offsets(group, topic_ids)

    def _lock(self, group: str, topic_id: int) -> asyncio.Lock:
        return self._locks.setdefault((group, topic_id), asyncio.Lock())
