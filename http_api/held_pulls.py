"""Pulls that wait at the end of their queue, without a task for each pull.

Most pulls that are held are alike: the head is stored (`wire/head_cache.py`), and the pull has one
queue, no filter, and starts at the queue's end. Such a pull needs neither a task nor coroutines: it
waits as a future, and its reply is made in one step when a message arrives. Everything else is
answered by a task (`app.py`), also a held pull whose messages are not in memory. The replies are
the same. On the event loop.
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
from holdfast.http_api.endpoints.pull import LAST_EVENT_ID, PullParams, deliver_at_once, pull
from holdfast.http_api.held_requests import ProblemOf, failed, make_call
from holdfast.http_api.routing.context import ApiContext
from holdfast.http_api.routing.params import whole_number
from holdfast.http_api.routing.plan import RequestPlan
from holdfast.http_api.wire.reply import Reply, problem_reply
from holdfast.http_api.wire.request import Request


def hold_pull(
    context: ApiContext, request: Request, plan: RequestPlan, problem_of: ProblemOf
) -> "HeldPull | None":
    """Begin to hold a request with a stored head, and the plan of that head.

    Return None if the request must be answered by a task: it is no pull of the kind above, or there
    are messages to deliver. The caller has checked that the plan applies and that the broker is
    ready.
    """
    offset, params = request.offset, plan.params
    if offset is None or plan.route.handler is not pull or not _can_wait(request, params, plan):
        return None
    topic, queue = context.store.table.find(plan.values["topic"]), _queue_of(plan)
    if topic is None or not 0 <= queue < topic.queue_count:
        return None
    key = (topic.topic_id, queue)
    started = monotonic()
    wait_s = request.source.received_at + params.wait_ms / 1000 - started
    if context.store.reading.max_offset(key) != offset or wait_s <= 0:
        return None
    try:
        wait = context.hold.begin({key: offset}, wait_s=wait_s, client=request.peer.client)
    except Exception as error:  # it becomes the reply, as for a request that a task answers
        wait = Wait(failed(error), None)
    return HeldPull(context, request, plan, problem_of, topic, queue, wait, started)


def _can_wait(request: Request, params: PullParams, plan: RequestPlan) -> bool:
    return (
        params.wait_ms > 0
        and params.tag is None
        and params.filter is None
        and params.from_ is None
        and params.timestamp_ms is None
        and LAST_EVENT_ID not in request.headers
        and not may_be_large(params, plan.media)
    )


def _queue_of(plan: RequestPlan) -> int:
    queue = whole_number(plan.values["queue"])
    return -1 if queue is None else queue


class HeldPull:
    """A held pull. `future` is done when the reply can be made; cancel it to give up the pull."""

    __slots__ = ("_context", "_plan", "_problem_of", "_queue", "_request", "_started", "_topic",
                 "_wait", "future")  # fmt: skip

    def __init__(
        self,
        context: ApiContext,
        request: Request,
        plan: RequestPlan,
        problem_of: ProblemOf,
        topic: Topic,
        queue: int,
        wait: Wait,
        started: float,
    ) -> None:
        self._context = context
        self._request = request
        self._plan = plan
        self._problem_of = problem_of
        self._topic = topic
        self._queue = queue
        self._wait = wait
        self._started = started
        self.future = wait.future

    def give_up(self) -> None:
        """Free the pull's place, after its future was cancelled. May be called twice."""
        self._context.hold.end_cancelled(self._wait)

    def make_reply(self) -> Reply | None:
        """Return the reply, once the future is done. Errors become replies. Return None if a task
        must answer the request: its messages are not in memory, or the reply is large."""
        http, plan = self._context.http, self._plan
        held_s = monotonic() - self._started
        try:
            reply = self._deliver(held_s)
            if reply is None:
                return None
            http.access.check_still_valid(plan.principal)
        except Exception as error:
            reply = problem_reply(self._problem_of(error, self._request))
        took_s = monotonic() - self._started
        http.metrics.count_request(plan.route.path, reply.status, took_s - reply.held_s)
        return reply

    def _deliver(self, held_s: float) -> Reply | None:
        context, plan, topic, queue = self._context, self._plan, self._topic, self._queue
        reading, params, offset = context.store.reading, plan.params, self._request.offset
        assert offset is not None
        outcome = self.future.result().outcome
        check_outcome(outcome, topic)
        if outcome is Outcome.EXPIRED:
            state = reading.queue_state(topic, queue)
            fetched = Fetched((), offset, state.min_offset, state.max_offset, 0)
        else:
            found = reading.read_hot(
                topic,
                queue,
                offset,
                max_messages=params.max_messages,
                max_bytes=params.max_bytes,
                skip_corrupt=params.skip_corrupt,
            )
            if found is None or not found.pieces:
                return None
            fetched = found
        call = make_call(context, self._request, plan)
        reply = deliver_at_once(call, topic, QueueRead(queue, fetched), held_s)
        if reply is not None and fetched.pieces:
            note_age(call, fetched.pieces[0])
        return reply
