"""Pulling from one queue: read, or be held until there is something to read.

    start -> read -> found something, or out of time: answer
                  -> nothing, and time left: hold -> woken: read on from what was scanned

A client that goes away cancels its pull wherever that stands. Nothing here is changed by
reading: the client owns its offset.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic, time
from typing import Any

from holdfast.consumequeue.errors import UnknownTopic
from holdfast.consumequeue.lost_ranges import LostRanges, with_lost
from holdfast.consumequeue.message_store import Fetched, MessageFilter
from holdfast.consumequeue.reader import MAX_SKIPPED_RANGES
from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.holdservice.filters import parse_filter
from holdfast.holdservice.pull_request_hold_service import Outcome
from holdfast.http_api.call import Call
from holdfast.http_api.codecs import BATCH
from holdfast.http_api.context import ApiContext
from holdfast.http_api.delivery import APART_MESSAGES, QueueRead, deliver_pull
from holdfast.http_api.params import MAX_TIMESTAMP_MS, choice, flag, invalid, text, whole
from holdfast.http_api.problems import Problem
from holdfast.http_api.reply import Reply
from holdfast.http_api.turns import Turn

#: A filter up to this long is read on the event loop, in less than a millisecond.
SHORT_FILTER_CHARACTERS = 128


#: A reply of text that may be larger than this takes a turn: making it keeps the loop for
#: milliseconds, and a hundred of them in one turn of the loop would keep it for a second.
LARGE_BYTES = 1024 * 1024


@dataclass(slots=True)
class PullBounds:
    """What every kind of pull may bound: how much, how long, and which messages. Nobody changes
    it. (Frozen, it would take five times as long to make.)"""

    max_messages: int = whole(
        "Most messages to deliver.",
        minimum=1,
        maximum="max_pull_messages",
        default="default_pull_messages",
    )
    max_bytes: int = whole(
        "Most bytes of message texts to deliver; the first message comes in any case.",
        minimum=1,
        maximum="max_pull_bytes",
        default="default_pull_bytes",
    )
    wait_ms: int = whole(
        "How long to be held while there is nothing to deliver.", maximum="max_wait_ms", default=0
    )
    tag: str | None = text("Only messages with one of these tags, separated by commas.")
    filter: str | None = text("Only messages for which this SQL92 expression is true.")
    skip_corrupt: bool = flag(
        "Go on behind messages that are damaged or gone, and say in `skipped` which they were."
    )


@dataclass(slots=True)
class PullParams(PullBounds):
    """Query of a pull from one queue: exactly one of offset, from and timestamp_ms."""

    offset: int | None = whole("Start at this offset.")
    from_: str | None = choice("Start at an end of the queue.", "earliest", "latest", name="from")
    timestamp_ms: int | None = whole(
        "Start at the first message stored at or after this time.", maximum=MAX_TIMESTAMP_MS
    )


async def pull(call: Call[PullParams]) -> Reply:
    """Pull messages from a queue, by offset.

    Without messages to deliver the pull is held for up to `wait_ms`, and answered at once when
    one arrives. Go on from `next_offset`. Binary replies are whole batches: cut them to your
    offset, count and filter.
    """
    with turn_for(call) as turn:
        return await _pull(call, turn)


async def _pull(call: Call[PullParams], turn: Turn) -> Reply:
    context, params, topic = call.context, call.params, call.topic()
    queue = call.queue(topic)
    message_filter = await filter_of(context, params)
    key = (topic.topic_id, queue)
    waiting = Waiting(params.wait_ms, call.received_at)
    offset = params.offset
    if offset is None or params.from_ is not None or params.timestamp_ms is not None:
        offset = await _start(context, topic, queue, params)
    skipped: LostRanges = ()
    while True:
        await turn.begin()
        fetched = await context.store.read(
            topic,
            queue,
            offset,
            max_messages=params.max_messages,
            max_bytes=params.max_bytes,
            filter=message_filter,
            skip_corrupt=params.skip_corrupt,
        )
        for found in fetched.skipped:
            skipped = with_lost(skipped, found)
        if fetched.message_count or waiting.is_over() or len(skipped) >= MAX_SKIPPED_RANGES:
            break
        offset = fetched.next_offset
        if offset < fetched.max_offset:
            # The filter scanned its share of a long queue; there is time for more.
            await asyncio.sleep(0)
            continue
        turn.end()
        scanned = await waiting.hold(context, topic, {key: offset}, call.client, message_filter)
        offset = scanned[key]
        if waiting.is_over():
            fetched = nothing_at(context, topic, queue, offset)
            break
    waiting.note_wake(context, fetched)
    if skipped:
        fetched = fetched._replace(skipped=skipped)
    return await deliver_pull(context, topic, QueueRead(queue, fetched), call.media, waiting.held_s)


async def filter_of(context: ApiContext, bounds: PullBounds) -> MessageFilter | None:
    """Return the filter that a pull or poll asks for, a long one read apart: reading takes some
    ten milliseconds for the longest, and one is read at a time. Raises InvalidFilter."""
    tag, condition = bounds.tag, bounds.filter
    if len(tag or "") + len(condition or "") <= SHORT_FILTER_CHARACTERS:
        return parse_filter(tag, condition)
    async with context.filter_reading:
        return await asyncio.to_thread(parse_filter, tag, condition)


def turn_for(call: Call[Any]) -> Turn:
    """Return the turn that a pull's or a poll's reply takes: a large one of text needs one."""
    params = call.params
    is_large = params.max_messages > APART_MESSAGES or params.max_bytes > LARGE_BYTES
    is_large = is_large and call.media != BATCH
    return Turn(call.context.large_replies if is_large else None)


async def _start(context: ApiContext, topic: Topic, queue: int, params: PullParams) -> int:
    """Return where a pull starts that does not just give an offset. Raises Problem."""
    given = [
        name
        for name, value in (
            ("offset", params.offset),
            ("from", params.from_),
            ("timestamp_ms", params.timestamp_ms),
        )
        if value is not None
    ]
    if not given:
        raise Problem(
            "missing-parameter",
            "nothing says where to start; give offset=N, from=earliest|latest or timestamp_ms=N",
            parameter="offset",
        )
    if len(given) > 1:
        raise invalid(
            given[1], given[1], "one start alone", f"{' and '.join(given)} are given together"
        )
    if params.timestamp_ms is not None:
        offset, _ = await context.store.offset_by_time(topic, queue, params.timestamp_ms * 1000)
        return offset
    state = context.store.queue_state(topic, queue)
    return state.min_offset if params.from_ == "earliest" else state.max_offset


def nothing_at(context: ApiContext, topic: Topic, queue: int, offset: int) -> Fetched:
    """Return the empty answer of a queue that was scanned up to `offset`."""
    state = context.store.queue_state(topic, queue)
    return Fetched((), offset, state.min_offset, state.max_offset, 0)


class Waiting:
    """The time that one pull has, and how much of it it spent held."""

    __slots__ = ("_deadline", "_is_over", "held_s")

    def __init__(self, wait_ms: int, received_at: float) -> None:
        self._deadline = received_at + wait_ms / 1000
        self.held_s = 0.0
        self._is_over = wait_ms == 0

    def is_over(self) -> bool:
        """Whether no time is left, be it spent held or scanning a long queue for a filter."""
        return self._is_over or monotonic() >= self._deadline

    async def hold(
        self,
        context: ApiContext,
        topic: Topic,
        waits: Mapping[QueueKey, int],
        client: str,
        message_filter: MessageFilter | None,
    ) -> dict[QueueKey, int]:
        """Wait for a message in any of the queues, and return how far each was scanned.

        Ends by an arrival, or by the deadline: then it `is_over`. Raises Problem when the broker
        stops, UnknownTopic when the topic is deleted, HoldLimitExceeded.
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
        """Measure how soon a pull that was held answers with its message."""
        if self.held_s and fetched.pieces:
            stored_us = fetched.pieces[0].store_timestamp_us
            context.metrics.wake_seconds.observe(max(time() - stored_us / 1e6, 0.0))
