"""Calls of functions in threads. Even a cancelled call is awaited until its thread is done, because
the caller may hold a semaphore, a lock or counted memory for the call."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def call_in_thread(
    function: Callable[[*Ts], T], *args: *Ts, executor: Executor | None = None
) -> T:
    """Call a function in a thread of `executor`, or of the event loop's own executor if `executor`
    is None. Return the function's result or raise its error.

    Cancelling takes effect when the thread is done. If no thread has started the call yet, the
    function is not called; but the task still waits until the executor reaches the call, so that
    the executor's queue stays bounded.
    """
    wanted: list[Callable[[], T]] = [partial(function, *args)]
    work = asyncio.get_running_loop().run_in_executor(executor, _call_last, wanted)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        wanted.clear()
        while not work.done():
            with suppress(asyncio.CancelledError):  # cancelled again
                await asyncio.wait((work,))
        if not work.cancelled():
            work.exception()  # retrieve it, so that asyncio does not log it
        raise


def _call_last(wanted: list[Callable[[], T]]) -> T:
    """Call the wanted function. Raises IndexError if the call was cancelled."""
    return wanted.pop()()
