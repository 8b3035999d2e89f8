"""Describes a group for operators: its progress in each queue, and its members."""

from dataclasses import replace
from itertools import chain

from holdfast.consumequeue.slices import LoopBudget
from holdfast.groups.cursor.cursor import Cursor
from holdfast.groups.service_types import (
    GroupDescription,
    GroupState,
    MemberDescription,
    QueueDescription,
    Served,
    TopicDescription,
)
from holdfast.groups.serving.counters import DeliveryRate
from holdfast.groups.serving.group_server import GroupServer


async def describe(group: GroupServer, state: GroupState, now_ms: int) -> GroupDescription:
    """Return the complete description of a group. This may take several event loop iterations. The
    values of one queue are consistent; those of different queues may be from different times."""
    core = group.core
    topics, dying, turn = [], 0, LoopBudget()
    for topic in sorted(group.topics(), key=lambda topic: topic.name):
        await turn.spend()
        described, of_topic = await _topic(group, topic.name, topic.topic_id, now_ms, turn)
        if described is not None:
            topics.append(described)
            dying += of_topic
    return GroupDescription(
        state,
        topics,
        _members(group),
        core.lease_count,
        len(group.waiting),
        dying,
    )


async def _topic(
    group: GroupServer, name: str, topic_id: int, now_ms: int, turn: LoopBudget
) -> tuple[TopicDescription | None, int]:
    """Return the description of a topic, and how many of its messages are being appended to the
    dead-letter topic. The description is None if the group has lost the topic meanwhile."""
    queues: list[QueueDescription] = []
    total, dying = Served(0, 0, 0.0), 0
    async for lanes in turn.slices(sorted(group.lanes_of(topic_id), key=lambda lane: lane.key)):
        for lane in lanes:
            serving = group.serving.get(lane.key)
            if serving is not None:
                described = _queue(lane.key[1], lane.cursor, serving, now_ms)
                queues.append(described)
                total = _sum(total, described.served)
                dying += len(lane.cursor.dying)
    topic = group.core.topics.get(topic_id)
    wanted = group.record.topics.get(topic_id)
    if topic is None or wanted is None:
        return None, 0
    description = TopicDescription(
        name,
        wanted.weight,
        wanted.filter,
        topic.available,
        group.core.fair.standing(topic_id),
        replace(total, rate=round(total.rate, 3)),
        queues,
    )
    return description, dying


def _queue(queue: int, cursor: Cursor, serving: DeliveryRate, now_ms: int) -> QueueDescription:
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
        cursor.unsettled,
        serving.served(now_ms),
    )


def _sum(one: Served, other: Served) -> Served:
    return Served(one.count + other.count, one.bytes + other.bytes, one.rate + other.rate)


def _members(group: GroupServer) -> list[MemberDescription]:
    core = group.core
    waiting: dict[str, int] = {}
    for waiter in core.waiters:
        waiting[waiter.request.member] = waiting.get(waiter.request.member, 0) + 1
    names = dict.fromkeys(chain(core.members, waiting))
    return [
        MemberDescription(
            name,
            core.in_flight.count_of(name),
            waiting.get(name, 0),
            core.activity.is_active(name),
        )
        for name in names
    ]
