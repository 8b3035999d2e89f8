"""Where to start or end reading, as a person writes it: an offset, an end of the queue, a time.

A time is ISO 8601 (local time where it names no zone), epoch milliseconds, `now`, or so long
ago: -90s, -30m, -1h, -2d, -1w. Whole numbers from 10^12 on are taken as epoch milliseconds
(that was September 2001; as an offset it is centuries of a busy queue).
"""

import re
from dataclasses import dataclass
from datetime import datetime

_AGO = re.compile(r"-(\d{1,12})(ms|s|m|h|d|w)", re.ASCII)
_DURATION = re.compile(r"(\d{1,9})(s|m|h|d|w)", re.ASCII)
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_FIRST_EPOCH_MS = 10**12
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first message that is kept."""


@dataclass(frozen=True, slots=True)
class Latest:
    """After the newest message."""


@dataclass(frozen=True, slots=True)
class AtOffset:
    """This offset in the queue."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message stored at or after this time."""

    timestamp_ms: int


Start = Earliest | Latest | AtOffset | AtTime


def parse_start(text: str, now_ms: int) -> Start:
    """Return what `text` means at `now_ms`. Raises ValueError with the forms that are known."""
    if text == "earliest":
        return Earliest()
    if text == "latest":
        return Latest()
    if _NUMBER.fullmatch(text):
        number = int(text)
        return AtOffset(number) if number < _FIRST_EPOCH_MS else AtTime(number)
    return AtTime(parse_time(text, now_ms))


def parse_time(text: str, now_ms: int) -> int:
    """Return the epoch milliseconds that `text` means. Raises ValueError as parse_start does."""
    if text == "now":
        return now_ms
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return max(0, now_ms - int(ago[1]) * _UNIT_MS[ago[2]])
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
    """Return the milliseconds that a text such as 90s, 12h or 30d means; raises ValueError for
    another text, and for one that means no time or more than a hundred years."""
    found = _DURATION.fullmatch(text)
    duration_ms = int(found[1]) * _UNIT_MS[found[2]] if found is not None else 0
    if not 0 < duration_ms <= 36_525 * _UNIT_MS["d"]:
        raise ValueError(f"{text!r} is no time such as 90s, 30m, 12h, 30d or 52w")
    return duration_ms
