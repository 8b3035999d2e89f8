"""Sizes, durations and whole numbers as text, as users write them. Pure."""

import re

from holdfast.commitlog.setting import KIB, MIB

_SIZE = re.compile(r"(\d{1,9}) ?(B|KiB|MiB|GiB|TiB)", re.IGNORECASE | re.ASCII)
_SPAN = re.compile(r"(\d{1,9}) ?(ms|s|m|h|d|w)", re.ASCII)
#: Milliseconds per unit of time.
SPAN_UNITS = {
    "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000
}  # fmt: skip
_UNITS = {"b": 1, "kib": KIB, "mib": MIB, "gib": 1024 * MIB, "tib": 1024 * 1024 * MIB}


def parse_size(found: object) -> int | None:
    """Return a number of bytes from a number or a text like 16MiB; None for other values."""
    matched = _SIZE.fullmatch(found) if isinstance(found, str) else None
    if matched is None:
        return parse_whole_number(found)
    return int(matched[1]) * _UNITS[matched[2].lower()]


def parse_span_ms(found: object) -> int | None:
    """Return milliseconds from a number or a text like 500ms, 90s or 7d; None for other values."""
    matched = _SPAN.fullmatch(found) if isinstance(found, str) else None
    if matched is None:
        return parse_whole_number(found)
    return int(matched[1]) * SPAN_UNITS[matched[2]]


def parse_whole_number(found: object) -> int | None:
    """Return a number that is not negative, given as a text or a number; None for other values."""
    if isinstance(found, str):
        return int(found) if re.fullmatch(r"\d{1,18}", found, re.ASCII) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def format_size(size: int) -> str:
    """Return a number of bytes in the largest unit that divides it: 16 MiB, 1000 B."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = _UNITS[unit.lower()]
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"
