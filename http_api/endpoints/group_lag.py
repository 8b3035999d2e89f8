"""The lag of groups with and without leases, and the state of a group's leases."""

import asyncio
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from time import time
from typing import cast

from holdfast.consumequeue.errors import (
    OffsetBeyondEnd,
    OffsetTrimmed,
    QueueCorrupt,
    UnknownGroup,
    UnknownTopic,
)
from holdfast.consumequeue.message_store import QueueState, StoredOffsets
from holdfast.consumequeue.slices import LoopBudget, in_slices
from holdfast.consumequeue.topics import Topic
from holdfast.groups.service_types import QueueDescription, Served, TopicDescription
from holdfast.http_api.access.grants import GROUP_VERBS, TOPIC_VERBS, Principal
from holdfast.http_api.endpoints.group_settings import config_reply
from holdfast.http_api.endpoints.topics import PageParams, states_of
from holdfast.http_api.routing.call import Call, NoParams
from holdfast.http_api.routing.context import ApiContext
from holdfast.http_api.schemas.groups import (
    GroupReply,
    GroupsReply,
    GroupSummary,
    MemberReply,
    Mode,
    QueueLagReply,
    ServedReply,
    TopicLagReply,
)
from holdfast.http_api.wire.reply import Reply

#: The age of a queue's lag is found by reading one message. At most this many such reads run in one
#: event loop iteration.
READS_A_TURN = 64


async def list_groups(call: Call[PageParams]) -> Reply:
    """List groups by name, one page at a time, with their lag in messages.

    The list leaves out groups and topics on which the token grants nothing.
    """
    context, params, principal = call.context, call.params, call.principal
    names = sorted({*context.store.table.groups(), *context.groups.groups()})
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
            topics.append(await _topic_lag(context, topic, stored.offsets, turn))
    return _group_reply(group, topics)


async def _described_with_leases(
    context: ApiContext, principal: Principal, group: str
) -> GroupReply:
    description = await context.groups.describe(group)
    visible = [each for each in description.topics if principal.may(GROUP_VERBS, each.topic, group)]
    topics, turn = [], LoopBudget(READS_A_TURN)
    for each in sorted(visible, key=lambda described: described.topic):
        with suppress(UnknownTopic):  # deleted meanwhile
            topic = context.store.table.get(each.topic)
            topics.append(await _leased_topic(context, topic, each, turn))
    reply = _group_reply(group, topics)
    state = description.state
    # `principal.may` checks a pattern as if the pattern were a topic's name.
    subscriptions = state.subscriptions.items()
    reply.config = config_reply(
        state,
        {name: spec for name, spec in subscriptions if principal.may(GROUP_VERBS, name, group)},
    )
    letters = state.dead_letter_topic
    if letters is not None and not principal.may(TOPIC_VERBS, letters):
        reply.config.dead_letter_topic = None
    reply.available = sum(each.available for each in visible)
    if len(visible) < len(description.topics):
        reply.in_flight = sum(queue.in_flight for each in visible for queue in each.queues)
        reply.waiting, reply.dying, reply.members = 0, 0, []
        return reply
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
    context: ApiContext, topic: Topic, description: TopicDescription, turn: LoopBudget
) -> TopicLagReply:
    """Return a topic's lag, measured from the group's floors, and the state of its leases."""
    floors = {each.queue: each.floor for each in description.queues}
    reply = await _topic_lag(context, topic, floors, turn)
    by_queue = {each.queue: each for each in description.queues}
    async for part in in_slices(reply.queues):
        for queue in part:
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
        mode = cast(Mode, context.groups.group_state(group).mode)
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


def _next_offset(state: QueueState, offsets: Mapping[int, int]) -> int:
    """Return the first offset of a queue that a group has not consumed, or the queue's end."""
    stored = offsets.get(state.queue, state.min_offset)
    return min(max(stored, state.min_offset), state.max_offset)


async def _topic_lag(
    context: ApiContext, topic: Topic, offsets: Mapping[int, int], turn: LoopBudget
) -> TopicLagReply:
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
    queues = []
    async for part in turn.slices(states):
        for state in part:
            start = ranges[state.queue][0]
            queues.append(
                QueueLagReply(
                    state.queue,
                    offsets.get(state.queue),
                    state.min_offset,
                    state.max_offset,
                    state.max_offset - start,
                    lag_bytes[state.queue],
                    await _lag_seconds(context, topic, state, start),
                )
            )
    return TopicLagReply(
        topic.name,
        topic.topic_id,
        sum(queue.lag_messages for queue in queues),
        sum(queue.lag_bytes for queue in queues),
        max((queue.lag_seconds for queue in queues), default=0.0),
        queues,
    )


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
