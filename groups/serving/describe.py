"""Describes a group for operators: its progress in each queue, and its members."""

from collections import Counter
from itertools import chain

from holdfast.consumequeue.slices import LoopBudget
from holdfast.consumequeue.topics import Topic
from holdfast.groups.cursor.cursor import Cursor
from holdfast.groups.descriptions import (
    GroupReply,
    MemberReply,
    QueueLagReply,
    ServedReply,
    TopicLagReply,
)
from holdfast.groups.serving.group_server import GroupServer


async def describe(group: GroupServer, now_ms: int) -> GroupReply:
    """Return the complete description of a group, without the lag in bytes and seconds. This may
    take several event loop iterations. The values of one queue are consistent; those of different
    queues may be from different times."""
    topics, turn = [], LoopBudget()
    counts: Counter[str] = Counter()
    for topic in sorted(group.topics(), key=lambda topic: topic.name):
        await turn.spend()
        described = await _topic(group, topic, now_ms, turn, counts)
        if described is not None:
            topics.append(described)
    return GroupReply(
        group.record.name,
        sum(topic.lag_messages for topic in topics),
        0,
        0.0,
        topics,
        group.record.describe_config(),
        counts["available"],
        group.core.lease_count,
        len(group.core.waiters),
        counts["dying"],
        _members(group),
    )


async def _topic(
    group: GroupServer, topic: Topic, now_ms: int, turn: LoopBudget, counts: Counter[str]
) -> TopicLagReply | None:
    """Return the description of a topic, and add its messages to `counts`: those that are
    available, and those that are being appended to the dead-letter topic (dying). Return None if
    the group has lost the topic meanwhile."""
    queues: list[QueueLagReply] = []
    served, dying, topic_id = ServedReply(0, 0, 0.0), 0, topic.topic_id
    async for lanes in turn.slices(sorted(group.lanes_of(topic_id), key=lambda lane: lane.key)):
        for lane in lanes:
            rate = group.rates.get(lane.key)
            if rate is not None:
                of_queue = rate.read(now_ms)
                described = describe_queue(lane.key[1], lane.cursor, of_queue)
                if group.record.config.last_value:
                    described.superseded = lane.cursor.superseded_count
                queues.append(described)
                served.count += of_queue.count
                served.bytes += of_queue.bytes
                served.rate += of_queue.rate
                dying += len(lane.cursor.dying)
    subscribed = group.core.topics.get(topic_id)
    if subscribed is None or topic_id not in group.record.topics:
        return None
    counts.update(available=subscribed.available, dying=dying)
    served.rate = round(served.rate, 3)
    return TopicLagReply(
        topic.name,
        topic_id,
        sum(queue.lag_messages for queue in queues),
        0,
        0.0,
        queues,
        subscribed.available,
        served,
        group.core.fair.standing(topic_id),
    )


def describe_queue(queue: int, cursor: Cursor, served: ServedReply) -> QueueLagReply:
    """Return the progress of a group in a queue, without the lag in bytes and seconds."""
    return QueueLagReply(
        queue,
        cursor.floor,
        cursor.log_start,
        cursor.end,
        cursor.unsettled,
        0,
        0.0,
        cursor.floor,
        cursor.next,
        cursor.available,
        len(cursor.leases),
        len(cursor.delays),
        cursor.dead_count,
        cursor.expired_count,
        cursor.lost_count,
        served,
    )


def _members(group: GroupServer) -> list[MemberReply]:
    core = group.core
    waiting = Counter(waiter.request.member for waiter in core.waiters)
    return [
        MemberReply(
            name, core.in_flight.count_of(name), waiting[name], core.activity.is_active(name)
        )
        for name in dict.fromkeys(chain(core.members, waiting))
    ]
