"""Replies to pulls and polls, in the requested media type.

In JSON and msgpack, an envelope contains the messages and the offsets. NDJSON (one message per
line) and binary batches (as they are stored) have no envelope, so headers also have the offsets.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from msgspec import UNSET

from holdfast.consumequeue.message_store import Fetched
from holdfast.consumequeue.reading.fetched import Piece
from holdfast.consumequeue.topics import Topic
from holdfast.http_api.endpoints.rendering import (
    PORTION_BYTES,
    YIELD_EVERY_MESSAGES,
    encode_portions,
    fits_one_call,
    split_portions,
)
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
from holdfast.http_api.schemas.message_rows import messages_of, packed_messages_of
from holdfast.http_api.schemas.messages import PollReply, PullReply, QueueReply, SkippedRange
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Bytes, Headers, Reply

#: The media types of a reply to a pull or poll, in order of preference.
PULL_TYPES = (JSON, NDJSON, MSGPACK, BATCH, EVENTS)
WITHOUT_ENVELOPE = (NDJSON, BATCH)
#: A reply has headers of "queue:offset" pairs for at most this many queues. Many clients limit
#: the size of the headers to 8 KiB.
MAX_QUEUES_IN_HEADERS = 128

#: The header with the offsets that a read skipped, because they are damaged or missing. If no
#: offsets were skipped, the reply does not have this header.
SKIPPED_HEADER = "Holdfast-Skipped"


class QueueRead(NamedTuple):
    """The result of reading one queue. If it has a `problem`, the queue could not be read."""

    queue: int
    fetched: Fetched
    problem: Problem | None = None


def offset_headers(next_offset: int, min_offset: int, max_offset: int) -> list[tuple[str, str]]:
    """Return the headers with these three offsets of one queue."""
    return [
        ("Holdfast-Next-Offset", str(next_offset)),
        ("Holdfast-Min-Offset", str(min_offset)),
        ("Holdfast-Max-Offset", str(max_offset)),
    ]


async def deliver_pull(
    context: ApiContext,
    topic: Topic,
    reads: Sequence[QueueRead],
    media: str,
    held_s: float,
    *,
    has_slot: bool,
) -> Reply | None:
    """Return the reply to a pull; `reads` has the result of its queue.

    Return None if the reply is large and `has_slot` is False. The caller must then wait for a slot
    and call this again. If the queue could not be read, raises its problem.
    """
    read = reads[0]
    if read.problem is not None:
        raise read.problem
    fetched, skipped = read.fetched, skipped_of(reads)
    headers = offset_headers(fetched.next_offset, fetched.min_offset, fetched.max_offset)
    headers += _skipped_header(skipped)

    def envelope(messages: list[Any]) -> "PullReply[Any]":
        return PullReply(
            messages,
            fetched.next_offset,
            fetched.min_offset,
            fetched.max_offset,
            skipped or UNSET,
        )

    return await _deliver(
        context,
        topic,
        fetched.pieces,
        fetched.message_count,
        media,
        headers,
        envelope,
        held_s,
        has_slot,
    )


async def deliver_poll(
    context: ApiContext,
    topic: Topic,
    reads: Sequence[QueueRead],
    media: str,
    held_s: float,
    *,
    has_slot: bool,
) -> Reply | None:
    """Return the reply to a poll over several queues.

    Return None if the reply is large and `has_slot` is False, as `deliver_pull` does. For at most
    MAX_QUEUES_IN_HEADERS queues, headers have the offsets as "queue:offset" pairs. If the media
    type has no envelope, raises the first problem of a queue.
    """
    if media in WITHOUT_ENVELOPE:
        for read in reads:
            if read.problem is not None:
                raise read.problem
    headers: list[tuple[str, str]] = []
    if len(reads) <= MAX_QUEUES_IN_HEADERS:
        pairs = [(read.queue, read.fetched) for read in reads]
        headers = [
            ("Holdfast-Next-Offset", ",".join([f"{q}:{each.next_offset}" for q, each in pairs])),
            ("Holdfast-Min-Offset", ",".join([f"{q}:{each.min_offset}" for q, each in pairs])),
            ("Holdfast-Max-Offset", ",".join([f"{q}:{each.max_offset}" for q, each in pairs])),
        ]

    skipped = skipped_of(reads)
    headers += _skipped_header(skipped)

    def envelope(messages: list[Any]) -> "PollReply[Any]":
        return PollReply(messages, [_queue_reply(read) for read in reads], skipped or UNSET)

    pieces = [each for read in reads for each in read.fetched.pieces]
    count = sum(read.fetched.message_count for read in reads)
    return await _deliver(context, topic, pieces, count, media, headers, envelope, held_s, has_slot)


def skipped_of(reads: Sequence[QueueRead]) -> list[SkippedRange]:
    """Return the offset ranges that these reads skipped."""
    return [
        SkippedRange(read.queue, each.start_offset, each.end_offset, each.reason)
        for read in reads
        for each in read.fetched.skipped
    ]


def _skipped_header(skipped: Sequence[SkippedRange]) -> list[tuple[str, str]]:
    """Return the header with the skipped ranges as queue:start:end. The end is not skipped."""
    if not skipped:
        return []
    ranges = (f"{each.queue}:{each.start_offset}:{each.end_offset}" for each in skipped)
    return [(SKIPPED_HEADER, ",".join(ranges))]


def _queue_reply(read: QueueRead) -> QueueReply:
    fetched = read.fetched
    return QueueReply(
        read.queue,
        fetched.next_offset,
        fetched.min_offset,
        fetched.max_offset,
        read.problem.body() if read.problem is not None else UNSET,
    )


async def _deliver(
    context: ApiContext,
    topic: Topic,
    pieces: Sequence[Piece],
    count: int,
    media: str,
    headers: Headers,
    envelope: Callable[[list[Any]], object],
    held_s: float,
    has_slot: bool,
) -> Reply | None:
    parts: Sequence[Bytes]
    if media == BATCH:
        parts = [piece.blocks for piece in pieces]
    else:
        make = packed_messages_of if media == MSGPACK else messages_of
        slices = chain.from_iterable(piece.slices() for piece in pieces)
        size = sum([piece.text_bytes for piece in pieces])
        if fits_one_call(media, count, size):
            messages = make(topic.name, slices)
            is_lines = media == NDJSON
            parts = [encode_lines(messages) if is_lines else encode(media, envelope(messages))]
        else:
            some = split_portions(slices, YIELD_EVERY_MESSAGES, PORTION_BYTES)
            made = (make(topic.name, portion) for portion in some)
            found = await encode_portions(media, made, has_slot=has_slot)
            if found is None:
                return None
            parts = found
            if media != NDJSON:
                parts = wrap_listing(media, envelope([]), "messages", found, count)
    if count:
        counters = context.http.metrics.topic(topic.name)
        counters.messages_out += count
        counters.bytes_out += sum(map(len, parts))
    topic_id = ("Holdfast-Topic-Id", str(topic.topic_id))
    return Reply(200, media, parts, [*headers, topic_id], held_s=held_s)
