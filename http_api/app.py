"""The API as an aiohttp application: each route behind the one door where errors end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import Any, NoReturn

from aiohttp import hdrs, web

from holdfast.http_api.call import Call
from holdfast.http_api.codecs import JSON, negotiate
from holdfast.http_api.context import ApiContext, BrokerStatus
from holdfast.http_api.metrics import StateCollector
from holdfast.http_api.openapi import openapi_document
from holdfast.http_api.operations import not_ready
from holdfast.http_api.params import read_params
from holdfast.http_api.problems import Problem, problem_for
from holdfast.http_api.reply import Reply, problem_reply
from holdfast.http_api.route import Route
from holdfast.http_api.routes import ROUTES

__all__ = ["CONTEXT", "ApiContext", "BrokerStatus", "make_app"]

CONTEXT = web.AppKey("context", ApiContext)

#: How often the event loop's lateness is measured.
_LAG_INTERVAL_S = 1.0

_Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(context: ApiContext) -> web.Application:
    """Return the application that serves the API.

    When it shuts down, held pulls are answered and changes under way are waited for; the store
    and the hold service stay the caller's to stop.
    """
    app = web.Application()
    app[CONTEXT] = context
    context.openapi = openapi_document(ROUTES, context.config, context.version)
    context.registry.register(StateCollector(context))
    expect = _expect_handler(context)
    for route in ROUTES:
        answer = _endpoint(context, route)
        app.router.add_route(route.method, route.path, answer, expect_handler=expect)
        if route.method == hdrs.METH_GET:
            app.router.add_route(hdrs.METH_HEAD, route.path, answer, expect_handler=expect)
    refuse = _nothing_here(context, list(app.router.resources()))
    app.router.add_route("*", "/{path:.*}", refuse, expect_handler=expect)
    app.on_shutdown.append(_release)
    app.cleanup_ctx.append(_measure_lag)
    return app


def _endpoint(context: ApiContext, route: Route) -> _Answer:
    async def answer(request: web.Request) -> Reply:
        started = monotonic()
        try:
            if not route.is_open and (phase := context.status().phase) != "ready":
                raise not_ready(phase)
            params: Any = read_params(route.params, request.query, context.config)
            media = (
                negotiate(request.headers.get(hdrs.ACCEPT, ""), route.offers)
                if route.offers
                else JSON
            )
            reply = await route.handler(Call(context, request, params, media))
        except Exception as error:
            reply = problem_reply(problem_for(error))
        context.metrics.answered(route.path, reply.status, monotonic() - started - reply.held_s)
        return reply

    return answer


def _expect_handler(context: ApiContext) -> Callable[[web.Request], Awaitable[Reply | None]]:
    """Return what answers "Expect: 100-continue": with the refusal of a body that is too
    large, before any of it is sent."""

    async def expect(request: web.Request) -> Reply | None:
        try:
            if request.headers[hdrs.EXPECT].lower() != "100-continue":
                raise Problem(
                    "malformed-request", "only Expect: 100-continue is understood; leave it out"
                )
            context.bodies.check_length(request)
        except Problem as problem:
            return problem_reply(problem)
        assert request.transport is not None
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return None

    return expect


def _nothing_here(context: ApiContext, resources: list[web.AbstractResource]) -> _Answer:
    """Return what answers the requests that no route takes."""

    async def refuse(request: web.Request) -> NoReturn:
        allowed: set[str] = set()
        for resource in resources:
            _, methods = await resource.resolve(request)
            allowed |= methods
        if not allowed:
            raise Problem(
                "not-found",
                f"there is nothing at {request.path[:200]!r}; /openapi.json lists every path",
            )
        problem = Problem(
            "method-not-allowed",
            f"{request.path[:200]!r} does not take {request.method[:20]}; "
            f"use {' or '.join(sorted(allowed))}",
            allowed=sorted(allowed),
        )
        problem.headers.append((hdrs.ALLOW, ", ".join(sorted(allowed))))
        raise problem

    async def answer(request: web.Request) -> Reply:
        try:
            await refuse(request)
        except Exception as error:
            reply = problem_reply(problem_for(error))
        context.metrics.answered("other", reply.status, 0.0)
        return reply

    return answer


async def _release(app: web.Application) -> None:
    """Answer the pulls that are held; let changes that were begun come to their end."""
    context = app[CONTEXT]
    if context.status().phase != "recovering":
        await context.hold.stop()
    await context.changes_done()


async def _measure_lag(app: web.Application) -> AsyncIterator[None]:
    """Keep measuring how late the event loop is for a timer."""
    loop, gauge = asyncio.get_running_loop(), app[CONTEXT].metrics.loop_lag_seconds

    async def measure() -> NoReturn:
        while True:
            due = loop.time() + _LAG_INTERVAL_S
            await asyncio.sleep(_LAG_INTERVAL_S)
            gauge.set(max(loop.time() - due, 0.0))

    task = asyncio.create_task(measure(), name="event-loop-lag")
    yield
    task.cancel()
    await asyncio.wait([task])
