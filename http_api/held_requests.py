"""Usual requests, answered without a task for each request.

Most requests are alike: their head is stored (`wire/head_cache.py`), and they wait for few events.
Such a request needs neither a task nor coroutines: it waits as a future, and continues in one step
when the future is done. The route's `begin` decides which requests these are (`routing/begun.py`).
All others are answered by a task (`app.py`). On the event loop.
"""

from collections.abc import Callable
from time import monotonic
from typing import Any

from holdfast.http_api.access.authorization import Denied
from holdfast.http_api.routing.begun import Begun
from holdfast.http_api.routing.call import Call
from holdfast.http_api.routing.context import ApiContext
from holdfast.http_api.routing.plan import RequestPlan
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Reply, problem_reply
from holdfast.http_api.wire.request import Request

ProblemOf = Callable[[Exception, Request], Problem]
"""Returns the problem for an error of a request, and logs it."""


def hold_request(
    context: ApiContext, request: Request, plan: RequestPlan, problem_of: ProblemOf
) -> "HeldRequest | Reply | None":
    """Answer a request with a stored head and the plan of that head, or begin to.

    Return None if a task must answer the request. The caller has checked that the plan applies and
    that the broker is ready.
    """
    begin = plan.route.begin
    if begin is None:
        return None
    started = monotonic()
    http, principal, name = context.http, plan.principal, plan.client_name
    call: Call[Any] = Call(
        http, request, plan.values, plan.params, plan.media, principal, name, context
    )
    try:
        begun = begin(call)
    except Exception as error:
        begun = problem_reply(problem_of(error, request))
    if begun is None:
        return None
    if not isinstance(begun, Reply):
        return HeldRequest(call, plan.route.path, problem_of, begun, started)
    http.bodies.done(request)
    http.metrics.count_request(plan.route.path, begun.status, monotonic() - started)
    return begun


class HeldRequest:
    """A begun request, as the connection uses it (`wire/connection.py`, HeldRequest)."""

    __slots__ = ("_begun", "_call", "_path", "_problem_of", "_started", "future")

    def __init__(
        self, call: Call[Any], path: str, problem_of: ProblemOf, begun: Begun, started: float
    ) -> None:
        self._call = call
        self._path = path
        self._problem_of = problem_of
        self._begun = begun
        self._started = started
        self.future = begun.future

    def give_up(self) -> None:
        """Free what the request occupies, after its future was cancelled or done. May be called
        twice."""
        self._begun.give_up()
        self._end_wait()
        self._call.http.bodies.done(self._call.request)

    def make_reply(self) -> "Reply | HeldRequest | None":
        """Return the reply, once the future is done, or this request if it waits again. Errors
        become replies. Return None if a task must answer the request from its beginning."""
        call, http = self._call, self._call.http
        try:
            self._end_wait()
            reply = self._begun.make_reply()
            if reply is None:
                return None
            if not isinstance(reply, Reply):
                self._begun, self.future = reply, reply.future
                return self
            if reply.held_s:
                self._check_still_valid(reply)
        except Exception as error:
            reply = problem_reply(self._problem_of(error, call.request))
        http.bodies.done(call.request)
        took_s = monotonic() - self._started
        http.metrics.count_request(self._path, reply.status, took_s - reply.held_s)
        return reply

    def _end_wait(self) -> None:
        if self.future.done() and not self.future.cancelled():
            self.future.exception()  # asyncio logs an error that no code has read

    def _check_still_valid(self, reply: Reply) -> None:
        """Raise Denied if the token was revoked or has expired while the request was held. The
        reply is then not sent."""
        try:
            self._call.http.access.check_still_valid(self._call.principal)
        except Denied:
            reply.on_undelivered()
            raise
