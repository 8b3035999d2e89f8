"""The limits that connections share: their number, their memory, and their deadlines."""

import asyncio
import random
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.wire.admission import ConnectionLimits
from holdfast.http_api.wire.connection_registry import (
    ClientByteBudget,
    Connections,
    TimeoutQueue,
)
from tests.support.event_loop.loop_clock import LoopClock

# -- the number of connections ---------------------------------------------------------------


@pytest.mark.parametrize(("before", "refusal"), [(1, None), (2, "too-many-connections")])
def test_the_number_of_connections_is_limited(before: int, refusal: str | None) -> None:
    limits = ConnectionLimits(2, 9)
    for number in range(before):
        assert limits.enter(f"client-{number}") is None
    assert limits.enter("one-more") == refusal


@pytest.mark.parametrize(("before", "refusal"), [(1, None), (2, "too-many-client-connections")])
def test_the_number_of_connections_of_one_client_is_limited(
    before: int, refusal: str | None
) -> None:
    limits = ConnectionLimits(9, 2)
    for _ in range(before):
        assert limits.enter("one") is None
    assert limits.enter("one") == refusal
    assert limits.enter("another") is None


def test_a_closed_connection_is_not_counted_any_more() -> None:
    limits = ConnectionLimits(2, 1)
    assert limits.enter("one") is None
    assert limits.enter("one") == "too-many-client-connections"
    limits.leave("one")
    assert (limits.count, limits.by_client) == (0, {})
    assert limits.enter("one") is None


# -- memory ------------------------------------------------------------------------------------


@pytest.fixture
def budget() -> ClientByteBudget[str]:
    return ClientByteBudget(100)


@pytest.mark.parametrize(("size", "removed"), [(39, []), (40, []), (41, ["greedy-1"])])
def test_above_the_budget_the_largest_client_loses_its_oldest_entry(
    budget: ClientByteBudget[str], size: int, removed: list[str]
) -> None:
    budget.add("greedy-1", "greedy", 30)
    budget.add("greedy-2", "greedy", 30)
    assert budget.add("modest", "modest", size) == removed
    assert budget.total_bytes == (30 + size if removed else 60 + size)


def test_a_new_entry_of_the_largest_client_is_removed_itself(budget: ClientByteBudget[str]) -> None:
    budget.add("modest", "modest", 40)
    assert budget.add("greedy", "greedy", 90) == ["greedy"]
    assert budget.total_bytes == 40


def test_a_single_entry_may_exceed_the_budget(budget: ClientByteBudget[str]) -> None:
    assert budget.add("one", "client", 1000) == []
    assert budget.add("two", "client", 50) == ["one"]


def test_a_removed_entry_leaves_nothing(budget: ClientByteBudget[str]) -> None:
    budget.add("one", "client", 50)
    budget.add("one", "client", 20)
    assert (budget.total_bytes, len(budget)) == (20, 1)
    for holder in ("one", "one", "never-there"):
        budget.discard(holder)
    assert (budget.total_bytes, len(budget), budget.bytes_of) == (0, 0, {})


def test_the_budget_holds_over_random_steps() -> None:
    chance = random.Random(7)
    budget: ClientByteBudget[int] = ClientByteBudget(1000)
    held: dict[int, int] = {}
    for _ in range(5000):
        holder = chance.randrange(200)
        if chance.random() < 0.3:
            budget.discard(holder)
            held.pop(holder, None)
            continue
        size = chance.randrange(1, 200)
        held[holder] = size
        for each in budget.add(holder, f"client-{holder % 7}", size):
            del held[each]
        assert budget.total_bytes == sum(held.values()) <= 1000
        assert len(budget) == len(held)


# -- deadlines -----------------------------------------------------------------------------------


class Deadlines:
    """A queue of timeouts after 10 s, on a clock that the test moves. `late` has what timed out."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.now_s = 0
        self.late: list[tuple[int, str]] = []
        self.on_timeout: Callable[[str], None] = lambda _: None
        self.queue = TimeoutQueue[str](10, self._note)

    def _note(self, entry: str) -> None:
        self.late.append((self.now_s, entry))
        self.on_timeout(entry)

    async def advance(self, to_s: int) -> None:
        """Move the clock second by second."""
        while self.now_s < to_s:
            self.now_s += 1
            await self.clock.advance(1)


async def test_each_entry_times_out_after_the_same_time_with_one_timer() -> None:
    deadlines = Deadlines()
    loop: Any = asyncio.get_running_loop()
    loop.call_later = call_later = Mock(side_effect=loop.call_later)
    for at_s, entry in ((0, "a"), (4, "b"), (4, "c"), (8, "d")):
        await deadlines.advance(at_s)
        deadlines.queue.add(entry)
    deadlines.queue.remove("c")
    deadlines.queue.remove("never-there")
    assert call_later.call_count == 1
    await deadlines.advance(40)
    assert deadlines.late == [(10, "a"), (14, "b"), (18, "d")]
    assert len(deadlines.queue) == 0


async def test_a_second_add_keeps_the_deadline_unless_the_entry_was_removed() -> None:
    deadlines = Deadlines()
    deadlines.queue.add("a")
    deadlines.queue.add("b")
    await deadlines.advance(5)
    deadlines.queue.add("a")
    deadlines.queue.remove("b")
    deadlines.queue.add("b")
    await deadlines.advance(20)
    assert deadlines.late == [(10, "a"), (15, "b")]


async def test_an_entry_that_follows_a_removed_one_has_its_own_deadline() -> None:
    deadlines = Deadlines()
    deadlines.queue.add("a")
    deadlines.queue.remove("a")
    await deadlines.advance(9)
    deadlines.queue.add("b")
    await deadlines.advance(30)
    assert deadlines.late == [(19, "b")]


async def test_an_entry_may_be_added_at_its_timeout_and_stop_removes_all() -> None:
    deadlines = Deadlines()
    deadlines.on_timeout = deadlines.queue.add
    deadlines.queue.add("a")
    await deadlines.advance(20)
    assert deadlines.late == [(10, "a"), (20, "a")]
    deadlines.queue.stop()
    deadlines.queue.stop()
    await deadlines.advance(40)
    assert len(deadlines.late) == 2


# -- the end ---------------------------------------------------------------------------------


async def test_the_end_waits_for_the_task_that_follows_a_held_request() -> None:
    connections = Connections(HttpConfig())
    loop = asyncio.get_running_loop()
    held: asyncio.Future[None] = loop.create_future()
    connection = Mock(task=held)
    answered: list[str] = []

    async def answer() -> None:
        await asyncio.sleep(0.01)
        answered.append("by a task")
        connection.task = None

    def continue_in_a_task(_: object) -> None:
        connection.task = asyncio.create_task(answer())

    held.add_done_callback(continue_in_a_task)
    connections.open.add(connection)
    loop.call_soon(held.set_result, None)
    await connections.finish(20)
    assert answered == ["by a task"]


async def test_at_the_end_requests_that_take_too_long_are_cancelled() -> None:
    connections = Connections(HttpConfig())
    held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    connection = Mock(task=held)

    def forget(_: object) -> None:
        connection.task = None

    held.add_done_callback(forget)
    connections.open.add(connection)
    await connections.finish(0.02)
    assert held.cancelled()
