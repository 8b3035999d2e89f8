"""Use Spark's own filters to skip topics, queues, offsets, times and tags. No I/O, except through
the catalog that callers pass in.

Spark still evaluates every filter itself. So a read may only skip rows that a filter would drop,
but need not skip all of these rows. A filter that this module does not know skips nothing.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from holdfast.log_files.ranges import OffsetRange
from holdfast.spark.broker.catalog import Catalog
from holdfast.spark.read.plan import BoundTopic

#: The names of the queue and time columns in Holdfast's own schema and in Kafka's schema.
_QUEUES = frozenset({"queue", "partition"})
_TIMES = frozenset({"store_timestamp", "timestamp"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: A request names at most this many tags. If there are more, only Spark filters by tag.
MAX_TAGS = 64


@dataclass(frozen=True, slots=True)
class Span:
    """The integers from `low` to before `end`. None means that there is no bound. If `among` is
    set, the span has only the integers that are also in `among`."""

    low: int | None = None
    end: int | None = None
    among: frozenset[int] | None = None

    def __and__(self, other: "Span") -> "Span":
        lows = [each for each in (self.low, other.low) if each is not None]
        ends = [each for each in (self.end, other.end) if each is not None]
        return Span(
            max(lows, default=None), min(ends, default=None), _intersect(self.among, other.among)
        )

    def __contains__(self, value: int) -> bool:
        return (
            (self.low is None or self.low <= value)
            and (self.end is None or value < self.end)
            and (self.among is None or value in self.among)
        )


@dataclass(frozen=True, slots=True)
class FilterBounds:
    """What filters keep: queues, offsets, times in milliseconds, topics, tags. None keeps all."""

    queues: Span = Span()
    offsets: Span = Span()
    times: Span = Span()
    topics: frozenset[str] | None = None
    tags: frozenset[str] | None = None


def find_bounds(filters: Iterable[Filter]) -> FilterBounds:
    """Return limits for the rows that all filters together keep. Unknown filters set no limits."""
    found = FilterBounds()
    for each in filters:
        column, words = _parse_text_filter(each)
        if column in _QUEUES:
            found = replace(found, queues=found.queues & _parse_span(each))
        elif column == "offset":
            found = replace(found, offsets=found.offsets & _parse_span(each))
        elif column in _TIMES:
            found = replace(found, times=found.times & _parse_span(each))
        elif column == "topic":
            found = replace(found, topics=_intersect(found.topics, words))
        elif column == "tag":
            found = replace(found, tags=_intersect(found.tags, words))
    return found


def choose_tags(asked: frozenset[str], found: frozenset[str] | None) -> frozenset[str] | None:
    """Return the tags to request from the broker; an empty set means all messages. Return None if
    no message can match.

    `asked` are the tags of the option `tag`; an empty set means every tag. `found` are the tags
    that Spark's filters keep; None means every tag. A request cannot contain more than MAX_TAGS
    tags, nor a tag with a comma or outer spaces. If it cannot contain the remaining tags, return
    `asked`, because Spark applies its filters anyway.
    """
    if found is None:
        return asked
    wanted = found & asked if asked else found
    if not wanted:
        return None
    can_be_named = all("," not in tag and tag == tag.strip() for tag in wanted)
    return wanted if can_be_named and len(wanted) <= MAX_TAGS else asked


def narrow_topics(
    catalog: Catalog, topics: Iterable[BoundTopic], wanted: FilterBounds
) -> tuple[BoundTopic, ...]:
    """Return the topics with the ranges that must still be read. The catalog resolves times."""
    return tuple(
        replace(
            topic,
            ranges={
                queue: _narrow_range(catalog, topic.name, queue, part, wanted)
                for queue, part in topic.ranges.items()
            },
        )
        for topic in topics
        if wanted.topics is None or topic.name in wanted.topics
    )


def _narrow_range(
    catalog: Catalog, topic: str, queue: int, part: OffsetRange, wanted: FilterBounds
) -> OffsetRange:
    if queue not in wanted.queues:
        return OffsetRange(part.start, part.start)
    part = _clip_range(part, wanted.offsets.low, wanted.offsets.end)
    low, end = (
        None
        if bound is None or part.start >= part.end
        else catalog.offset_at(topic, queue, max(bound, 0))
        for bound in (wanted.times.low, wanted.times.end)
    )
    return _clip_range(part, low, end)


def _clip_range(part: OffsetRange, low: int | None, end: int | None) -> OffsetRange:
    start = part.start if low is None else min(max(part.start, low), part.end)
    last = part.end if end is None else max(min(part.end, end), start)
    return OffsetRange(start, last)


def _parse_text_filter(each: Filter) -> tuple[str, frozenset[str] | None]:
    """Return the column of a filter and the texts that the filter accepts. The column is empty if
    it is not a top-level column. The texts are None if the filter does not compare with texts."""
    path: tuple[str, ...] = getattr(each, "attribute", ())
    column = path[0] if len(path) == 1 else ""
    match each:
        case EqualTo(value=str(text)) | EqualNullSafe(value=str(text)):
            return column, frozenset({text})
        case In(value=values):
            # In SQL, no value equals a null in the list.
            return column, frozenset(value for value in values if isinstance(value, str))
        case _:
            return column, None


def _parse_span(each: Filter) -> Span:
    """Return the integers, or the times in milliseconds, that a filter keeps."""
    match each:
        case EqualTo(value=value) | EqualNullSafe(value=value):
            return _span_of_values([value])
        case In(value=values):
            return _span_of_values(values)
        case GreaterThanOrEqual(value=value) if (number := _to_number(value)) is not None:
            return Span(low=math.ceil(number))
        case GreaterThan(value=value) if (number := _to_number(value)) is not None:
            return Span(low=math.floor(number) + 1)
        case LessThan(value=value) if (number := _to_number(value)) is not None:
            return Span(end=math.ceil(number))
        case LessThanOrEqual(value=value) if (number := _to_number(value)) is not None:
            return Span(end=math.floor(number) + 1)
        case _:
            return Span()


def _span_of_values(values: Iterable[Any]) -> Span:
    """Return the span of these values. A fraction is left out, because it equals no integer."""
    present = [value for value in values if value is not None]
    numbers = [_to_number(value) for value in present]
    if not present or None in numbers:
        return Span()
    whole = frozenset(int(each) for each in numbers if each is not None and each == int(each))
    return Span(min(whole), max(whole) + 1, whole) if whole else Span(0, 0, frozenset())


def _to_number(value: Any) -> Fraction | None:
    """Return a number, or a time in milliseconds since 1970, or None for any other value."""
    if type(value) is int:
        return Fraction(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return Fraction((value - _EPOCH) // timedelta(microseconds=1), 1000)
    return None


def _intersect(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other
