"""The lag of groups with and without leases, and the state of a group's leases."""

import asyncio
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from time import time
from typing import cast

from msgspec import UNSET

from holdfast.consumequeue.errors import (
    OffsetBeyondEnd,
    OffsetTrimmed,
    QueueCorrupt,
    UnknownGroup,
    UnknownTopic,
)
from holdfast.consumequeue.slices import LoopBudget, in_slices
from holdfast.consumequeue.state.records import StoredOffsets
from holdfast.consumequeue.topics import QueueState, Topic
from holdfast.groups.descriptions import GroupReply, QueueLagReply, TopicLagReply
from holdfast.http_api.access.grants import GROUP_VERBS, TOPIC_VERBS, Principal
from holdfast.http_api.endpoints.topics import PageParams, states_of
from holdfast.http_api.routing.call import Call, NoParams
from holdfast.http_api.routing.context import ApiContext
from holdfast.http_api.schemas.groups import GroupsReply, GroupSummary
from holdfast.http_api.wire.reply import Reply

#: The age of a queue's lag is found by reading one message. At most this many such reads run in one
#: event loop iteration.
READS_A_TURN = 64


async def list_groups(call: Call[PageParams]) -> Reply:
    """List groups by name, one page at a time, with their lag in messages.

    The list leaves out groups and topics on which the token grants nothing.
    """
    context, params, principal = call.context, call.params, call.principal
    names = context.group_names()
    first = bisect_right(names, params.after or "")
    seen = (name for name in islice(names, first, None) if principal.may(GROUP_VERBS, group=name))
    found = list(islice(seen, params.limit + 1))
    page, is_last = found[: params.limit], len(found) <= params.limit
    summaries, turn = [], LoopBudget()
    async with context.wide_requests.place(call.client):
        for name in page:
            with suppress(UnknownGroup, UnknownTopic):  # deleted meanwhile
                summaries.append(await _summary(context, principal, name, turn))
        return call.reply(GroupsReply(summaries, None if is_last else page[-1]))


async def get_group(call: Call[NoParams]) -> Reply:
    """Return the lag of a group: in messages, stored bytes and seconds, for each queue.

    For a group with leases, the reply also has its settings, its members, and the state of the
    messages in each queue. The reply leaves out topics on which the token grants nothing:
    `available` and `in_flight` do not count their messages, and `dead_letter_topic` is null if it
    is such a topic. If the token does not grant all of the group's topics, `members` is empty, and
    `waiting` and `dying` are 0.
    """
    group = call.group()
    async with call.context.wide_requests.place(call.client):
        return call.reply(await described(call.context, call.principal, group))


async def described(context: ApiContext, principal: Principal, group: str) -> GroupReply:
    """Return the description of a group, as far as this principal may see the group.

    The caller must be inside `context.wide_requests.place`. Raises InvalidName, UnknownGroup.
    """
    if context.groups.has_leases(group):
        return await _described_with_leases(context, principal, group)
    topics, turn = [], LoopBudget(READS_A_TURN)
    for name, stored in sorted(_visible_topics(context, principal, group).items()):
        with suppress(UnknownTopic):  # deleted meanwhile
            topic = context.store.table.get(name)
            lag = TopicLagReply(topic.name, topic.topic_id, 0, 0, 0.0, [])
            await _add_lag(context, topic, lag, stored.offsets, turn)
            topics.append(lag)
    return _sum_lag(GroupReply(group, 0, 0, 0.0, topics))


async def _described_with_leases(
    context: ApiContext, principal: Principal, group: str
) -> GroupReply:
    reply = await context.groups.describe(group)
    described, turn = reply.topics, LoopBudget(READS_A_TURN)
    visible = [each for each in described if principal.may(GROUP_VERBS, each.topic, group)]
    reply.topics = []
    for each in visible:
        with suppress(UnknownTopic):  # deleted meanwhile
            topic = context.store.table.get(each.topic)
            floors = {queue.queue: queue.offset for queue in each.queues}
            await _add_lag(context, topic, each, floors, turn)
            reply.topics.append(each)
    assert reply.config is not UNSET
    # `principal.may` checks a pattern as if the pattern were a topic's name.
    subscriptions = reply.config.topics.items()
    reply.config.topics = {
        name: each for name, each in subscriptions if principal.may(GROUP_VERBS, name, group)
    }
    letters = reply.config.dead_letter_topic
    if letters is not None and not principal.may(TOPIC_VERBS, letters):
        reply.config.dead_letter_topic = None
    if len(visible) < len(described):
        reply.available = sum(cast(int, each.available) for each in visible)
        queues = [queue for each in visible for queue in each.queues]
        reply.in_flight = sum(cast(int, queue.in_flight) for queue in queues)
        reply.waiting, reply.dying, reply.members = 0, 0, []
    return _sum_lag(reply)


