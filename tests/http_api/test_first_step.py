import asyncio
import gc
import weakref

import pytest

from holdfast.http_api.first_step import begun


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


async def test_what_waits_goes_on_in_a_task() -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    seen = []

    async def work() -> None:
        seen.append(await future)
        await asyncio.sleep(0)
        async with asyncio.timeout(10):  # there is a task now
            seen.append("end")

    task = begun(work(), loop)
    assert task is not None
    future.set_result("woken")
    await task
    assert seen == ["woken", "end"]


async def test_a_bare_turn_of_the_loop_may_be_the_first_wait() -> None:
    seen = []

    async def work() -> None:
        await asyncio.sleep(0)
        seen.append(1)

    task = begun(work(), asyncio.get_running_loop())
    assert task is not None
    assert seen == []
    await task
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

    task = begun(work(), loop)
    assert task is not None
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


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

    task = begun(work(), loop)
    assert task is not None
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["clean"]


@pytest.mark.parametrize("turns", [0, 2])
async def test_what_was_cancelled_lets_go_of_what_it_held_at_once(turns: int) -> None:
    """By reference counts: no circle is left for the garbage collector."""

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
        task = begun(work(), loop)
        assert task is not None
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        del task
        assert seen[0]() is None
    finally:
        gc.enable()
