"""The application: answers every request, and turns every error into a reply."""

import asyncio
import logging
from collections.abc import Coroutine
from copy import copy
from functools import cache
from time import monotonic
from typing import Any, NoReturn

from holdfast.http_api.access.access_log import AccessLog
from holdfast.http_api.access.audit import AuditedRequest, record_denial
from holdfast.http_api.access.authorization import UNKNOWN, Denied
from holdfast.http_api.access.browsers import CrossOrigin
from holdfast.http_api.access.grants import Principal
from holdfast.http_api.access.tokens import redact_secrets
from holdfast.http_api.endpoints.events import reconnect_later
from holdfast.http_api.endpoints.operations import not_ready
from holdfast.http_api.endpoints.state_metrics import HttpCollector, StateCollector
from holdfast.http_api.held_requests import hold_request
from holdfast.http_api.limits.rate_limiter import client_name
from holdfast.http_api.routes import AMQP_PATH, PAGES, ROUTES, UPGRADES
from holdfast.http_api.routing.call import Call, OpenCall
from holdfast.http_api.routing.codecs import EVENTS, JSON, negotiate
from holdfast.http_api.routing.context import (
    AmqpUse,
    ApiContext,
    BrokerFigures,
    BrokerStatus,
    HttpContext,
)
from holdfast.http_api.routing.openapi import openapi_document
from holdfast.http_api.routing.params import Queries
from holdfast.http_api.routing.plan import RequestPlan
from holdfast.http_api.routing.router import Route, Router
from holdfast.http_api.wire.aiohttp_parser import EMPTY_PAYLOAD, hdrs
from holdfast.http_api.wire.connection import HeldRequest
from holdfast.http_api.wire.problems import Problem, problem_for
from holdfast.http_api.wire.reply import Reply, problem_reply
from holdfast.http_api.wire.request import (
    ORIGIN,
    SEC_FETCH_SITE,
    Request,
    check_framing,
    list_header,
)

__all__ = [
    "AmqpUse",
    "ApiContext",
    "App",
    "BrokerFigures",
    "BrokerStatus",
    "HttpContext",
    "make_app",
]

_logger = logging.getLogger(__name__)

#: How often the broker measures how late the event loop runs timers.
_LAG_INTERVAL_S = 1.0


def make_app(http: HttpContext) -> "App":
    """Return the application that serves the API. `start_server` starts it."""
    http.openapi = cache(lambda: openapi_document(ROUTES, http.config, http.version))
    http.registry.register(HttpCollector(http))
    return App(http, Router((*ROUTES, *UPGRADES, *PAGES)))


