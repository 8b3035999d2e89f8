"""Loops in slices: the number of items per loop iteration, and the tasks that run in between."""

import asyncio

import pytest

from holdfast.consumequeue.slices import ITEMS_A_TURN, LoopBudget, in_slices
from tests.support.event_loop.calls_a_turn import calls_a_turn


class _Worker:
    def work(self) -> None:
        """Process one item."""


@pytest.mark.parametrize("count", [0, 1, ITEMS_A_TURN - 1, ITEMS_A_TURN, ITEMS_A_TURN + 1, 1_000])
async def test_slices_are_complete_and_limited(count: int) -> None:
    sliced = [part async for part in in_slices(range(count))]
    shared = [part async for part in LoopBudget().slices(range(count))]
    for parts in (sliced, shared):
        assert [item for part in parts for item in part] == list(range(count))
        assert all(0 < len(part) <= ITEMS_A_TURN for part in parts)


async def test_nested_loops_share_a_budget() -> None:
    worker, turn = _Worker(), LoopBudget(100)
    with calls_a_turn(worker, "work") as worked:
        for _ in range(60):
            await turn.spend()
            worker.work()
            async for part in turn.slices(range(7)):
                for _ in part:
                    worker.work()
    assert worked.total == 60 * 8
    assert worked.most <= 100


async def test_a_large_expense_ends_the_iteration() -> None:
    turn, turns = LoopBudget(10), list[int]()
    loop, number = asyncio.get_running_loop(), 0

    def count() -> None:
        nonlocal number
        number += 1
        loop.call_soon(count)

    loop.call_soon(count)
    for _ in range(4):
        await turn.spend(25)
        turns.append(number)
    assert turns == [0, 1, 2, 3]
