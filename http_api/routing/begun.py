"""Requests that begin in one call, so that they need neither a task nor coroutines.

A route may have a function `begin` beside its handler. It begins the usual form of the route's
requests, and leaves every other form to the handler. Both use the same functions, so the replies
are the same.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.http_api.wire.reply import Reply


class Begun(Protocol):
    """A request that has begun, and waits. On the event loop."""

    @property
    def future(self) -> asyncio.Future[Any]:
        """Done when the reply can be made. To give up the request, cancel it and call `end`."""

    def make_reply(self) -> Reply | None:
        """Return the reply, once the future is done and `end` was called. Raises the errors of the
        request. Return None if the handler must answer the request from its beginning."""

    def end(self) -> None:
        """Free what the request occupies. May be called twice."""


Begin = Callable[[Any], Begun | Reply | None]
"""Takes a Call. Answers a request, or begins it, without waiting. Raises the errors of the request.
Returns None if the handler must answer the request; nothing of it was done or read then.

The call's query is that of a stored head: its `offset` may be that of an earlier request, and
`request.offset` is the right one.
"""
