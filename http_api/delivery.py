"""What was read, as the reply that carries it in the media type that was asked for.

JSON and msgpack wrap the messages in an envelope; NDJSON (a message a line) and binary batches
(blocks as they are stored) have none, so every read carries its offsets in headers as well.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from msgspec import UNSET

from holdfast.consumequeue.fetched import BatchSlice, Piece
from holdfast.consumequeue.message_store import Fetched
from holdfast.consumequeue.topics import Topic
from holdfast.http_api.codecs import BATCH, JSON, MSGPACK, NDJSON, encode, encode_lines
from holdfast.http_api.context import ApiContext
from holdfast.http_api.messages import messages_of, packed_messages_of
from holdfast.http_api.problems import Problem
from holdfast.http_api.reply import Bytes, Headers, Reply
from holdfast.http_api.types import PollReply, PullReply, QueueReply, SkippedRange

#: In the order of preference.
PULL_TYPES = (JSON, NDJSON, MSGPACK, BATCH)
WITHOUT_ENVELOPE = (NDJSON, BATCH)
#: Three headers of "queue:offset" pairs: this many fit what clients take as one header (8 KiB).
MAX_QUEUES_IN_HEADERS = 128

#: What a read passed over, because it is damaged or gone; only where there is such.
SKIPPED_HEADER = "Holdfast-Skipped"

#: More messages than this would keep the loop for milliseconds: they are made in portions, with
#: others' turns of the loop between. (Not in a thread: that holds the interpreter's lock as long,
#: and lets go of it only every 5 ms, whoever waits for it.)
APART_MESSAGES = 500


class QueueRead(NamedTuple):
    """What a poll read from one queue, or why it could not."""

    queue: int
    fetched: Fetched
    problem: Problem | None = None


def offset_headers(next_offset: int, min_offset: int, max_offset: int) -> list[tuple[str, str]]:
    """Return the headers that say where a reader of one queue is."""
    return [
        ("Holdfast-Next-Offset", str(next_offset)),
        ("Holdfast-Min-Offset", str(min_offset)),
        ("Holdfast-Max-Offset", str(max_offset)),
    ]


async def deliver_pull(
    context: ApiContext, topic: Topic, read: QueueRead, media: str, held_s: float
) -> Reply:
    """Return the reply to a pull from one queue."""
    fetched, skipped = read.fetched, _skipped([read])
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
        context, topic, fetched.pieces, fetched.message_count, media, headers, envelope, held_s
    )


async def deliver_poll(
    context: ApiContext, topic: Topic, reads: Sequence[QueueRead], media: str, held_s: float
) -> Reply:
    """Return the reply to a poll over several queues. In headers offsets stand as
    "queue:offset" pairs, for as many queues as a client's limit on headers allows; without an
    envelope a queue's problem is that of the whole."""
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

    skipped = _skipped(reads)
    headers += _skipped_header(skipped)

    def envelope(messages: list[Any]) -> "PollReply[Any]":
        return PollReply(messages, [_queue_reply(read) for read in reads], skipped or UNSET)

    pieces = [each for read in reads for each in read.fetched.pieces]
    count = sum(read.fetched.message_count for read in reads)
    return await _deliver(context, topic, pieces, count, media, headers, envelope, held_s)


def _skipped(reads: Sequence[QueueRead]) -> list[SkippedRange]:
    return [
        SkippedRange(read.queue, each.start_offset, each.end_offset, each.reason)
        for read in reads
        for each in read.fetched.skipped
    ]


def _skipped_header(skipped: Sequence[SkippedRange]) -> list[tuple[str, str]]:
    """Return the header that says what was passed over: queue:start:end, the end not included."""
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
        read.problem.body() if read.problem is not None else None,
    )


def portions(slices: Iterable[BatchSlice], most: int) -> Iterator[list[BatchSlice]]:
    """Yield the same rows in lists of slices with at most `most` rows each, none of them empty."""
    portion: list[BatchSlice] = []
    room = most
    for each in slices:
        rows = each.rows
        while len(rows):
            taken, rows = rows[:room], rows[room:]
            portion.append(BatchSlice(each.batch, taken))
            room -= len(taken)
            if room == 0:
                yield portion
                portion, room = [], most
    if portion:
        yield portion


async def _deliver(
    context: ApiContext,
    topic: Topic,
    pieces: Sequence[Piece],
    count: int,
    media: str,
    headers: Headers,
    envelope: Callable[[list[Any]], object],
    held_s: float,
) -> Reply:
    parts: Sequence[Bytes]
    if media == BATCH:
        parts = [piece.blocks for piece in pieces]
    else:
        make = packed_messages_of if media == MSGPACK else messages_of
        messages: list[Any] = []
        slices = chain.from_iterable(piece.slices() for piece in pieces)
        for portion in [slices] if count <= APART_MESSAGES else portions(slices, APART_MESSAGES):
            if messages:
                await asyncio.sleep(0)
            messages += make(topic.name, portion)
        is_lines = media == NDJSON
        parts = [encode_lines(messages) if is_lines else encode(media, envelope(messages))]
    if count:
        counters = context.metrics.topic(topic.name)
        counters.messages_out += count
        counters.bytes_out += sum(map(len, parts))
    topic_id = ("Holdfast-Topic-Id", str(topic.topic_id))
    return Reply(200, media, parts, [*headers, topic_id], held_s=held_s)
