import pytest

from holdfast.commitlog.ageing_clock import (
    JUMP_ACCEPTED_AFTER_S,
    START_ACCEPTED_AFTER_S,
    AgeingClock,
)

HOUR_S = 3600
YEAR_S = 365 * 24 * HOUR_S
START_S = 1_700_000_000


class Clocks:
    """A wall clock that can be set, and the elapsed time, in seconds."""

    def __init__(self) -> None:
        self.wall_s = float(START_S)
        self.passed_s = 50.0
        self.ageing = AgeingClock(lambda: int(self.wall_s * 1e6), lambda: self.passed_s)

    def let_pass(self, seconds: float) -> None:
        self.wall_s += seconds
        self.passed_s += seconds

    @property
    def now_s(self) -> float:
        """The ageing clock, relative to the wall clock's start."""
        return self.ageing.now_us() / 1e6 - START_S


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_it_follows_a_wall_clock_that_is_not_adjusted(clocks: Clocks) -> None:
    for second in range(1, 100):
        clocks.let_pass(1)
        assert clocks.now_s == second


@pytest.mark.parametrize("jump_s", [1.5, HOUR_S, YEAR_S])
def test_a_jump_ahead_is_not_followed_at_once(clocks: Clocks, jump_s: float) -> None:
    clocks.wall_s += jump_s
    assert clocks.now_s == 0
    clocks.let_pass(10)
    assert clocks.now_s == 10
    clocks.wall_s -= jump_s
    clocks.let_pass(1)
    assert clocks.now_s == 11


def test_small_steps_are_followed_at_once(clocks: Clocks) -> None:
    clocks.wall_s += 1.0
    assert clocks.now_s == 1.0


@pytest.mark.parametrize(("more_s", "expected"), [(-1, False), (0, True), (1, True)])
def test_a_jump_that_lasts_is_accepted(clocks: Clocks, more_s: float, expected: bool) -> None:
    clocks.wall_s += HOUR_S
    assert clocks.now_s == 0
    clocks.let_pass(JUMP_ACCEPTED_AFTER_S + more_s)
    assert clocks.now_s == JUMP_ACCEPTED_AFTER_S + more_s + (HOUR_S if expected else 0)


def test_it_goes_back_with_the_wall_clock_at_once(clocks: Clocks) -> None:
    clocks.wall_s -= HOUR_S
    assert clocks.now_s == -HOUR_S
    clocks.let_pass(5)
    assert clocks.now_s == -HOUR_S + 5
    clocks.wall_s += HOUR_S
    assert clocks.now_s == -HOUR_S + 5  # too low is safe: this is a jump ahead again


@pytest.mark.parametrize(("more_s", "expected"), [(-1, False), (0, True)])
def test_a_clock_ahead_of_the_log_at_the_start_is_accepted_after_minutes(
    clocks: Clocks, more_s: float, expected: bool
) -> None:
    newest_s = START_S - 100 * HOUR_S
    clocks.ageing.start(newest_s * 1_000_000)
    assert clocks.now_s == -100 * HOUR_S
    clocks.let_pass(START_ACCEPTED_AFTER_S + more_s)
    assert (clocks.now_s == START_ACCEPTED_AFTER_S + more_s) is expected


@pytest.mark.parametrize("first_s", [1.0, START_ACCEPTED_AFTER_S])
def test_a_jump_after_the_start_must_last_for_its_own_time(clocks: Clocks, first_s: float) -> None:
    clocks.ageing.start((START_S - 100 * HOUR_S) * 1_000_000)
    clocks.ageing.now_us()
    clocks.let_pass(first_s)
    clocks.ageing.now_us()
    clocks.wall_s += YEAR_S
    clocks.ageing.now_us()
    clocks.let_pass(START_ACCEPTED_AFTER_S)
    assert clocks.now_s < YEAR_S


def test_after_the_clocks_agreed_a_jump_must_last_for_long(clocks: Clocks) -> None:
    clocks.ageing.start(START_S * 1_000_000)
    assert clocks.now_s == 0
    clocks.wall_s += HOUR_S
    assert clocks.now_s == 0
    clocks.let_pass(START_ACCEPTED_AFTER_S)
    assert clocks.now_s == START_ACCEPTED_AFTER_S


def test_an_empty_log_starts_from_the_wall_clock(clocks: Clocks) -> None:
    clocks.ageing.start(0)
    assert clocks.now_s == 0


def test_timestamps_ahead_of_the_wall_clock_are_ignored(clocks: Clocks) -> None:
    clocks.ageing.start((START_S + YEAR_S) * 1_000_000)
    assert clocks.now_s == 0
