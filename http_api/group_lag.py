"""How far groups are behind, of either kind; and how the leases of one stand."""

import asyncio
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from time import time
from typing import cast

from holdfast.consumequeue.errors import OffsetTrimmed, QueueCorrupt, UnknownGroup, UnknownTopic
from holdfast.consumequeue.message_store import QueueState, StoredOffsets
from holdfast.consumequeue.topics import Topic
from holdfast.groups.service_types import QueueDescription, Served, TopicDescription
from holdfast.http_api.access.grants import GROUP_VERBS, Principal
from holdfast.http_api.call import Call, NoParams
from holdfast.http_api.context import ApiContext
from holdfast.http_api.group_settings import config_reply
from holdfast.http_api.group_types import (
    GroupReply,
    GroupsReply,
    GroupSummary,
    MemberReply,
    Mode,
    QueueLagReply,
    ServedReply,
    TopicLagReply,
)
from holdfast.http_api.reply import Reply
from holdfast.http_api.topics import PageParams

#: Queues that a listing looks at before it lets the loop do other work.
QUEUES_A_TURN = 1000


async def list_groups(call: Call[PageParams]) -> Reply:
    """List groups by name, a page at a time, with their lag in messages.

    Groups and topics that the token grants nothing on are left out.
    """
    context, params, principal = call.context, call.params, call.principal
    names = sorted({*context.store.groups(), *context.groups.groups()})
    first = bisect_right(names, params.after or "")
    seen = (name for name in islice(names, first, None) if principal.may(GROUP_VERBS, group=name))
    found = list(islice(seen, params.limit + 1))
    page, is_last = found[: params.limit], len(found) <= params.limit
    summaries = []
    for name in page:
        with suppress(UnknownGroup, UnknownTopic):  # deleted meanwhile
            summaries.append(await _summary(context, principal, name))
    return call.reply(GroupsReply(summaries, None if is_last else page[-1]))


async def get_group(call: Call[NoParams]) -> Reply:
    """Tell how far a group is behind: in messages, stored bytes and seconds, queue by queue.

    Of a group with leases also its settings, its members, and how the messages of each queue
    stand. Topics that the token grants nothing on are left out.
    """
    return call.reply(await described(call.context, call.principal, call.group()))


async def described(context: ApiContext, principal: Principal, group: str) -> GroupReply:
    """Return a group of either kind as far as this principal may see it. Raises InvalidName,
    UnknownGroup."""
    if context.groups.has_leases(group):
        return await _described_with_leases(context, principal, group)
    topics = []
    for name, stored in sorted(_visible_topics(context, principal, group).items()):
        with suppress(UnknownTopic):  # deleted meanwhile
            topics.append(await _topic_lag(context, context.store.topic(name), stored.offsets))
    return _group_reply(group, topics)


async def _described_with_leases(
    context: ApiContext, principal: Principal, group: str
) -> GroupReply:
    description = context.groups.describe(group)
    visible = [each for each in description.topics if principal.may(GROUP_VERBS, each.topic, group)]
    topics = []
    for each in sorted(visible, key=lambda described: described.topic):
        with suppress(UnknownTopic):  # deleted meanwhile
            topics.append(await _leased_topic(context, context.store.topic(each.topic), each))
    reply = _group_reply(group, topics)
    state = description.state
    shown = {each.topic for each in visible}
    reply.config = config_reply(
        state, {name: spec for name, spec in state.topics.items() if name in shown}
    )
    reply.available = sum(each.available for each in visible)
    reply.in_flight = description.in_flight
    reply.waiting = description.waiting
    reply.dying = description.dying
    reply.members = [
        MemberReply(each.name, each.in_flight, each.waiting, each.active)
        for each in description.members
    ]
    return reply


def _group_reply(group: str, topics: list[TopicLagReply]) -> GroupReply:
    return GroupReply(
        group,
        sum(topic.lag_messages for topic in topics),
        sum(topic.lag_bytes for topic in topics),
        max((topic.lag_seconds for topic in topics), default=0.0),
        topics,
    )


