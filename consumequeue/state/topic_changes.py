"""Topics: create, change, delete. Belongs to the event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from holdfast.commitlog.format.priority import MAX_LEVELS
from holdfast.consumequeue.config import TopicsConfig
from holdfast.consumequeue.errors import (
    InvalidTopicChange,
    LimitReached,
    TopicConflict,
    UnknownTopic,
)
from holdfast.consumequeue.state.changes import StateChanges
from holdfast.consumequeue.state.records import (
    NEXT_TOPIC_ID,
    encode_number,
    encode_topic,
    kept_key,
    lost_key,
    offsets_key,
    topic_key,
)
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import Topic, TopicConfig, check_name


@dataclass(eq=False)
class TopicChanges:
    """Changes one topic at a time; each change is durable before it is visible.

    `check_new_queues` is awaited before an existing topic gets more queues; it raises an error to
    prevent that. `created` is awaited with a new topic before its creator gets the reply. The
    `deleted_listeners` are called with the id of a deleted topic.
    """

    table: TopicTable
    config: TopicsConfig
    state: StateChanges
    _: KW_ONLY
    now_ms: Callable[[], int]
    deleted_listeners: list[Callable[[int], None]]
    check_new_queues: Callable[[Topic], Awaitable[None]] | None = None
    created: Callable[[Topic], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        self._lock = asyncio.Lock()

    async def create(
        self,
        name: str,
        *,
        queues: int | None = None,
        priority_levels: int | None = None,
        fields: Mapping[str, object] | None = None,
        own: bool = False,
    ) -> tuple[Topic, bool]:
        """Create a topic, or check that the existing topic has the given settings. Return the topic
        and whether it is new.

        A new topic gets `queues` queues per priority level. It gets the configured default of each
        setting that is not given, and one level by default. Settings that are not given are not
        compared with an existing topic. With `own`, the name may be one that only the broker may
        use. Raises InvalidName, InvalidTopicChange, LimitReached,
        TopicConflict, StateUnavailable.
        """
        check_name("topic", name, own=own)
        return await self.state.run_shielded(
            self._create(name, queues, priority_levels, fields or {})
        )

    def find_or_plan(self, name: str, *, queues: int | None = None) -> Topic:
        """Return a topic. If it does not exist yet, return it as `ensure` would create it, with the
        id 0. Raises InvalidName, or UnknownTopic if `ensure` must not create topics."""
        topic = self.table.find(name)
        if topic is not None:
            return topic
        check_name("topic", name)
        if not self.config.auto_create_topics:
            raise UnknownTopic(name)
        count = self.config.default_queues if queues is None else queues
        return Topic(name, 0, count, self.default_config(), 0)

    async def ensure(self, name: str, *, queues: int | None = None) -> tuple[Topic, bool]:
        """Return a topic, and whether it is new. If it does not exist, create it with the
        configured defaults and with `queues` queues, by default the configured number.

        An existing topic keeps its queue count, also if another caller creates it at the same
        time. The caller checks the permission to create topics. Raises InvalidName, UnknownTopic
        (`auto_create_topics` is off), LimitReached, StateUnavailable.
        """
        topic = self.find_or_plan(name, queues=queues)
        if topic.topic_id:
            return topic, False
        return await self.state.run_shielded(
            self._create(name, queues, None, {}, must_be_equal=False)
        )

    async def _create(
        self,
        name: str,
        queues: int | None,
        priority_levels: int | None,
        given: Mapping[str, object],
        *,
        must_be_equal: bool = True,
    ) -> tuple[Topic, bool]:
        async with self._lock:
            existing = self.table.find(name)
            if existing is not None:
                if must_be_equal:
                    _check_equal(existing, queues, priority_levels, given)
                return existing, False
            levels = 1 if priority_levels is None else priority_levels
            if not 1 <= levels <= MAX_LEVELS:
                raise InvalidTopicChange(name, f"it can have 1 to {MAX_LEVELS} levels of priority")
            if len(self.table) >= self.config.max_topics:
                raise LimitReached("max_topics", self.config.max_topics)
            topic = Topic(
                name,
                self.table.next_topic_id,
                self._check_queue_count(
                    name,
                    (self.config.default_queues if queues is None else queues) * levels,
                    had=0,
                ),
                replace(self.default_config(), **_normalize(given)),
                self.now_ms(),
                levels,
            )
            await self.state.commit(
                {
                    topic_key(name): encode_topic(topic),
                    NEXT_TOPIC_ID: encode_number(topic.topic_id + 1),
                }
            )
            self.table.next_topic_id = topic.topic_id + 1
            self.table.put(topic)
        if self.created is not None:
            await self.created(topic)
        return topic, True

    async def change(
        self,
        name: str,
        *,
        queues: int | None = None,
        priority_levels: int | None = None,
        fields: Mapping[str, object],
    ) -> Topic:
        """Change a topic's settings and return it. Queues (per level) can only be added; the number
        of levels cannot change.

        Raises UnknownTopic, InvalidTopicChange, KeyedBacklog, LimitReached, StateUnavailable.
        """
        return await self.state.run_shielded(self._change(name, queues, priority_levels, fields))

    async def _change(
        self,
        name: str,
        queues: int | None,
        priority_levels: int | None,
        fields: Mapping[str, object],
    ) -> Topic:
        async with self._lock:
            topic = self.table.get(name)
            levels = topic.priority_levels
            if priority_levels not in (None, levels):
                raise InvalidTopicChange(
                    name,
                    f"priority_levels is {levels} and cannot change, because every queue has its "
                    "level; create another topic",
                )
            count = topic.queue_count
            if queues is not None:
                if queues < topic.queues_per_level:
                    raise InvalidTopicChange(
                        name,
                        f"it has {topic.queues_per_level} queues; queues can be added, never "
                        "removed",
                    )
                count = self._check_queue_count(name, queues * levels, had=count)
                if count > topic.queue_count and self.check_new_queues is not None:
                    await self.check_new_queues(topic)
            former = topic.former_queue_counts
            if count > topic.queue_count:
                former = (topic.queue_count, *former)[:_FORMER_COUNTS]
            changed = replace(
                topic,
                queue_count=count,
                config=replace(topic.config, **_normalize(fields)),
                former_queue_counts=former,
            )
            if changed != topic:
                await self.state.commit({topic_key(name): encode_topic(changed)})
                self.table.put(changed)
            return changed

    async def delete(self, name: str) -> None:
        """Delete a topic, its messages and the offsets that groups stored for it. Raises
        UnknownTopic, StateUnavailable."""
        await self.state.run_shielded(self._delete(name))

    async def _delete(self, name: str) -> None:
        async with self._lock:
            topic = self.table.get(name)
            changes: dict[bytes, bytes | None] = {
                topic_key(name): None,
                kept_key(topic.topic_id): None,
                lost_key(topic.topic_id): None,
            }
            for group in self.table.groups():
                if topic.topic_id in self.table.group_offsets(group):
                    changes[offsets_key(group, topic.topic_id)] = None
            await self.state.commit(changes)
            self.table.remove(topic)
            for listener in self.deleted_listeners:
                listener(topic.topic_id)

    def _check_queue_count(self, name: str, queues: int, *, had: int) -> int:
        if queues < 1:
            raise InvalidTopicChange(name, "it needs at least one queue")
        if queues > self.config.max_queues_per_topic:
            raise LimitReached("max_queues_per_topic", self.config.max_queues_per_topic)
        if queues > had and self.table.queue_count - had + queues > self.config.max_queues:
            raise LimitReached("max_queues", self.config.max_queues)
        return queues

    def default_config(self) -> TopicConfig:
        """Return the settings of a topic that is created without settings."""
        config = self.config
        return TopicConfig(
            config.default_durability,
            config.default_retention_ms or None,
            config.default_retention_bytes or None,
            config.default_max_message_bytes,
            config.default_max_bytes or None,
        )


#: A topic keeps at most this many earlier queue counts. With them, a publish that is retried after
#: queues were added can be routed to the same queues as its first attempt.
_FORMER_COUNTS = 8
#: If one of these fields is null or 0, there is no such limit.
_LIMITS = ("retention_ms", "retention_bytes", "max_bytes")


def _normalize(fields: Mapping[str, object]) -> dict[str, Any]:
    """Return the fields of a topic. A limit that is null or 0 becomes None."""
    return {
        name: None if name in _LIMITS and not value else value for name, value in fields.items()
    }


def _check_equal(
    topic: Topic, queues: int | None, priority_levels: int | None, given: Mapping[str, object]
) -> None:
    """Raise TopicConflict for the first given field that differs."""
    if queues is not None and queues != topic.queues_per_level:
        raise TopicConflict(topic.name, "queues", queues, topic.queues_per_level)
    if priority_levels not in (None, topic.priority_levels):
        raise TopicConflict(topic.name, "priority_levels", priority_levels, topic.priority_levels)
    for name, value in _normalize(given).items():
        existing = getattr(topic.config, name)
        if value != existing:
            raise TopicConflict(topic.name, name, value, existing)