class App:
    """Answers requests. The caller starts and stops the store and the hold service.

    Until `serve` is called, only the open routes are served: health, metrics, and the OpenAPI
    document. All other requests are refused.

    This class replaces aiohttp's application, which tries the patterns of the routes one after
    another and runs a chain of handlers. That took a sixth of the time of a minimal request.
    """

    def __init__(self, http: HttpContext, router: Router) -> None:
        self.http = http
        self._context: ApiContext | None = None
        self._router = router
        self._lag: asyncio.Task[NoReturn] | None = None
        self._queries = Queries(http.config)
        form = http.config.access_log
        self._access_log = AccessLog(form) if form != "off" else None
        self._pages = http.pages

    def serve(self, context: ApiContext) -> None:
        """Serve every route from now on."""
        self.http.registry.register(StateCollector(context))
        self._context = context

    def start(self) -> None:
        """Begin to measure how late the event loop is."""
        self._lag = asyncio.create_task(self._measure_lag(), name="event-loop-lag")

    def answer(self, request: Request) -> Coroutine[Any, Any, Reply]:
        """Return the reply to a request. Errors become replies; only CancelledError propagates."""
        if self._pages is None or ORIGIN not in request.headers:
            return self._answer(request)
        return self._answer_page(request, self._pages)

    def hold(self, request: Request) -> HeldRequest | Reply | None:
        """Answer a usual request without a task, or begin to. Return None for every other
        request."""
        http, context = self.http, self._context
        if request.known is None or context is None or http.phase != "ready":
            return None
        if http.rate_limiter is not None or self._access_log is not None:
            return None
        plan = self._known_plan(request)
        return None if plan is None else hold_request(context, request, plan, self._problem_of)

    async def _answer_page(self, request: Request, pages: CrossOrigin) -> Reply:
        """Answer a web page's request, and tell the browser whether the page may read the reply."""
        reply = copy(await self._answer(request))
        reply.headers = (*reply.headers, *pages.fields(request.headers[ORIGIN]))
        return reply

    async def _answer(self, request: Request) -> Reply:
        http, limiter = self.http, self.http.rate_limiter
        started = monotonic()
        path, who = "other", UNKNOWN.name
        act: AuditedRequest | None = None
        payer: Principal | None = None
        """The principal whose rate limit is charged with the reply; None if no limit is charged."""
        try:
            try:
                preflight, plan = None, self._known_plan(request)
                if plan is None:
                    check_framing(request)
                    if self._pages is not None:
                        preflight = self._preflight(request, self._pages)
                    if preflight is None:
                        plan = self._authorize(request)
            except Problem:
                if limiter is not None:
                    payer = limiter.admit(request, http.access.principal_of(request))
                raise
            if plan is None:
                assert preflight is not None
                if limiter is not None:
                    payer = limiter.admit(request, UNKNOWN)
                reply = preflight
            else:
                route, principal = plan.route, plan.principal
                path, who = route.path, principal.name
                if route.act and http.audit is not None:
                    act = AuditedRequest(http.audit, request, route.act, plan.values, principal)
                if limiter is not None and (route.is_page or not route.is_open):
                    payer = limiter.admit(request, principal)
                call = self._make_call(request, plan)
                reply = reconnect_later() if call is None else await route.handler(call)
                if reply.held_s:
                    self._check_still_valid(principal, reply)
                if act is not None:
                    act.record_reply(reply)
        except Exception as error:
            problem = self._problem_of(error, request, act)
            if isinstance(problem, Denied):
                who = problem.principal
            reply = problem_reply(problem)
        except asyncio.CancelledError:
            if act is not None:
                act.record_disconnect()
            raise
        finally:
            if request.content is not EMPTY_PAYLOAD:
                http.bodies.done(request)
        if limiter is not None and payer is not None:
            limiter.charge(request, payer, reply)
        took_s = monotonic() - started
        http.metrics.count_request(path, reply.status, took_s - reply.held_s)
        if self._access_log is not None:
            self._access_log.log_request(request, who, reply, took_s)
        return reply

    def _known_plan(self, request: Request) -> RequestPlan | None:
        """Return the plan of an earlier request with the same head, if it still applies.

        It does not apply after a change of the tokens, or when the caller's token has expired.
        """
        plan: RequestPlan | None = None if request.known is None else request.known.plan
        access = self.http.access
        if plan is None or plan.tokens is not access.tokens:
            return None
        return plan if access.is_still_valid(plan.principal) else None

    def _authorize(self, request: Request) -> RequestPlan:
        """Return the plan of a request with its caller, route, and parameters in the path.

        Raises Denied, and Problem (not-found, method-not-allowed). An unauthenticated caller gets
        Denied also for an unknown path.
        """
        access = self.http.access
        principal, refusal = access.identify(request)
        path = request.url.raw_path
        if path == "/" and hdrs.SEC_WEBSOCKET_PROTOCOL in request.headers:
            path = AMQP_PATH  # some clients of AMQP over WebSocket cannot set a path
        try:
            route, values = self._router.find(request.method, path)
        except Problem:
            if refusal is not None:
                raise refusal from None
            raise
        access.check(principal, refusal, route.access, values, request.headers, self._pages)
        name = client_name(request, principal)
        return RequestPlan(access.tokens, principal, route, values, name)

    def _preflight(self, request: Request, pages: CrossOrigin) -> Reply | None:
        """Return the reply to a browser's CORS preflight request; None for any other request.

        Raises Denied if the request's host name is not allowed.
        """
        if ORIGIN not in request.headers:
            return None
        reply = pages.preflight(request.method, request.headers)
        if reply is not None:
            self.http.access.check_host(request.headers)
        return reply

    def _make_call(self, request: Request, plan: RequestPlan) -> OpenCall[Any] | None:
        """Check the broker's state, the query and the media type. Return the handler's argument.

        Return None if the client asks for an event stream and must reconnect later.
        """
        http, context, route = self.http, self._context, plan.route
        phase = "ready" if route.is_open else http.phase
        if phase != "ready" and not _asks_for_events(request, route):
            raise not_ready(phase)
        if not plan.is_complete:
            params = self._queries.read(route.params, request.url.raw_query_string)
            media = JSON
            if route.offers:
                media = negotiate(list_header(request.headers, hdrs.ACCEPT), route.offers)
            plan.complete(params, media)
            if request.known is not None and self._may_store(request, plan):
                http.connections.heads.store(request.known, plan)
        if phase != "ready":
            return None
        params, principal, name = plan.params_at(request.offset), plan.principal, plan.client_name
        if context is None:
            return OpenCall(http, request, plan.values, params, plan.media, principal, name)
        return Call(http, request, plan.values, params, plan.media, principal, name, context)

    def _may_store(self, request: Request, plan: RequestPlan) -> bool:
        """Return whether later requests with this head may use this plan.

        Nothing but the head, the tokens and the configuration may determine the plan: not the
        client's certificate, and no page of a browser.
        """
        headers = request.headers
        return (
            not (plan.route.act or plan.route.is_open or plan.media == EVENTS)
            and (not self.http.access.is_required or hdrs.AUTHORIZATION in headers)
            and ORIGIN not in headers
            and SEC_FETCH_SITE not in headers
        )

    def _problem_of(
        self, error: Exception, request: Request, act: AuditedRequest | None = None
    ) -> Problem:
        """Return the problem for an error.

        Record the problem in the audit log, if it belongs there, and in the debug log.
        """
        problem, audit = problem_for(error), self.http.audit
        _clear_tracebacks(error)
        if audit is not None and isinstance(problem, Denied):
            record_denial(audit, request, problem)
        elif act is not None:
            act.record_problem(problem)
        if _logger.isEnabledFor(logging.DEBUG):
            what = f"{request.method} {redact_secrets(request.url.raw_path)}"
            why = redact_secrets(str(problem))
            _logger.debug("refused %s of %s: %s", what, request.peer.client, why)
        return problem

    def _check_still_valid(self, principal: Principal, reply: Reply) -> None:
        """Raise Denied if the token was revoked or has expired while the request was held.

        The reply is then not sent, and its `on_undelivered` is called.
        """
        try:
            self.http.access.check_still_valid(principal)
        except Denied:
            reply.on_undelivered()
            raise

    async def release(self) -> None:
        """Wake all held requests, so that they are answered, and wait for running changes."""
        if self._context is not None:
            await self._context.hold.stop()
            self._context.groups.drain()
            await self._context.wait_for_changes()

    async def stop(self) -> None:
        """Stop measuring the event loop. May be called twice."""
        lag, self._lag = self._lag, None
        if lag is not None:
            lag.cancel()
            await asyncio.wait([lag])

    async def _measure_lag(self) -> NoReturn:
        loop, metrics = asyncio.get_running_loop(), self.http.metrics
        while True:
            due = loop.time() + _LAG_INTERVAL_S
            await asyncio.sleep(_LAG_INTERVAL_S)
            metrics.set_lag(max(loop.time() - due, 0.0))


def _asks_for_events(request: Request, route: Route) -> bool:
    """Return whether a client asks for an event stream.

    A browser's EventSource never reconnects after a status other than 200. So a broker that is not
    ready replies with 200 and a stream that ends immediately, and the client reconnects later.
    """
    accept = list_header(request.headers, hdrs.ACCEPT)
    return EVENTS in route.offers and EVENTS in accept and negotiate(accept, route.offers) == EVENTS


def _clear_tracebacks(error: BaseException) -> None:
    """Clear the tracebacks of an error, and of all errors that caused it.

    A traceback keeps the frames of the whole call alive, and so also the request's body and its
    messages. Several requests may share the error, and the frames would stay in memory as long as
    the error. If a frame refers to the error, for example through a future, only the garbage
    collector could free both.
    """
    chain = [error]
    while chain:
        each = chain.pop()
        each.__traceback__ = None
        chain += [from_ for from_ in (each.__cause__, each.__context__) if from_ is not None]
