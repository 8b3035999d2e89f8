"""A group's filter as text: tags, or a condition over properties."""

import re

from holdfast.consumequeue.reader import MessageFilter
from holdfast.holdservice.filters import parse_filter

#: Bare words, separated by commas or `||`: no condition is only that.
_TAGS = re.compile(r"\s*[\w.*-]+\s*(?:(?:,|\|\|)\s*[\w.*-]+\s*)*")


def filter_of(text: str | None) -> MessageFilter | None:
    """Return the filter that a text states: tags separated by commas (`paid,shipped`), or else an
    SQL92 condition (`region = 'EU'`). None: every message. Raises InvalidFilter."""
    if text is None:
        return None
    if _TAGS.fullmatch(text):
        return parse_filter(text, None)
    return parse_filter(None, text)
