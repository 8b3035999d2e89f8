"""Starts a coroutine at once, instead of in the next iteration of the event loop.

Most requests wait at most once: until their messages are stored, or until messages arrive. Such a
request needs no asyncio task. A coroutine that waits a second time continues in a task. (Since
Python 3.12 asyncio can start tasks eagerly; 3.11 cannot.)
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


def begun(coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> "Begun | None":
    """Run a coroutine until it waits. Return a handle to the rest, or None if it has finished.

    Exceptions before the first wait propagate to the caller. Until it waits a second time, the
    coroutine does not run in a task, so it must not use the current task (asyncio.timeout does).
    """
    try:
        awaited = coroutine.send(None)
    except StopIteration:
        return None
    return Begun(coroutine, awaited, loop)


class Begun:
    """A coroutine that waits for the first time.

    When this wait ends, the coroutine continues at once. If it waits a second time, it runs in a
    task from then on. `as_task` and `cancel` create the task earlier; they must not be called after
    the coroutine has finished.
    """

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
            awaited._asyncio_future_blocking = False  # asyncio's tasks do the same
            awaited.add_done_callback(self._go_on)
        else:
            self._continue_in_task(awaited)

    def as_task(self) -> "asyncio.Task[None]":
        """Return a task that runs the rest of the coroutine. Create it if there is none yet."""
        if self._task is not None:
            return self._task
        awaited = self._awaited
        assert awaited is not None
        awaited.remove_done_callback(self._go_on)
        awaited._asyncio_future_blocking = True
        return self._continue_in_task(awaited)

    def cancel(self) -> None:
        """Cancel the coroutine, and at once also the future that it waits for, as a task does."""
        awaited = self._awaited
        task = self.as_task()
        if awaited is not None:
            awaited.cancel()
        task.cancel()

    def _go_on(self, _: "asyncio.Future[Any]") -> None:
        """Continue after the first wait."""
        if self._task is not None:
            return  # the call was already scheduled when the task was created
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
    """Lets a new task run a coroutine that already waits for `awaited`."""

    __slots__ = ("_awaited", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, None], awaited: Any) -> None:
        self._coroutine = coroutine
        self._awaited = awaited

    def send(self, value: Any) -> Any:
        """Yield `awaited` to the task first, then continue the coroutine."""
        awaited, self._awaited = self._awaited, None
        return self._coroutine.send(value) if awaited is None else awaited

    def throw(self, *error: Any) -> Any:
        """Throw an exception into the coroutine, also before the task's first step."""
        self._awaited = None
        try:
            return self._coroutine.throw(*error)
        finally:
            # The exception's traceback refers to this frame. If the frame referred to the
            # exception, the cycle would keep all objects of the coroutine alive until garbage
            # collection.
            del error

    def close(self) -> None:
        """Close the coroutine where it waits."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        raise TypeError("for a task alone")
