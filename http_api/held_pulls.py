"""Usual pulls begin in one call: they find messages in memory, or wait at the end of their queue.

A usual pull has one queue and no filter, and its reply is small. It is answered at once, or waits
as a future in the hold table, and then its reply is made in one step. Everything else is left to
the handler `pull`, also a pull whose messages must be read from the disk. On the event loop.
"""

from time import monotonic

from holdfast.consumequeue.reading.fetched import Fetched
from holdfast.consumequeue.topics import Topic
from holdfast.holdservice.pull_request_hold_service import Outcome, Wait
from holdfast.http_api.endpoints.held_read import (
    QueueRead,
    check_outcome,
    may_be_large,
    note_age,
)
from holdfast.http_api.endpoints.pull import LAST_EVENT_ID, PullParams, deliver_at_once
from holdfast.http_api.routing.call import Call
from holdfast.http_api.routing.params import whole_number
from holdfast.http_api.wire.aiohttp_parser import EMPTY_PAYLOAD
from holdfast.http_api.wire.reply import Reply


def begin_pull(call: Call[PullParams]) -> "WaitingPull | Reply | None":
    """Begin a usual pull, as `routing.begun.Begin` describes."""
    offset = call.request.offset
    if offset is None or not _is_usual(call):
        return None
    context = call.context
    topic, queue = context.store.table.find(call.path["topic"]), whole_number(call.path["queue"])
    if topic is None or queue is None or queue >= topic.queue_count:
        return None
    key = (topic.topic_id, queue)
    if context.store.reading.max_offset(key) == offset:
        wait_s = call.received_at + call.params.wait_ms / 1000 - monotonic()
        if call.params.wait_ms and wait_s > 0:
            wait = context.hold.begin({key: offset}, wait_s=wait_s, client=call.client)
            return WaitingPull(call, topic, queue, offset, wait)
    return _read(call, topic, queue, offset, 0.0)


def _is_usual(call: Call[PullParams]) -> bool:
    params, request = call.params, call.request
    return (
        params.tag is None
        and params.filter is None
        and params.from_ is None
        and params.timestamp_ms is None
        and request.content is EMPTY_PAYLOAD
        and LAST_EVENT_ID not in request.headers
        and not may_be_large(params, call.media)
    )


def _read(
    call: Call[PullParams], topic: Topic, queue: int, offset: int, held_s: float
) -> Reply | None:
    """Return the reply with the messages from `offset` on. Return None if they must be read from
    the disk, if there are none before the queue's end, or if the reply is large."""
    params = call.params
    fetched = call.context.store.reading.read_hot(
        topic,
        queue,
        offset,
        max_messages=params.max_messages,
        max_bytes=params.max_bytes,
        skip_corrupt=params.skip_corrupt,
    )
    if fetched is None or (not fetched.pieces and (held_s or offset != fetched.max_offset)):
        return None
    reply = deliver_at_once(call, topic, QueueRead(queue, fetched), held_s)
    if held_s and reply is not None:
        note_age(call, fetched.pieces[0])
    return reply


class WaitingPull:
    """A pull in the hold table."""

    __slots__ = ("_call", "_offset", "_queue", "_started", "_topic", "_wait", "future")

    def __init__(
        self, call: Call[PullParams], topic: Topic, queue: int, offset: int, wait: Wait
    ) -> None:
        self._call = call
        self._topic = topic
        self._queue = queue
        self._offset = offset
        self._wait = wait
        self._started = monotonic()
        self.future = wait.future

    def give_up(self) -> None:
        """Free the pull's place."""
        self._call.context.hold.end_cancelled(self._wait)

    def make_reply(self) -> Reply | None:
        """Return the reply. Return None if the handler must answer: the messages are not in memory,
        or the reply is large."""
        call, topic, queue, offset = self._call, self._topic, self._queue, self._offset
        held_s = monotonic() - self._started
        outcome = self.future.result().outcome
        check_outcome(outcome, topic)
        if outcome is not Outcome.EXPIRED:
            return _read(call, topic, queue, offset, held_s)
        state = call.context.store.reading.queue_state(topic, queue)
        nothing = Fetched((), offset, state.min_offset, state.max_offset, 0)
        return deliver_at_once(call, topic, QueueRead(queue, nothing), held_s)
