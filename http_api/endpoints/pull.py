"""Pulling from one queue: read messages, or hold the request until there are messages.

    start -> read -> messages found, or the time is over: reply
                  -> no messages, and time left: hold -> woken: read from the last scanned offset

If a client disconnects, its pull is cancelled at any point. Reading changes no state in the broker:
the client keeps its offset itself.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic, time
from typing import Any

from holdfast.consumequeue.errors import UnknownTopic
from holdfast.consumequeue.lost_ranges import LostRanges, with_lost
from holdfast.consumequeue.message_store import Fetched, MessageFilter
from holdfast.consumequeue.reading.reader import MAX_SKIPPED_RANGES
from holdfast.consumequeue.thread_calls import call_in_thread
from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.holdservice.filters import parse_filter
from holdfast.holdservice.pull_request_hold_service import Outcome
from holdfast.http_api.endpoints.event_ids import resume_offsets
from holdfast.http_api.endpoints.pull_reply import QueueRead, deliver_pull
from holdfast.http_api.endpoints.rendering import YIELD_EVERY_MESSAGES
from holdfast.http_api.limits.reply_slots import LargeReplySlot
from holdfast.http_api.routing.call import Call
from holdfast.http_api.routing.codecs import BATCH, EVENTS
from holdfast.http_api.routing.context import ApiContext
from holdfast.http_api.routing.params import choice, flag, invalid, moment, text, whole
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Reply

#: A filter of up to this length is parsed on the event loop, in less than a millisecond.
SHORT_FILTER_CHARACTERS = 128
#: The measured memory of the most expensive filter after parsing, in bytes per character. If a
#: filter is longer than SHORT_FILTER_CHARACTERS, its request is charged this memory. The memory of
#: a shorter filter is part of the fixed cost of a connection in docs/limits.md.
FILTER_BYTES_PER_CHARACTER = 110


#: A text reply that may be larger than this must wait for a slot: encoding it blocks the event
#: loop for milliseconds, and a hundred such replies at once would block it for a second.
LARGE_BYTES = 1024 * 1024


@dataclass(slots=True)
class PullBounds:
    """The parameters of every kind of pull: the size of the reply, the waiting time, a filter.

    Treat as immutable. It is not `frozen=True`, because that makes construction five times slower.
    """

    max_messages: int = whole(
        "Most messages to deliver.",
        minimum=1,
        maximum="max_pull_messages",
        default="default_pull_messages",
    )
    max_bytes: int = whole(
        "Most bytes of message texts to deliver. The first message is delivered even if it is "
        "larger.",
        minimum=1,
        maximum="max_pull_bytes",
        default="default_pull_bytes",
    )
    wait_ms: int = whole(
        "How long the request may wait for a message, in milliseconds.",
        maximum="max_wait_ms",
        default=0,
        zero_turns_off=True,
    )
    tag: str | None = text("Only messages with one of these tags, separated by commas.")
    filter: str | None = text("Only messages for which this SQL92 expression is true.")
    skip_corrupt: bool = flag(
        "Continue after messages that are damaged or deleted, and list them in `skipped`."
    )


@dataclass(slots=True)
class PullParams(PullBounds):
    """The query of a pull. It must have exactly one of offset, from and timestamp_ms."""

    offset: int | None = whole("Start at this offset.")
    from_: str | None = choice("Start at an end of the queue.", "earliest", "latest", name="from")
    timestamp_ms: int | None = moment("Start at the first message stored at or after this time.")


async def pull(call: Call[PullParams]) -> Reply:
    """Pull messages from a queue, by offset.

    If there is nothing to deliver, the pull is held for up to `wait_ms`, and answered as soon as a
    message arrives. Continue from `next_offset`. A binary reply consists of whole batches, so it
    may have more messages than requested: the client must apply its offset, count and filter.
    """
    with reply_slot_for(call) as slot:
        return await _pull(call, slot)


async def _pull(call: Call[PullParams], slot: LargeReplySlot) -> Reply:
    context, params, topic = call.context, call.params, call.topic()
    queue = call.queue(topic)
    message_filter = await filter_of(call, params)
    key = (topic.topic_id, queue)
    waiting = WaitBudget(params.wait_ms, call.received_at)
    resumed = resume_offsets(call, topic, queue)
    offset = params.offset if resumed is None else resumed[queue]
    if resumed is not None:
        pass
    elif offset is None or params.from_ is not None or params.timestamp_ms is not None:
        offset = await _start(context, topic, queue, params)
    assert offset is not None
    if call.media == EVENTS:
        return await context.streams.start(call, topic, {queue: offset}, message_filter, slot)
    read = partial(
        context.store.read,
        topic,
        queue,
        max_messages=params.max_messages,
        max_bytes=params.max_bytes,
        filter=message_filter,
        skip_corrupt=params.skip_corrupt,
    )
    skipped: LostRanges = ()

    async def answer(fetched: Fetched) -> Reply | None:
        if skipped:
            fetched = fetched._replace(skipped=skipped)
        read = QueueRead(queue, fetched)
        reply = await deliver_pull(
            context, topic, read, call.media, waiting.held_s, has_slot=slot.is_held
        )
        if reply is not None:
            waiting.note_wake(context, fetched)
        return reply

    while True:
        await slot.acquire()
        fetched = await read(offset)
        for found in fetched.skipped:
            skipped = with_lost(skipped, found)
        if fetched.message_count or waiting.is_over() or len(skipped) >= MAX_SKIPPED_RANGES:
            reply = await answer(fetched)
            if reply is not None:
                return reply
            # Free the messages, so that they take no memory while this pull waits for its turn.
            # They are read again after that.
            del fetched
            await slot.acquire_from(context.large_replies)
            continue
        offset = fetched.next_offset
        if offset < fetched.max_offset:
            # The filter has scanned only a part of a long queue. Other requests run before the
            # next part.
            await asyncio.sleep(0)
            continue
        slot.release()
        scanned = await waiting.hold(context, topic, {key: offset}, call.client, message_filter)
        offset = scanned[key]
        if waiting.is_over():
            reply = await answer(nothing_at(context, topic, queue, offset))
            assert reply is not None
            return reply


async def filter_of(call: Call[Any], bounds: PullBounds) -> MessageFilter | None:
    """Return the filter of a pull or poll, or None if it has no filter.

    Long filters are parsed in a thread, one at a time, because the longest filter takes tens of
    milliseconds. Raises InvalidFilter, Problem.
    """
    tag, condition = bounds.tag, bounds.filter
    length = len(tag or "") + len(condition or "")
    if length <= SHORT_FILTER_CHARACTERS:
        return parse_filter(tag, condition)
    call.count_memory(FILTER_BYTES_PER_CHARACTER * length)
    async with call.context.filter_reading:
        return await call_in_thread(parse_filter, tag, condition)


def reply_slot_for(call: Call[Any], *, is_wide: bool = False) -> LargeReplySlot:
    """Return the slot of a pull or poll. Only wide polls and large text replies wait for one."""
    params = call.params
    is_large = params.max_messages > YIELD_EVERY_MESSAGES or params.max_bytes > LARGE_BYTES
    needs_slot = is_wide or (is_large and call.media != BATCH)
    return LargeReplySlot(call.context.large_replies if needs_slot else None)


async def _start(context: ApiContext, topic: Topic, queue: int, params: PullParams) -> int:
    """Return the offset at which a pull with `from` or `timestamp_ms` starts.

    Raises Problem if the request does not give exactly one start.
    """
    check_one_start(
        {"offset": params.offset, "from": params.from_, "timestamp_ms": params.timestamp_ms}
    )
    return await offset_at(context, topic, queue, params.from_, params.timestamp_ms)


def check_one_start(starts: Mapping[str, object]) -> None:
    """Raise Problem if a request does not give exactly one of these starts (name -> value)."""
    given = [name for name, value in starts.items() if value is not None]
    first = next(iter(starts))
    if not given:
        how = "offset=N" if first == "offset" else "offsets=QUEUE:OFFSET,QUEUE:OFFSET"
        raise Problem(
            "missing-parameter",
            f"nothing says where to start; give {how}, from=earliest|latest or timestamp_ms=N",
            parameter=first,
        )
    if len(given) > 1:
        raise invalid(
            given[1], given[1], "one start alone", f"{' and '.join(given)} are given together"
        )


async def offset_at(
    context: ApiContext, topic: Topic, queue: int, end: str | None, timestamp_ms: int | None
) -> int:
    """Return the first offset at or after a time. If no time is given, return an end of the queue.

    If `end` is "earliest", that is the queue's min_offset, otherwise its max_offset.
    """
    if timestamp_ms is not None:
        offset, _ = await context.store.offset_by_time(topic, queue, timestamp_ms * 1000)
        return offset
    state = context.store.queue_state(topic, queue)
    return state.min_offset if end == "earliest" else state.max_offset


def nothing_at(context: ApiContext, topic: Topic, queue: int, offset: int) -> Fetched:
    """Return a result without messages, for a queue that was scanned up to `offset`."""
    state = context.store.queue_state(topic, queue)
    return Fetched((), offset, state.min_offset, state.max_offset, 0)


class WaitBudget:
    """The time budget of one pull, and how long the pull was held."""

    __slots__ = ("_deadline", "_is_over", "held_s")

    def __init__(self, wait_ms: int, received_at: float) -> None:
        self._deadline = received_at + wait_ms / 1000
        self.held_s = 0.0
        self._is_over = wait_ms == 0

    def is_over(self) -> bool:
        """Return whether the time is over.

        The time also runs while a long queue is scanned for a filter.
        """
        return self._is_over or monotonic() >= self._deadline

    async def hold(
        self,
        context: ApiContext,
        topic: Topic,
        waits: Mapping[QueueKey, int],
        client: str,
        message_filter: MessageFilter | None,
    ) -> dict[QueueKey, int]:
        """Wait until a message arrives in one of the queues, or until the deadline.

        `waits` has the offset of each queue. Return the offset up to which each queue was scanned.
        After the deadline, `is_over` returns True. Raises Problem (draining) when the broker stops,
        UnknownTopic when the topic is deleted, HoldLimitExceeded.
        """
        started = monotonic()
        woken = await context.hold.hold(
            waits, wait_s=self._deadline - started, client=client, filter=message_filter
        )
        self.held_s += monotonic() - started
        if woken.outcome is Outcome.DRAINING:
            raise Problem(
                "draining",
                "the broker is stopping; pull again from where you are once it is back",
            )
        if woken.outcome is Outcome.DELETED:
            raise UnknownTopic(topic.name)
        self._is_over = woken.outcome is Outcome.EXPIRED
        return woken.scanned

    def note_wake(self, context: ApiContext, fetched: Fetched) -> None:
        """If the pull was held, record the age of its first message in a metric (wake_seconds)."""
        if self.held_s and fetched.pieces:
            stored_us = fetched.pieces[0].store_timestamp_us
            context.metrics.wake_seconds.observe(max(time() - stored_us / 1e6, 0.0))
