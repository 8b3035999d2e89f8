"""A row of figures: its median, its bar, what a table and a line of JSON say of it."""

import json

from bench.rows import COLUMNS, RATE, TIMES, Row, bar_text, cells, from_json, number


def _row(values: list[float], **more: float) -> Row:
    return Row("W7", "read, 100 queues", "written", TIMES, values, **more)  # type: ignore[arg-type]


def test_the_median_meets_a_bar_or_misses_it() -> None:
    assert _row([0.7, 0.9, 0.8], at_least=0.8).is_met is True
    assert _row([0.7, 0.9, 0.79], at_least=0.8).is_met is False
    assert _row([1.5, 1.4, 9.0], at_most=1.5).is_met is True
    assert _row([1.6], at_most=1.5).is_met is False
    assert _row([1.6]).is_met is None


def test_the_bar_is_told_with_the_outcome() -> None:
    assert bar_text(_row([0.9], at_least=0.8)) == ">= 0.80 met"
    assert bar_text(_row([9000.0], at_most=8192)) == "<= 8,192 MISSED"
    assert bar_text(_row([2.0], at_least=1, at_most=1)) == ">= 1 <= 1 MISSED"
    assert bar_text(_row([1.0])) == ""


def test_a_rate_of_messages_with_bodies_has_megabytes_a_second() -> None:
    row = Row("W1", "publish", "written", RATE, [1e6, 3e6, 2e6], body_bytes=100, broker_us=[0.5])
    assert row.mb_per_s == 200.0
    assert _row([1.0]).mb_per_s is None
    told = dict(zip(COLUMNS, cells(row), strict=True))
    assert told["median"] == "2,000,000"
    assert (told["least"], told["most"]) == ("1,000,000", "3,000,000")
    assert told["broker us/message"] == "0.50"
    assert told["client us/message"] == ""


def test_a_row_survives_its_line_of_json() -> None:
    row = _row([0.7, 0.9], at_least=0.8)
    assert from_json(json.loads(json.dumps(row.as_json()))) == row


def test_a_number_has_the_digits_that_mean_something() -> None:
    numbers = [number(value) for value in (1234.56, 12.345, 0.456, 3.0, 0.0)]
    assert numbers == ["1,235", "12.3", "0.46", "3", "0"]
