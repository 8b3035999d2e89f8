"""holdfast.client.transport.loop_thread: which calls other threads may make, and how the thread
ends."""

import asyncio
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

import pytest

from holdfast.client.errors import ClientClosed
from holdfast.client.transport.loop_thread import LoopThread


async def done() -> str:
    return "done"


async def nothing_last() -> None:
    pass


def test_a_coroutine_runs_until_the_thread_is_stopped() -> None:
    thread = LoopThread()
    assert thread.run(done()) == "done"
    for _ in range(2):
        thread.stop(nothing_last)
    with pytest.raises(ClientClosed):
        thread.run(done())
    with pytest.raises(ClientClosed):
        thread.call_soon(print)


def test_a_thread_without_uvloop_has_the_loop_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    async def loop_module() -> str:
        return type(asyncio.get_running_loop()).__module__.partition(".")[0]

    for expected in ("uvloop", "asyncio"):
        thread = LoopThread()
        assert thread.run(loop_module()) == expected
        thread.stop(nothing_last)
        monkeypatch.setitem(sys.modules, "uvloop", None)


def test_an_unused_thread_does_not_run_the_last_coroutine() -> None:
    ran: list[str] = []

    async def last() -> None:
        ran.append("last")

    LoopThread().stop(last)
    assert ran == []


def test_a_coroutine_that_arrives_during_the_stop_raises_client_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stop comes as late as possible: the loop was found, but has received no work yet."""
    thread = LoopThread()
    thread.run(done())
    stopping = threading.Thread(target=thread.stop, args=(nothing_last,))
    give = asyncio.run_coroutine_threadsafe

    def stopped_meanwhile(
        coroutine: Coroutine[Any, Any, str], loop: asyncio.AbstractEventLoop
    ) -> "Future[str]":
        monkeypatch.undo()
        stopping.start()
        # until the loop has ended, or until the timeout if something keeps it alive
        stopping.join(0.1)
        return give(coroutine, loop)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", stopped_meanwhile)
    with pytest.raises(ClientClosed):
        thread.run(asyncio.sleep(3600, "never"))
    stopping.join()
