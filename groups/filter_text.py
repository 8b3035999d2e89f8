"""The text form of a group's filter: tags, or a condition over properties."""

import re

from holdfast.consumequeue.reading.fetched import MessageFilter
from holdfast.holdservice.filters import MAX_FILTER_BYTES, parse_filter

#: Words separated by commas or `||`. An SQL92 condition never has this form.
_TAGS = re.compile(r"\s*[\w.*-]+\s*(?:(?:,|\|\|)\s*[\w.*-]+\s*)*")


def filter_of(text: str | None) -> MessageFilter | None:
    """Return the filter of a text. The text is a list of tags, separated by commas
    (`paid,shipped`), or otherwise an SQL92 condition (`region = 'EU'`). Return None if every
    message matches, also if the text is None. Raises InvalidFilter."""
    if text is None:
        return None
    if len(text) <= MAX_FILTER_BYTES and _TAGS.fullmatch(text):
        return parse_filter(text, None)
    return parse_filter(None, text)
