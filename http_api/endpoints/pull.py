"""Pulling: read one queue (pull) or several queues of a topic (poll) by offset.

`held_read` reads and waits for both. `consumequeue.reading.fetched` describes how the queues of
a poll share its limits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.consumequeue.topics import Topic
from holdfast.http_api.endpoints.events import start_stream
from holdfast.http_api.endpoints.held_read import (
    WIDE_QUEUES,
    PullBounds,
    filter_of,
    held_read,
    reply_slot_for,
)
from holdfast.http_api.endpoints.pull_reply import (
    MAX_QUEUES_IN_HEADERS,
    WITHOUT_ENVELOPE,
    deliver_poll,
    deliver_pull,
)
from holdfast.http_api.routing.call import Call
from holdfast.http_api.routing.codecs import EVENTS
from holdfast.http_api.routing.context import ApiContext
from holdfast.http_api.routing.params import choice, invalid, moment, text, whole
from holdfast.http_api.routing.queue_offsets import PATTERN, parse_pairs
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Reply

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
        pattern=PATTERN,
    )
    from_: str | None = choice(
        "Start at this end of every queue of the topic.", "earliest", "latest", name="from"
    )
    timestamp_ms: int | None = moment(
        "Start in every queue of the topic at the first message stored at or after this time."
    )


async def pull(call: Call[PullParams]) -> Reply:
    """Pull messages from a queue, by offset.

    If there is nothing to deliver, the pull is held for up to `wait_ms`, and answered as soon as a
    message arrives. Continue from `next_offset`. A binary reply consists of whole batches, so it
    may have more messages than requested: the client must apply its offset, count and filter.
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
        return await held_read(call, topic, offsets, message_filter, slot, deliver_pull)


async def poll(call: Call[PollParams]) -> Reply:
    """Pull messages from several queues of a topic, or from all of them.

    Begin with `from` or `timestamp_ms`, which need no queue numbers. Continue with `offsets`: the
    `next_offset` of each queue in the reply. Like a pull, a poll is held while none of the queues
    has anything to deliver. If a queue cannot be read, its entry in the reply has a `problem`, and
    the other queues are read as usual. NDJSON and batches have no such entries, so the whole reply
    is then this problem.
    """
    context, topic = call.context, call.topic()
    is_wide = _is_wide(call, topic)
    with reply_slot_for(call, is_wide=is_wide) as slot:
        if is_wide:
            await context.wide_polls.begin(call.client)
        limit = context.config.max_queues_per_poll
        if call.media in WITHOUT_ENVELOPE or call.media == EVENTS:
            limit = min(limit, MAX_QUEUES_IN_HEADERS)
        offsets = _resume_offsets(call, topic)
        if offsets is None:
            offsets = await _starts(context, topic, call.params, limit)
        message_filter = await filter_of(call)
        if call.media == EVENTS:
            return await start_stream(call, topic, offsets, message_filter, slot)
        return await held_read(
            call, topic, offsets, message_filter, slot, deliver_poll, is_wide=is_wide
        )


def _is_wide(call: Call[PollParams], topic: Topic) -> bool:
    offsets = call.params.offsets
    count = topic.queue_count if offsets is None else offsets.count(",") + 1
    return count > WIDE_QUEUES


async def _start(context: ApiContext, topic: Topic, queue: int, params: PullParams) -> int:
    """Return the offset at which a pull starts. Raises Problem if it does not give one start."""
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


def _check_one_start(starts: Mapping[str, object]) -> None:
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
        offset, _ = await context.store.lookups.offset_by_time(topic, queue, timestamp_ms * 1000)
        return offset
    state = context.store.reading.queue_state(topic, queue)
    return state.min_offset if end == "earliest" else state.max_offset


def _resume_offsets(
    call: Call[Any], topic: Topic, only: int | None = None
) -> dict[int, int] | None:
    """Return the offsets at which a stream resumes; None if it is new or not an event stream.

    The header of another request has no effect, but must be well formed too. For a pull, `only` is
    its queue; for a poll, `only` is None. Raises Problem, UnknownQueue.
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
