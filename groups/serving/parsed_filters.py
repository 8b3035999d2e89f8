"""The parsed filters of groups. While a filter is in use, its text is not parsed again.

Parsing the longest text takes about ten milliseconds, and the first condition more. So texts are
parsed in another thread, one at a time; only short texts are parsed on the event loop. Call
everything here on the event loop.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast
from weakref import WeakValueDictionary

from holdfast.consumequeue.reading.fetched import MessageFilter
from holdfast.consumequeue.thread_calls import call_in_thread
from holdfast.holdservice.filters import (
    MAX_FILTER_BYTES,
    AllOf,
    Sql92Filter,
    TagFilter,
    is_parsed_quickly,
    parse_filter,
)
from holdfast.holdservice.no_local import not_published_by

#: Words separated by commas or `||`. An SQL92 condition never has this form.
_TAGS = re.compile(r"\s*[\w.*-]+\s*(?:(?:,|\|\|)\s*[\w.*-]+\s*)*")


Filters = Mapping[str, MessageFilter | None]
"""Parsed filters by text. None is the filter that matches every message."""


class ParsedFilters:
    """All filters that are in use."""

    def __init__(self) -> None:
        self._by_text: WeakValueDictionary[str, MessageFilter] = WeakValueDictionary()
        self._parsing = asyncio.Lock()

    async def parse(self, texts: Iterable[str | None]) -> Filters:
        """Return the filters of the texts. As long as a caller keeps a filter, `get` finds it
        without parsing. Raises InvalidFilter."""
        found = {text: self._by_text.get(text) for text in texts if text is not None}
        missing = [text for text, each in found.items() if each is None]
        is_short = _are_parsed_quickly(missing)
        for text in missing:
            found[text] = filter_of(text) if is_short else await self._parse_apart(text)
            self._keep(text, found[text])
        return found

    async def parse_wanted(self, text: str | None, no_local: str | None) -> MessageFilter | None:
        """Return the filter of a receive: its text, without the messages of the session `no_local`
        if that is not None. Raises InvalidFilter."""
        given = None if text is None else (await self.parse([text]))[text]
        if no_local is None:
            return given
        tags = given if isinstance(given, TagFilter) else None
        is_condition = text is not None and isinstance(given, Sql92Filter)
        condition = not_published_by(no_local, text if is_condition else None)
        others = (await self.parse([condition]))[condition]
        return others if tags is None else AllOf(tags, cast(Sql92Filter, others))

    def get(self, text: str | None) -> MessageFilter | None:
        """Return the filter of a text. It is the object that `parse` returned, if that object is
        still in use. Raises InvalidFilter."""
        found = None if text is None else self._by_text.get(text)
        if found is None:  # the text matches every message, or is only tags
            return filter_of(text)
        return found

    async def _parse_apart(self, text: str) -> MessageFilter | None:
        async with self._parsing:
            found = self._by_text.get(text)  # another caller may have parsed it meanwhile
            if found is None:
                found = await call_in_thread(filter_of, text)
                self._keep(text, found)
            return found

    def _keep(self, text: str, parsed: MessageFilter | None) -> None:
        if parsed is not None:
            self._by_text[text] = parsed


def _are_parsed_quickly(texts: Sequence[str]) -> bool:
    """Return whether the event loop may parse these texts."""
    if not is_parsed_quickly("".join(texts), None):
        return False
    return all(_TAGS.fullmatch(text) or is_parsed_quickly(None, text) for text in texts)


def characters_of(filters: Filters) -> int:
    """Return the length of all texts together."""
    return sum(map(len, filters))


def filter_of(text: str | None) -> MessageFilter | None:
    """Return the filter of a text. The text is a list of tags, separated by commas
    (`paid,shipped`), or otherwise an SQL92 condition (`region = 'EU'`). Return None if every
    message matches, also if the text is None. Raises InvalidFilter."""
    if text is None:
        return None
    if len(text) <= MAX_FILTER_BYTES and _TAGS.fullmatch(text):
        return parse_filter(text, None)
    return parse_filter(None, text)
