"""A poll reads several queues of a topic. It works like a pull, with an offset for each queue.

`consumequeue.reading.poll_shares` describes how the queues share the limits of a poll.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.consumequeue.lost_ranges import LostRanges, with_lost
from holdfast.consumequeue.message_store import Fetched, MessageFilter
from holdfast.consumequeue.reading.reader import MAX_SKIPPED_RANGES
from holdfast.consumequeue.topics import Topic
from holdfast.http_api.endpoints.event_ids import resume_offsets
from holdfast.http_api.endpoints.pull import (
    PullBounds,
    WaitBudget,
    check_one_start,
    filter_of,
    nothing_at,
    offset_at,
    reply_slot_for,
)
from holdfast.http_api.endpoints.pull_reply import (
    MAX_QUEUES_IN_HEADERS,
    WITHOUT_ENVELOPE,
    QueueRead,
    deliver_poll,
)
from holdfast.http_api.limits.reply_slots import LargeReplySlot
from holdfast.http_api.routing.call import Call
from holdfast.http_api.routing.codecs import BATCH, EVENTS
from holdfast.http_api.routing.context import ApiContext
from holdfast.http_api.routing.params import choice, moment, text
from holdfast.http_api.routing.queue_offsets import PATTERN, parse_pairs
from holdfast.http_api.wire.problems import Problem, problem_for
from holdfast.http_api.wire.reply import Reply

#: A poll over more queues than this is wide, and needs a slot like a large reply. A poll over 1,024
#: queues blocks the event loop for some milliseconds, so only one wide poll begins, or continues
#: after it was held, in each loop iteration.
WIDE_QUEUES = 64


@dataclass(slots=True)
class PollParams(PullBounds):
    """The query of a poll. It must have exactly one of offsets, from and timestamp_ms."""

    offsets: str | None = text(
        "Where to start in each queue: queue:offset pairs such as 0:12,1:40. Only these queues are "
        "read.",
        maximum=65_536,
        pattern=PATTERN,
    )
    from_: str | None = choice(
        "Start at this end of every queue of the topic.", "earliest", "latest", name="from"
    )
    timestamp_ms: int | None = moment(
        "Start in every queue of the topic at the first message stored at or after this time."
    )


async def poll(call: Call[PollParams]) -> Reply:
    """Pull messages from several queues of a topic, or from all of them.

    Begin with `from` or `timestamp_ms`, which need no queue numbers. Continue with `offsets`: the
    `next_offset` of each queue in the reply. Like a pull, a poll is held while none of the queues
    has anything to deliver. If a queue cannot be read, its entry in the reply has a `problem`, and
    the other queues are read as usual. NDJSON and batches have no such entries, so the whole reply
    is then this problem.
    """
    is_wide = _is_wide(call)
    with reply_slot_for(call, is_wide=is_wide) as slot:
        return await _poll(call, slot, is_wide)


def _is_wide(call: Call[PollParams]) -> bool:
    offsets = call.params.offsets
    count = call.topic().queue_count if offsets is None else offsets.count(",") + 1
    return count > WIDE_QUEUES


async def _poll(call: Call[PollParams], slot: LargeReplySlot, is_wide: bool) -> Reply:
    context, params, topic = call.context, call.params, call.topic()
    if is_wide:
        await context.wide_polls.begin(call.client)
    limit = context.config.max_queues_per_poll
    if call.media in WITHOUT_ENVELOPE or call.media == EVENTS:
        limit = min(limit, MAX_QUEUES_IN_HEADERS)
    offsets = resume_offsets(call, topic) or await _starts(context, topic, params, limit)
    message_filter = await filter_of(call, params)
    if call.media == EVENTS:
        return await context.streams.start(call, topic, offsets, message_filter, slot)
    waiting = WaitBudget(params.wait_ms, call.received_at)
    skipped: dict[int, LostRanges] = {}

    async def answer(reads: list[QueueRead]) -> Reply | None:
        first = next((read.fetched for read in reads if read.fetched.pieces), None)
        if skipped:
            reads = [
                read._replace(fetched=read.fetched._replace(skipped=skipped.get(read.queue, ())))
                for read in reads
            ]
        reply = await deliver_poll(
            context, topic, reads, call.media, waiting.held_s, has_slot=slot.is_held
        )
        if reply is not None and first is not None:
            waiting.note_wake(context, first)
        return reply

    while True:
        await slot.acquire()
        reads = await read_queues(context, topic, offsets, params, message_filter, call.media)
        for read in reads:
            for found in read.fetched.skipped:
                skipped[read.queue] = with_lost(skipped.get(read.queue, ()), found)
        if (
            waiting.is_over()
            or _count(skipped) >= MAX_SKIPPED_RANGES
            or any(read.problem or read.fetched.pieces for read in reads)
        ):
            reply = await answer(reads)
            if reply is not None:
                return reply
            # Free the messages, so that they take no memory while this poll waits for its turn.
            # They are read again after that.
            del read, reads
            await slot.acquire_from(context.large_replies)
            continue
        offsets = {read.queue: read.fetched.next_offset for read in reads}
        if any(read.fetched.next_offset < read.fetched.max_offset for read in reads):
            await (context.wide_polls.begin(call.client) if is_wide else asyncio.sleep(0))
            continue
        waits = {(topic.topic_id, queue): offset for queue, offset in offsets.items()}
        del reads
        slot.release()
        scanned = await waiting.hold(context, topic, waits, call.client, message_filter)
        if is_wide:
            await context.wide_polls.begin(call.client)
        offsets = {queue: offset for (_, queue), offset in scanned.items()}
        if waiting.is_over():
            reply = await answer(
                [
                    QueueRead(queue, nothing_at(context, topic, queue, offset))
                    for queue, offset in offsets.items()
                ]
            )
            assert reply is not None
            return reply


def _count(skipped: Mapping[int, LostRanges]) -> int:
    return sum(map(len, skipped.values()))


async def _starts(
    context: ApiContext, topic: Topic, params: PollParams, limit: int
) -> dict[int, int]:
    """Return queue -> the offset at which the poll starts. Raises Problem."""
    check_one_start(
        {"offsets": params.offsets, "from": params.from_, "timestamp_ms": params.timestamp_ms}
    )
    if params.offsets is not None:
        _check_count(params.offsets.count(",") + 1, "named", limit)
        return parse_pairs("offsets", params.offsets, topic)
    _check_count(topic.queue_count, "those of the topic", limit)
    return {
        queue: await offset_at(context, topic, queue, params.from_, params.timestamp_ms)
        for queue in range(topic.queue_count)
    }


def _check_count(count: int, how: str, limit: int) -> None:
    if count > limit:
        raise Problem(
            "limit-exceeded",
            f"{count} queues are {how}; name {limit} at most in one poll, in offsets",
            parameter="offsets",
            limit=limit,
        )


async def read_queues(
    context: ApiContext,
    topic: Topic,
    offsets: Mapping[int, int],
    params: PullBounds,
    message_filter: MessageFilter | None,
    media: str,
) -> list[QueueRead]:
    """Read several queues of a topic. If a queue cannot be read, its result has a problem."""
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
