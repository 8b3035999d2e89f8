"""H3: times in human notation."""

import re

import pytest

from holdfast.http_api.routing.moments import EXAMPLES, MAX_TIMESTAMP_MS, PATTERN, parse_time_ms

T = 1_760_000_000_000  # 2025-10-09T08:53:20Z


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        (str(T), T),
        (str(MAX_TIMESTAMP_MS), MAX_TIMESTAMP_MS),
        ("1970-01-01T00:00:00Z", 0),
        ("2025-10-09T08:53:20Z", T),
        ("2025-10-09T08:53Z", T - 20_000),
        ("2025-10-09 08:53:20Z", T),
        ("2025-10-09T08:53:20.5Z", T + 500),
        ("2025-10-09T08:53:20.000001Z", T + 1),  # rounded up, never before the time
        ("2025-10-09T10:53:20+02:00", T),
        ("2025-10-09T10:53:20+0200", T),
        ("2025-10-09T10:53:20 02:00", T),  # a plus that was not percent-encoded
        ("2025-10-09T04:23:20-04:30", T),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000),
    ],
)
def test_valid_times_are_parsed(text: str, expected: int) -> None:
    assert parse_time_ms(text) == expected
    assert re.search(PATTERN, text)


@pytest.mark.parametrize(
    "text",
    [
        "", "-1", "1.5", "now", "yesterday", "2025-10-09", "2025-10-09T08:53:20", "08:53:20Z",
        "2025-13-09T08:53:20Z", "2025-10-09T25:53:20Z", "2025-10-09T08:53:20+99:00",
        "1969-12-31T23:59:59Z", str(MAX_TIMESTAMP_MS + 1), "9" * 17, "２０２５", " 0",
        "2025-10-09T08:53:20Z ", "2025-10-09T08:53:20Zx",
    ],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ISO 8601 with its zone"):
        parse_time_ms(text)


def test_the_examples_are_times() -> None:
    for each in EXAMPLES:
        parse_time_ms(each)
