"""A group as it is shown: where it stands, queue by queue, and who takes part."""

from collections.abc import Iterable
from itertools import chain

from holdfast.groups.counters import Serving
from holdfast.groups.cursor import Cursor
from holdfast.groups.served_group import ServedGroup
from holdfast.groups.service_types import (
    GroupDescription,
    GroupState,
    MemberDescription,
    QueueDescription,
    Served,
    TopicDescription,
)


def describe(group: ServedGroup, state: GroupState, now_ms: int) -> GroupDescription:
    """Return everything about a group."""
    core = group.core
    topics = [
        _topic(group, topic.name, topic.topic_id, now_ms)
        for topic in sorted(group.topics(), key=lambda topic: topic.name)
    ]
    return GroupDescription(
        state,
        topics,
        _members(group),
        core.lease_count,
        len(group.waiting),
        sum(len(lane.cursor.dying) for lane in group.lanes()),
    )


def _topic(group: ServedGroup, name: str, topic_id: int, now_ms: int) -> TopicDescription:
    topic = group.core.topics[topic_id]
    wanted = group.record.topics[topic_id]
    queues = [
        _queue(queue, topic.lanes[queue].cursor, group.serving[topic_id, queue], now_ms)
        for queue in sorted(topic.lanes)
    ]
    return TopicDescription(
        name,
        wanted.weight,
        wanted.filter,
        topic.available,
        group.core.fair.standing(topic_id),
        _total(each.served for each in queues),
        queues,
    )


def _queue(queue: int, cursor: Cursor, serving: Serving, now_ms: int) -> QueueDescription:
    return QueueDescription(
        queue,
        cursor.floor,
        cursor.next,
        cursor.end,
        cursor.available,
        len(cursor.leases),
        len(cursor.delays),
        cursor.dead_count,
        cursor.expired_count,
        cursor.lost_count,
        cursor.end - cursor.floor - cursor.done.count_above,
        serving.served(now_ms),
    )


def _total(parts: Iterable[Served]) -> Served:
    found = list(parts)
    return Served(
        sum(each.count for each in found),
        sum(each.bytes for each in found),
        round(sum(each.rate for each in found), 3),
    )


def _members(group: ServedGroup) -> list[MemberDescription]:
    core = group.core
    waiting: dict[str, int] = {}
    for waiter in core.waiters:
        waiting[waiter.ask.member] = waiting.get(waiter.ask.member, 0) + 1
    names = dict.fromkeys(chain(core.members, waiting))
    return [
        MemberDescription(
            name,
            core.in_flight.of(name),
            waiting.get(name, 0),
            core.activity.active in (None, name),
        )
        for name in names
    ]
