"""The cost that a publisher gives to a message, for groups that share by given costs. Pure."""

import re

#: The property that has the cost of its message.
PROPERTY = "holdfast-cost"
#: Costs are counted in thousandths, so the smallest cost is 0.001.
UNITS = 1000
#: A larger cost counts as this one. It is about the ratio between the cost in bytes of a message of
#: 1 MiB and that of an empty message, so no topic waits longer for its turn than with that cost.
LARGEST = 10_000

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)


def parse_cost(text: str | None) -> int:
    """Return the cost in thousandths, from 1 to UNITS * LARGEST. If the text is None, or not a
    decimal number above 0, the cost is 1 (UNITS)."""
    if text is None or not _NUMBER.fullmatch(text):
        return UNITS
    cost = min(float(text), LARGEST)
    return max(1, round(cost * UNITS)) if cost > 0 else UNITS
