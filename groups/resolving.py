"""Translates the names and texts of a receive into the values that a group uses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey, Topic, check_queue
from holdfast.groups.core.requests import Limits, MayConsume, ReceiveRequest, UnitLimit
from holdfast.groups.errors import NotSubscribed
from holdfast.groups.serving.group_server import GroupServer
from holdfast.groups.serving.head_source import key_number


@dataclass(frozen=True, slots=True)
class MayReceiveById:
    """Decides, by topic id, whether a request may get messages of a topic."""

    may_consume: MayConsume
    topic_by_id: Callable[[int], Topic | None] = field(compare=False)

    def __call__(self, topic_id: int) -> bool:
        topic = self.topic_by_id(topic_id)
        return topic is not None and self.may_consume(topic.name)


def resolve(
    request: ReceiveRequest,
    group: GroupServer,
    table: TopicTable,
    filter: object | None = None,
) -> ReceiveRequest:
    """Return a request with the values that the group uses; `filter` is its parsed filter. Raises
    UnknownTopic, UnknownQueue."""
    names, may_consume = request.topic_names, request.may_consume
    return replace(
        request,
        topics=None if names is None else _topic_ids_of(group, table, names),
        filter=filter,
        limits=_limits_of(group, table, request.unit_limits),
        may_receive=None if may_consume is None else MayReceiveById(may_consume, table.by_id),
        attempt_id=None if request.bound else request.attempt_id,
    )


def topic_of(group: GroupServer, table: TopicTable, name: str) -> Topic:
    """Return a topic of the group. Raises UnknownTopic, also if the group does not subscribe to the
    topic."""
    topic = table.get(name)
    if topic.topic_id not in group.core.topics:
        raise NotSubscribed(name, group.record.name)
    return topic


def _topic_ids_of(group: GroupServer, table: TopicTable, names: Sequence[str]) -> frozenset[int]:
    """Return the ids of the topics that a request names. Skip a topic that does not exist yet if
    the group subscribes to it by name."""
    return frozenset(
        topic_of(group, table, name).topic_id
        for name in names
        if table.find(name) is not None or name not in group.record.subscriptions
    )


def _limits_of(group: GroupServer, table: TopicTable, given: Sequence[UnitLimit]) -> Limits | None:
    if not given:
        return None
    queues: dict[QueueKey, int] = {}
    keys: dict[tuple[int, int], int] = {}
    for each in given:
        topic = topic_of(group, table, each.topic)
        if each.queue is not None:
            check_queue(topic, each.queue)
            queues[topic.topic_id, each.queue] = each.max_messages
        if each.key is not None:
            keys[topic.topic_id, key_number(each.key)] = each.max_messages
    return Limits(queues, keys)
