"""Beginning a coroutine at once, in place of in the loop's next turn.

Most requests are answered without waiting for anything: those need no task. One that waits gets
a task from there on. (From Python 3.12 on asyncio can begin a task so; 3.11 cannot.)
"""

import asyncio
import types
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
    return loop.create_task(_rest(coroutine, awaited))


async def _rest(coroutine: Coroutine[Any, Any, None], awaited: Any) -> None:
    await _continued(coroutine, awaited)


@types.coroutine
def _continued(coroutine: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Go on with a coroutine that waits for `awaited`; what is thrown in, it is to see."""
    while True:
        try:
            yield awaited
        except BaseException as error:
            try:
                awaited = coroutine.throw(error)
            except StopIteration:
                return
        else:
            yield from coroutine
            return
