"""What all requests share that are held without a task (`wire/connection.py`, HeldRequest)."""

from asyncio import Future, get_running_loop
from collections.abc import Callable
from typing import Any

from holdfast.http_api.routing.call import Call
from holdfast.http_api.routing.context import ApiContext
from holdfast.http_api.routing.plan import RequestPlan
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.request import Request

ProblemOf = Callable[[Exception, Request], Problem]
"""Returns the problem for an error of a request, and logs it."""


def make_call(context: ApiContext, request: Request, plan: RequestPlan) -> Call[Any]:
    """Return the argument of the request's handler, from the plan of its stored head."""
    return Call(
        context.http,
        request,
        plan.values,
        plan.params,
        plan.media,
        plan.principal,
        context,
    )


def failed(error: Exception) -> "Future[Any]":
    """Return a future that has failed with `error`."""
    future: Future[Any] = get_running_loop().create_future()
    future.set_exception(error)
    return future
