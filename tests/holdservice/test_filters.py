from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.commitlog.format.batch import Batch, tag_summary, tags_code
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.lazy_import import import_at_first_use
from holdfast.holdservice import filters
from holdfast.holdservice.filters import (
    MAX_FILTER_BYTES,
    MAX_FILTER_TAGS,
    AllOf,
    InvalidFilter,
    Sql92Filter,
    TagFilter,
    parse_filter,
    row_values,
)
from holdfast.holdservice.three_valued import Column


def batch_of(
    *,
    tags: Sequence[str | None] | None = None,
    keys: Sequence[str | None] | None = None,
    properties: Sequence[Mapping[str, str] | None] | None = None,
    **columns: Any,
) -> Batch:
    count = len(tags or keys or properties or [None])
    block = encode_batch([b"x"] * count, tags=tags, keys=keys, properties=properties, **columns)
    return Batch.decode(block)


def with_tag_codes(batch: Batch, codes: list[int]) -> Batch:
    """Return the batch with tag codes that do not match its tags."""
    block = bytearray(batch.block)
    section = batch.layout.tag_codes
    assert section is not None
    block[section.start : section.end] = np.array(codes, "<u4").tobytes()
    return Batch.decode(block, verify_payload=False)


# -- tags --------------------------------------------------------------------------------------


def test_a_tag_filter_finds_the_rows_with_one_of_its_tags() -> None:
    batch = batch_of(tags=["a", "b", None, "ä", "a", "c"])
    assert TagFilter(frozenset({"a"})).matching_rows(batch, 0, 6) == [0, 4]
    assert TagFilter(frozenset({"ä", "c"})).matching_rows(batch, 0, 6) == [3, 5]
    assert TagFilter(frozenset({"x"})).matching_rows(batch, 0, 6) == []


def test_a_tag_filter_examines_only_the_given_rows() -> None:
    batch = batch_of(tags=["a", "b", "a", "b", "a"])
    assert TagFilter(frozenset({"a"})).matching_rows(batch, 1, 4) == [2]
    assert TagFilter(frozenset({"a"})).matching_rows(batch, 3, 3) == []


def test_no_tag_filter_matches_a_batch_without_tags() -> None:
    assert TagFilter(frozenset({"a"})).matching_rows(batch_of(), 0, 1) == []


def test_tags_with_equal_codes_are_compared_as_texts() -> None:
    """Two tags may have the same code: here "other" has the code of "a"."""
    batch = with_tag_codes(batch_of(tags=["a", "other"]), [tags_code("a"), tags_code("a")])
    assert TagFilter(frozenset({"a"})).matching_rows(batch, 0, 2) == [0]


def test_a_wrong_code_hides_only_its_own_message() -> None:
    batch = with_tag_codes(batch_of(tags=["a", "a", "a"]), [tags_code("a"), 1, tags_code("a")])
    assert TagFilter(frozenset({"a"})).matching_rows(batch, 0, 3) == [0, 2]
    assert TagFilter(frozenset({"a"})).matching_rows(batch, 1, 2) == []


def test_the_summary_excludes_batches_that_cannot_match() -> None:
    tag_filter = TagFilter(frozenset({"a", "b"}))
    assert tag_filter.may_match(tag_summary([tags_code("b"), tags_code("x")]))
    assert not tag_filter.may_match(0)
    missing = 0xFFFF_FFFF_FFFF_FFFF & ~tag_summary([tags_code("a"), tags_code("b")])
    assert not tag_filter.may_match(missing)


tags = st.sampled_from(["a", "b", "ab", "ä", "200", "404", None])


@given(st.lists(tags, min_size=1, max_size=30), st.sets(tags, min_size=1), st.data())
def test_a_tag_filter_is_a_plain_comparison(
    column: list[str | None], wanted: set[str | None], data: st.DataObject
) -> None:
    tag_filter = TagFilter(frozenset(tag for tag in wanted if tag is not None))
    start = data.draw(st.integers(0, len(column)))
    end = data.draw(st.integers(start, len(column)))
    batch = batch_of(tags=column)
    expected = [row for row in range(start, end) if column[row] in tag_filter.tags]
    assert list(tag_filter.matching_rows(batch, start, end)) == expected
    assert not expected or tag_filter.may_match(batch.header.tag_summary)


