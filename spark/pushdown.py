"""What Spark's own filters let a read leave out: topics, queues, offsets, times, tags.

No I/O but what a catalog does that is handed in.

Spark goes on to evaluate every filter itself, so what is left out here only has to be rows that it
would drop, never all of them. Filters that are not understood leave out nothing.
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

from holdfast.spark.catalog import Catalog
from holdfast.spark.offsets import OffsetRange
from holdfast.spark.plan import BoundTopic

#: What a column says about the messages; the same under both schemas.
_QUEUES = frozenset({"queue", "partition"})
_TIMES = frozenset({"store_timestamp", "timestamp"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: So many tags go into a request; of more than these the broker sends everything.
MAX_TAGS = 64


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers from `low` to before `end`; None is no bound. With `among`, only these."""

    low: int | None = None
    end: int | None = None
    among: frozenset[int] | None = None

    def __and__(self, other: "Span") -> "Span":
        lows = [each for each in (self.low, other.low) if each is not None]
        ends = [each for each in (self.end, other.end) if each is not None]
        return Span(
            max(lows, default=None), min(ends, default=None), _both(self.among, other.among)
        )

    def __contains__(self, value: int) -> bool:
        return (
            (self.low is None or self.low <= value)
            and (self.end is None or value < self.end)
            and (self.among is None or value in self.among)
        )


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What may be left out: all that is not in here. Times are in milliseconds."""

    queues: Span = Span()
    offsets: Span = Span()
    times: Span = Span()
    topics: frozenset[str] | None = None
    tags: frozenset[str] | None = None


def narrowing(filters: Iterable[Filter]) -> Narrowing:
    """Return what all of the filters together leave to be read."""
    found = Narrowing()
    for each in filters:
        column, words = _named(each)
        if column in _QUEUES:
            found = replace(found, queues=found.queues & _span(each))
        elif column == "offset":
            found = replace(found, offsets=found.offsets & _span(each))
        elif column in _TIMES:
            found = replace(found, times=found.times & _span(each))
        elif column == "topic":
            found = replace(found, topics=_both(found.topics, words))
        elif column == "tag":
            found = replace(found, tags=_both(found.tags, words))
    return found


def pushed_tags(asked: frozenset[str], found: frozenset[str] | None) -> frozenset[str] | None:
    """Return the tags to ask the broker for, empty for any; None when no message can match.

    `asked` are those of the option, empty for any; `found` those that the filters leave. Tags
    that a request cannot name are left to Spark.
    """
    if found is None:
        return asked
    wanted = found & asked if asked else found
    if not wanted:
        return None
    can_be_named = all("," not in tag and tag == tag.strip() for tag in wanted)
    return wanted if can_be_named and len(wanted) <= MAX_TAGS else asked


def narrow(
    catalog: Catalog, topics: Iterable[BoundTopic], wanted: Narrowing
) -> tuple[BoundTopic, ...]:
    """Return the topics with the ranges that are left; times are looked up by the broker."""
    return tuple(
        replace(
            topic,
            ranges={
                queue: _narrowed(catalog, topic.name, queue, part, wanted)
                for queue, part in topic.ranges.items()
            },
        )
        for topic in topics
        if wanted.topics is None or topic.name in wanted.topics
    )


def _narrowed(
    catalog: Catalog, topic: str, queue: int, part: OffsetRange, wanted: Narrowing
) -> OffsetRange:
    if queue not in wanted.queues:
        return OffsetRange(part.start, part.start)
    part = _within(part, wanted.offsets.low, wanted.offsets.end)
    low, end = (
        None
        if bound is None or part.start >= part.end
        else catalog.offset_at(topic, queue, max(bound, 0))
        for bound in (wanted.times.low, wanted.times.end)
    )
    return _within(part, low, end)


def _within(part: OffsetRange, low: int | None, end: int | None) -> OffsetRange:
    start = part.start if low is None else min(max(part.start, low), part.end)
    last = part.end if end is None else max(min(part.end, end), start)
    return OffsetRange(start, last)


def _named(each: Filter) -> tuple[str, frozenset[str] | None]:
    """Return the column that a filter is about, empty for none of ours, and the texts that it
    asks for, if it asks for any."""
    path: tuple[str, ...] = getattr(each, "attribute", ())
    column = path[0] if len(path) == 1 else ""
    match each:
        case EqualTo(value=str(text)) | EqualNullSafe(value=str(text)):
            return column, frozenset({text})
        case In(value=values):
            # A null in the list equals nothing.
            return column, frozenset(value for value in values if isinstance(value, str))
        case _:
            return column, None


def _span(each: Filter) -> Span:
    """Return the numbers, or the milliseconds, that a filter leaves."""
    match each:
        case EqualTo(value=value) | EqualNullSafe(value=value):
            return _among([value])
        case In(value=values):
            return _among(values)
        case GreaterThanOrEqual(value=value) if (number := _number(value)) is not None:
            return Span(low=math.ceil(number))
        case GreaterThan(value=value) if (number := _number(value)) is not None:
            return Span(low=math.floor(number) + 1)
        case LessThan(value=value) if (number := _number(value)) is not None:
            return Span(end=math.ceil(number))
        case LessThanOrEqual(value=value) if (number := _number(value)) is not None:
            return Span(end=math.floor(number) + 1)
        case _:
            return Span()


def _among(values: Iterable[Any]) -> Span:
    """Return the span of some values; those that are no whole number equal nothing that is."""
    present = [value for value in values if value is not None]
    numbers = [_number(value) for value in present]
    if not present or None in numbers:
        return Span()
    whole = frozenset(int(each) for each in numbers if each is not None and each == int(each))
    return Span(min(whole), max(whole) + 1, whole) if whole else Span(0, 0, frozenset())


def _number(value: Any) -> Fraction | None:
    """Return a number, or a time as milliseconds; None for what is neither."""
    if type(value) is int:
        return Fraction(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return Fraction((value - _EPOCH) // timedelta(microseconds=1), 1000)
    return None


def _both(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other
