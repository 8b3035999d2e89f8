"""The types of time that callers may pass."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from holdfast.client.timestamps import as_timestamp_ms


@pytest.mark.parametrize(
    ("time", "expected_ms"),
    [
        (0, 0),
        (1_700_000_000_123, 1_700_000_000_123),
        (1_700_000_000_123.9, 1_700_000_000_123),
        (datetime(1970, 1, 1, 0, 0, 1, 999, tzinfo=UTC), 1_000),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
    ],
)
def test_numbers_and_datetimes_are_milliseconds(time: float | datetime, expected_ms: int) -> None:
    # C4
    assert as_timestamp_ms(time) == expected_ms


@pytest.mark.parametrize(
    "time", [-1, float("nan"), float("inf"), datetime(2026, 1, 1), datetime(1969, 1, 1, tzinfo=UTC)]
)
def test_an_invalid_time_is_refused(time: float | datetime) -> None:
    with pytest.raises(ValueError, match="time"):
        as_timestamp_ms(time)


@pytest.mark.parametrize("time", ["1", True, None])
def test_other_types_are_refused(time: object) -> None:
    with pytest.raises(TypeError, match="milliseconds or a datetime"):
        as_timestamp_ms(time)  # type: ignore[arg-type]
