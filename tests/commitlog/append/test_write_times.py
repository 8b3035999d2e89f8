"""When the event loop may write to the log itself."""

from holdfast.commitlog.append.write_times import (
    AVERAGE_S,
    LONG_S,
    MAX_PAUSE_S,
    MIN_PAUSE_S,
    WriteTimes,
)

SHORT_S = 0.00002


def test_before_the_first_write_and_after_short_ones_writes_are_short() -> None:
    times = WriteTimes()
    assert times.are_short(0.0)
    for number in range(100):
        times.record(SHORT_S, float(number))
    assert times.are_short(100.0)


def test_a_long_write_stops_them_for_a_second() -> None:
    times = WriteTimes()
    times.record(LONG_S, 10.0)
    for _ in range(50):
        times.record(SHORT_S, 10.0)
    assert not times.are_short(10.0 + MIN_PAUSE_S - 0.001)
    assert times.are_short(10.0 + MIN_PAUSE_S)


def test_a_write_that_is_just_not_long_stops_nothing() -> None:
    times = WriteTimes()
    times.record(AVERAGE_S * 8, 10.0)
    assert times.are_short(10.0), "the average is exactly at its limit"
    times.record(LONG_S - 0.0001, 10.0)
    assert not times.are_short(10.0), "the average is above its limit"
    for _ in range(50):
        times.record(SHORT_S, 10.0)
    assert times.are_short(10.0)


def test_the_pause_doubles_up_to_a_minute_and_begins_again_after_a_quiet_minute() -> None:
    times = WriteTimes()
    now_s, pauses = 0.0, []
    for _ in range(10):
        times.record(LONG_S, now_s)
        for _ in range(50):
            times.record(SHORT_S, now_s)
        pause_s = next(p for p in (1, 2, 4, 8, 16, 32, 64) if times.are_short(now_s + p))
        pauses.append(pause_s)
        now_s += pause_s
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 64, 64, 64]
    now_s += MAX_PAUSE_S
    times.record(LONG_S, now_s)
    for _ in range(50):
        times.record(SHORT_S, now_s)
    assert times.are_short(now_s + MIN_PAUSE_S)


def test_long_writes_of_the_thread_during_a_pause_extend_it_without_doubling_it() -> None:
    times = WriteTimes()
    times.record(LONG_S, 0.0)
    times.record(LONG_S, 0.5)
    for _ in range(50):
        times.record(SHORT_S, 0.5)
    assert not times.are_short(1.0)
    assert times.are_short(0.5 + 2 * MIN_PAUSE_S)
