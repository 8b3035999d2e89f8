"""Spark's filters: a pushed filter never drops a row that Spark would keep."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.options.read import parse_options
from holdfast.spark.read.batch_source import PushdownReader
from holdfast.spark.read.plan import bind_topics
from holdfast.spark.read.pushdown import (
    MAX_TAGS,
    FilterBounds,
    Span,
    choose_tags,
    find_bounds,
    narrow_topics,
)
from holdfast.spark.source import HoldfastDataSource
from tests.support.servers.fake_broker import FakeBroker

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at_us(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], FilterBounds()),
        ([EqualTo(("queue",), 2)], FilterBounds(queues=Span(2, 3, frozenset({2})))),
        ([In(("partition",), (1, 3, None))], FilterBounds(queues=Span(1, 4, frozenset({1, 3})))),
        ([GreaterThan(("offset",), 7), LessThanOrEqual(("offset",), 9)],
         FilterBounds(offsets=Span(8, 10))),
        ([GreaterThanOrEqual(("offset",), 7), LessThan(("offset",), 9)],
         FilterBounds(offsets=Span(7, 9))),
        ([EqualNullSafe(("offset",), None)], FilterBounds()),
        ([EqualTo(("topic",), "a"), In(("topic",), ("a", "b"))],
         FilterBounds(topics=frozenset("a"))),
        ([In(("tag",), ("200", None))], FilterBounds(tags=frozenset({"200"}))),
        ([GreaterThan(("store_timestamp",), at_us(1500))], FilterBounds(times=Span(low=2))),
        ([GreaterThanOrEqual(("timestamp",), at_us(2000))], FilterBounds(times=Span(low=2))),
        ([LessThan(("timestamp",), at_us(2001))], FilterBounds(times=Span(end=3))),
        ([LessThanOrEqual(("timestamp",), at_us(2001))], FilterBounds(times=Span(end=3))),
        ([EqualTo(("timestamp",), at_us(2001))], FilterBounds(times=Span(0, 0, frozenset()))),
        # Spark evaluates these itself
        ([EqualTo(("key",), "k"), IsNotNull(("tag",)), StringStartsWith(("tag",), "2")],
         FilterBounds()),
        ([Not(EqualTo(("queue",), 2)), EqualTo(("headers", "queue"), 2)], FilterBounds()),
        ([EqualTo(("store_timestamp",), datetime(2026, 1, 1))], FilterBounds()),
        ([EqualTo(("born_timestamp",), at_us(5))], FilterBounds()),
    ],
)  # fmt: skip
def test_filters_are_understood(filters: list[Filter], expected: FilterBounds) -> None:
    assert find_bounds(filters) == expected


def tags(*names: str) -> frozenset[str]:
    return frozenset(names)


@pytest.mark.parametrize(
    ("asked", "found", "pushed"),
    [
        (tags(), None, tags()),
        (tags("a"), None, tags("a")),
        (tags(), tags("a", "b"), tags("a", "b")),
        (tags("a", "c"), tags("a", "b"), tags("a")),
        (tags("c"), tags("a"), None),
        (tags(), tags(), None),
        (tags(), tags("a,b"), tags()),
        (tags(), tags(" a"), tags()),
        (tags(), tags(*map(str, range(MAX_TAGS))), tags(*map(str, range(MAX_TAGS)))),
        (tags(), tags(*map(str, range(MAX_TAGS + 1))), tags()),
    ],
)
def test_tags_go_to_the_broker(
    asked: frozenset[str], found: frozenset[str] | None, pushed: frozenset[str] | None
) -> None:
    assert choose_tags(asked, found) == pushed


_COMPARE: dict[type[Any], Callable[[Any, Any], bool]] = {
    EqualTo: lambda found, value: found == value,
    GreaterThan: lambda found, value: found > value,
    GreaterThanOrEqual: lambda found, value: found >= value,
    LessThan: lambda found, value: found < value,
    LessThanOrEqual: lambda found, value: found <= value,
    In: lambda found, value: found in value,
}
_STAMPS_US = [1000, 1999, 2000, 2500, 7000]


@pytest.fixture(scope="module")
def stamped() -> Any:
    from tests.support.servers.fake_broker import running_fake_broker

    with running_fake_broker() as broker:
        topic = broker.topic("orders", queues=3)
        for queue in range(3):
            for stamp in _STAMPS_US:
                topic.publish(queue, [b"x"] * 2, store_timestamp_us=stamp)
        yield broker


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "queue": st.integers(-1, 4),
    "offset": st.integers(-1, 12),
    "store_timestamp": st.integers(-1, 9000).map(at_us),
}


@st.composite
def _filter(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(sorted(_VALUES)))
    kind = draw(st.sampled_from(list(_COMPARE)))
    value = _VALUES[column]
    given: Filter = kind((column,), draw(st.lists(value, min_size=1) if kind is In else value))
    return given


@settings(deadline=None, max_examples=60)
@given(filters=st.lists(_filter(), max_size=3))
def test_no_row_that_spark_would_keep_is_left_out(
    stamped: FakeBroker, filters: list[Filter]
) -> None:
    options = parse_options({"url": stamped.url, "topic": "orders"})
    with BrokerClient.open(options.address) as client:
        (left,) = narrow_topics(client, bind_topics(client, options), find_bounds(filters))
    for queue in range(3):
        for offset in range(10):
            stamp = at_us(_STAMPS_US[offset // 2] // 1000 * 1000)
            row = {"queue": queue, "offset": offset, "store_timestamp": stamp}
            kept = all(
                _COMPARE[type(each)](row[each.attribute[0]], each.value)  # type: ignore[attr-defined]
                for each in filters
            )
            start, end = left.ranges[queue]
            assert start <= end
            assert not kept or start <= offset < end


def test_a_narrowed_read_requests_only_the_remaining_ranges(broker: FakeBroker) -> None:
    topic = broker.topic("orders", queues=3)
    for queue in range(3):
        for stamp in (1, 2, 3):
            topic.publish(
                queue, [b"x"] * 2, tags=["200", "404"], store_timestamp_us=stamp * 1_000_000
            )
    source = HoldfastDataSource({"url": broker.url, "topic": "orders", "pushdown": "true"})
    source.schema()
    reader = source.reader(StructType())
    assert isinstance(reader, PushdownReader)
    given: list[Filter] = [
        In(("queue",), (0, 2)),
        GreaterThanOrEqual(("store_timestamp",), at_us(2_000_000)),
        LessThan(("offset",), 5),
        EqualTo(("tag",), "404"),
    ]
    assert list(reader.pushFilters(given)) == given
    rows = [
        (row["queue"], row["offset"], row["tag"])
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]
    assert rows == [(0, 3, "404"), (2, 3, "404")]
    pulls = [request for request in broker.requests if "/messages?" in request]
    assert all("tag=404" in pull and "queues/1/" not in pull for pull in pulls)


def test_filters_that_nothing_can_match_read_nothing(broker: FakeBroker) -> None:
    broker.topic("orders").publish(0, [b"x"], tags=["200"])
    source = HoldfastDataSource(
        {"url": broker.url, "topic": "orders", "pushdown": "true", "tag": "200"}
    )
    source.schema()
    reader = source.reader(StructType())
    reader.pushFilters([EqualTo(("tag",), "404")])
    (empty,) = reader.partitions()
    assert list(reader.read(empty)) == []
    assert not any("/messages?" in request for request in broker.requests)
