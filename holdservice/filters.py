"""Filters for the messages of a pull. They are immutable, and equal if they have equal tags and
equal expressions.

`parse_filter` creates a filter from a client's parameters; docs/filters.md is the reference.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from holdfast.commitlog.format.batch import Batch, UInt32s, tag_summary, tags_code
from holdfast.commitlog.lazy_import import import_at_first_use, is_imported
from holdfast.holdservice.envelope_columns import ENVELOPE_COLUMNS, ENVELOPE_US, reader
from holdfast.holdservice.errors import InvalidFilter
from holdfast.holdservice.filter_limits import (
    MAX_FILTER_BYTES,
    MAX_FILTER_DEPTH,
    MAX_FILTER_TAGS,
    MAX_FILTER_TERMS,
)
from holdfast.holdservice.three_valued import Column, Name

if TYPE_CHECKING:
    from holdfast.holdservice import sql92
else:
    import_at_first_use(globals(), sql92="holdfast.holdservice.sql92")

__all__ = [
    "MAX_FILTER_BYTES",
    "MAX_FILTER_DEPTH",
    "MAX_FILTER_TAGS",
    "MAX_FILTER_TERMS",
    "SHORT_FILTER_CHARACTERS",
    "AllOf",
    "InvalidFilter",
    "Sql92Filter",
    "TagFilter",
    "is_parsed_quickly",
    "parse_filter",
]

#: The parameters of a filter that have at most this many characters together are parsed in less
#: than a millisecond.
SHORT_FILTER_CHARACTERS = 128

_TAG_SEPARATOR = re.compile(r",|\|\|")


@lru_cache(maxsize=128)  # a consumer sends the same filter with every pull; 128 bounds the memory
def parse_filter(tag: str | None, filter: str | None) -> "TagFilter | Sql92Filter | AllOf | None":
    """Return the filter for a client's parameters `tag` and `filter`; None if every message
    matches.

    `tag` is a list of tags, separated by `,` or RocketMQ's `||`. If one of them is `*`, every
    message matches, with or without a tag. `filter` is an SQL92 condition. If both are given, a
    message must match both. Raise InvalidFilter.
    """
    tags = None if tag is None else _parse_tags(tag)
    condition = None if filter is None else Sql92Filter(filter)
    if tags is not None and condition is not None:
        return AllOf(tags, condition)
    return tags or condition


def is_parsed_quickly(tag: str | None, filter: str | None) -> bool:
    """Return whether `parse_filter` takes less than a millisecond, so that the event loop may call
    it: the texts are short, and if there is a condition, the parser of conditions exists. The first
    condition makes this parser, in tens of milliseconds."""
    if len(tag or "") + len(filter or "") > SHORT_FILTER_CHARACTERS:
        return False
    return filter is None or is_imported(sql92)


def _parse_tags(text: str) -> "TagFilter | None":
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidFilter("syntax", "it is not valid Unicode; send UTF-8", error.start) from None
    if size > MAX_FILTER_BYTES:
        raise InvalidFilter("too-long", f"it has {size} bytes; use at most {MAX_FILTER_BYTES}")
    tags = frozenset(filter(None, (tag.strip() for tag in _TAG_SEPARATOR.split(text))))
    if "*" in tags:
        return None
    if not tags:
        raise InvalidFilter("empty", "it names no tag; leave it out to get every message")
    if len(tags) > MAX_FILTER_TAGS:
        raise InvalidFilter(
            "too-many-tags",
            f"it names {len(tags)} tags; use at most {MAX_FILTER_TAGS}, or an SQL92 filter",
        )
    return TagFilter(tags)


@dataclass(frozen=True)
class TagFilter:
    """Matches messages that have one of the tags. First the tag codes are compared, then the
    texts."""

    tags: frozenset[str]

    @cached_property
    def _texts(self) -> dict[int, list[bytes]]:
        texts: dict[int, list[bytes]] = {}
        for tag in self.tags:
            texts.setdefault(tags_code(tag), []).append(tag.encode())
        return texts

    @cached_property
    def _codes(self) -> UInt32s:
        return np.array(sorted(self._texts), np.uint32)

    @cached_property
    def _summary(self) -> int:
        return tag_summary(self._texts)

    def may_match(self, summary: int) -> bool:
        """Return whether a batch with this tag summary may contain a match."""
        return bool(summary & self._summary)

    def cost_us(self, messages: int, text_bytes: int) -> float:
        """Return about how many microseconds it takes to match `messages` messages."""
        return 5 + messages * 0.02

    def matching_rows(self, batch: Batch, start_row: int, end_row: int) -> Sequence[int]:
        """Return the rows in [start_row, end_row) that match, ascending."""
        codes, offsets = batch.tag_codes, batch.tag_offsets
        if codes is None or offsets is None:
            return []
        codes = codes[start_row:end_row]
        hits = codes == self._codes[0] if len(self._codes) == 1 else np.isin(codes, self._codes)
        rows = np.flatnonzero(hits)
        starts = offsets[start_row:end_row][rows].tolist()
        ends = offsets[start_row + 1 : end_row + 1][rows].tolist()
        tags = bytes(batch.tags[starts[0] : ends[-1]]) if starts else b""
        base = starts[0] if starts else 0
        texts = self._texts
        return [
            start_row + row
            for row, code, start, end in zip(
                rows.tolist(), codes[rows].tolist(), starts, ends, strict=True
            )
            if tags[start - base : end - base] in texts[code]
        ]


@dataclass(frozen=True)
class Sql92Filter:
    """Matches messages for which an SQL92 expression over their properties is true.

    The constructor raises InvalidFilter if the expression is invalid.
    """

    expression: str
    _condition: "sql92.Condition" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_condition", sql92.parse_condition(self.expression))

    def may_match(self, summary: int) -> bool:
        """Return True: the summary contains nothing about properties."""
        return True

    def cost_us(self, messages: int, text_bytes: int) -> float:
        """Return about how many microseconds it takes to match `messages` messages with
        `text_bytes` bytes of keys, tags and property values. For costly filters the result is an
        upper limit."""
        condition = self._condition
        per_byte = 0.01 * condition.terms + condition.like_byte_us
        per_message: float = 3 + 3 * condition.terms
        if not condition.names.isdisjoint(ENVELOPE_COLUMNS):
            per_message += ENVELOPE_US
        return 5 + messages * per_message + text_bytes * per_byte

    def matching_rows(self, batch: Batch, start_row: int, end_row: int) -> Sequence[int]:
        """Return the rows in [start_row, end_row) that match, ascending."""
        return self.select(batch, range(start_row, end_row))

    def select(self, batch: Batch, rows: Sequence[int]) -> Sequence[int]:
        """Return the matching rows of `rows`. `rows` must be ascending."""
        is_match = self._condition.is_match
        names = self._condition.names
        return [row for row, values in row_values(batch, rows, names) if is_match(values)]


@dataclass(frozen=True)
class AllOf:
    """Matches messages that have one of the tags and also meet the condition."""

    tags: TagFilter
    condition: Sql92Filter

    def may_match(self, summary: int) -> bool:
        """Return whether a batch with this tag summary may contain a match."""
        return self.tags.may_match(summary)

    def cost_us(self, messages: int, text_bytes: int) -> float:
        """Return about how many microseconds it takes to match `messages` messages, if all of them
        have one of the tags."""
        return self.tags.cost_us(messages, text_bytes) + self.condition.cost_us(
            messages, text_bytes
        )

    def matching_rows(self, batch: Batch, start_row: int, end_row: int) -> Sequence[int]:
        """Return the rows in [start_row, end_row) that match, ascending."""
        return self.condition.select(batch, self.tags.matching_rows(batch, start_row, end_row))


# -- the values of rows --------------------------------------------------------------------


def row_values(
    batch: Batch, rows: Sequence[int], names: frozenset[Name]
) -> Iterator[tuple[int, dict[Name, str]]]:
    """Yield (row, values) for each of `rows`, which must be ascending. `values` maps each of
    `names` to its value, if the message has one.

    The columns are read once, from the first row to the last. Only the properties in `names` are
    decoded.
    """
    if not rows:
        return
    first, last = rows[0], rows[-1]
    wanted: dict[bytes, Name] = {name.encode(): name for name in names if isinstance(name, str)}
    has_tag, has_key, has_born = Column.TAG in names, Column.KEY in names, Column.BORN in names
    requests = batch.requests if Column.PRODUCER in names else None
    foreign = frozenset(each for each in names if each in ENVELOPE_COLUMNS)
    read = reader()
    starts, entry_names, value_at, texts = _entries(batch, first, last) if wanted else _NO_ENTRIES
    for row in rows:
        values: dict[Name, str] = {}
        if starts:
            for i in range(starts[row - first], starts[row - first + 1]):
                name = wanted.get(entry_names[i])
                if name is not None:
                    values[name] = texts[value_at[i] : value_at[i + 1]].decode()
        if has_tag and (tag := batch.tag(row)) is not None:
            values[Column.TAG] = tag
        if has_key and (key := batch.key(row)) is not None:
            values[Column.KEY] = key
        if has_born:
            values[Column.BORN] = str(batch.born_timestamp_us(row) // 1000)
        if Column.PRODUCER in names:
            of_batch = batch.header.producer_id
            producer_id = of_batch if requests is None else int(requests.producer_ids[row])
            if producer_id:
                values[Column.PRODUCER] = str(producer_id)
        if foreign and read is not None:
            values |= read(batch.envelope(row), foreign)
        yield row, values


_Entries = tuple[list[int], list[bytes], list[int], bytes]
_NO_ENTRIES: _Entries = ([], [], [], b"")


def _entries(batch: Batch, first: int, last: int) -> _Entries:
    """Return the properties of the rows `first` to `last`: the index of each row's first property,
    the properties' names, the start of each value in the text, and the text of all values. Indexes
    and starts count from 0 at row `first`. The list of indexes and the list of starts have one more
    entry, the end of the last property.
    """
    listed, name_at, value_at = batch.property_list, batch.name_offsets, batch.value_offsets
    if listed is None or name_at is None or value_at is None:
        return _NO_ENTRIES
    listed = listed[first : last + 2]
    name_at = name_at[listed[0] : listed[-1] + 1]
    value_at = value_at[listed[0] : listed[-1] + 1]
    names = bytes(batch.names[name_at[0] : name_at[-1]])
    return (
        (listed - listed[0]).tolist(),
        [names[start:end] for start, end in pairwise((name_at - name_at[0]).tolist())],
        (value_at - value_at[0]).tolist(),
        bytes(batch.values[value_at[0] : value_at[-1]]),
    )
