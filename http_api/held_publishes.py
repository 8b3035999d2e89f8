"""Publishes that wait until they are stored, without a task for each publish.

Most publishes are alike: the head is stored (`wire/head_cache.py`), the body has arrived with the
head, and nothing but the disk has to be waited for. Such a publish needs neither a task nor
coroutines: it waits as a future, and its reply is made in one step when the messages are stored.
Everything else is answered by a task (`app.py`). Both use the same functions, so the replies are
the same. On the event loop.
"""

import asyncio
from time import monotonic
from typing import Any

from holdfast.http_api.endpoints.publish import BegunPublish, begin_at_once, publish
from holdfast.http_api.held_requests import ProblemOf, failed, make_call
from holdfast.http_api.routing.context import ApiContext
from holdfast.http_api.routing.plan import RequestPlan
from holdfast.http_api.wire.aiohttp_parser import EMPTY_PAYLOAD
from holdfast.http_api.wire.reply import Reply, problem_reply
from holdfast.http_api.wire.request import Request


def hold_publish(
    context: ApiContext, request: Request, plan: RequestPlan, problem_of: ProblemOf
) -> "HeldPublish | None":
    """Begin a publish with a stored head, and the plan of that head.

    Return None if the request must be answered by a task: it is no publish of the kind above. The
    caller has checked that the plan applies and that the broker is ready.
    """
    if plan.route.handler is not publish or request.content is EMPTY_PAYLOAD:
        return None
    started = monotonic()
    future: asyncio.Future[Any]
    try:
        begun = begin_at_once(make_call(context, request, plan))
        if begun is None:
            return None
        future = begun.future
    except Exception as error:  # it becomes the reply, as for a request that a task answers
        begun, future = None, failed(error)
    return HeldPublish(context, request, plan, problem_of, begun, future, started)


class HeldPublish:
    """A begun publish. `future` is done when the reply can be made; cancel it to give up waiting.

    After cancelling, the messages may still be stored.
    """

    __slots__ = ("_begun", "_context", "_plan", "_problem_of", "_request", "_started",
                 "future")  # fmt: skip

    def __init__(
        self,
        context: ApiContext,
        request: Request,
        plan: RequestPlan,
        problem_of: ProblemOf,
        begun: BegunPublish | None,
        future: asyncio.Future[Any],
        started: float,
    ) -> None:
        self._context = context
        self._request = request
        self._plan = plan
        self._problem_of = problem_of
        self._begun = begun
        """None if the publish could not begin; `future` then has the error."""
        self._started = started
        self.future = future

    def give_up(self) -> None:
        """Free what the publish occupies, after its future was cancelled. May be called twice."""
        if self._begun is not None:
            self._begun.end()
        self._context.http.bodies.done(self._request)
        if self.future.done() and not self.future.cancelled():
            self.future.exception()  # asyncio logs an error that no code has read

    def make_reply(self) -> Reply:
        """Return the reply, once the future is done. Errors become replies."""
        http, plan = self._context.http, self._plan
        self.give_up()
        try:
            self.future.result()
            assert self._begun is not None
            reply = self._begun.make_reply()
        except Exception as error:
            reply = problem_reply(self._problem_of(error, self._request))
        http.metrics.count_request(plan.route.path, reply.status, monotonic() - self._started)
        return reply
