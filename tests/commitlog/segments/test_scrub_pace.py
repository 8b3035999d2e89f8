"""The speed of a scrub, and its next step."""

import pytest

from holdfast.commitlog.segments.scrub_pace import (
    BUSY_PAUSE_S,
    MAX_BUSY_PAUSES,
    ScrubPace,
    next_start,
)


def test_the_rate_does_not_depend_on_the_size_of_reads() -> None:
    pace, now = ScrubPace(1000), 50.0
    for size in (100, 2000, 1, 0, 899):
        while pause_s := pace.pause_s(now, is_busy=False):
            now += pause_s
        pace.has_read(now, size)
    while pause_s := pace.pause_s(now, is_busy=False):
        now += pause_s
    assert now == pytest.approx(53.0)


def test_unused_time_is_not_saved() -> None:
    pace = ScrubPace(1000)
    pace.has_read(0.0, 1000)
    assert pace.pause_s(500.0, is_busy=False) == 0
    pace.has_read(500.0, 1000)
    assert pace.pause_s(500.0, is_busy=False) == pytest.approx(1.0)


def test_other_work_goes_first_for_a_limited_time() -> None:
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
def test_segments_are_chosen_in_order_after_deletions(
    starts: list[int], after: int | None, expected: int | None
) -> None:
    assert next_start(starts, after) == expected