def _sum_lag(reply: GroupReply) -> GroupReply:
    reply.lag_messages = sum(topic.lag_messages for topic in reply.topics)
    reply.lag_bytes = sum(topic.lag_bytes for topic in reply.topics)
    reply.lag_seconds = max((topic.lag_seconds for topic in reply.topics), default=0.0)
    return reply


def _visible_topics(
    context: ApiContext, principal: Principal, group: str
) -> dict[str, StoredOffsets]:
    return {
        name: stored
        for name, stored in context.store.offsets.group_topics(group).items()
        if principal.may(GROUP_VERBS, name, group)
    }


async def _summary(
    context: ApiContext, principal: Principal, group: str, turn: LoopBudget
) -> GroupSummary:
    if context.groups.has_leases(group):
        lags = await context.groups.lags(group)
        await asyncio.sleep(0)
        seen = sorted(name for name in lags if principal.may(GROUP_VERBS, name, group))
        mode = context.groups.group_state(group).record.config.mode
        return GroupSummary(group, seen, sum(lags[name] for name in seen), mode)
    lag, topics = 0, _visible_topics(context, principal, group)
    for name, stored in topics.items():
        await turn.spend()
        topic = context.store.table.get(name)
        async for queues in turn.slices(range(topic.queue_count)):
            for queue in queues:
                state = context.store.reading.queue_state(topic, queue)
                lag += state.max_offset - _next_offset(state, stored.offsets)
    await asyncio.sleep(0)
    return GroupSummary(group, sorted(topics), lag)


def _next_offset(state: QueueState, offsets: Mapping[int, int | None]) -> int:
    """Return the first offset of a queue that a group has not consumed, or the queue's end."""
    stored = offsets.get(state.queue)
    if stored is None:
        return state.min_offset
    return min(max(stored, state.min_offset), state.max_offset)


async def _add_lag(
    context: ApiContext,
    topic: Topic,
    reply: TopicLagReply,
    offsets: Mapping[int, int | None],
    turn: LoopBudget,
) -> None:
    """Add to the reply the lag of a group on a topic, measured from the group's offsets.

    If the reply already has a queue, the `lag_messages` of this queue stays unchanged.
    """
    described = {each.queue: each for each in reply.queues}
    states = await states_of(context.store, topic)
    ranges, lag_bytes = {}, {}
    async for part in in_slices(states):
        for state in part:
            ranges[state.queue] = (_next_offset(state, offsets), state.max_offset)
            lag_bytes[state.queue] = 0
    with suppress(OffsetTrimmed, OffsetBeyondEnd):  # retention or a deletion was faster
        pieces = await context.store.lookups.splits(
            topic, ranges, max_bytes=None, min_splits=1, max_splits=1
        )
        async for some in in_slices(pieces):
            for piece in some:
                lag_bytes[piece.queue] += piece.bytes
    reply.queues = []
    async for part in turn.slices(states):
        for state in part:
            number, start = state.queue, ranges[state.queue][0]
            queue = described.get(number)
            if queue is None:
                lag = state.max_offset - start
                queue = QueueLagReply(number, offsets.get(number), 0, 0, lag, 0, 0.0)
            queue.min_offset, queue.max_offset = state.min_offset, state.max_offset
            queue.lag_bytes = lag_bytes[number]
            queue.lag_seconds = await _lag_seconds(context, topic, state, start)
            reply.queues.append(queue)
    reply.lag_messages = sum(queue.lag_messages for queue in reply.queues)
    reply.lag_bytes = sum(queue.lag_bytes for queue in reply.queues)
    reply.lag_seconds = max((queue.lag_seconds for queue in reply.queues), default=0.0)


async def _lag_seconds(context: ApiContext, topic: Topic, state: QueueState, offset: int) -> float:
    """Return the age in seconds of a queue's first readable message at or after `offset`.

    Return 0 if there is no such message.
    """
    if offset >= state.max_offset:
        return 0.0
    try:
        fetched = await context.store.reading.read(
            topic, state.queue, offset, max_messages=1, max_bytes=1, skip_corrupt=True
        )
    except (OffsetTrimmed, OffsetBeyondEnd, QueueCorrupt):
        return 0.0
    if not fetched.slices:
        return 0.0
    stored_us = fetched.slices[0].batch.header.store_timestamp_us
    return round(max(time() - stored_us / 1e6, 0.0), 3)
