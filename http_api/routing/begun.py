"""Requests that begin in one call, so that they need neither a task nor coroutines.

A route may have a function `begin` beside its handler. It begins the usual form of the route's
requests, and leaves every other form to the handler. Both use the same functions, so the replies
are the same.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from holdfast.http_api.wire.reply import Reply, nothing


class Begun(Protocol):
    """A request that has begun, and waits. On the event loop."""

    @property
    def future(self) -> asyncio.Future[Any]:
        """Done when the request can continue. To give up the request, cancel it and call
        `give_up`."""

    def make_reply(self) -> "Reply | Begun | None":
        """Free what the wait occupies, once the future is done. Return the reply, or what the
        request waits for next. Raises the errors of the request. Return None if the handler must
        answer the request from its beginning."""

    def give_up(self) -> None:
        """Free what the request occupies, because it gets no reply. The future is done or
        cancelled. May be called twice, but not after `make_reply`."""


Begin = Callable[[Any], Begun | Reply | None]
"""Takes a Call. Answers a request, or begins it, without waiting. Raises the errors of the request.
Returns None if the handler must answer the request; nothing of it was done or read then.

The call's query is that of a stored head: its `offset` may be that of an earlier request, and
`request.offset` is the right one.
"""


class BegunTask:
    """A request that a task completes: the task that calls `finish`, otherwise a new one."""

    __slots__ = ("_rest", "_task", "_undo")

    def __init__(
        self, rest: Coroutine[Any, Any, Reply], undo: Callable[[], object] = nothing
    ) -> None:
        """`undo` frees what the request occupies when `rest` begins. It is called once if there is
        no reply."""
        self._rest = rest
        self._undo = undo
        self._task: asyncio.Task[Reply] | None = None

    @property
    def future(self) -> asyncio.Task[Reply]:
        if self._task is None:
            self._task = asyncio.create_task(self._rest)
        return self._task

    async def finish(self) -> Reply:
        """Return the reply."""
        try:
            return await self._rest
        except BaseException:
            self._undo()
            raise

    def make_reply(self) -> Reply:
        try:
            return self.future.result()
        except Exception:
            self.give_up()
            raise

    def give_up(self) -> None:
        undo, self._undo = self._undo, nothing
        task = self.future
        if task.done() and not task.cancelled() and task.exception() is None:
            reply = task.result()
            undo, reply.on_undelivered = reply.on_undelivered, nothing
        undo()


async def finish(begun: Begun | Reply) -> Reply:
    """Return the reply of a begun request that needs no other handler. If this call is cancelled,
    the request is given up."""
    while not isinstance(begun, Reply):
        if isinstance(begun, BegunTask):
            return await begun.finish()
        try:
            with suppress(Exception):  # `make_reply` raises it
                await begun.future
        except asyncio.CancelledError:
            begun.give_up()
            raise
        following = begun.make_reply()
        assert following is not None
        begun = following
    return begun
