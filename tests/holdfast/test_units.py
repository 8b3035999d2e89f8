"""Sizes and durations as users write them."""

import pytest

from holdfast.units import format_size, parse_size, parse_span_ms

MIB = 1024 * 1024


def test_sizes_are_shown_in_the_largest_unit_that_fits() -> None:
    assert [format_size(n) for n in (0, 1000, 1024, 1536 * 1024, MIB, 3 << 30, 1 << 40)] == [
        "0 B", "1000 B", "1 KiB", "1536 KiB", "1 MiB", "3 GiB", "1 TiB",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "span_ms"),
    [("250", 250), ("500ms", 500), ("90s", 90_000), ("3m", 180_000), ("7d", 604_800_000)],
)
def test_durations_take_units(text: str, span_ms: int) -> None:
    assert parse_span_ms(text) == span_ms


@pytest.mark.parametrize("text", ["", "7 days", "-1s", "1.5h", "d", "1H"])
def test_other_texts_are_no_durations(text: str) -> None:
    assert parse_span_ms(text) is None


def test_sizes_take_bytes() -> None:
    assert parse_size("512B") == parse_size("512 B") == parse_size("512") == 512
