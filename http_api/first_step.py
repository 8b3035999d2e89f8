"""Beginning a coroutine at once, in place of in the loop's next turn.

Most requests wait for nothing, or once: until their messages are stored, or until some come.
Those need no task. One that waits again gets a task from there on. (From Python 3.12 on asyncio
can begin a task so; 3.11 cannot.)
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


def begun(coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> "Begun | None":
    """Run a coroutine up to its first wait; return what goes on with it from there, None when it
    has ended. What it raises before that passes through.

    Until its second wait it runs in no task: there it must not ask for the current one, as
    asyncio.timeout does.
    """
    try:
        awaited = coroutine.send(None)
    except StopIteration:
        return None
    return Begun(coroutine, awaited, loop)


class Begun:
    """A coroutine from its first wait on, which goes on by itself: behind that wait at once, from
    a second one on in a task. It is made one earlier for whoever wants to cancel it, or to wait
    for its end; that must not have come."""

    __slots__ = ("_awaited", "_coroutine", "_loop", "_task")

    def __init__(
        self, coroutine: Coroutine[Any, Any, None], awaited: Any, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._coroutine = coroutine
        self._awaited: asyncio.Future[Any] | None = None
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        if isinstance(awaited, asyncio.Future):
            self._awaited = awaited
            awaited._asyncio_future_blocking = False  # as a task answers to one that is awaited
            awaited.add_done_callback(self._go_on)
        else:
            self._continue_in_task(awaited)

    def as_task(self) -> "asyncio.Task[None]":
        """Return the task that goes on with it."""
        if self._task is not None:
            return self._task
        awaited = self._awaited
        assert awaited is not None
        awaited.remove_done_callback(self._go_on)
        awaited._asyncio_future_blocking = True
        return self._continue_in_task(awaited)

    def cancel(self) -> None:
        """Cancel it where it waits, and what it waits for in this very turn, as a task does."""
        awaited = self._awaited
        task = self.as_task()
        if awaited is not None:
            awaited.cancel()
        task.cancel()

    def _go_on(self, _: "asyncio.Future[Any]") -> None:
        """Take the step behind the first wait."""
        if self._task is not None:
            return  # that became its first step, after this call was under way
        try:
            awaited = self._coroutine.send(None)
        except (StopIteration, asyncio.CancelledError):
            self._awaited = None
        else:
            self._continue_in_task(awaited)

    def _continue_in_task(self, awaited: Any) -> "asyncio.Task[None]":
        task = self._task = self._loop.create_task(_Rest(self._coroutine, awaited))
        self._awaited = None
        del self._coroutine
        return task


class _Rest(Coroutine[Any, Any, None]):
    """A coroutine that waits for `awaited`, to a task that has not seen that yet."""

    __slots__ = ("_awaited", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, None], awaited: Any) -> None:
        self._coroutine = coroutine
        self._awaited = awaited

    def send(self, value: Any) -> Any:
        """Hand on what is waited for, then whatever the coroutine goes on with."""
        awaited, self._awaited = self._awaited, None
        return self._coroutine.send(value) if awaited is None else awaited

    def throw(self, *error: Any) -> Any:
        """Let the coroutine see it, also before the task's first step."""
        self._awaited = None
        try:
            return self._coroutine.throw(*error)
        finally:
            # What passes through holds this frame by its traceback, which must not hold it: a
            # circle that would keep all that the coroutine held until the garbage is collected.
            del error

    def close(self) -> None:
        """End the coroutine where it stands."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        raise TypeError("for a task alone")
