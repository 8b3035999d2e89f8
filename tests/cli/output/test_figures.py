"""Numbers as a person reads them."""

import pytest

from holdfast.cli.output.figures import format_bytes, format_count, format_span


# O6: the output was "1 messages".
def test_one_thing_is_one() -> None:
    assert format_count(1, "message") == "1 message"
    assert format_count(0, "message") == "0 messages"
    assert format_count(12_502, "message") == "12,502 messages"
    assert [format_count(n, "index entry") for n in (1, 2)] == ["1 index entry", "2 index entries"]


# O6: a size below 1 KiB had no unit.
@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"), (1, "1 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"),
        (102_400, "100 KiB"), (1 << 20, "1.0 MiB"), (5 << 30, "5.0 GiB"), (3 << 40, "3.0 TiB"),
    ],
)  # fmt: skip
def test_a_size_has_its_unit(size: int, shown: str) -> None:
    assert format_bytes(size) == shown


@pytest.mark.parametrize(
    ("span_ms", "shown"),
    [
        (0, "0ms"), (-5, "0ms"), (999, "999ms"), (1000, "1s"), (59_999, "59s"), (60_000, "1m"),
        (61_000, "1m1s"), (3_600_000, "1h"), (3_661_000, "1h1m"), (90_000_000, "1d1h"),
        (604_800_000, "7d"),
    ],
)  # fmt: skip
def test_a_span_has_its_two_largest_units(span_ms: int, shown: str) -> None:
    assert format_span(span_ms) == shown
