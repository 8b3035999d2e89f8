"""The offsets that groups store. Belongs to the event loop. A change is durable before it is
visible."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from weakref import WeakValueDictionary

from holdfast.consumequeue.config import TopicsConfig
from holdfast.consumequeue.errors import LimitReached, OffsetBeyondEnd, OffsetsChanged, UnknownTopic
from holdfast.consumequeue.index.consume_queue import ConsumeQueue
from holdfast.consumequeue.slices import in_slices
from holdfast.consumequeue.state.changes import StateChanges
from holdfast.consumequeue.state.records import StoredOffsets, encode_offsets, offsets_key
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey, QueueState, Topic, check_name, check_queue


@dataclass(eq=False)
class GroupOffsets:
    """Reads and changes the stored offsets of groups. `queue_state` returns where a queue begins
    and ends."""

    table: TopicTable
    config: TopicsConfig
    state: StateChanges
    queue_state: Callable[[Topic, int], QueueState]

    def __post_init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, int], asyncio.Lock] = WeakValueDictionary()

    def group_topics(self, group: str) -> dict[str, StoredOffsets]:
        """Return a group's stored offsets by topic name. Raises InvalidName, UnknownGroup."""
        found = {}
        for topic_id, stored in self.table.group_offsets(group).items():
            topic = self.table.by_id(topic_id)
            if topic is not None:
                found[topic.name] = stored
        return found

    def stored_offsets(self, group: str, topic: Topic) -> StoredOffsets:
        """Return a group's offsets on a topic, with version 0 if the group has stored none for this
        topic. Raises InvalidName, UnknownGroup."""
        return self.table.group_offsets(group).get(topic.topic_id, StoredOffsets())

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
        return await self.state.run_shielded(self._store_offsets(group, topic, offsets, if_version))

    def check_offsets(self, topic: Topic, offsets: Mapping[int, int]) -> None:
        """Raise UnknownQueue, or OffsetBeyondEnd for an offset beyond the end of its queue."""
        for queue, offset in offsets.items():
            state = self.queue_state(topic, queue)
            if offset > state.max_offset:
                raise OffsetBeyondEnd(topic.name, queue, offset, state.min_offset, state.max_offset)

    async def _store_offsets(
        self, group: str, topic: Topic, offsets: Mapping[int, int], if_version: int | None
    ) -> StoredOffsets:
        table, topic_id = self.table, topic.topic_id
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
            if not table.has_group(group) and table.group_count >= self.config.max_groups:
                raise LimitReached("max_groups", self.config.max_groups)
            stored = StoredOffsets({**before.offsets, **offsets}, before.version + 1)
            key = offsets_key(group, topic_id)
            await self.state.commit({key: encode_offsets(stored)})
            if table.by_id(topic_id) is None:
                # The topic was deleted meanwhile, with all offsets that groups had stored for it.
                await self.state.commit({key: None})
                raise UnknownTopic(topic.name)
            table.put_offsets(group, topic_id, stored)
            return stored

    async def forget_offsets(self, group: str, topics: Collection[str] | None = None) -> None:
        """Durably delete the offsets that a group has stored on these topics, or on all topics if
        `topics` is None. A group without offsets no longer exists. Raises StateUnavailable."""
        await self.state.run_shielded(self._forget_offsets(group, topics))

    async def _forget_offsets(self, group: str, topics: Collection[str] | None) -> None:
        if not self.table.has_group(group):
            return
        topic_ids = sorted(self.table.group_offsets(group))
        if topics is not None:
            topic_ids = [each for each in topic_ids if self._name_of(each) in topics]
        if topic_ids:
            async with AsyncExitStack() as locks:
                for topic_id in topic_ids:
                    await locks.enter_async_context(self._lock(group, topic_id))
                await self.state.commit({offsets_key(group, each): None for each in topic_ids})
                self.table.remove_offsets(group, topic_ids)

    def _name_of(self, topic_id: int) -> str | None:
        topic = self.table.by_id(topic_id)
        return None if topic is None else topic.name

    def _lock(self, group: str, topic_id: int) -> asyncio.Lock:
        return self._locks.setdefault((group, topic_id), asyncio.Lock())


def offsets_beyond_end(
    table: TopicTable, queues: Mapping[QueueKey, ConsumeQueue]
) -> dict[tuple[str, int], StoredOffsets]:
    """At a start, return new stored offsets, by group and topic id, for each group that has stored
    an offset beyond the end of a queue.

    In a topic with the durability "written", a power loss may lose messages that were delivered. If
    a group stored an offset beyond these messages, this offset survives, because stored offsets are
    always synced. Earlier versions of the broker also accepted offsets beyond the end.

    New messages of the queue get the offsets after its end, and a group that continued from its
    stored offset would skip them unnoticed. So such an offset is set back to the queue's end, and
    the version of the stored offsets changes: a consumer that is still running gets an error when
    it next stores an offset with the old version.
    """
    found = {}
    ends = {key: cq.max_offset for key, cq in queues.items()}
    for group in table.groups():
        for topic_id, stored in table.group_offsets(group).items():
            if table.by_id(topic_id) is None:
                continue
            offsets = {
                queue: min(offset, ends.get((topic_id, queue), 0))
                for queue, offset in stored.offsets.items()
            }
            if offsets != stored.offsets:
                found[group, topic_id] = StoredOffsets(offsets, stored.version + 1)
    return found
