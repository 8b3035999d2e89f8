"""Look-ups: an offset by time, a message by id or key, and a plan for parallel readers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from holdfast.commitlog.format.message_id import parse_message_id
from holdfast.consumequeue.errors import UnknownMessage
from holdfast.consumequeue.lost_ranges import LostRange
from holdfast.consumequeue.maintenance.read_leases import ReadLease
from holdfast.consumequeue.reading.fetched import BatchSlice
from holdfast.consumequeue.slices import in_slices
from holdfast.consumequeue.topics import QueueState, Topic
from holdfast.http_api.access.authorization import missing_grant
from holdfast.http_api.endpoints.pull import offset_headers
from holdfast.http_api.endpoints.read_leases import lease_reply
from holdfast.http_api.endpoints.rendering import (
    PORTION_BYTES,
    encode_portions,
    make_messages,
    split_portions,
)
from holdfast.http_api.endpoints.topics import states_of
from holdfast.http_api.limits.reply_slots import LargeReplySlot
from holdfast.http_api.routing.call import Call, NoParams
from holdfast.http_api.routing.codecs import encode_elements, encode_listing, wrap_listing
from holdfast.http_api.routing.context import ApiContext
from holdfast.http_api.routing.params import (
    PAIRS_EXAMPLE,
    PAIRS_PATTERN,
    flag,
    invalid,
    moment,
    parse_pairs,
    text,
    whole,
)
from holdfast.http_api.schemas.messages import (
    OffsetReply,
    SearchReply,
    SegmentReply,
    SkippedRange,
    SplitsReply,
)
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Reply


@dataclass(frozen=True, slots=True)
class OffsetParams:
    """The query of a request for an offset by time."""

    timestamp_ms: int | None = moment("The time.", required=True)


@dataclass(frozen=True, slots=True)
class SearchParams:
    """The query of a search by key."""

    key: str | None = text("The complete key.", required=True)
    limit: int = whole("Most messages to return.", minimum=1, maximum="max_page_size", default=64)


#: At most this many results of a search are decoded in one step. The number is low because each
#: result may be in another batch, and decoding many batches takes longer than decoding one batch.
_SEARCH_PORTION = 100
_END_PATTERN = f"^(earliest|latest)$|{PAIRS_PATTERN}"
_ENDS = "`earliest`, `latest`, or queue:offset pairs such as 0:12,1:40"


@dataclass(frozen=True, slots=True)
class SplitsParams:
    """The query of a plan for parallel readers."""

    start: str | None = text(
        f"Where to begin: {_ENDS}. Queues that are not named begin at their min_offset.",
        maximum=65_536,
        pattern=_END_PATTERN,
    )
    end: str | None = text(
        f"Where to end: {_ENDS}. Queues that are not named end at their max_offset.",
        maximum=65_536,
        pattern=_END_PATTERN,
    )
    start_timestamp_ms: int | None = moment(
        "Begin at the first message stored at or after this time."
    )
    end_timestamp_ms: int | None = moment(
        "End before the first message stored at or after this time."
    )
    max_bytes: int | None = whole(
        "Most stored bytes of a piece. A piece is larger if it is a single batch, or if there "
        "would be more pieces than the largest `min_splits` plus one for each queue.",
        minimum=1,
    )
    min_splits: int = whole(
        "Fewest pieces. There are fewer if there are not enough batches.",
        minimum=1,
        maximum="max_splits",
        default=1,
    )
    only_named: bool = flag(
        "Leave out queues that `start` does not name. Otherwise they are planned completely."
    )
    lease_ms: int = whole(
        "How long to pin the planned messages, so that retention by age and size keeps them. 0: "
        "nothing is pinned.",
        maximum="max_read_lease_ms",
        default=0,
    )


async def get_offset(call: Call[OffsetParams]) -> Reply:
    """Find the first offset that was stored at or after a time.

    If there is no such message, the offset is `max_offset`.
    """
    topic = call.topic()
    queue = call.queue(topic)
    params = call.params
    if params.timestamp_ms is None:
        raise _missing("timestamp_ms", "the time to look for")
    offset, found_us = await call.context.store.lookups.offset_by_time(
        topic, queue, params.timestamp_ms * 1000
    )
    reply = OffsetReply(offset, None if found_us is None else found_us // 1000)
    state = call.context.store.reading.queue_state(topic, queue)
    return call.reply(reply, headers=offset_headers(offset, state.min_offset, state.max_offset))


async def get_message(call: Call[NoParams]) -> Reply:
    """Return one message by its id, if the token grants reading its topic."""
    check_topic_of(call)
    context = call.context
    with LargeReplySlot(None) as slot:
        while True:
            topic, batch, row = await context.store.lookups.message(call.path["message_id"])
            made = make_messages(call.media, topic.name, [BatchSlice(batch, [row])])
            parts = await encode_portions(call.media, [made], has_slot=slot.is_held)
            if parts is not None:
                return Reply(200, call.media, parts)
            # Free the batch while this request waits for a slot. Read it again after the wait.
            del batch, made
            await slot.acquire_from(context.large_replies)


def check_topic_of(call: Call[Any]) -> None:
    """Raise Denied if the caller may not read the message's topic.

    For a topic that does not exist, also raise Denied, unless the caller may read all topics: the
    caller must not find out which topics exist. Raises UnknownMessage for a malformed id.
    """
    try:
        topic_id, _, _ = parse_message_id(call.path["message_id"])
    except ValueError:
        raise UnknownMessage(call.path["message_id"]) from None
    topic = call.context.store.table.by_id(topic_id)
    # No topic has an empty name, so only a grant for all topics covers it.
    if not call.principal.may(("consume",), topic.name if topic is not None else ""):
        raise missing_grant(call.principal, ("consume",), what="the message's topic")


async def search_messages(call: Call[SearchParams]) -> Reply:
    """Find the newest messages of a topic that have a key.

    The reply has fewer than `limit` messages if the batches that contain them reach max_pull_bytes.
    """
    topic = call.topic()
    params = call.params
    if params.key is None:
        raise _missing("key", "the key to look for")
    context = call.context
    async with context.searches.place(call.client):
        with LargeReplySlot(context.large_replies) as slot:
            await slot.acquire()
            return await _search(call, topic, params.key)


async def _search(call: Call[SearchParams], topic: Topic, key: str) -> Reply:
    skipped: list[tuple[int, LostRange]] = []
    found = await call.context.store.lookups.search_key(
        topic, key, call.params.limit, skipped=skipped, max_bytes=call.context.config.max_pull_bytes
    )
    slices = [BatchSlice(batch, [row]) for batch, row in found]
    some = split_portions(slices, _SEARCH_PORTION, PORTION_BYTES)
    made = (make_messages(call.media, topic.name, portion) for portion in some)
    messages = await encode_portions(call.media, made, has_slot=True)
    assert messages is not None
    ranges = [
        SkippedRange(queue, each.start_offset, each.end_offset, each.reason)
        for queue, each in skipped
    ]
    reply: SearchReply[Any] = SearchReply([], ranges or UNSET)
    parts = wrap_listing(call.media, reply, "messages", messages, len(found))
    return Reply(200, call.media, parts)


async def get_splits(call: Call[SplitsParams]) -> Reply:
    """Plan a parallel read: divide the topic into non-empty pieces, cut between batches.

    If a start is below its queue's min_offset, the status is 410. If an end is beyond its queue's
    max_offset, the status is 416. With `lease_ms`, the reply has a lease; extend the lease by PUT
    and end it by DELETE.
    """
    async with call.context.wide_requests.place(call.client):
        return await _plan(call, call.topic())


async def _plan(call: Call[SplitsParams], topic: Topic) -> Reply:
    params = call.params
    store = call.context.store
    states = await states_of(store, topic)
    starts = await _plan_offsets(
        call.context, topic, states, "start", params.start, params.start_timestamp_ms
    )
    ends = await _plan_offsets(
        call.context, topic, states, "end", params.end, params.end_timestamp_ms
    )
    ranges = {state.queue: (starts[state.queue], ends[state.queue]) for state in states}
    if params.only_named:
        named = _queues_in(topic, params.start)
        ranges = {queue: each for queue, each in ranges.items() if queue in named}
    lease = None
    pins = {queue: start for queue, (start, end) in ranges.items() if start < end}
    if params.lease_ms and pins:
        lease = await store.read_leases.take(topic, pins, params.lease_ms, client=call.client_name)
    try:
        return await _reply_with_plan(call, topic, ranges, lease)
    except BaseException:
        if lease is not None:
            store.read_leases.end(topic, lease.lease_id)
        raise


async def _reply_with_plan(
    call: Call[SplitsParams],
    topic: Topic,
    ranges: Mapping[int, tuple[int, int]],
    lease: ReadLease | None,
) -> Reply:
    """Return the reply with the pieces of these ranges (queue -> start and end)."""
    params, context = call.params, call.context
    splits = await context.store.lookups.splits(
        topic,
        ranges,
        max_bytes=params.max_bytes,
        min_splits=params.min_splits,
        max_splits=context.config.max_splits,
    )
    # A Split has the fields of a SplitReply, so it is encoded directly.
    encoded = [encode_elements(call.media, part) async for part in in_slices(splits)]
    segments = [
        SegmentReply(each.start_offset, each.size, each.created_timestamp_us)
        for each in await context.store.lookups.segments(splits)
    ]
    reply = SplitsReply(
        topic.name, topic.topic_id, [], segments, UNSET if lease is None else lease_reply(lease)
    )
    parts = encode_listing(call.media, reply, "splits", encoded, len(splits))
    return Reply(200, call.media, parts)


def _queues_in(topic: Topic, start: str | None) -> Collection[int]:
    """Return the queues that a plan's `start` names. Raises Problem if `start` names no queue."""
    if start is None or start in ("earliest", "latest"):
        raise invalid("start", start, PAIRS_EXAMPLE, "only_named needs a start that names queues")
    return parse_pairs("start", start, topic).keys()


async def _plan_offsets(
    context: ApiContext,
    topic: Topic,
    states: Sequence[QueueState],
    which: str,
    given: str | None,
    timestamp_ms: int | None,
) -> dict[int, int]:
    """Return queue -> offset: the starts of a plan if `which` is "start", or its ends if "end"."""
    if given is not None and timestamp_ms is not None:
        raise invalid(which, given, f"{which} or {which}_timestamp_ms", "both are given")
    if timestamp_ms is not None:
        return {
            state.queue: (
                await context.store.lookups.offset_by_time(topic, state.queue, timestamp_ms * 1000)
            )[0]
            for state in states
        }
    default = "earliest" if which == "start" else "latest"
    earliest = {state.queue: state.min_offset for state in states}
    latest = {state.queue: state.max_offset for state in states}
    words = {"earliest": earliest, "latest": latest}
    if given is None or given in words:
        return words[given or default]
    return {**words[default], **parse_pairs(which, given, topic)}


def _missing(parameter: str, what: str) -> Problem:
    return Problem("missing-parameter", f"{parameter} is missing; give {what}", parameter=parameter)
