"""Groups' stored offsets: read, store by compare-and-swap, reset; and how far they are behind."""

import asyncio
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from time import time

from aiohttp import hdrs

from holdfast.consumequeue.errors import (
    OffsetsChanged,
    OffsetTrimmed,
    QueueCorrupt,
    UnknownGroup,
    UnknownQueue,
    UnknownTopic,
)
from holdfast.consumequeue.message_store import QueueState, StoredOffsets
from holdfast.consumequeue.topics import Topic
from holdfast.http_api.access.grants import GROUP_VERBS, Principal
from holdfast.http_api.call import Call, NoParams
from holdfast.http_api.context import ApiContext
from holdfast.http_api.params import invalid, whole_number
from holdfast.http_api.reply import Reply
from holdfast.http_api.topics import PageParams
from holdfast.http_api.types import (
    GroupReply,
    GroupsReply,
    GroupSummary,
    OffsetsReply,
    OffsetsRequest,
    QueueLagReply,
    ResetReply,
    ResetRequest,
    TopicLagReply,
)

#: Queues that a listing looks at before it lets the loop do other work.
QUEUES_A_TURN = 1000

_ANY_VERSION = -1
"""If-Match: * - whatever is stored, but something."""


# -- stored offsets ------------------------------------------------------------------------


async def get_offsets(call: Call[NoParams]) -> Reply:
    """Return a group's stored offsets on a topic: of each queue, the next to consume."""
    context, group, topic = call.context, call.group(), call.topic()
    return _offsets_reply(call, group, topic, context.store.stored_offsets(group, topic))


async def put_offsets(call: Call[NoParams]) -> Reply:
    """Store offsets of a group on a topic, durably; the group is created when it is new.

    Queues that are not named keep what they have. With If-Match only if the ETag is still
    that, with If-None-Match: * only if nothing is stored yet; else 412.
    """
    context, group, topic = call.context, call.group(), call.topic()
    if_version = _if_version(call.headers)
    wanted = await call.body(OffsetsRequest)
    offsets = {_queue(name, topic): offset for name, offset in wanted.offsets.items()}
    if if_version == _ANY_VERSION:
        if_version = _stored(context, group, topic).version
        if if_version == 0:
            raise OffsetsChanged(group, topic.name, 0)
    stored = await context.to_the_end(
        context.store.store_offsets(group, topic, offsets, if_version=if_version)
    )
    return _offsets_reply(call, group, topic, stored)


async def reset_offsets(call: Call[NoParams]) -> Reply:
    """Set a group's offsets to an end of the queues or to a time; `dry_run` only tells."""
    context, group, topic = call.context, call.group(), call.topic()
    reset = await call.body(ResetRequest)
    queues = range(topic.queue_count) if reset.queues is None else sorted(set(reset.queues))
    after = {queue: await _reset_offset(context, topic, queue, reset) for queue in queues}
    before = _stored(context, group, topic).offsets
    if not reset.dry_run:
        await context.to_the_end(context.store.store_offsets(group, topic, after))
    reply = ResetReply(
        group,
        topic.name,
        reset.dry_run,
        _by_name({queue: before[queue] for queue in queues if queue in before}),
        _by_name(after),
    )
    answer = call.reply(reply)
    answer.note = {"dry_run": reset.dry_run, "before": reply.before, "after": reply.after}
    return answer


async def _reset_offset(context: ApiContext, topic: Topic, queue: int, reset: ResetRequest) -> int:
    state = context.store.queue_state(topic, queue)
    if isinstance(reset.to, str):
        return state.min_offset if reset.to == "earliest" else state.max_offset
    timestamp_ms = reset.to if isinstance(reset.to, int) else reset.to.timestamp_ms
    offset, _ = await context.store.offset_by_time(topic, queue, timestamp_ms * 1000)
    return offset


def _stored(context: ApiContext, group: str, topic: Topic) -> StoredOffsets:
    """Return what is stored; a group that is yet to be created has nothing."""
    try:
        return context.store.stored_offsets(group, topic)
    except UnknownGroup:
        return StoredOffsets()


def _queue(name: str, topic: Topic) -> int:
    queue = whole_number(name)
    if queue is None or str(queue) != name:
        raise invalid("offsets", name, 'queue numbers as texts, such as "0"')
    if queue >= topic.queue_count:
        raise UnknownQueue(topic.name, queue, topic.queue_count)
    return queue


def _if_version(headers: Mapping[str, str]) -> int | None:
    """Return the version that the request insists on, None for any or none."""
    match, none_match = headers.get(hdrs.IF_MATCH), headers.get(hdrs.IF_NONE_MATCH)
    if none_match is not None:
        if none_match.strip() != "*" or match is not None:
            raise invalid(hdrs.IF_NONE_MATCH, none_match, "* alone, or If-Match in its place")
        return 0
    if match is None:
        return None
    if match.strip() == "*":
        return _ANY_VERSION
    version = whole_number(match.strip().strip('"'))
    if version is None or match.strip() != f'"{version}"':
        raise invalid(hdrs.IF_MATCH, match, 'the ETag of the offsets as it was read, such as "3"')
    return version


def _offsets_reply(call: Call[NoParams], group: str, topic: Topic, stored: StoredOffsets) -> Reply:
    reply = OffsetsReply(group, topic.name, _by_name(stored.offsets))
    return call.reply(reply, headers=[("ETag", f'"{stored.version}"')])


def _by_name(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(queue): offset for queue, offset in sorted(offsets.items())}


# -- lag -----------------------------------------------------------------------------------


async def list_groups(call: Call[PageParams]) -> Reply:
    """List groups by name, a page at a time, with their lag in messages.

    Groups and topics that the token grants nothing on are left out.
    """
    context, params, principal = call.context, call.params, call.principal
    names = context.store.groups()
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

    Topics that the token grants nothing on are left out.
    """
    context, group = call.context, call.group()
    topics = [
        await _topic_lag(context, context.store.topic(name), stored.offsets)
        for name, stored in sorted(_visible_topics(context, call.principal, group).items())
    ]
    reply = GroupReply(
        group,
        sum(topic.lag_messages for topic in topics),
        sum(topic.lag_bytes for topic in topics),
        max((topic.lag_seconds for topic in topics), default=0.0),
        topics,
    )
    return call.reply(reply)


def _visible_topics(
    context: ApiContext, principal: Principal, group: str
) -> dict[str, StoredOffsets]:
    return {
        name: stored
        for name, stored in context.store.group_topics(group).items()
        if principal.may(GROUP_VERBS, name, group)
    }


async def _summary(context: ApiContext, principal: Principal, group: str) -> GroupSummary:
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