async def _leased_topic(
    context: ApiContext, topic: Topic, description: TopicDescription
) -> TopicLagReply:
    """Return a topic's lag from its floors, with what its leases are."""
    floors = {each.queue: each.floor for each in description.queues}
    reply = await _topic_lag(context, topic, floors)
    by_queue = {each.queue: each for each in description.queues}
    for queue in reply.queues:
        if queue.queue in by_queue:
            _add_leases(queue, by_queue[queue.queue])
    reply.lag_messages = sum(queue.lag_messages for queue in reply.queues)
    reply.available = description.available
    reply.served = _served(description.served)
    reply.standing = description.standing
    return reply


def _add_leases(reply: QueueLagReply, queue: QueueDescription) -> None:
    reply.lag_messages = queue.lag
    reply.floor = queue.floor
    reply.next = queue.next
    reply.available = queue.available
    reply.in_flight = queue.in_flight
    reply.delayed = queue.delayed
    reply.dead = queue.dead
    reply.expired = queue.expired
    reply.lost = queue.lost
    reply.served = _served(queue.served)


def _served(served: Served) -> ServedReply:
    return ServedReply(served.count, served.bytes, round(served.rate, 3))


def _visible_topics(
    context: ApiContext, principal: Principal, group: str
) -> dict[str, StoredOffsets]:
    return {
        name: stored
        for name, stored in context.store.group_topics(group).items()
        if principal.may(GROUP_VERBS, name, group)
    }


async def _summary(context: ApiContext, principal: Principal, group: str) -> GroupSummary:
    if context.groups.has_leases(group):
        description = context.groups.describe(group)
        seen = [
            each for each in description.topics if principal.may(GROUP_VERBS, each.topic, group)
        ]
        behind = sum(queue.lag for each in seen for queue in each.queues)
        await asyncio.sleep(0)
        mode = cast(Mode, description.state.mode)
        return GroupSummary(group, sorted(each.topic for each in seen), behind, mode)
    lag, topics = 0, _visible_topics(context, principal, group)
    for name, stored in topics.items():
        topic = context.store.topic(name)
        for queue in range(topic.queue_count):
            state = context.store.queue_state(topic, queue)
            lag += state.max_offset - _next_offset(state, stored.offsets)
            if queue % QUEUES_A_TURN == QUEUES_A_TURN - 1:
                await asyncio.sleep(0)
    return GroupSummary(group, sorted(topics), lag)


def _next_offset(state: QueueState, offsets: Mapping[int, int]) -> int:
    """Return the first message of a queue that a group has yet to consume, or the end."""
    stored = offsets.get(state.queue, state.min_offset)
    return min(max(stored, state.min_offset), state.max_offset)


async def _topic_lag(
    context: ApiContext, topic: Topic, offsets: Mapping[int, int]
) -> TopicLagReply:
    states = context.store.queue_states(topic)
    ranges = {state.queue: (_next_offset(state, offsets), state.max_offset) for state in states}
    lag_bytes = dict.fromkeys(ranges, 0)
    for piece in await context.store.splits(topic, ranges, max_bytes=None, min_splits=1):
        lag_bytes[piece.queue] += piece.bytes
    queues = [
        QueueLagReply(
            state.queue,
            offsets.get(state.queue),
            state.min_offset,
            state.max_offset,
            state.max_offset - ranges[state.queue][0],
            lag_bytes[state.queue],
            await _lag_seconds(context, topic, state, ranges[state.queue][0]),
        )
        for state in states
    ]
    return TopicLagReply(
        topic.name,
        topic.topic_id,
        sum(queue.lag_messages for queue in queues),
        sum(queue.lag_bytes for queue in queues),
        max((queue.lag_seconds for queue in queues), default=0.0),
        queues,
    )


async def _lag_seconds(context: ApiContext, topic: Topic, state: QueueState, offset: int) -> float:
    """Return the age of a queue's first message from `offset` on that can be read; 0 when there
    is none."""
    if offset >= state.max_offset:
        return 0.0
    try:
        fetched = await context.store.read(
            topic, state.queue, offset, max_messages=1, max_bytes=1, skip_corrupt=True
        )
    except (OffsetTrimmed, QueueCorrupt):
        return 0.0
    if not fetched.slices:
        return 0.0
    stored_us = fetched.slices[0].batch.header.store_timestamp_us
    return round(max(time() - stored_us / 1e6, 0.0), 3)
