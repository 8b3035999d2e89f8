import asyncio
from unittest.mock import Mock

from holdfast.groups.serving.clock import DeadlineTimer, GroupClock
from tests.support.event_loop.loop_clock import LoopClock


class _Clocks:
    def __init__(self) -> None:
        self.ageing_us = 1_000_000_000
        self.passed_s = 50.0
        self.wall_us = 7_000_000_000
        self.clock = self.new(1_000_000)

    def new(self, from_ms: int) -> GroupClock:
        return GroupClock(
            lambda: self.ageing_us, lambda: self.passed_s, lambda: self.wall_us, from_ms
        )

    def passes(self, seconds: float, ageing_s: float | None = None) -> int:
        self.passed_s += seconds
        self.ageing_us += round((seconds if ageing_s is None else ageing_s) * 1e6)
        return self.clock.now_ms()


def test_the_time_follows_the_clock() -> None:
    clocks = _Clocks()
    assert clocks.passes(1.5) == 1_001_500
    assert clocks.passes(0.0, 60.0) == 1_061_500
    assert clocks.clock.wall_ms() == 7_000_000


def test_the_time_advances_when_the_clock_is_set_back() -> None:
    clocks = _Clocks()
    assert clocks.passes(1.0) == 1_001_000
    assert clocks.passes(0.0, -3600.0) == 1_001_000
    assert clocks.passes(2.0) == 1_003_000


def test_the_time_begins_where_it_was() -> None:
    clocks = _Clocks()
    clock = clocks.new(5_000_000)
    assert clock.now_ms() == 5_000_000
    clocks.passed_s += 1
    assert clock.now_ms() == 5_001_000


class _Timer:
    """A timer, and the times at which it fired. Times are in milliseconds from now on."""

    def __init__(self) -> None:
        self._loop_clock = LoopClock()
        self._loop = asyncio.get_running_loop()
        self._begin_s = self._loop.time()
        self.jumped_ms = 0
        self.clock = GroupClock(lambda: 1000 * self._now_ms(), self._loop.time, lambda: 0, 0)
        self.fired: list[int] = []
        self.timer = DeadlineTimer(lambda: self.fired.append(self._now_ms()), self.clock)

    def _now_ms(self) -> int:
        return round((self._loop.time() - self._begin_s) * 1000) + self.jumped_ms

    async def passes(self, ms: int) -> list[int]:
        for _ in range(ms):
            await self._loop_clock.advance(0.001)
        return self.fired


async def test_the_timer_fires_once_after_the_deadline_that_was_set_last() -> None:
    timer = _Timer()
    for deadline_ms in (10, 30, 20):
        timer.timer.set(deadline_ms)
    assert await timer.passes(20) == []
    assert await timer.passes(20) == [21]


async def test_the_timer_fires_earlier_if_the_deadline_becomes_earlier() -> None:
    timer = _Timer()
    timer.timer.set(30)
    timer.timer.set(10)
    assert await timer.passes(40) == [11]


async def test_a_deadline_that_was_taken_back_does_not_fire() -> None:
    timer = _Timer()
    timer.timer.set(10)
    timer.timer.set(None)
    assert await timer.passes(20) == []
    timer.timer.set(30)
    assert await timer.passes(20) == [31]
    timer.timer.set(50)
    timer.timer.stop()
    assert await timer.passes(20) == [31]


async def test_a_deadline_that_becomes_later_with_each_message_needs_few_timers() -> None:
    timer = _Timer()
    loop = asyncio.get_running_loop()
    loop.call_later = call_later = Mock(side_effect=loop.call_later)  # type: ignore[method-assign]
    for number in range(100):
        timer.timer.set(30 + number)
        await timer.passes(1)
    assert call_later.call_count < 6
    assert await timer.passes(50) == [130]


async def test_a_deadline_that_a_jump_of_the_clock_has_passed_fires_at_once() -> None:
    timer = _Timer()
    timer.timer.set(5_000)
    timer.jumped_ms = 10_000
    assert timer.clock.now_ms() == 10_000
    timer.timer.set(6_000)
    assert await timer.passes(1) == [10_001]


async def test_a_deadline_after_a_jump_of_the_clock_fires_in_time() -> None:
    timer = _Timer()
    timer.timer.set(5_000)
    timer.jumped_ms = 10_000
    assert timer.clock.now_ms() == 10_000
    timer.timer.set(10_020)
    assert await timer.passes(30) == [10_021]


async def test_a_due_timer_fires_although_its_deadline_is_set_again_in_each_iteration() -> None:
    timer = _Timer()
    loop = asyncio.get_running_loop()
    fired_before: list[int] = []

    def set_again(left: int = 100) -> None:
        timer.clock.now_ms()
        timer.timer.set(10)
        fired_before.append(len(timer.fired))
        if left:
            loop.call_soon(set_again, left - 1)

    timer.timer.set(10)
    await timer.passes(10)
    loop.call_soon(set_again)
    loop.call_soon(set_again)
    await timer.passes(10)
    while len(fired_before) < 202:
        await asyncio.sleep(0)
    assert 1 in fired_before
