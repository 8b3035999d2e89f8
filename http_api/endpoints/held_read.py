"""Read queues for a pull, a poll or an event stream, and hold the request if there is no message.

    read -> messages found, or the time is over: reply
         -> no messages, and time left: hold -> woken: read from the last scanned offsets

A pull is a poll of one queue. When a client disconnects, its request is cancelled, at any await.
Reading changes no state in the broker: the client keeps its offsets itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, time
from typing import Any, NamedTuple

from holdfast.consumequeue.errors import UnknownTopic
from holdfast.consumequeue.lost_ranges import LostRanges, with_lost
from holdfast.consumequeue.reading.fetched import (
    MAX_SKIPPED_RANGES,
    Fetched,
    MessageFilter,
    Piece,
)
from holdfast.consumequeue.thread_calls import call_in_thread
from holdfast.consumequeue.topics import Topic
from holdfast.holdservice.filters import (
    SHORT_FILTER_CHARACTERS,
    is_parsed_quickly,
    parse_filter,
)
from holdfast.holdservice.pull_request_hold_service import Outcome
from holdfast.http_api.endpoints.rendering import YIELD_EVERY_MESSAGES
from holdfast.http_api.limits.reply_slots import LargeReplySlot
from holdfast.http_api.routing.call import Call
from holdfast.http_api.routing.codecs import BATCH, accepts_rebuilt
from holdfast.http_api.routing.params import flag, text, whole
from holdfast.http_api.schemas.messages import SkippedRange
from holdfast.http_api.wire.aiohttp_parser import hdrs
from holdfast.http_api.wire.problems import Problem, problem_for
from holdfast.http_api.wire.reply import Reply
from holdfast.http_api.wire.request import list_header

#: The measured memory of the most expensive parsed filter, in bytes per character of its text. It
#: is charged to the request if the filter is longer than SHORT_FILTER_CHARACTERS. The memory of a
#: shorter filter is part of the fixed cost of a connection in docs/limits.md.
FILTER_BYTES_PER_CHARACTER = 110
#: A text reply that may be larger than this must wait for a slot: encoding it blocks the event
#: loop for milliseconds, and a hundred such replies would block it for a second.
LARGE_BYTES = 1024 * 1024
#: A poll over more queues than this is wide, and needs a slot like a large reply. A poll over 1,024
#: queues blocks the event loop for some milliseconds. So each loop iteration begins only one wide
#: poll, or continues only one that was held.
WIDE_QUEUES = 64


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


class QueueRead(NamedTuple):
    """The result of reading one queue. If it has a `problem`, the queue could not be read."""

    queue: int
    fetched: Fetched
    problem: Problem | None = None


Deliver = Callable[[Call[Any], Topic, Sequence[QueueRead], float, bool], Awaitable[Reply | None]]
"""Makes the reply of a pull or poll from (call, topic, reads, held_s, has_slot).

