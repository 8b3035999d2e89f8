from holdfast.groups.serving.clock import GroupClock


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
