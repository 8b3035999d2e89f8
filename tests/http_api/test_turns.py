"""So many large replies are made at once; the others wait, and small ones do not."""

import asyncio

from holdfast.http_api.context import LARGE_REPLIES
from holdfast.http_api.pull import LARGE_BYTES
from holdfast.http_api.turns import Turn
from tests.support.api_server import Api


async def test_a_turn_ends_with_its_block_and_may_be_taken_again() -> None:
    turns = asyncio.Semaphore(1)
    with Turn(turns) as turn:
        await turn.begin()
        await turn.begin()
        assert turns.locked()
        turn.end()
        turn.end()
        assert not turns.locked()
        await turn.begin()
    assert turns._value == 1


async def test_one_who_gives_up_waiting_takes_nothing() -> None:
    turns = asyncio.Semaphore(1)

    async def wait() -> None:
        with Turn(turns) as turn:
            await turn.begin()

    with Turn(turns) as first:
        await first.begin()
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert turns._value == 1


async def test_without_turns_nobody_waits() -> None:
    with Turn(None) as turn:
        await turn.begin()
        turn.end()


async def test_large_replies_wait_before_they_read_and_small_ones_do_not(api: Api) -> None:
    await api.publish("orders", {"body": "x", "queue": 0})
    large = "/v1/topics/orders/queues/0/messages?offset=0&max_messages=501"
    turns = api.context.large_replies
    for _ in range(LARGE_REPLIES):
        await turns.acquire()
    waiting = [asyncio.create_task(api.get(large)) for _ in range(3)]
    heavy = large.replace("max_messages=501", f"max_bytes={LARGE_BYTES + 1}")
    waiting.append(asyncio.create_task(api.get(heavy)))
    waiting.append(
        asyncio.create_task(api.get("/v1/topics/orders/messages?offsets=0:0&max_messages=501"))
    )
    async with asyncio.timeout(10):
        while len(turns._waiters or ()) < 5:
            await asyncio.sleep(0)
    assert (await api.get(large.replace("501", "500"))).status == 200
    assert (await api.get(heavy.replace(str(LARGE_BYTES + 1), str(LARGE_BYTES)))).status == 200
    assert (await api.get(large, Accept="application/vnd.holdfast.batch")).status == 200
    assert not any(each.done() for each in waiting)
    for _ in range(LARGE_REPLIES):
        turns.release()
    assert [(await each).status for each in waiting] == [200] * 5
    assert turns._value == LARGE_REPLIES


async def test_a_held_pull_keeps_no_turn(api: Api) -> None:
    held = [
        asyncio.create_task(
            api.get("/v1/topics/orders/queues/0/messages?offset=0&max_messages=501&wait_ms=60000")
        )
        for _ in range(LARGE_REPLIES + 1)
    ]
    await api.held(LARGE_REPLIES + 1)
    assert api.context.large_replies._value == LARGE_REPLIES
    await api.publish("orders", {"body": "x", "queue": 0})
    assert [(await each).status for each in held] == [200] * (LARGE_REPLIES + 1)
    assert api.context.large_replies._value == LARGE_REPLIES