# -- conditions --------------------------------------------------------------------------------

PEOPLE = batch_of(
    keys=["k0", None, "k2", "k3"],
    tags=["x", "y", None, "x"],
    properties=[{"age": "30", "city": "Köln"}, None, {"age": "old"}, {"city": "Ulm", "age": "9"}],
    born_timestamps_us=[0, 1_000, 2_999, 3_000],
)


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("age > 8", [0, 3]),
        ("city like 'K%'", [0]),
        ("city is null", [1, 2]),
        ("age is not null and city is null", [2]),
        ("TAGS = 'x' and age < 10", [3]),
        ("TAGS is null", [2]),
        ("KEYS in ('k0', 'k2')", [0, 2]),
        ("JMSType = 'x' and JMSXGroupID <> 'k0'", [3]),
        ("JMSTimestamp between 1 and 2", [1, 2]),
        ("true", [0, 1, 2, 3]),
        ("nothing = 1", []),
    ],
)
def test_a_condition_finds_the_rows_for_which_it_is_true(expression: str, rows: list[int]) -> None:
    assert Sql92Filter(expression).matching_rows(PEOPLE, 0, 4) == rows
    assert Sql92Filter(expression).matching_rows(PEOPLE, 1, 3) == [r for r in rows if 1 <= r < 3]
    assert Sql92Filter(expression).matching_rows(PEOPLE, 2, 2) == []


def test_a_condition_reads_batches_without_the_columns_it_names() -> None:
    assert Sql92Filter("a is null and TAGS is null and KEYS is null").matching_rows(
        batch_of(), 0, 1
    ) == [0]
    assert Sql92Filter("a = 1").matching_rows(batch_of(), 0, 1) == []


def test_a_condition_cannot_rule_out_a_batch() -> None:
    assert Sql92Filter("a = 1").may_match(0)


properties = st.none() | st.dictionaries(
    st.sampled_from(["a", "b", "ä", "ab"]), st.text(max_size=3).filter(str.isprintable), max_size=4
)


@given(st.lists(properties, min_size=1, max_size=8), st.data())
def test_only_named_values_of_a_row_are_read(
    column: list[dict[str, str] | None], data: st.DataObject
) -> None:
    rows = sorted(data.draw(st.sets(st.integers(0, len(column) - 1))))
    names = data.draw(st.sets(st.sampled_from(["a", "ä", "ab", "nobody has it"])))
    batch = batch_of(properties=column, keys=["key"] + [None] * (len(column) - 1))
    expected = [
        (row, {name: text for name, text in (column[row] or {}).items() if name in names})
        for row in rows
    ]
    assert list(row_values(batch, rows, frozenset(names))) == expected
    if rows[:1] == [0]:
        _, values = next(row_values(batch, rows, frozenset({Column.KEY, Column.TAG})))
        assert values == {Column.KEY: "key"}


def test_both_filters_must_hold() -> None:
    both = AllOf(TagFilter(frozenset({"x"})), Sql92Filter("age > 8"))
    assert both.matching_rows(PEOPLE, 0, 4) == [0, 3]
    assert both.matching_rows(PEOPLE, 1, 4) == [3]
    assert (
        AllOf(TagFilter(frozenset({"y"})), Sql92Filter("age > 8")).matching_rows(PEOPLE, 0, 4) == []
    )
    assert not both.may_match(0)


# -- what clients send -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("a", {"a"}),
        ("a,b", {"a", "b"}),
        ("a || b", {"a", "b"}),
        (" a , b,,a ", {"a", "b"}),
        ("with space,ä", {"with space", "ä"}),
    ],
)
def test_tags_are_separated(tag: str, expected: set[str]) -> None:
    assert parse_filter(tag, None) == TagFilter(frozenset(expected))


