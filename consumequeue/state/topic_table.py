"""The current topics and stored offsets, decoded from the state's records.

A table is changed only on the event loop, after the change is durable. Any thread may read it.
"""

from collections.abc import Iterable

from holdfast.consumequeue.errors import UnknownGroup, UnknownTopic
from holdfast.consumequeue.state.records import (
    NEXT_TOPIC_ID,
    StoredOffsets,
    decode_kept,
    decode_number,
    decode_offsets,
    decode_topic,
    parse_key,
)
from holdfast.consumequeue.topics import STATE_TOPIC_ID, Topic, check_name, is_own


class TopicTable:
    """Every topic by name and id, every group's stored offsets, every queue's first kept offset."""

    def __init__(self, records: dict[bytes, bytes]) -> None:
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[int, Topic] = {}
        self.queue_count = 0
        """The number of queues of all topics together."""
        self._offsets: dict[str, dict[int, StoredOffsets]] = {}
        self.kept: dict[int, dict[int, int]] = {}
        """The first kept offset of each queue, by topic id and queue; a queue that is not included
        begins at 0."""
        self.next_topic_id = decode_number(records.get(NEXT_TOPIC_ID, b"\x01"))
        for key, value in records.items():
            kind, *rest = parse_key(key)
            if kind == "topic":
                self.put(decode_topic(rest[0], value))
            elif kind == "offsets":
                self.put_offsets(rest[0], int(rest[1]), decode_offsets(value))
            elif kind == "kept":
                self.kept[int(rest[0])] = decode_kept(value)
        for group in list(self._offsets):
            self.remove_offsets(group, self._offsets[group].keys() - self._by_id.keys())
        self.next_topic_id = max([self.next_topic_id, *(i + 1 for i in self._by_id)])

    # -- topics ----------------------------------------------------------------------------

    def get(self, name: str) -> Topic:
        """Return a topic. Raises InvalidName or UnknownTopic."""
        topic = self._by_name.get(name)
        if topic is None:
            check_name("topic", name)
            raise UnknownTopic(name)
        return topic

    def find(self, name: str) -> Topic | None:
        """Return a topic, or None if there is none with this name."""
        return self._by_name.get(name)

    def by_id(self, topic_id: int) -> Topic | None:
        """Return a topic by its id, or None if there is none."""
        return self._by_id.get(topic_id)

    def needs_durable(self, topic_id: int) -> bool | None:
        """Return whether the messages of a topic become visible only once they are synced. Return
        None if there is no such topic."""
        topic = self._by_id.get(topic_id)
        if topic is None:
            return False if topic_id == STATE_TOPIC_ID else None
        return topic.config.durability == "fsync"

    def all(self) -> list[Topic]:
        """Return every topic, sorted by name."""
        return sorted(self._by_id.values(), key=lambda topic: topic.name)

    def listed(self) -> list[Topic]:
        """Return every topic that users see, sorted by name: without the broker's own topics."""
        return [topic for topic in self.all() if not is_own(topic.name)]

    def __len__(self) -> int:
        return len(self._by_id)

    def put(self, topic: Topic) -> None:
        replaced = self._by_name.get(topic.name)
        self.queue_count += topic.queue_count - (replaced.queue_count if replaced else 0)
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic

    def remove(self, topic: Topic) -> None:
        """Remove a topic and the offsets that groups stored for it."""
        self.queue_count -= self._by_name.pop(topic.name).queue_count
        del self._by_id[topic.topic_id]
        self.kept.pop(topic.topic_id, None)
        for group in list(self._offsets):
            self.remove_offsets(group, {topic.topic_id})

    # -- stored offsets --------------------------------------------------------------------

    def groups(self) -> list[str]:
        """Return the names of the groups that have stored offsets, sorted."""
        return sorted(self._offsets)

    @property
    def group_count(self) -> int:
        return len(self._offsets)

    def has_group(self, group: str) -> bool:
        return group in self._offsets

    def group_offsets(self, group: str) -> dict[int, StoredOffsets]:
        """Return a group's stored offsets by topic id. Raises InvalidName or UnknownGroup."""
        found = self._offsets.get(group)
        if found is None:
            check_name("group", group)
            raise UnknownGroup(group)
        return found

    def offsets(self, group: str, topic_id: int) -> StoredOffsets:
        """Return a group's offsets on a topic, with version 0 if nothing is stored."""
        return self._offsets.get(group, {}).get(topic_id, StoredOffsets())

    def remove_offsets(self, group: str, topic_ids: Iterable[int]) -> None:
        """Remove a group's offsets on topics, if any. A group without offsets no longer exists."""
        by_topic = self._offsets.get(group, {})
        for topic_id in topic_ids:
            by_topic.pop(topic_id, None)
        if not by_topic:
            self._offsets.pop(group, None)

    def put_offsets(self, group: str, topic_id: int, stored: StoredOffsets) -> None:
        self._offsets.setdefault(group, {})[topic_id] = stored
