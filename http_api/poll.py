"""One poll over several queues of a topic: as a pull, with a place in each of them.

How the queues share what a poll may deliver: `consumequeue.shares`.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.consumequeue.lost_ranges import LostRanges, with_lost
from holdfast.consumequeue.message_store import Fetched, MessageFilter
from holdfast.consumequeue.reader import MAX_SKIPPED_RANGES
from holdfast.consumequeue.topics import Topic
from holdfast.http_api.call import Call
from holdfast.http_api.codecs import BATCH
from holdfast.http_api.context import ApiContext
from holdfast.http_api.delivery import (
    MAX_QUEUES_IN_HEADERS,
    WITHOUT_ENVELOPE,
    QueueRead,
    deliver_poll,
)
from holdfast.http_api.pairs import PATTERN, parse_pairs
from holdfast.http_api.params import text
from holdfast.http_api.problems import Problem, problem_for
from holdfast.http_api.pull import PullBounds, Waiting, filter_of, nothing_at, turn_for
from holdfast.http_api.reply import Reply
from holdfast.http_api.turns import Turn


@dataclass(slots=True)
class PollParams(PullBounds):
    """Query of a poll over several queues."""

    offsets: str | None = text(
        "Where to start in each queue: queue:offset pairs, as in 0:12,1:40.",
        maximum=65_536,
        required=True,
        pattern=PATTERN,
    )


async def poll(call: Call[PollParams]) -> Reply:
    """Pull messages from several queues of a topic, by offset.

    Held as a pull is, while none of the queues has anything to deliver. A queue that cannot be
    read says so in its `problem`, and the others are read all the same; replies without an
    envelope (NDJSON, batches) are that problem as a whole.
    """
    with turn_for(call) as turn:
        return await _poll(call, turn)


async def _poll(call: Call[PollParams], turn: Turn) -> Reply:
    context, params, topic = call.context, call.params, call.topic()
    limit = context.config.max_queues_per_poll
    if call.media in WITHOUT_ENVELOPE:
        limit = min(limit, MAX_QUEUES_IN_HEADERS)
    offsets = _parse_offsets(params.offsets, topic, limit)
    message_filter = await filter_of(context, params)
    waiting = Waiting(params.wait_ms, call.received_at)
    skipped: dict[int, LostRanges] = {}
    while True:
        await turn.begin()
        reads = await _read_queues(context, topic, offsets, params, message_filter, call.media)
        for read in reads:
            for found in read.fetched.skipped:
                skipped[read.queue] = with_lost(skipped.get(read.queue, ()), found)
        if (
            waiting.is_over()
            or _count(skipped) >= MAX_SKIPPED_RANGES
            or any(read.problem or read.fetched.pieces for read in reads)
        ):
            break
        offsets = {read.queue: read.fetched.next_offset for read in reads}
        if any(read.fetched.next_offset < read.fetched.max_offset for read in reads):
            await asyncio.sleep(0)
            continue
        waits = {(topic.topic_id, queue): offset for queue, offset in offsets.items()}
        del reads
        turn.end()
        scanned = await waiting.hold(context, topic, waits, call.client, message_filter)
        offsets = {queue: offset for (_, queue), offset in scanned.items()}
        if waiting.is_over():
            reads = [
                QueueRead(queue, nothing_at(context, topic, queue, offset))
                for queue, offset in offsets.items()
            ]
            break
    for read in reads:
        if read.fetched.pieces:
            waiting.note_wake(context, read.fetched)
            break
    if skipped:
        reads = [
            read._replace(fetched=read.fetched._replace(skipped=skipped.get(read.queue, ())))
            for read in reads
        ]
    return await deliver_poll(context, topic, reads, call.media, waiting.held_s)


def _count(skipped: Mapping[int, LostRanges]) -> int:
    return sum(map(len, skipped.values()))


def _parse_offsets(given: str | None, topic: Topic, limit: int) -> dict[int, int]:
    if given is None:
        raise Problem(
            "missing-parameter",
            "nothing says where to start; give offsets=QUEUE:OFFSET,QUEUE:OFFSET",
            parameter="offsets",
        )
    named = given.count(",") + 1
    if named > limit:
        raise Problem(
            "limit-exceeded",
            f"{named} queues are named; name {limit} at most in one poll",
            parameter="offsets",
            limit=limit,
        )
    return parse_pairs("offsets", given, topic)


async def _read_queues(
    context: ApiContext,
    topic: Topic,
    offsets: Mapping[int, int],
    params: PullBounds,
    message_filter: MessageFilter | None,
    media: str,
) -> list[QueueRead]:
    found = await context.store.read_many(
        topic,
        offsets,
        max_messages=params.max_messages,
        max_bytes=params.max_bytes,
        filter=message_filter,
        skip_corrupt=params.skip_corrupt,
        whole_batches=media == BATCH,
    )
    reads = []
    for queue, offset in offsets.items():
        read = found[queue]
        if isinstance(read, Fetched):
            reads.append(QueueRead(queue, read))
        else:
            nothing = Fetched((), offset, read.min_offset, read.max_offset, 0)
            reads.append(QueueRead(queue, nothing, problem_for(read)))
    return reads
