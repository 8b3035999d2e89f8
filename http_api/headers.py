"""Headers that a request may give once or in several lines. Pure."""

from multidict import MultiMapping

from holdfast.http_api.params import invalid


def listed(headers: MultiMapping[str], name: str) -> str:
    """Return a header that is a list, all its lines as one (RFC 9110 section 5.3); empty without
    it."""
    return ", ".join(headers.getall(name, ()))


def lone(headers: MultiMapping[str], name: str) -> str | None:
    """Return a header that says one thing, None without it. Raises Problem (invalid-parameter) for
    two of them: whichever was taken, the other might have been meant."""
    given = headers.getall(name, ())
    if len(given) > 1:
        raise invalid(name, ", ".join(given), "one value", f"{name} is given more than once")
    return given[0] if given else None
