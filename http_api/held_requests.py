"""What all requests share that are held without a task (`wire/connection.py`, HeldRequest)."""

from asyncio import Future, get_running_loop
from collections.abc import Callable
from typing import Any

from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.request import Request

ProblemOf = Callable[[Exception, Request], Problem]
"""Returns the problem for an error of a request, and logs it."""


def failed(error: Exception) -> "Future[Any]":
    """Return a future that has failed with `error`."""
    future: Future[Any] = get_running_loop().create_future()
    future.set_exception(error)
    return future
