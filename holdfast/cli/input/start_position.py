"""Parse a place in a queue: an offset, `earliest`, `latest`, or a time.

A time is written in ISO 8601 (without a zone it is local time), in epoch milliseconds, as `now`, or
relative to now: -90s, -30m, -1h, -2d, -1w. An integer of 10^12 or more is a time in epoch
milliseconds, a smaller one is an offset. This is safe: 10^12 ms is September 2001, and even a busy
queue needs centuries to reach that offset.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from holdfast.units import SPAN_UNITS, parse_span_ms

_AGO = re.compile(r"-(\d{1,12})(ms|s|m|h|d|w)", re.ASCII)
_FIRST_EPOCH_MS = 10**12
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class AtOffset:
    """An offset in the queue."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message stored at or after this time."""

    timestamp_ms: int


#: "earliest" is the first stored message, "latest" the place after the newest message.
Start = Literal["earliest", "latest"] | AtOffset | AtTime


def parse_start(text: str, now_ms: int) -> Start:
    """Return the place that `text` means at the time `now_ms`. Raises ValueError for any other
    text; its message lists the known forms."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if _NUMBER.fullmatch(text):
        number = int(text)
        return AtOffset(number) if number < _FIRST_EPOCH_MS else AtTime(number)
    return AtTime(parse_time(text, now_ms))


def parse_time(text: str, now_ms: int) -> int:
    """Return the time of `text` in epoch milliseconds. Raises ValueError, as parse_start does."""
    if text == "now":
        return now_ms
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return max(0, now_ms - int(ago[1]) * SPAN_UNITS[ago[2]])
    try:
        timestamp_ms = round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        timestamp_ms = -1
    if timestamp_ms < 0:
        raise ValueError(
            f"{text!r} is neither earliest, latest, an offset, nor a time such as "
            "2026-11-21T10:00:00Z, 1795255200000 or -1h"
        )
    return timestamp_ms


def parse_duration(text: str) -> int:
    """Return the milliseconds of a duration such as 90s, 12h or 30d. Raises ValueError for any
    other text, for 0, and for more than a hundred years."""
    duration_ms = None if text.isdecimal() else parse_span_ms(text)
    if duration_ms is None or not 0 < duration_ms <= 36_525 * SPAN_UNITS["d"]:
        raise ValueError(f"{text!r} is not a duration such as 500ms, 90s, 30m, 12h, 30d or 52w")
    return duration_ms
