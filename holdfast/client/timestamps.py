"""Converts the times that callers give to the milliseconds of the API. Pure."""

import math
from datetime import UTC, datetime, timedelta

Time = int | float | datetime
"""Milliseconds since 1970, or a datetime with a time zone."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def as_timestamp_ms(time: Time) -> int:
    """Return a time in whole milliseconds; it is rounded down so that no message is missed.

    Raises ValueError for a datetime without a time zone, a time before 1970 or a number that is
    not finite; TypeError for any other type.
    """
    if isinstance(time, datetime):
        if time.utcoffset() is None:
            raise ValueError(f"{time!r} has no time zone; give one, as datetime.now(UTC) has")
        time_ms = (time - _EPOCH) // timedelta(milliseconds=1)
    elif isinstance(time, bool) or not isinstance(time, int | float):
        raise TypeError(f"a time is a number of milliseconds or a datetime, not {time!r}")
    elif not math.isfinite(time):
        raise ValueError(f"a time is a finite number of milliseconds, not {time!r}")
    else:
        time_ms = math.floor(time)
    if time_ms < 0:
        raise ValueError(f"a time is not before 1970: {time!r}")
    return time_ms
