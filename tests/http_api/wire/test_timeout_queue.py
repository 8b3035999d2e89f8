import asyncio
from typing import Any

import pytest

from holdfast.http_api.wire.connection_registry import TimeoutQueue


class _Clock:
    """An event loop with only a clock and timers, for the deadlines."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Any]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Any) -> "_Timer":
        self.timers.append((when, callback))
        return _Timer(self, (when, callback))

    def call_later(self, delay: float, callback: Any) -> "_Timer":
        return self.call_at(self.now + delay, callback)

    def advance(self, to: float) -> None:
        while due := [each for each in self.timers if each[0] <= to]:
            first = min(due, key=lambda each: each[0])
            self.timers.remove(first)
            self.now = first[0]
            first[1]()
        self.now = to


class _Timer:
    def __init__(self, clock: _Clock, entry: tuple[float, Any]) -> None:
        self._clock = clock
        self._entry = entry

    def cancel(self) -> None:
        self._clock.timers.remove(self._entry)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    return clock


def test_each_is_late_in_its_own_time_by_one_timer(clock: _Clock) -> None:
    late: list[str] = []
    deadlines = TimeoutQueue[str](10, late.append)
    for at, who in ((0, "a"), (4, "b"), (4, "c"), (8, "d")):
        clock.advance(at)
        deadlines.add(who)
    deadlines.remove("c")
    deadlines.remove("nobody")
    assert len(clock.timers) == 1
    clock.advance(9.9)
    assert late == []
    clock.advance(10)
    assert late == ["a"]
    clock.advance(17)
    assert late == ["a", "b"]
    clock.advance(18)
    assert late == ["a", "b", "d"]
    assert clock.timers == []
    assert len(deadlines) == 0


def test_a_deadline_that_has_begun_goes_on_and_one_that_was_ended_begins_anew(
    clock: _Clock,
) -> None:
    late: list[str] = []
    deadlines = TimeoutQueue[str](10, late.append)
    deadlines.add("a")
    deadlines.add("b")
    clock.advance(5)
    deadlines.add("a")
    deadlines.remove("b")
    deadlines.add("b")
    clock.advance(10)
    assert late == ["a"]
    clock.advance(15)
    assert late == ["a", "b"]


def test_after_the_last_was_taken_out_the_next_is_late_in_its_time(clock: _Clock) -> None:
    late: list[str] = []
    deadlines = TimeoutQueue[str](10, late.append)
    deadlines.add("a")
    deadlines.remove("a")
    clock.advance(9)
    deadlines.add("b")
    clock.advance(18.9)
    assert late == []
    clock.advance(19)
    assert late == ["b"]


def test_who_is_late_may_begin_again_and_a_stop_ends_all(clock: _Clock) -> None:
    late: list[str] = []

    def again(who: str) -> None:
        late.append(who)
        deadlines.add(who)

    deadlines = TimeoutQueue[str](10, again)
    deadlines.add("a")
    clock.advance(20)
    assert late == ["a", "a"]
    deadlines.stop()
    deadlines.stop()
    clock.advance(100)
    assert late == ["a", "a"]
    assert clock.timers == []
