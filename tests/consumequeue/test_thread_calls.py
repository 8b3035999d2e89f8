"""A call in a thread is awaited to its end, even if the caller is cancelled meanwhile."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.consumequeue.thread_calls import call_in_thread

PATIENCE_S = 20


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


class Call:
    """A call that keeps its thread until `end` is set."""

    def __init__(self) -> None:
        self.begun, self.end, self.ended = threading.Event(), threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.end.wait(PATIENCE_S)
        self.ended.set()
        return "done"


async def begin(call: Call, executor: ThreadPoolExecutor) -> "asyncio.Task[str]":
    """Return the calling task, once the thread is in the call."""
    task = asyncio.create_task(call_in_thread(call, executor=executor))
    assert await asyncio.to_thread(call.begun.wait, PATIENCE_S)
    return task


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_result_is_returned(executor: ThreadPoolExecutor) -> None:
    assert await call_in_thread(lambda: 7, executor=executor) == 7
    here = threading.get_ident()
    assert await call_in_thread(threading.get_ident) != here


async def test_the_error_is_raised(executor: ThreadPoolExecutor) -> None:
    with pytest.raises(ZeroDivisionError):
        await call_in_thread(lambda: 1 // 0, executor=executor)


async def test_cancelling_takes_effect_when_the_thread_is_done(
    executor: ThreadPoolExecutor,
) -> None:
    call = Call()
    task = await begin(call, executor)
    for _ in range(3):  # any number of times
        task.cancel()
        await turns()
        assert not task.done()
    call.end.set()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert call.ended.is_set()


async def test_a_call_cancelled_before_it_starts_is_not_made(executor: ThreadPoolExecutor) -> None:
    first, second = Call(), Call()
    at_work = await begin(first, executor)
    waiting = asyncio.create_task(call_in_thread(second, executor=executor))
    await turns()
    waiting.cancel()
    await turns()
    assert not waiting.done()  # it is still in the executor's queue
    first.end.set()
    assert await at_work == "done"
    await asyncio.wait((waiting,))
    assert waiting.cancelled()
    assert not second.begun.is_set()


async def test_the_failure_of_a_cancelled_call_is_not_logged(
    executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    begun, end = threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        end.wait(PATIENCE_S)
        raise OSError("the disk")

    with caplog.at_level(logging.DEBUG, "asyncio"):
        task = asyncio.create_task(call_in_thread(fail, executor=executor))
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        task.cancel()
        await turns()
        end.set()
        await asyncio.wait((task,))
        assert task.cancelled()
        del task
        await turns()
    assert "never retrieved" not in caplog.text
