"""Answers questions about single messages: who holds them, and what their state is.

On the event loop.
"""

from collections.abc import Callable
from heapq import nsmallest

from msgspec import UNSET

from holdfast.commitlog.format.message_id import format_message_id
from holdfast.consumequeue.slices import in_slices
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.core.group_topic import QueueLane
from holdfast.groups.core.receipts import Receipt
from holdfast.groups.cursor.cursor import NOT_KEPT, Cursor, End, State
from holdfast.groups.cursor.leases import NO_DEADLINE
from holdfast.groups.descriptions import LeaseReply, MessageStateReply
from holdfast.groups.serving.group_server import GroupServer

#: At most this many leases are looked at in one event loop iteration, some milliseconds.
LEASES_A_TURN = 5_000
Place = tuple[int, int, int]
"""(topic id, queue, offset)"""


async def find_leases(
    group: GroupServer, is_visible: Callable[[str], bool], after: Place, limit: int
) -> list[LeaseReply]:
    """Return the first `limit` leases after a place, in the order of (topic id, queue, offset).

    Leases of topics that are not visible are left out. The leases are read over several event loop
    iterations, so they are not a consistent snapshot.
    """
    found: list[LeaseReply] = []
    for topic in sorted(group.topics(), key=lambda topic: topic.topic_id):
        if topic.topic_id < after[0] or not is_visible(topic.name):
            continue
        for lane in sorted(group.lanes_of(topic.topic_id), key=lambda lane: lane.key):
            first = after[2] + 1 if lane.key == after[:2] else 0
            if lane.key < after[:2] or not len(lane.cursor.leases):
                continue
            for offset in await _first_offsets(lane, first, limit - len(found)):
                lease = _describe(topic.name, lane.key, offset, lane.cursor)
                if lease is not None:
                    found.append(lease)
            if len(found) >= limit:
                return found
    return found


async def _first_offsets(lane: QueueLane, first: int, count: int) -> list[int]:
    offsets: list[int] = []
    held = [lease.head.offset for lease in lane.cursor.leases]
    async for part in in_slices(held, LEASES_A_TURN):
        offsets = nsmallest(count, [*offsets, *(each for each in part if each >= first)])
    return offsets


def _describe(topic: str, key: QueueKey, offset: int, cursor: Cursor) -> LeaseReply | None:
    lease = cursor.leases.get(offset)
    if lease is None:  # it ended meanwhile
        return None
    return LeaseReply(
        topic,
        key[1],
        offset,
        format_message_id(*key, offset),
        lease.member,
        lease.delivered_ms,
        None if lease.deadline_ms == NO_DEADLINE else lease.deadline_ms,
        lease.attempt,
    )


def state_of(
    group: GroupServer, key: QueueKey, offset: int, table: TopicTable
) -> MessageStateReply:
    """Return the state of a message in a group. If the group does not have the queue yet, the
    message is available."""
    reply = MessageStateReply(group.record.name, "available")
    if group.record.config.last_value:
        reply.last_value = True
    lane = group.core.lane(key)
    if lane is None:
        return reply
    cursor = lane.cursor
    state = cursor.state(offset)
    attempts = cursor.attempts.get(offset)
    if attempts is not None:
        reply.attempt, reply.failures = attempts.acquisitions, attempts.failures
    if state is State.DONE:
        _add_settlement(reply, cursor, offset, group.record.dead_letter_topic, table)
    elif state is State.LEASED:
        lease = cursor.leases.get(offset)
        assert lease is not None
        reply.state, reply.member, reply.attempt = "leased", lease.member, lease.attempt
        reply.delivered_ms = lease.delivered_ms
        reply.until_ms = UNSET if lease.deadline_ms == NO_DEADLINE else lease.deadline_ms
    elif state is State.DELAYED:
        reply.state, reply.until_ms = "delayed", cursor.delays.get(offset)
    elif state is State.GRACE:
        reply.state, reply.until_ms = "restart-wait", cursor.grace_end_ms
    elif state is State.DYING:
        reply.state = "dying"
    return reply


def is_leased(group: GroupServer, receipt: Receipt) -> bool:
    """Return whether the lease of a receipt is live."""
    if receipt.group_id != group.core.group_id:
        return False
    key = receipt.topic_id, receipt.queue
    return group.core.lease(key, receipt.offset, receipt.lease_number) is not None


def may_return(group: GroupServer, receipt: Receipt) -> bool:
    """Return whether the group may deliver the message of a receipt again, as
    `GroupService.may_return` describes."""
    lane = group.core.lane((receipt.topic_id, receipt.queue))
    if receipt.group_id != group.core.group_id or lane is None:
        return False
    cursor, offset = lane.cursor, receipt.offset
    is_ended = offset in cursor.done or offset in cursor.dying
    return receipt.epoch == cursor.epoch and not is_ended


def would_die(group: GroupServer, receipt: Receipt) -> bool:
    """Return whether one more failure of a message would make it a dead letter, as
    `GroupService.would_die` describes."""
    most = group.core.config.max_attempts
    lane = group.core.lane((receipt.topic_id, receipt.queue))
    return bool(most) and lane is not None and lane.cursor.failures(receipt.offset) + 1 >= most


def _add_settlement(
    reply: MessageStateReply,
    cursor: Cursor,
    offset: int,
    dead_letter_topic: str | None,
    table: TopicTable,
) -> None:
    """Add how a message was settled. The cursor remembers this for a limited number of messages."""
    settlement = cursor.settled.get(offset)
    if offset < cursor.log_start:
        reply.state = "deleted"
    elif settlement is None or settlement.end in (End.ACKED, End.SUPERSEDED):
        reply.state = "settled"
    elif settlement.end is End.DROPPED:
        reply.state = "expired"
    else:
        reply.state = "dead"
        letters = table.find(dead_letter_topic) if dead_letter_topic else None
        if letters is not None and settlement.position != NOT_KEPT:
            reply.dead_letter_topic = letters.name
            if letters.queue_count == 1:
                reply.dead_letter_id = format_message_id(letters.topic_id, 0, settlement.position)
