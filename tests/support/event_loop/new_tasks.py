"""Which coroutines became tasks."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def new_tasks() -> Iterator[list[str]]:
    """Yield a list to which each new task of the running event loop adds the name of its
    coroutine."""
    names: list[str] = []
    loop = asyncio.get_running_loop()

    def make(
        loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **more: Any
    ) -> "asyncio.Task[Any]":
        names.append(getattr(coroutine, "__qualname__", ""))
        return asyncio.Task(coroutine, loop=loop, **more)

    before = loop.get_task_factory()
    loop.set_task_factory(make)  # type: ignore[arg-type]
    try:
        yield names
    finally:
        loop.set_task_factory(before)
