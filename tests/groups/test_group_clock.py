from holdfast.groups.group_clock import GroupClock


class _Clocks:
    def __init__(self) -> None:
        self.ageing_us = 1_000_000_000
        self.passed_s = 50.0
        self.clock = GroupClock(lambda: self.ageing_us, lambda: self.passed_s, 1_000_000)

    def passes(self, seconds: float, ageing_s: float | None = None) -> int:
        self.passed_s += seconds
        self.ageing_us += round((seconds if ageing_s is None else ageing_s) * 1e6)
        return self.clock.now_ms()


def test_the_time_follows_the_clock() -> None:
    clocks = _Clocks()
    assert clocks.passes(1.5) == 1_001_500
    assert clocks.passes(0.0, 60.0) == 1_061_500
    assert clocks.clock.lead_ms() == 0


def test_the_time_goes_on_when_the_clock_goes_back() -> None:
    clocks = _Clocks()
    assert clocks.passes(1.0) == 1_001_000
    assert clocks.passes(0.0, -3600.0) == 1_001_000
    assert clocks.passes(2.0) == 1_003_000
    assert clocks.clock.lead_ms() == 3_600_000


def test_the_time_begins_where_it_was() -> None:
    clocks = _Clocks()
    clock = GroupClock(lambda: clocks.ageing_us, lambda: clocks.passed_s, 5_000_000)
    assert clock.now_ms() == 5_000_000
    clocks.passed_s += 1
    assert clock.now_ms() == 5_001_000
    assert clock.lead_ms() == 4_001_000