Returns None if the reply is large and `has_slot` is False. The caller must then wait for a slot,
and read and deliver again.
"""


async def held_read(
    call: Call[Any],
    topic: Topic,
    offsets: Mapping[int, int],
    message_filter: MessageFilter | None,
    slot: LargeReplySlot,
    deliver: Deliver,
    *,
    is_wide: bool = False,
) -> Reply:
    """Read queues from these offsets (queue -> offset), and return the reply that `deliver` makes.

    If no queue has a message to deliver, hold the request for at most `wait_ms`.
    """
    budget = WaitBudget(call.params.wait_ms, call.received_at)
    skipped: dict[int, LostRanges] = {}
    while True:
        await slot.acquire()
        reads = await read_queues(call, topic, offsets, message_filter)
        _add_skipped(reads, skipped)
        if _has_result(reads) or _has_most_ranges(skipped) or budget.is_over():
            reads = _with_skipped(reads, skipped)
            reply = await deliver(call, topic, reads, budget.held_s, slot.is_held)
            if reply is not None:
                budget.note_wake(call, reads)
                return reply
            # Free the messages while this request waits for a slot. Read them again after the
            # wait.
            del reads
            await slot.acquire_from(call.context.large_replies)
            continue
        offsets = {read.queue: read.fetched.next_offset for read in reads}
        is_partial = any(read.fetched.next_offset < read.fetched.max_offset for read in reads)
        del reads
        if is_partial:
            # The filter has scanned only a part of a long queue. Let other requests run before
            # the next part.
            await (call.context.wide_polls.begin(call.client) if is_wide else asyncio.sleep(0))
            continue
        slot.release()
        offsets = await budget.hold(call, topic, offsets, message_filter)
        if is_wide:
            await call.context.wide_polls.begin(call.client)
        if budget.is_over():
            nothing = _with_skipped(_read_nothing(call, topic, offsets), skipped)
            reply = await deliver(call, topic, nothing, budget.held_s, slot.is_held)
            assert reply is not None
            return reply


async def read_queues(
    call: Call[Any], topic: Topic, offsets: Mapping[int, int], message_filter: MessageFilter | None
) -> list[QueueRead]:
    """Read several queues of a topic. If a queue cannot be read, its result has a problem."""
    params: PullBounds = call.params
    is_binary = call.media == BATCH
    found = await call.context.store.reading.read_many(
        topic,
        offsets,
        max_messages=params.max_messages,
        max_bytes=params.max_bytes,
        filter=message_filter,
        skip_corrupt=params.skip_corrupt,
        whole_batches=is_binary,
        rebuilt=is_binary and accepts_rebuilt(list_header(call.headers, hdrs.ACCEPT)),
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


def _has_result(reads: Sequence[QueueRead]) -> bool:
    return any(read.fetched.pieces or read.problem is not None for read in reads)


def _add_skipped(reads: Sequence[QueueRead], skipped: dict[int, LostRanges]) -> None:
    for read in reads:
        for lost in read.fetched.skipped:
            skipped[read.queue] = with_lost(skipped.get(read.queue, ()), lost)


def _has_most_ranges(skipped: Mapping[int, LostRanges]) -> bool:
    """Return whether a reply must be sent, because it can list no more skipped ranges."""
    return sum(map(len, skipped.values())) >= MAX_SKIPPED_RANGES


def _with_skipped(reads: list[QueueRead], skipped: Mapping[int, LostRanges]) -> list[QueueRead]:
    """Return the reads with all ranges that this request has skipped, also in earlier reads."""
    if not skipped:
        return reads
    return [
        read._replace(fetched=read.fetched._replace(skipped=skipped.get(read.queue, ())))
        for read in reads
    ]


def skipped_of(reads: Sequence[QueueRead]) -> list[SkippedRange]:
    """Return the offset ranges that these reads skipped."""
    return [
        SkippedRange(read.queue, each.start_offset, each.end_offset, each.reason)
        for read in reads
        for each in read.fetched.skipped
    ]


def _read_nothing(call: Call[Any], topic: Topic, offsets: Mapping[int, int]) -> list[QueueRead]:
    """Return results without messages, for queues that were scanned up to these offsets."""
    reads = []
    for queue, offset in offsets.items():
        state = call.context.store.reading.queue_state(topic, queue)
        nothing = Fetched((), offset, state.min_offset, state.max_offset, 0)
        reads.append(QueueRead(queue, nothing))
    return reads


async def filter_of(call: Call[Any]) -> MessageFilter | None:
    """Return the filter of a pull or poll, or None if it has no filter.

    Filters that need more time than a millisecond are parsed in a thread, one at a time. Raises
    InvalidFilter, Problem.
    """
    tag, condition = call.params.tag, call.params.filter
    if is_parsed_quickly(tag, condition):
        return parse_filter(tag, condition)
    length = len(tag or "") + len(condition or "")
    if length > SHORT_FILTER_CHARACTERS:
        call.count_memory(FILTER_BYTES_PER_CHARACTER * length)
    async with call.context.filter_reading:
        return await call_in_thread(parse_filter, tag, condition)


def reply_slot_for(call: Call[Any], *, is_wide: bool = False) -> LargeReplySlot:
    """Return the slot of a pull or poll. Only wide polls and large text replies wait for it."""
    needs_slot = is_wide or may_be_large(call.params, call.media)
    return LargeReplySlot(call.context.large_replies if needs_slot else None)


def may_be_large(params: PullBounds, media: str) -> bool:
    """Return whether the reply to a pull may be a large text, which needs a slot."""
    is_large = params.max_messages > YIELD_EVERY_MESSAGES or params.max_bytes > LARGE_BYTES
    return is_large and media != BATCH


class WaitBudget:
    """How long one pull may still wait, and how long it was held."""

    __slots__ = ("_deadline", "_is_over", "held_s")

    def __init__(self, wait_ms: int, received_at: float) -> None:
        self._deadline = received_at + wait_ms / 1000
        self.held_s = 0.0
        self._is_over = wait_ms == 0

    def is_over(self) -> bool:
        """Return whether the waiting time has ended. Scans of long queues count as waiting."""
        return self._is_over or monotonic() >= self._deadline

    async def hold(
        self,
        call: Call[Any],
        topic: Topic,
        offsets: Mapping[int, int],
        message_filter: MessageFilter | None,
    ) -> dict[int, int]:
        """Wait until a message arrives in one of these queues (queue -> offset), or until the
        deadline.

        Return the offset up to which each queue was scanned. After the deadline, `is_over` returns
        True. Raises Problem (draining) if the broker stops, UnknownTopic if the topic is deleted,
        or HoldLimitExceeded.
        """
        started = monotonic()
        woken = await call.context.hold.hold(
            {(topic.topic_id, queue): offset for queue, offset in offsets.items()},
            wait_s=self._deadline - started,
            client=call.client,
            filter=message_filter,
        )
        self.held_s += monotonic() - started
        check_outcome(woken.outcome, topic)
        self._is_over = woken.outcome is Outcome.EXPIRED
        return {queue: offset for (_, queue), offset in woken.scanned.items()}

    def note_wake(self, call: Call[Any], reads: Sequence[QueueRead]) -> None:
        """If the pull was held, record the age of its first message in the metric wake_seconds."""
        if not self.held_s:
            return
        pieces = next((read.fetched.pieces for read in reads if read.fetched.pieces), None)
        if pieces:
            note_age(call, pieces[0])


def check_outcome(outcome: Outcome, topic: Topic) -> None:
    """Raise Problem (draining) or UnknownTopic if a wait ended for one of these reasons."""
    if outcome is Outcome.DRAINING:
        raise Problem(
            "draining",
            "the broker is stopping; send the same request again when it has restarted",
        )
    if outcome is Outcome.DELETED:
        raise UnknownTopic(topic.name)


def note_age(call: Call[Any], first: Piece) -> None:
    """Record the age of the first message of a pull that was held, in the metric wake_seconds."""
    age_s = time() - first.store_timestamp_us / 1e6
    call.context.http.metrics.wake_seconds.observe(max(age_s, 0.0))
