"""Finding things: an offset by its time, a message by its id or key, a plan for readers."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from holdfast.commitlog.message_id import parse_message_id
from holdfast.consumequeue.errors import UnknownMessage
from holdfast.consumequeue.fetched import BatchSlice
from holdfast.consumequeue.lost_ranges import LostRange
from holdfast.consumequeue.message_store import QueueState
from holdfast.consumequeue.topics import Topic
from holdfast.http_api.access.door import lacks
from holdfast.http_api.call import Call, NoParams
from holdfast.http_api.codecs import MSGPACK
from holdfast.http_api.context import ApiContext
from holdfast.http_api.delivery import offset_headers
from holdfast.http_api.messages import messages_of, packed_messages_of
from holdfast.http_api.pairs import EXAMPLE, PATTERN, parse_pairs
from holdfast.http_api.params import (
    MAX_TIMESTAMP_MS,
    flag,
    invalid,
    text,
    whole,
)
from holdfast.http_api.problems import Problem
from holdfast.http_api.read_leases import lease_reply
from holdfast.http_api.reply import Reply
from holdfast.http_api.types import (
    Message,
    OffsetReply,
    PackedMessage,
    SearchReply,
    SegmentReply,
    SkippedRange,
    SplitReply,
    SplitsReply,
)


@dataclass(frozen=True, slots=True)
class OffsetParams:
    """Query of an offset by time."""

    timestamp_ms: int | None = whole(
        "The time, in milliseconds.", maximum=MAX_TIMESTAMP_MS, required=True
    )


@dataclass(frozen=True, slots=True)
class SearchParams:
    """Query of a search by key."""

    key: str | None = text("The key, as a whole.", required=True)
    limit: int = whole("Most messages to return.", minimum=1, maximum="max_page_size", default=64)


_END_PATTERN = f"^(earliest|latest)$|{PATTERN}"
_ENDS = "`earliest`, `latest`, or queue:offset pairs, as in 0:12,1:40"


@dataclass(frozen=True, slots=True)
class SplitsParams:
    """Query of a plan for parallel readers."""

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
    start_timestamp_ms: int | None = whole(
        "Begin at the first message stored at or after this time.", maximum=MAX_TIMESTAMP_MS
    )
    end_timestamp_ms: int | None = whole(
        "End before the first message stored at or after this time.", maximum=MAX_TIMESTAMP_MS
    )
    max_bytes: int | None = whole("Most stored bytes of a piece.", minimum=1)
    min_splits: int = whole("Fewest pieces, where there are so many batches.",
                            minimum=1, maximum=100_000, default=1)  # fmt: skip
    only_named: bool = flag(
        "Leave out the queues that `start` does not name, in place of planning them whole."
    )
    lease_ms: int = whole(
        "Pin what is planned for so long: retention by age and size leaves it. 0 pins nothing.",
        maximum="max_read_lease_ms",
        default=0,
    )


async def get_offset(call: Call[OffsetParams]) -> Reply:
    """Find the first offset stored at or after a time; `max_offset` when there is none."""
    topic = call.topic()
    queue = call.queue(topic)
    params = call.params
    if params.timestamp_ms is None:
        raise _missing("timestamp_ms", "the time to look for")
    offset, found_us = await call.context.store.offset_by_time(
        topic, queue, params.timestamp_ms * 1000
    )
    reply = OffsetReply(offset, None if found_us is None else found_us // 1000)
    state = call.context.store.queue_state(topic, queue)
    return call.reply(reply, headers=offset_headers(offset, state.min_offset, state.max_offset))


async def get_message(call: Call[NoParams]) -> Reply:
    """Return one message by its id, if the token grants reading its topic."""
    _check_topic_of(call)
    topic, batch, row = await call.context.store.message(call.path["message_id"])
    message = _messages(call.media, topic, [BatchSlice(batch, [row])])[0]
    return call.reply(message)


def _check_topic_of(call: Call[NoParams]) -> None:
    """Raise Denied unless the message's topic may be read. Of an id whose topic does not exist,
    those who may read only some topics are told the same as of one that they may not read."""
    try:
        topic_id, _, _ = parse_message_id(call.path["message_id"])
    except ValueError:
        raise UnknownMessage(call.path["message_id"]) from None
    topic = call.context.store.topic_by_id(topic_id)
    # No topic has an empty name: only whoever may read all of them may read this one.
    if not call.principal.may(("consume",), topic.name if topic is not None else ""):
        raise lacks(call.principal, ("consume",), what="the message's topic")


async def search_messages(call: Call[SearchParams]) -> Reply:
    """Find the newest messages of a topic that have a key."""
    topic = call.topic()
    params = call.params
    if params.key is None:
        raise _missing("key", "the key to look for")
    skipped: list[tuple[int, LostRange]] = []
    found = await call.context.store.search_key(topic, params.key, params.limit, skipped=skipped)
    messages = _messages(call.media, topic, [BatchSlice(batch, [row]) for batch, row in found])
    ranges = [
        SkippedRange(queue, each.start_offset, each.end_offset, each.reason)
        for queue, each in skipped
    ]
    reply: SearchReply[Any] = SearchReply(messages, ranges or UNSET)
    return call.reply(reply)


def _messages(
    media: str, topic: Topic, slices: Sequence[BatchSlice]
) -> list[Message] | list[PackedMessage]:
    make = packed_messages_of if media == MSGPACK else messages_of
    return make(topic.name, slices)


async def get_splits(call: Call[SplitsParams]) -> Reply:
    """Plan a parallel read: pieces of the topic, cut at batch borders, none of them empty.

    A start below a queue's min_offset is 410, an end beyond its max_offset 416. With `lease_ms`
    the reply has a lease, which is extended by PUT and ended by DELETE.
    """
    topic = call.topic()
    params = call.params
    store = call.context.store
    states = store.queue_states(topic)
    starts = await _ends(
        call.context, topic, states, "start", params.start, params.start_timestamp_ms
    )
    ends = await _ends(call.context, topic, states, "end", params.end, params.end_timestamp_ms)
    ranges = {state.queue: (starts[state.queue], ends[state.queue]) for state in states}
    if params.only_named:
        named = _named(topic, params.start)
        ranges = {queue: each for queue, each in ranges.items() if queue in named}
    lease = None
    pins = {queue: start for queue, (start, end) in ranges.items() if start < end}
    if params.lease_ms and pins:
        lease = await store.read_leases.take(topic, pins, params.lease_ms)
    try:
        splits = await store.splits(
            topic, ranges, max_bytes=params.max_bytes, min_splits=params.min_splits
        )
    except BaseException:
        if lease is not None:
            store.read_leases.end(topic, lease.lease_id)
        raise
    reply = SplitsReply(
        topic.name,
        topic.topic_id,
        [
            SplitReply(
                each.queue,
                each.start_offset,
                each.end_offset,
                each.bytes,
                each.physical_offset,
                each.end_physical_offset,
            )
            for each in splits
        ],
        [
            SegmentReply(each.start_offset, each.size, each.created_timestamp_us)
            for each in await call.context.store.segments(splits)
        ],
        UNSET if lease is None else lease_reply(lease),
    )
    return call.reply(reply)


def _named(topic: Topic, start: str | None) -> Collection[int]:
    """Return the queues that a plan's `start` names. Raises Problem for one that names none."""
    if start is None or start in ("earliest", "latest"):
        raise invalid("start", start, EXAMPLE, "only_named goes with a start that names queues")
    return parse_pairs("start", start, topic).keys()


async def _ends(
    context: ApiContext,
    topic: Topic,
    states: Sequence[QueueState],
    which: str,
    given: str | None,
    timestamp_ms: int | None,
) -> dict[int, int]:
    """Return where each queue starts or ends, as `which` says, in a plan."""
    if given is not None and timestamp_ms is not None:
        raise invalid(which, given, f"{which} or {which}_timestamp_ms", "both are given")
    if timestamp_ms is not None:
        return {
            state.queue: (
                await context.store.offset_by_time(topic, state.queue, timestamp_ms * 1000)
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
