"""Beginning a coroutine at once, in place of in the loop's next turn.

Most requests are answered without waiting for anything: those need no task. One that waits gets
a task from there on. (From Python 3.12 on asyncio can begin a task so; 3.11 cannot.)
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


def begun(
    coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop
) -> "asyncio.Task[None] | None":
    """Run a coroutine up to its first wait; return the task that goes on with it from there, None
    when it has ended. What it raises before that passes through.

    Until its first wait it runs in no task: there it must not ask for the current one, as
    asyncio.timeout does.
    """
    try:
        awaited = coroutine.send(None)
    except StopIteration:
        return None
    return loop.create_task(_Rest(coroutine, awaited))


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
