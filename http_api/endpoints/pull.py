"""Pull and poll: read one queue (pull) or several queues of a topic (poll) by offset.

`held_read` reads the queues and holds the request. `consumequeue.reading.fetched` describes how the
queues of a poll share its limits. In JSON and msgpack, an envelope contains the messages and the
offsets. NDJSON (one message per line) and binary batches (as they are stored) have no envelope, so
headers also have the offsets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from msgspec import UNSET

from holdfast.consumequeue.reading.fetched import Piece
from holdfast.consumequeue.topics import Topic
from holdfast.http_api.endpoints.events import start_stream
from holdfast.http_api.endpoints.held_read import (
    WIDE_QUEUES,
    PullBounds,
    QueueRead,
    filter_of,
    held_read,
    reply_slot_for,
    skipped_of,
)
from holdfast.http_api.endpoints.rendering import (
    PORTION_BYTES,
    YIELD_EVERY_MESSAGES,
    encode_portions,
    fits_one_call,
    make_messages,
    split_portions,
)
from holdfast.http_api.routing.call import Call
from holdfast.http_api.routing.codecs import (
    BATCH,
    EVENTS,
    JSON,
    MSGPACK,
    NDJSON,
    encode,
    encode_lines,
    wrap_listing,
)
from holdfast.http_api.routing.context import ApiContext
from holdfast.http_api.routing.params import (
    PAIRS_PATTERN,
    choice,
    invalid,
    moment,
    parse_pairs,
    text,
    whole,
)
from holdfast.http_api.schemas.messages import PollReply, PullReply, QueueReply, SkippedRange
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Bytes, Headers, Reply

#: The media types of a reply to a pull or poll, in order of preference.
PULL_TYPES = (JSON, NDJSON, MSGPACK, BATCH, EVENTS)
_WITHOUT_ENVELOPE = (NDJSON, BATCH)
#: A reply has headers of "queue:offset" pairs for at most this many queues. Many clients limit
#: the size of the headers to 8 KiB.
MAX_QUEUES_IN_HEADERS = 128
#: The header with the offsets that a read skipped, because they are damaged or missing. If no
#: offsets were skipped, the reply does not have this header.
SKIPPED_HEADER = "Holdfast-Skipped"
_OFFSET_HEADERS = ("Holdfast-Next-Offset", "Holdfast-Min-Offset", "Holdfast-Max-Offset")
LAST_EVENT_ID = "Last-Event-ID"


@dataclass(slots=True)
class PullParams(PullBounds):
    """The query of a pull. It must have exactly one of offset, from and timestamp_ms."""

    offset: int | None = whole("Start at this offset.")
    from_: str | None = choice("Start at an end of the queue.", "earliest", "latest", name="from")
    timestamp_ms: int | None = moment("Start at the first message stored at or after this time.")


@dataclass(slots=True)
class PollParams(PullBounds):
    """The query of a poll. It must have exactly one of offsets, from and timestamp_ms."""

    offsets: str | None = text(
        "Where to start in each queue: queue:offset pairs such as 0:12,1:40. Only these queues are "
        "read.",
        maximum=65_536,
        pattern=PAIRS_PATTERN,
    )
    from_: str | None = choice(
        "Start at this end of every queue of the topic.", "earliest", "latest", name="from"
    )
    timestamp_ms: int | None = moment(
        "Start in every queue of the topic at the first message stored at or after this time."
    )


async def pull(call: Call[PullParams]) -> Reply:
    """Pull messages from a queue, by offset.

    If there is no message to deliver, the pull is held for at most `wait_ms`, and answered as soon
    as a message arrives. Continue from `next_offset`. A binary reply consists of whole batches, so
    it may have more messages than requested: the client must apply its offset, count and filter.
    """
    with reply_slot_for(call) as slot:
        topic = call.topic()
        queue = call.queue(topic)
        message_filter = await filter_of(call)
        offsets = _resume_offsets(call, topic, queue)
        if offsets is None:
            offsets = {queue: await _start(call.context, topic, queue, call.params)}
        if call.media == EVENTS:
            return await start_stream(call, topic, offsets, message_filter, slot)
        return await held_read(call, topic, offsets, message_filter, slot, _deliver_pull)


async def poll(call: Call[PollParams]) -> Reply:
    """Pull messages from several queues of a topic, or from all of them.

    Begin with `from` or `timestamp_ms`, which need no queue numbers. Continue with `offsets`: the
    `next_offset` of each queue in the reply. Like a pull, a poll is held while none of the queues
    has a message to deliver. If a queue cannot be read, its entry in the reply has a `problem`, and
    the other queues are read as usual. NDJSON and batches have no such entries: if a queue cannot
    be read, the whole reply is the problem.
    """
    context, topic = call.context, call.topic()
    is_wide = _is_wide(call, topic)
    with reply_slot_for(call, is_wide=is_wide) as slot:
        if is_wide:
            await context.wide_polls.begin(call.client)
        limit = context.config.max_queues_per_poll
        if call.media in _WITHOUT_ENVELOPE or call.media == EVENTS:
            limit = min(limit, MAX_QUEUES_IN_HEADERS)
        offsets = _resume_offsets(call, topic)
        if offsets is None:
            offsets = await _starts(context, topic, call.params, limit)
        message_filter = await filter_of(call)
        if call.media == EVENTS:
            return await start_stream(call, topic, offsets, message_filter, slot)
        return await held_read(
            call, topic, offsets, message_filter, slot, _deliver_poll, is_wide=is_wide
        )


def _is_wide(call: Call[PollParams], topic: Topic) -> bool:
    offsets = call.params.offsets
    count = topic.queue_count if offsets is None else offsets.count(",") + 1
    return count > WIDE_QUEUES


async def _start(context: ApiContext, topic: Topic, queue: int, params: PullParams) -> int:
    """Return the offset at which a pull starts. Raises Problem unless it has exactly one start."""
    if params.offset is not None and params.from_ is None and params.timestamp_ms is None:
        return params.offset
    _check_one_start(
        {"offset": params.offset, "from": params.from_, "timestamp_ms": params.timestamp_ms}
    )
    return await offset_at(context, topic, queue, params.from_, params.timestamp_ms)


async def _starts(
    context: ApiContext, topic: Topic, params: PollParams, limit: int
) -> dict[int, int]:
    """Return queue -> the offset at which the poll starts. Raises Problem."""
    _check_one_start(
        {"offsets": params.offsets, "from": params.from_, "timestamp_ms": params.timestamp_ms}
    )
    if params.offsets is not None:
        _check_count(params.offsets.count(",") + 1, "are named", limit)
        return parse_pairs("offsets", params.offsets, topic)
    _check_count(topic.queue_count, "belong to the topic", limit)
    return {
        queue: await offset_at(context, topic, queue, params.from_, params.timestamp_ms)
        for queue in range(topic.queue_count)
    }


def _check_count(count: int, how: str, limit: int) -> None:
    if count > limit:
        raise Problem(
            "limit-exceeded",
            f"{count} queues {how}; name at most {limit} queues in `offsets` of one poll",
            parameter="offsets",
            limit=limit,
        )


def _check_one_start(starts: Mapping[str, object]) -> None:
    """Raise Problem if a request does not give exactly one of these starts (name -> value)."""
    given = [name for name, value in starts.items() if value is not None]
    first = next(iter(starts))
    if not given:
        how = "offset=N" if first == "offset" else "offsets=QUEUE:OFFSET,QUEUE:OFFSET"
        raise Problem(
            "missing-parameter",
            f"the request has no start; give {how}, from=earliest|latest or timestamp_ms=N",
            parameter=first,
        )
    if len(given) > 1:
        raise invalid(
            given[1], given[1], "exactly one start", f"{' and '.join(given)} are given together"
        )


async def offset_at(
    context: ApiContext, topic: Topic, queue: int, end: str | None, timestamp_ms: int | None
) -> int:
    """Return the first offset at or after a time. If no time is given, return an end of the queue.

    If `end` is "earliest", that is the queue's min_offset, otherwise its max_offset.
    """
    if timestamp_ms is not None:
        offset, _ = await context.store.lookups.offset_by_time(topic, queue, timestamp_ms * 1000)
        return offset
    state = context.store.reading.queue_state(topic, queue)
    return state.min_offset if end == "earliest" else state.max_offset


def _resume_offsets(
    call: Call[Any], topic: Topic, only: int | None = None
) -> dict[int, int] | None:
    """Return the offsets at which a stream resumes; None if it is new or not an event stream.

    A request for another media type must also have a valid header, but the header has no effect.
    For a pull, `only` is its queue; for a poll, `only` is None. Raises Problem, UnknownQueue.
    """
    given = call.headers.get(LAST_EVENT_ID)
    if given is None:
        return None
    offsets = parse_pairs(LAST_EVENT_ID, given, topic)
    if only is not None and list(offsets) != [only]:
        raise invalid(LAST_EVENT_ID, given, f"the id of an event of queue {only}")
    if len(offsets) > MAX_QUEUES_IN_HEADERS:
        raise invalid(LAST_EVENT_ID, given, f"{MAX_QUEUES_IN_HEADERS} queues at most")
    return offsets if call.media == EVENTS else None


# -- replies -------------------------------------------------------------------------------


def offset_headers(*offsets: int) -> Headers:
    """Return the headers with the next_offset, min_offset and max_offset of one queue."""
    return list(zip(_OFFSET_HEADERS, map(str, offsets), strict=True))


async def _deliver_pull(
    call: Call[Any], topic: Topic, reads: Sequence[QueueRead], held_s: float, has_slot: bool
) -> Reply | None:
    """Return the reply to a pull, as `Deliver` describes. Raises the problem of its queue."""
    (read,) = reads
    if read.problem is not None:
        raise read.problem
    return await _deliver(call, topic, *_pull_contents(reads), held_s, has_slot)


def deliver_at_once(call: Call[Any], topic: Topic, read: QueueRead, held_s: float) -> Reply | None:
    """Return the reply to a pull of a queue that could be read. Return None if the reply is so
    large that it must be made in several loop iterations."""
    pieces, count, headers, envelope = _pull_contents([read])
    parts = _encode_at_once(call, topic, pieces, count, envelope)
    return None if parts is None else _make_reply(call, topic, parts, count, headers, held_s)


def _pull_contents(
    reads: Sequence[QueueRead],
) -> tuple[Sequence[Piece], int, Headers, PullReply[Any]]:
    """Return the messages of a pull with their number, and the headers and envelope of the
    reply."""
    fetched, skipped = reads[0].fetched, skipped_of(reads)
    offsets = fetched.next_offset, fetched.min_offset, fetched.max_offset
    headers = [*offset_headers(*offsets), *_skipped_header(skipped)]
    envelope = PullReply[Any]([], *offsets, skipped or UNSET)
    return fetched.pieces, fetched.message_count, headers, envelope


async def _deliver_poll(
    call: Call[Any], topic: Topic, reads: Sequence[QueueRead], held_s: float, has_slot: bool
) -> Reply | None:
    """Return the reply to a poll over several queues, as `Deliver` describes.

    If the media type has no envelope, raises the first problem of a queue.
    """
    envelope: PollReply[Any] | None = None
    skipped = skipped_of(reads)
    if call.media not in _WITHOUT_ENVELOPE:
        envelope = PollReply([], [_queue_reply(read) for read in reads], skipped or UNSET)
    elif problems := [read.problem for read in reads if read.problem is not None]:
        raise problems[0]
    headers: list[tuple[str, str]] = []
    if len(reads) <= MAX_QUEUES_IN_HEADERS:
        columns = zip(
            *((each.next_offset, each.min_offset, each.max_offset) for _, each, _ in reads),
            strict=True,
        )
        for name, offsets in zip(_OFFSET_HEADERS, columns, strict=True):
            pairs = zip(reads, offsets, strict=True)
            headers.append((name, ",".join([f"{read.queue}:{offset}" for read, offset in pairs])))
    headers += _skipped_header(skipped)
    pieces = [each for read in reads for each in read.fetched.pieces]
    count = sum(read.fetched.message_count for read in reads)
    return await _deliver(call, topic, pieces, count, headers, envelope, held_s, has_slot)


async def _deliver(
    call: Call[Any],
    topic: Topic,
    pieces: Sequence[Piece],
    count: int,
    headers: Headers,
    envelope: PullReply[Any] | PollReply[Any] | None,
    held_s: float,
    has_slot: bool,
) -> Reply | None:
    parts = _encode_at_once(call, topic, pieces, count, envelope)
    if parts is None:
        media = call.media
        slices = chain.from_iterable(piece.slices() for piece in pieces)
        some = split_portions(slices, YIELD_EVERY_MESSAGES, PORTION_BYTES)
        made = (make_messages(media, topic.name, portion) for portion in some)
        found = await encode_portions(media, made, has_slot=has_slot)
        if found is None:
            return None
        parts = found
        if media != NDJSON:
            parts = wrap_listing(media, envelope, "messages", found, count)
    return _make_reply(call, topic, parts, count, headers, held_s)


def _encode_at_once(
    call: Call[Any],
    topic: Topic,
    pieces: Sequence[Piece],
    count: int,
    envelope: PullReply[Any] | PollReply[Any] | None,
) -> Sequence[Bytes] | None:
    """Return the body of a reply, or None if it must be encoded in several loop iterations."""
    media = call.media
    if media == BATCH:
        return [piece.blocks for piece in pieces]
    if not fits_one_call(media, count, sum([piece.text_bytes for piece in pieces])):
        return None
    slices = chain.from_iterable(piece.slices() for piece in pieces)
    messages = make_messages(media, topic.name, slices)
    if media == NDJSON or envelope is None:
        return [encode_lines(messages)]
    envelope.messages = messages
    return [encode(media, envelope)]


def _make_reply(
    call: Call[Any],
    topic: Topic,
    parts: Sequence[Bytes],
    count: int,
    headers: Headers,
    held_s: float,
) -> Reply:
    """Return the reply with this body, and count its messages."""
    if count:
        counters = call.context.http.metrics.topic(topic.name)
        counters.messages_out += count
        counters.bytes_out += sum(map(len, parts))
    topic_id = ("Holdfast-Topic-Id", str(topic.topic_id))
    return Reply(200, call.media, parts, [*headers, topic_id], held_s=held_s)


def _queue_reply(read: QueueRead) -> QueueReply:
    fetched = read.fetched
    return QueueReply(
        read.queue,
        fetched.next_offset,
        fetched.min_offset,
        fetched.max_offset,
        read.problem.body() if read.problem is not None else UNSET,
    )


def _skipped_header(skipped: Sequence[SkippedRange]) -> list[tuple[str, str]]:
    """Return the header with the skipped ranges as queue:start:end. The end is not skipped."""
    if not skipped:
        return []
    ranges = (f"{each.queue}:{each.start_offset}:{each.end_offset}" for each in skipped)
    return [(SKIPPED_HEADER, ",".join(ranges))]
