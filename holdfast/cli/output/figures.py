"""Formats counts, sizes, ages and durations for people. Pure, except for reading the clock.

Output for programs (lines of JSON) has plain numbers instead.
"""

import time

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SPANS_MS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"))


def format_count(count: int, thing: str) -> str:
    """Return a count with its noun, such as "1 message" or "12,502 messages"."""
    plural = f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}s"
    return f"{count:,} {thing if count == 1 else plural}"


def format_bytes(size: int) -> str:
    """Return a number of bytes with a unit, rounded, such as "512 B" or "1.5 KiB"."""
    for factor, unit in _UNITS:
        if size >= factor:
            number = size / factor
            return f"{number:.1f} {unit}" if number < 100 else f"{number:.0f} {unit}"
    return f"{size} B"


def format_span(span_ms: float) -> str:
    """Return a duration in at most two units, such as "250ms", "42s", "5m10s" or "2d4h"."""
    if span_ms < 1000:
        return f"{max(round(span_ms), 0)}ms"
    parts: list[str] = []
    left = round(span_ms)
    for factor, unit in _SPANS_MS:
        count, left = divmod(left, factor)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return "".join(parts)


def format_age(timestamp_ms: int) -> str:
    """Return how long ago a time was, such as "3m10s ago"."""
    return f"{format_span(now_ms() - timestamp_ms)} ago"


def format_seconds(seconds: float) -> str:
    """Return a number of seconds as a duration, such as "3m10s". Return "-" for 0."""
    return format_span(seconds * 1000) if seconds else "-"


def format_number(number: int) -> str:
    return f"{number:,}"


def now_ms() -> int:
    return time.time_ns() // 1_000_000
