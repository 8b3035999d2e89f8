import asyncio
import gc
import weakref

import pytest

from holdfast.http_api.wire.first_step import begun


async def test_what_waits_for_nothing_ends_at_once_and_without_a_task() -> None:
    seen = []

    async def work() -> None:
        seen.append(1)

    assert begun(work(), asyncio.get_running_loop()) is None
    assert seen == [1]


async def test_what_is_raised_at_once_passes_through() -> None:
    async def work() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        begun(work(), asyncio.get_running_loop())


async def test_what_waits_once_goes_on_by_itself_and_without_a_task() -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    ended = loop.create_future()

    async def work() -> None:
        woken = await future
        ended.set_result((woken, asyncio.current_task()))

    assert begun(work(), loop) is not None
    tasks = asyncio.all_tasks()
    future.set_result("woken")
    assert await ended == ("woken", None)
    assert tasks == asyncio.all_tasks()


async def test_what_waits_again_goes_on_in_a_task() -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    ended = loop.create_future()

    async def work() -> None:
        woken = await future
        await asyncio.sleep(0)
        async with asyncio.timeout(10):  # there is a task now
            ended.set_result(woken)

    assert begun(work(), loop) is not None
    future.set_result("woken")
    assert await ended == "woken"


@pytest.mark.parametrize("is_done", [False, True])
async def test_who_waits_for_its_end_sees_it_wherever_it_stands(is_done: bool) -> None:
    """This also holds if its future is done and its next step is pending: the step runs once."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    seen = []

    async def work() -> None:
        seen.append(await future)

    one = begun(work(), loop)
    assert one is not None
    if is_done:
        future.set_result("woken")
    task = one.as_task()
    assert one.as_task() is task
    if not is_done:
        future.set_result("woken")
    await task
    assert seen == ["woken"]


async def test_what_it_waits_for_may_fail_or_be_cancelled() -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: pytest.fail(str(context)))
    for error in (KeyError, asyncio.CancelledError):
        future = loop.create_future()
        ended = loop.create_future()

        async def work(future: "asyncio.Future[None]", ended: "asyncio.Future[type]") -> None:
            try:
                await future
            except (KeyError, asyncio.CancelledError) as raised:
                ended.set_result(type(raised))
                if isinstance(raised, asyncio.CancelledError):
                    raise

        assert begun(work(future, ended), loop) is not None
        if error is KeyError:
            future.set_exception(KeyError())
        else:
            future.cancel()
        assert await ended is error
        await asyncio.sleep(0)


async def test_a_bare_turn_of_the_loop_may_be_the_first_wait() -> None:
    seen = []

    async def work() -> None:
        await asyncio.sleep(0)
        seen.append(1)

    one = begun(work(), asyncio.get_running_loop())
    assert one is not None
    assert seen == []
    await one.as_task()
    assert seen == [1]


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_cancelling_reaches_what_waits_before_its_first_step_as_after(turns: int) -> None:
    loop = asyncio.get_running_loop()
    seen = []

    async def work() -> None:
        try:
            await loop.create_future()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    one = begun(work(), loop)
    assert one is not None
    for _ in range(turns):
        await asyncio.sleep(0)
    task = one.as_task()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def test_what_is_waited_for_is_cancelled_in_the_same_turn() -> None:
    """Like a task: the code that would complete the future sees that it was cancelled."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    async def work() -> None:
        await future

    one = begun(work(), loop)
    assert one is not None
    one.cancel()
    assert future.cancelled()
    with pytest.raises(asyncio.CancelledError):
        await one.as_task()


@pytest.mark.parametrize("turns", [0, 2])
async def test_what_was_cancelled_may_still_clean_up_and_wait_for_that(turns: int) -> None:
    loop = asyncio.get_running_loop()
    seen = []

    async def work() -> None:
        try:
            await loop.create_future()
        finally:
            await asyncio.sleep(0)
            seen.append("clean")

    one = begun(work(), loop)
    assert one is not None
    for _ in range(turns):
        await asyncio.sleep(0)
    task = one.as_task()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["clean"]


@pytest.mark.parametrize("turns", [0, 2])
async def test_what_was_cancelled_lets_go_of_what_it_held_at_once(turns: int) -> None:
    """By reference counts: no reference cycle is left for the garbage collector."""

    class Held:
        pass

    loop = asyncio.get_running_loop()
    seen = []

    async def work() -> None:
        held = Held()
        seen.append(weakref.ref(held))
        await loop.create_future()

    gc.disable()
    try:
        one = begun(work(), loop)
        assert one is not None
        for _ in range(turns):
            await asyncio.sleep(0)
        task = one.as_task()
        task.cancel()
        await asyncio.wait([task])
        del task, one
        assert seen[0]() is None
    finally:
        gc.enable()
