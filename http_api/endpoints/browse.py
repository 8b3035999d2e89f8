"""Browse the messages of a topic in the order of time, newest or oldest first, over its queues."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from holdfast.consumequeue.reading.browsing import Browsed, BrowseLimits, IsWanted, Lane, browse
from holdfast.consumequeue.topics import Topic
from holdfast.http_api.access.authorization import missing_grant
from holdfast.http_api.access.grants import GROUP_VERBS
from holdfast.http_api.endpoints.held_read import filter_of
from holdfast.http_api.endpoints.rendering import (
    PORTION_BYTES,
    encode_portions,
    make_messages,
    split_portions,
)
from holdfast.http_api.limits.reply_slots import LargeReplySlot
from holdfast.http_api.routing.call import Call
from holdfast.http_api.routing.codecs import wrap_listing
from holdfast.http_api.routing.params import (
    PAIRS_PATTERN,
    check_count_at_most,
    choice,
    invalid,
    moment,
    parse_pairs,
    text,
    whole,
)
from holdfast.http_api.schemas.messages import BrowsedQueue, BrowseReply, SkippedRange
from holdfast.http_api.wire.reply import Reply

#: At most this many messages are encoded in one step: each may be in a batch of its own.
_PORTION = 100


@dataclass(frozen=True, slots=True)
class BrowseParams:
    """The query of a request that browses a topic."""

    order: str = choice(
        "`newest` first (the default) or `oldest` first.", "newest", "oldest", default="newest"
    )
    queue: int | None = whole("Only this queue.")
    offsets: str | None = text(
        "Where to begin in each queue: queue:offset pairs such as 0:12,1:40. Only these queues are "
        "read. If the order is newest first, the messages before these offsets are returned; "
        "otherwise those from these offsets on. An offset outside of its queue counts as the "
        "nearest end.",
        maximum=65_536,
        pattern=PAIRS_PATTERN,
    )
    timestamp_ms: int | None = moment(
        "Newest first: only messages that were stored at this time or earlier. Oldest first: only "
        "messages that were stored at this time or later."
    )
    max_messages: int = whole(
        "Most messages to return.", minimum=1, maximum="max_page_size", default="page_size"
    )
    max_bytes: int = whole(
        "Most bytes of bodies to return. The first message is returned even if it is larger.",
        minimum=1,
        maximum="max_pull_bytes",
        default="default_pull_bytes",
    )
    tag: str | None = text("Only messages with one of these tags, separated by commas.")
    filter: str | None = text("Only messages for which this SQL92 expression is true.")
    unsettled_for: str | None = text(
        "Only messages that this group has not settled. A group that does not exist has settled "
        "none.",
        maximum=127,
    )


async def browse_messages(call: Call[BrowseParams]) -> Reply:
    """Browse messages in the order of time, over several queues of a topic or all of them.

    Without a start, the request begins at the newest message, or with `order=oldest` at the oldest
    one. Continue with the same order, and with `offsets` made of `queue` and `next_offset` of each
    entry of `queues`. With a filter, a reply may have few messages, or none, although `more` is
    true. Damaged messages are skipped, and listed in `skipped`.
    """
    topic, params, context = call.topic(), call.params, call.context
    newest = params.order == "newest"
    is_wanted = _unsettled(call, topic, params.unsettled_for) if params.unsettled_for else None
    async with context.wide_requests.place(call.client):
        starts = await _starts(call, topic, newest=newest)
        limits = BrowseLimits(
            params.max_messages, params.max_bytes, await filter_of(call), is_wanted
        )
        with LargeReplySlot(context.large_replies) as slot:
            await slot.acquire()
            found = await browse(
                context.store.reading, context.store.lookups, topic, starts, limits, newest=newest
            )
            return await _reply(call, topic, found, newest=newest)


async def _starts(call: Call[BrowseParams], topic: Topic, *, newest: bool) -> Mapping[int, int]:
    """Return where to begin: queue -> offset. Raises Problem, UnknownQueue."""
    params, context = call.params, call.context
    if params.offsets is not None:
        for name in ("queue", "timestamp_ms"):
            if getattr(params, name) is not None:
                raise invalid(name, name, "exactly one start", f"offsets and {name} are given")
        return parse_pairs("offsets", params.offsets, topic)
    queues = range(topic.queue_count) if params.queue is None else [params.queue]
    most = context.config.max_queues_per_poll
    check_count_at_most("offsets", "queues", len(queues), most, "max_queues_per_poll")
    starts = {}
    for queue in queues:
        state = context.store.reading.queue_state(topic, queue)
        starts[queue] = state.max_offset if newest else state.min_offset
        if params.timestamp_ms is not None:
            # Newest first, the start is the first message after the last microsecond of the time.
            after_us = (params.timestamp_ms + newest) * 1000
            starts[queue], _ = await context.store.lookups.offset_by_time(topic, queue, after_us)
    return starts


def _unsettled(call: Call[BrowseParams], topic: Topic, group: str) -> IsWanted:
    """Return whether a group has not settled a message. Raises Denied, InvalidName."""
    if not call.principal.may(GROUP_VERBS, topic.name, group):
        raise missing_grant(call.principal, GROUP_VERBS, topic=topic.name, group=group)
    settled = call.context.groups.settled_offsets(group, topic)
    return lambda queue, offset: not settled(queue, offset)


async def _reply(call: Call[Any], topic: Topic, found: Browsed, *, newest: bool) -> Reply:
    portions = split_portions(found.messages, _PORTION, PORTION_BYTES)
    made = (make_messages(call.media, topic.name, portion) for portion in portions)
    parts = await encode_portions(call.media, made, has_slot=True)
    assert parts is not None
    lanes = list(found.lanes.values())
    skipped = [
        SkippedRange(lane.queue, lost.start_offset, lost.end_offset, lost.reason)
        for lane in lanes
        for lost in lane.skipped
    ]
    reply: BrowseReply[Any] = BrowseReply(
        [],
        [_queue(lane, newest=newest) for lane in lanes],
        any(lane.has_more(newest) for lane in lanes),
        skipped or UNSET,
    )
    body = wrap_listing(call.media, reply, "messages", parts, len(found.messages))
    return Reply(200, call.media, body)


def _queue(lane: Lane, *, newest: bool) -> BrowsedQueue:
    return BrowsedQueue(lane.queue, lane.start, lane.next_offset(newest), lane.low, lane.high)
