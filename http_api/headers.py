"""Headers that a request may give once or in several lines. Pure."""

from multidict import MultiMapping

from holdfast.http_api.params import invalid
from holdfast.http_api.problems import Problem

#: Of a line, and of all lines of a list together: more lines must not make the work more.
MAX_FIELD_BYTES = 8190


def listed(headers: MultiMapping[str], name: str) -> str:
    """Return a header that is a list, all its lines as one (RFC 9110 section 5.3); empty without
    it. Raises Problem (header-too-large)."""
    given = ", ".join(headers.getall(name, ()))
    if len(given) > MAX_FIELD_BYTES:
        raise Problem(
            "header-too-large",
            f"the lines of {name} are together longer than {MAX_FIELD_BYTES} bytes; send less",
        )
    return given


def lone(headers: MultiMapping[str], name: str) -> str | None:
    """Return a header that says one thing, None without it. Raises Problem (invalid-parameter) for
    two of them: whichever was taken, the other might have been meant."""
    given = headers.getall(name, ())
    if len(given) > 1:
        raise invalid(name, ", ".join(given), "one value", f"{name} is given more than once")
    return given[0] if given else None
