"""Check what the type of a body cannot express: limits of its values, and the form of its texts.

Pure.
"""

import re

from holdfast.http_api.routing.params import invalid
from holdfast.http_api.wire.problems import Problem

_CLIENT_LABEL = re.compile(r"[!-~]{1,127}", re.ASCII)


def check_at_most(
    parameter: str, value: float | None, limit: float, limit_name: str | None = None
) -> None:
    """Raise Problem (limit-exceeded) if a number exceeds its limit. None is accepted.

    So a value above its limit is refused, never silently reduced to the limit.
    """
    if value is None or value <= limit:
        return
    named = {} if limit_name is None else {"limit_name": limit_name}
    raise Problem(
        "limit-exceeded",
        f"{parameter}={value} is above its limit; use {limit} at most",
        parameter=parameter,
        limit=limit,
        **named,
    )


def check_count_at_most(
    parameter: str, what: str, count: int, limit: int, limit_name: str | None = None
) -> None:
    """Raise Problem (limit-exceeded) if a list has more than `limit` elements."""
    if count <= limit:
        return
    named = {} if limit_name is None else {"limit_name": limit_name}
    raise Problem(
        "limit-exceeded",
        f"{count} {what} are given; give {limit} at most in one request",
        parameter=parameter,
        limit=limit,
        **named,
    )


def check_client_label(parameter: str, given: str) -> str:
    """Check and return a name that a client has chosen for itself or for a request.

    The name must have 1 to 127 visible ASCII characters. Raises Problem (invalid-parameter).
    """
    if not _CLIENT_LABEL.fullmatch(given):
        raise invalid(parameter, given, "1 to 127 visible characters of ASCII")
    return given