@pytest.mark.parametrize("tag", ["*", " * ", "a,*"])
def test_a_star_is_every_message(tag: str) -> None:
    assert parse_filter(tag, None) is None
    assert parse_filter(tag, "a = 1") == Sql92Filter("a = 1")


def test_without_parameters_there_is_no_filter() -> None:
    assert parse_filter(None, None) is None


def test_tag_and_condition_together_must_both_hold() -> None:
    assert parse_filter("a", "b = 1") == AllOf(TagFilter(frozenset({"a"})), Sql92Filter("b = 1"))


@pytest.mark.parametrize(
    ("tag", "expression", "reason"),
    [
        ("", None, "empty"),
        (" , || ,", None, "empty"),
        ("\ud800", None, "syntax"),
        ("a" * (MAX_FILTER_BYTES + 1), None, "too-long"),
        (",".join(map(str, range(MAX_FILTER_TAGS + 1))), None, "too-many-tags"),
        (None, "", "syntax"),
        ("a", "b =", "syntax"),
    ],
)
def test_invalid_tags_are_refused(tag: str | None, expression: str | None, reason: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        parse_filter(tag, expression)
    assert caught.value.reason == reason


def test_limits_of_tags_hold_to_the_last() -> None:
    for count in (MAX_FILTER_TAGS - 1, MAX_FILTER_TAGS):
        assert parse_filter(",".join(map(str, range(count))), None) is not None
    for size in (MAX_FILTER_BYTES - 1, MAX_FILTER_BYTES):
        assert parse_filter("a" * size, None) is not None


def test_equal_parameters_make_equal_filters() -> None:
    """The hold table scans once for all pulls with equal filters."""
    assert len({parse_filter("a,b", "c = 1"), parse_filter("b,a", "c = 1")}) == 1
    assert len({Sql92Filter("a = 1"), Sql92Filter("a = 1"), Sql92Filter("a = 2")}) == 2


# -- cost ------------------------------------------------------------------------------------


def test_costly_filters_have_a_higher_cost() -> None:
    usual = parse_filter("red", "size > 3 AND colour = 'red'")
    costly = parse_filter(None, " OR ".join(["a > 1"] * 128))
    wild = parse_filter(None, f"a LIKE '%{'x_' * 50}%'")
    plain = parse_filter(None, "a LIKE '%xyz%'")
    assert usual is not None
    assert costly is not None
    assert wild is not None
    assert plain is not None
    assert usual.cost_us(100, 10_000) < 3000 < costly.cost_us(100, 10_000)
    assert plain.cost_us(1, 32_000) < 1000 < wild.cost_us(1, 32_000)


def test_a_million_digits_are_not_a_number() -> None:
    batch = Batch.decode(encode_batch([b""] * 2, properties=[{"a": "9" * 4301}, {"a": "9" * 4300}]))
    condition = parse_filter(None, "a > 1")
    assert condition is not None
    assert list(condition.matching_rows(batch, 0, 2)) == [1]


def test_only_the_first_condition_is_too_slow_for_the_event_loop() -> None:
    import_at_first_use(vars(filters), sql92="holdfast.holdservice.sql92")
    assert filters.is_parsed_quickly("a,b", None)
    assert not filters.is_parsed_quickly(None, "first = 1")
    filters.parse_filter.cache_clear()
    filters.parse_filter(None, "first = 1")
    assert filters.is_parsed_quickly(None, "second = 2")
    assert filters.is_parsed_quickly("a", "second = 2")


@pytest.mark.parametrize(("tag", "condition"), [("a" * 129, None), (None, "a = '" + "b" * 124)])
def test_long_filters_are_too_slow_for_the_event_loop(
    tag: str | None, condition: str | None
) -> None:
    filters.parse_filter(None, "a = 1")
    assert not filters.is_parsed_quickly(tag, condition)
