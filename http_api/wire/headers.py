"""Reads headers that may have several lines, and headers that must have only one. Pure."""

from multidict import MultiMapping, istr

from holdfast.http_api.wire.problems import Problem

# These are istr objects, so that a case-insensitive look-up need not convert them each time.
ORIGIN = istr("Origin")
SEC_FETCH_SITE = istr("Sec-Fetch-Site")

#: The maximum length of one header line, and also of all lines of one list header together:
#: several lines must not cause more work than one line can.
MAX_FIELD_BYTES = 8190


def list_header(headers: MultiMapping[str], name: str) -> str:
    """Return all lines of a list header, joined with commas (RFC 9110 section 5.3).

    If the header is missing, return "". Raises Problem (header-too-large).
    """
    given = ", ".join(headers.getall(name, ()))
    if len(given) > MAX_FIELD_BYTES:
        raise Problem(
            "header-too-large",
            f"the lines of {name} are together longer than {MAX_FIELD_BYTES} bytes; send less",
        )
    return given


def single_header(headers: MultiMapping[str], name: str) -> str | None:
    """Return a header that may occur only once, or None if it is missing.

    Raises Problem (invalid-parameter) if it occurs twice: the intended value is then unknown.
    """
    given = headers.getall(name, ())
    if len(given) > 1:
        raise Problem(
            "invalid-parameter",
            f"{name} is given more than once; allowed: one value",
            parameter=name,
            found=", ".join(given)[:200],
            allowed="one value",
        )
    return given[0] if given else None
