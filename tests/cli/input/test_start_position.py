"""The texts that name a start position for reading."""

from datetime import datetime

import pytest

from holdfast.cli.input.start_position import AtOffset, AtTime, Start, parse_duration, parse_start

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0", AtOffset(0)),
        ("999999999999", AtOffset(999_999_999_999)),
        ("1000000000000", AtTime(1_000_000_000_000)),
        ("now", AtTime(NOW_MS)),
        ("-1h", AtTime(NOW_MS - 3_600_000)),
        ("-30m", AtTime(NOW_MS - 1_800_000)),
        ("-90s", AtTime(NOW_MS - 90_000)),
        ("-250ms", AtTime(NOW_MS - 250)),
        ("-2d", AtTime(NOW_MS - 172_800_000)),
        ("-1w", AtTime(NOW_MS - 604_800_000)),
        ("-999999w", AtTime(0)),
        ("2026-11-21T10:00:00Z", AtTime(1_795_255_200_000)),
        ("2026-11-21T10:00:00.250Z", AtTime(1_795_255_200_250)),
        ("2026-11-21T12:00:00+02:00", AtTime(1_795_255_200_000)),
    ],
)
def test_starts_are_understood(text: str, start: Start) -> None:
    assert parse_start(text, NOW_MS) == start


def test_a_time_without_a_zone_is_local() -> None:
    local_ms = int(datetime(2026, 11, 21, 10).timestamp() * 1000)
    assert parse_start("2026-11-21T10:00", NOW_MS) == AtTime(local_ms)
    assert parse_start("2026-11-21 10:00", NOW_MS) == AtTime(local_ms)


@pytest.mark.parametrize(
    "text", ["", "soon", "-1", "-1y", "1h", "+5", "1.5", "²", "9" * 19, "1960-01-01T00:00Z", "-1h "]
)
def test_other_texts_are_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="neither earliest, latest, an offset, nor a time"):
        parse_start(text, NOW_MS)


@pytest.mark.parametrize("text", ["", "d", "1", "-1d", "1.5h", "1y", "0d", "36526d", "١d", "1d "])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration such as"):
        parse_duration(text)
