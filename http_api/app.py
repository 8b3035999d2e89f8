"""The API: every request passes this one door, and every error ends at it."""

import asyncio
from time import monotonic
from typing import Any, NoReturn

from aiohttp import hdrs

from holdfast.http_api.access.auditing import Auditing, audit_denial
from holdfast.http_api.access.door import Denied
from holdfast.http_api.access.grants import Principal
from holdfast.http_api.call import Call
from holdfast.http_api.codecs import JSON, negotiate
from holdfast.http_api.connections import Connections
from holdfast.http_api.context import ApiContext, BrokerStatus
from holdfast.http_api.framing import check_framing
from holdfast.http_api.headers import listed
from holdfast.http_api.metrics import StateCollector
from holdfast.http_api.openapi import openapi_document
from holdfast.http_api.operations import not_ready
from holdfast.http_api.problems import problem_for
from holdfast.http_api.queries import Queries
from holdfast.http_api.reply import Reply, problem_reply
from holdfast.http_api.request import Request
from holdfast.http_api.router import Router
from holdfast.http_api.routes import ROUTES

__all__ = ["ApiContext", "App", "BrokerStatus", "make_app"]

#: How often the event loop's lateness is measured.
_LAG_INTERVAL_S = 1.0


def make_app(context: ApiContext) -> "App":
    """Return the application that serves the API; `start_server` starts and stops it."""
    context.openapi = openapi_document(ROUTES, context.config, context.version)
    context.registry.register(StateCollector(context))
    return App(context, Router(ROUTES))


class App:
    """Answers requests. The store and the hold service stay the caller's to start and stop.

    aiohttp's own application tries its routes' patterns one after the other and runs a chain of
    handlers; of what an empty request cost, that was a sixth.
    """

    def __init__(self, context: ApiContext, router: Router) -> None:
        self._context = context
        self._router = router
        self._lag: asyncio.Task[NoReturn] | None = None
        self._queries = Queries(context.config)

    @property
    def connections(self) -> Connections:
        """Where the server that serves this keeps its connections."""
        return self._context.connections

    def start(self) -> None:
        """Begin to measure how late the event loop is."""
        self._lag = asyncio.create_task(self._measure_lag(), name="event-loop-lag")

    async def answer(self, request: Request) -> Reply:
        """Return the reply to a request, whatever happens. Cancelling passes through."""
        context = self._context
        started = monotonic()
        path = "other"
        act: Auditing | None = None
        try:
            check_framing(request)
            route, values, principal = context.access.admit(request, self._router)
            path = route.path
            if route.act and context.audit is not None:
                act = Auditing(context.audit, request, route, values, principal)
            limiter = context.rate_limiter if not route.is_open else None
            if limiter is not None:
                limiter.admit(request, principal)
            if not route.is_open and (phase := context.phase()) != "ready":
                raise not_ready(phase)
            params: Any = self._queries.read(route.params, request.url.raw_query_string)
            media = (
                negotiate(listed(request.headers, hdrs.ACCEPT), route.offers)
                if route.offers
                else JSON
            )
            reply = await route.handler(Call(context, request, values, params, media, principal))
            if reply.held_s:
                self._check_still(principal, reply)
            if limiter is not None:
                limiter.answered(request, principal, reply)
            if act is not None:
                act.answered(reply)
        except Exception as error:
            problem = problem_for(error)
            _let_go_of_frames(error)
            if context.audit is not None and isinstance(problem, Denied):
                audit_denial(context.audit, request, problem)
            elif act is not None:
                act.refused(problem)
            reply = problem_reply(problem)
        except asyncio.CancelledError:
            if act is not None:
                act.abandoned()
            raise
        finally:
            context.bodies.done(request)
        context.metrics.answered(path, reply.status, monotonic() - started - reply.held_s)
        return reply

    def _check_still(self, principal: Principal, reply: Reply) -> None:
        """Raise Denied if a token does not hold any more; its reply is not sent then."""
        try:
            self._context.access.check_still(principal)
        except Denied:
            reply.unsent()
            raise

    async def release(self) -> None:
        """Answer whoever is held; let changes that were begun come to their end."""
        if self._context.phase() != "recovering":
            await self._context.hold.stop()
            self._context.groups.drain()
        await self._context.changes_done()

    async def stop(self) -> None:
        """End what `start` began. May be called twice."""
        lag, self._lag = self._lag, None
        if lag is not None:
            lag.cancel()
            await asyncio.wait([lag])

    async def _measure_lag(self) -> NoReturn:
        loop, gauge = asyncio.get_running_loop(), self._context.metrics.loop_lag_seconds
        while True:
            due = loop.time() + _LAG_INTERVAL_S
            await asyncio.sleep(_LAG_INTERVAL_S)
            gauge.set(max(loop.time() - due, 0.0))


def _let_go_of_frames(error: BaseException) -> None:
    """Take away where an error, and those that it came from, were raised.

    That holds the frames of the whole call, and with them its body and its messages: for good
    where one error is told to many, and in a circle, which only the garbage collector would find,
    where a frame or what it refers to holds the error: a future, a body that broke off.
    """
    chain = [error]
    while chain:
        each = chain.pop()
        each.__traceback__ = None
        chain += [from_ for from_ in (each.__cause__, each.__context__) if from_ is not None]
