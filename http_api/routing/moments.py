"""Parses points in time in requests: milliseconds since 1970, or ISO 8601 with a zone. Pure."""

import re
from datetime import UTC, datetime

#: The latest time that fits in a signed 64-bit integer in microseconds.
MAX_TIMESTAMP_MS = (2**63 - 1) // 1000
FORMS = "milliseconds since 1970, or ISO 8601 with its zone, such as 2026-11-22T10:00:00Z"
PATTERN = (
    r"^([0-9]{1,16}|[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?"
    r"(Z|[+ -][0-9]{2}:?[0-9]{2}))$"
)
EXAMPLES = ("1760000000000", "2026-11-22T10:00:00Z")
_SHAPE = re.compile(PATTERN, re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time_ms(text: str) -> int:
    """Return a time in milliseconds since 1970.

    Microseconds are rounded up, so that a search does not find messages before the time. A zone may
    have a space instead of `+`, because decoding turns an unencoded `+` of a query into a space.
    Raises ValueError for any other text, and for a time before 1970.
    """
    if not _SHAPE.fullmatch(text):
        raise ValueError(FORMS)
    if text.isdigit():
        number = int(text)
    else:
        zone = text[11:].replace(" ", "+")
        try:
            since = datetime.fromisoformat(text[:11] + zone) - _EPOCH
        except ValueError:
            raise ValueError(FORMS) from None
        micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        number = -(-micros // 1000)
    if not 0 <= number <= MAX_TIMESTAMP_MS:
        raise ValueError(FORMS)
    return number
