"""The speed of a scrub, and its next step."""

import pytest

from holdfast.commitlog.segments.scrub_pace import (
    BUSY_PAUSE_S,
    MAX_BUSY_PAUSES,
    ScrubPace,
    next_start,
)


def test_the_rate_is_kept_however_the_reads_are_cut() -> None:
    pace, now = ScrubPace(1000), 50.0
    for size in (100, 2000, 1, 0, 899):
        while pause_s := pace.pause_s(now, is_busy=False):
            now += pause_s
        pace.has_read(now, size)
    while pause_s := pace.pause_s(now, is_busy=False):
        now += pause_s
    assert now == pytest.approx(53.0)


def test_time_that_was_not_used_is_not_saved_up() -> None:
    pace = ScrubPace(1000)
    pace.has_read(0.0, 1000)
    assert pace.pause_s(500.0, is_busy=False) == 0
    pace.has_read(500.0, 1000)
    assert pace.pause_s(500.0, is_busy=False) == pytest.approx(1.0)


def test_other_work_goes_first_but_not_for_ever() -> None:
    pace = ScrubPace(1000)
    for _ in range(2):
        pauses = [pace.pause_s(1.0, is_busy=True) for _ in range(MAX_BUSY_PAUSES + 1)]
        assert pauses == [BUSY_PAUSE_S] * MAX_BUSY_PAUSES + [0.0]


@pytest.mark.parametrize(
    ("starts", "after", "expected"),
    [
        ([], None, None),
        ([0, 10, 20], None, 0),
        ([0, 10, 20], 0, 10),
        ([10, 20], 0, 10),
        ([30], 5, 30),
        ([0, 10], 10, None),
    ],
)
def test_segments_are_taken_in_order_whatever_was_deleted(
    starts: list[int], after: int | None, expected: int | None
) -> None:
    assert next_start(starts, after) == expected
