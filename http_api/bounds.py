"""Checks of what a body says, where its type alone does not: bounds that are refused as limits,
and texts of a form. Pure."""

import re

from holdfast.http_api.params import invalid
from holdfast.http_api.problems import Problem

_MARK = re.compile(r"[!-~]{1,127}", re.ASCII)


def at_most(
    parameter: str, value: float | None, limit: float, limit_name: str | None = None
) -> None:
    """Pass a number that is not above its limit, or none at all. Raises Problem
    (limit-exceeded): what is above a limit is never clamped."""
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


def count_at_most(
    parameter: str, what: str, count: int, limit: int, limit_name: str | None = None
) -> None:
    """Pass a list that is not longer than its limit. Raises Problem (limit-exceeded)."""
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


def check_mark(parameter: str, given: str) -> str:
    """Return a text by which a client calls itself or a request, if it is one that can be
    written anywhere. Raises Problem (invalid-parameter)."""
    if not _MARK.fullmatch(given):
        raise invalid(parameter, given, "1 to 127 visible characters of ASCII")
    return given
