"""When the event loop may write to the log itself."""

from holdfast.commitlog.append.write_times import (
    AVERAGE_S,
    LONG_S,
    PAUSE_TIMES,
    WriteTimes,
)

SHORT_S = 0.00002


def test_before_the_first_write_and_after_short_ones_writes_are_short() -> None:
    times = WriteTimes()
    assert times.are_short(0.0)
    for number in range(100):
        times.record(SHORT_S, float(number))
    assert times.are_short(100.0)


def test_a_long_write_stops_them_for_fifty_times_as_long() -> None:
    for took_s in (LONG_S, 0.2, 3.0):
        times = WriteTimes()
        times.record(took_s, 10.0)
        for _ in range(80):
            times.record(SHORT_S, 10.0)
        assert not times.are_short(10.0 + PAUSE_TIMES * took_s - 0.001)
        assert times.are_short(10.0 + PAUSE_TIMES * took_s)


def test_a_write_that_is_just_not_long_stops_nothing() -> None:
    times = WriteTimes()
    times.record(AVERAGE_S * 8, 10.0)
    assert times.are_short(10.0), "the average is exactly at its limit"
    times.record(LONG_S - 0.0001, 10.0)
    assert not times.are_short(10.0), "the average is above its limit"
    for _ in range(50):
        times.record(SHORT_S, 10.0)
    assert times.are_short(10.0)


def test_writes_that_are_long_again_and_again_take_a_fiftieth_of_the_time() -> None:
    times = WriteTimes()
    now_s = stopped_s = 0.0
    while now_s < 1000.0:  # each write of the event loop is long
        if times.are_short(now_s):
            now_s += 0.1
            stopped_s += 0.1
            times.record(0.1, now_s)
        else:
            now_s += 0.01
            times.record(SHORT_S, now_s)  # by the thread
    assert 10.0 < stopped_s < 21.0


def test_a_long_write_of_the_thread_during_a_pause_extends_it() -> None:
    times = WriteTimes()
    times.record(LONG_S, 0.0)
    times.record(2 * LONG_S, 0.1)
    times.record(LONG_S, 0.1)
    for _ in range(50):
        times.record(SHORT_S, 0.1)
    assert not times.are_short(0.1 + 2 * PAUSE_TIMES * LONG_S - 0.001)
    assert times.are_short(0.1 + 2 * PAUSE_TIMES * LONG_S)
