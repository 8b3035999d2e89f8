import inspect
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.holdservice.errors import InvalidFilter
from holdfast.holdservice.filter_limits import (
    MAX_FILTER_BYTES,
    MAX_FILTER_DEPTH,
    MAX_FILTER_TERMS,
)
from holdfast.holdservice.sql92 import parse_condition
from holdfast.holdservice.three_valued import Column, Name, Row

ROW: Row = {
    "color": "red",
    "size": "10",
    "price": "2.50",
    "paid": "true",
    "refunded": "False",
    "day": "2026-11-21",
    "note": "it's",
    "user-id": "u1",
    "größe": "3",
    "in.bytes": "7",
    "android": "1",
    "huge": "9007199254740993",
    "TAGS": "a property of this name",
    Column.TAG: "404",
    Column.KEY: "10.0.0.1",
}


@pytest.mark.parametrize(
    "expression",
    [
        "color = 'red'",
        "color <> 'blue'",
        "color != 'blue'",
        "note = 'it''s'",
        "size = 10",
        "size = 10.0",
        "size = '10'",
        "size > 9",  # compared as numbers; as text, '10' is less
        "size < 9.5e1",
        "price = 2.5",
        "price <> '2.5'",  # compared as text
        "-1 < size",
        "9 < size",
        "huge = 9007199254740993",
        "huge <> 9007199254740992",
        "day >= '2026-11-01' and day < '2026-12-01'",
        "size between 10 and 20",
        "size between 1 and 10",
        "size not between 11 and 20",
        "15 between size and 20",
        "color in ('blue', 'red')",
        "color not in ('blue', 'green')",
        "size in (1, 10)",
        "size in ('x', 10)",
        "paid in (1, TRUE)",
        "size in (TRUE, 10)",
        "color in (1, true, 'red')",
        "color like 'r%'",
        "color like '_ed'",
        "color not like '%x%'",
        "day like '2026-11-__'",
        "note like 'it''%'",
        "colour is null",
        "color is not null",
        "paid",
        "paid = true",
        "refunded = FALSE",
        "not refunded",
        "true",
        "`user-id` = 'u1'",
        "größe = 3",
        "in.bytes = 7",
        "android = 1",
        "TAGS = '404'",
        "`TAGS` = 'a property of this name'",
        "KEYS like '10.%'",
        "color = 'blue' or size = 10",
        "color = 'red' or color = 'x' and size = 11",  # AND binds tighter
        "not color = 'blue' and size = 10",  # NOT binds tighter
        "not (color = 'blue' and size = 10)",
        "COLOR IS NULL AND color Is Not Null",  # names are case-sensitive, keywords are not
        "(((size)) = (10))",
        "(size = 10) = true",
        "\n\tsize\n=\n10 ",
        "size + 1 = 11",
        "size-1 = 9",
        "size * 2 - 5 = 15",
        "2 + 3 * 4 = 14",
        "(2 + 3) * size = 50",
        "1 - 2 - 3 = -4",
        "7 / 2 = 3 and -7 / 2 = -3 and 7 / -2 = -3",  # integers, rounded towards 0, as in JMS
        "7.0 / 2 = 3.5",
        "12 / 2 * 3 = 18",
        "price * 2 = 5",
        "-size = -10",
        "- -size = +10",
        "size between 5 + 4 and 2 * 6",
        "size in (-1, +10)",
        "huge + 0 = 9007199254740993",
        "9223372036854775807 + 1 = 9223372036854775808.0",  # a float
        "not size + 1 = 10",
    ],
)
def test_it_matches(expression: str) -> None:
    assert parse_condition(expression).is_match(ROW)


@pytest.mark.parametrize(
    "expression",
    [
        "color = 'Red'",
        "size > 10",
        "color in ('blue')",
        "color like 'r'",
        "color is null",
        "not paid",
        "refunded",
        "false",
        "COLOR = 'red'",
        "(color = 'red' or color = 'x') and size = 11",
    ],
)
def test_it_does_not_match(expression: str) -> None:
    assert not parse_condition(expression).is_match(ROW)


@pytest.mark.parametrize(
    "unknown",
    [
        "missing = 'x'",
        "missing <> 'x'",
        "missing > 1",
        "missing between 1 and 2",
        "missing in ('x')",
        "missing in (1)",
        "missing like '%'",
        "missing",
        "missing = color",
        "color > 1",  # not a number
        "color = 1",
        "color in (1)",
        "color in (1, true, 'blue')",
        "paid in (1, false)",
        "color = true",
        "color",
        "size = true",
        "1 = true",
        "size between 1 and missing",
        "'١' = 1",  # a digit, but not accepted in a number
        "' 1' = 1",
        "'1_0' = 10",
        "'nan' = 1",
        "'inf' > 1",
        "'' = 0",
        "'.' = 0",
        "'+' = 0",
        "'e5' = 0",
        "'1e' = 1",
        "size / 0 = 1",
        "price / 0 = 1",
        "1e308 * 10 > 0",
        "missing + 1 = 1",
        "-missing = 1",
        "color * 2 = 1",
        "paid + 1 = 2",
        "size + true = 11",
    ],
)
def test_absent_and_incomparable_values_are_unknown(unknown: str) -> None:
    """Neither the condition nor its negation matches; AND and OR treat it as unknown."""
    for expression, expected in [
        (unknown, False),
        (f"not ({unknown})", False),
        (f"({unknown}) or true", True),
        (f"({unknown}) or false", False),
        (f"({unknown}) and true", False),
        (f"not (({unknown}) and false)", True),
    ]:
        assert parse_condition(expression).is_match(ROW) is expected, expression


def test_a_number_with_too_many_digits_is_none() -> None:
    digits = "9" * (sys.get_int_max_str_digits() + 1)
    assert not parse_condition("n > 0").is_match({"n": digits})
    assert parse_condition("n > 0").is_match({"n": digits[:400]})


def test_long_integers_take_no_time_to_calculate_with() -> None:
    # Longer integers than 64 bits become floats, and these are unknown if they are too large.
    digits = "9" * 4_000
    assert not parse_condition(" * ".join("n" * 200) + " > 0").is_match({"n": digits})
    assert parse_condition("n * n > 1e39").is_match({"n": "1" + "0" * 20})


def test_no_filter_asks_whether_a_message_was_delivered_before() -> None:
    with pytest.raises(InvalidFilter, match="JMSRedelivered"):
        parse_condition("not JMSRedelivered")
    assert parse_condition("not `JMSRedelivered`").is_match({"JMSRedelivered": "false"})


def test_a_condition_reports_the_names_that_it_reads() -> None:
    condition = parse_condition("a = 1 and (TAGS in ('x') or not `b c` like '%') and 1 = 1")
    assert condition.names == {"a", "b c", Column.TAG}


@pytest.mark.parametrize(
    ("expression", "position", "words"),
    [
        ("", 0, "ends too early"),
        ("   ", 3, "ends too early"),
        ("a = ", 4, "a number"),
        ("a == 1", 3, "'=' is not allowed here"),
        ('a = "x"', 4, "write a text as '...'"),
        ("(a = 1", 6, "write )"),
        ("a = 1)", 5, "write nothing more"),
        ("a b", 2, "AND"),
        ("a = 'x", 4, "close the text"),
        ("a = 'x''", 4, "close the text"),
        ("`a = 1", 0, "close the name"),
        ("`` = 1", 0, "close the name"),
        ("a + = 1", 4, "a number"),
        ("a = 1 +", 7, "a number"),
        ("a * / 2 = 1", 4, "a number"),
        ("a + (b = 1) = 2", 5, "a condition is not a number"),
        ("-(not a) = 2", 6, "a condition is not a number"),
        ("a + 1 in (2)", 6, "the name of a property before IN"),
        ("a in (b + 1)", 6, "a text"),
        ("1 + 2", 0, "compare a property"),
        ("a = 1; drop", 5, "';' is not allowed here"),
        ("5abc = 1", 1, "'abc' is not allowed here"),
        ("a = 1 = 2", 6, "'=' is not allowed here"),
        ("a not = 1", 6, "BETWEEN"),
        ("a is 1", 5, "NULL"),
        ("a = null", 4, "'null' is not allowed here"),
        ("a in ()", 6, "a text"),
        ("a in (b)", 6, "a text"),
        ("a like b", 7, "a text"),
        ("5 in (5)", 2, "the name of a property before IN"),
        ("'x' like 'x'", 4, "the name of a property before LIKE"),
        ("(a = 1) is null", 8, "the name of a property before IS"),
        ("(not a) in ('x')", 8, "the name of a property before IN"),
        ("a like 'x!y' escape '!'", 7, "double the escape character"),
        ("a like 'x' escape '!!'", 18, "one character"),
        ("a like 'x' escape ''", 18, "one character"),
        ("a = 1 or 2", 9, "compare a property"),
        ("'x'", 0, "compare a property"),
        ("not 5", 4, "compare a property"),
        ("a = '\ud800'", 5, "Unicode"),
    ],
)
def test_a_syntax_error_has_its_position_and_a_fix(
    expression: str, position: int, words: str
) -> None:
    with pytest.raises(InvalidFilter) as caught:
        parse_condition(expression)
    assert (caught.value.reason, caught.value.position) == ("syntax", position)
    assert words in str(caught.value)


def nested(depth: int) -> str:
    return "(" * depth + "a = 1" + ")" * depth


def negated(depth: int) -> str:
    return "not " * depth + "a = 1"


def mixed(depth: int) -> str:
    return "not (" * (depth // 2) + "not " * (depth % 2) + "a = 1" + ")" * (depth // 2)


def mixed_otherwise(depth: int) -> str:
    return "(not " * (depth // 2) + "(" * (depth % 2) + "a = 1" + ")" * ((depth + 1) // 2)


def signed(depth: int) -> str:
    return "-" * depth + "a = 1"


def long(size: int) -> str:
    return "a = 'ä'" + " " * (size - 8)


def terms(count: int) -> str:
    return "a in (" + ", ".join("1" * (count - 1)) + ")"


@pytest.mark.parametrize(
    ("make", "limit", "reason"),
    [
        (long, MAX_FILTER_BYTES, "too-long"),
        (nested, MAX_FILTER_DEPTH, "too-deep"),
        (negated, MAX_FILTER_DEPTH, "too-deep"),
        (mixed, MAX_FILTER_DEPTH, "too-deep"),
        (signed, MAX_FILTER_DEPTH, "too-deep"),
        (mixed_otherwise, MAX_FILTER_DEPTH, "too-deep"),
        (terms, MAX_FILTER_TERMS, "too-many-terms"),
    ],
)
def test_limits_are_exact(make: Callable[[int], str], limit: int, reason: str) -> None:
    parse_condition(make(limit - 1))
    parse_condition(make(limit))
    with pytest.raises(InvalidFilter) as caught:
        parse_condition(make(limit + 1))
    assert caught.value.reason == reason


def test_too_many_parentheses_are_refused_early() -> None:
    with pytest.raises(InvalidFilter) as caught:
        parse_condition("(" * MAX_FILTER_BYTES)
    assert (caught.value.reason, caught.value.position) == ("too-deep", MAX_FILTER_DEPTH)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * MAX_FILTER_BYTES,
        "not " * (MAX_FILTER_BYTES // 4),
        "(" * 2000 + "a" + ")" * 2000,
        "not (" * 800,
        " or ".join(["a=1"] * 500),
        " or ".join(["a=1"] * 10_000),
        "a in (" + ",".join("1" * 2000) + ")",
        "a between " * 400,
        "'" * 4095,
        "`" * 4095,
        "1" * MAX_FILTER_BYTES,
        "a" * MAX_FILTER_BYTES + " = 1",
        "-" * 4000 + "a = 1",
        "+".join("1" * 2000) + " = 1",
    ],
)
def test_no_filter_overflows_the_stack(expression: str) -> None:
    """A limit or the grammar refuses these texts even with hardly any stack left."""
    with pytest.raises(InvalidFilter):
        with_little_stack(parse_condition, expression)


def test_the_deepest_filter_fits_a_small_stack() -> None:
    level = "not (a = 1 or b = 2 and "
    depth = MAX_FILTER_DEPTH // 2
    condition = parse_condition(level * depth + "c = 3" + ")" * depth)
    with_little_stack(condition.is_match, {"a": "0", "b": "2", "c": "3"}, frames=6 * depth)


def with_little_stack(
    function: Callable[..., object], *arguments: object, frames: int = 40
) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(context=0)) + frames)
    try:
        function(*arguments)
    finally:
        sys.setrecursionlimit(limit)


# -- against a plain model ---------------------------------------------------------------------

Known = bool | None
WORDS = [
    "a", "`b c`", "TAGS", "=", "<>", "<", ">=", "and", "or", "not", "between", "in", "like",
    "escape", "is", "null", "true", "false", "'x'", "'%'", "1", "-2.5e3", "(", ")", ",", "'", "`",
    "+", "-", "*", "/",
]  # fmt: skip


@given(st.text() | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_any_text_is_a_filter_or_an_invalid_filter(text: str) -> None:
    try:
        condition = parse_condition(text)
    except InvalidFilter as error:
        assert error.position is None or 0 <= error.position <= len(text)
    else:
        assert condition.is_match(ROW) in {True, False}
        assert condition.is_match({}) in {True, False}


def three_valued_and(left: Known, right: Known) -> Known:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def three_valued_not(value: Known) -> Known:
    return None if value is None else not value


def equal(name: str, literal: int | str) -> tuple[str, Callable[[Row], Known]]:
    def model(row: Row) -> Known:
        if name not in row:
            return None
        if isinstance(literal, str):
            return row[name] == literal
        return int(row[name]) == literal if row[name].isdecimal() else None

    return f"{name} = {literal!r}", model


def both(
    parts: tuple[tuple[str, Callable[[Row], Known]], ...],
) -> tuple[str, Callable[[Row], Known]]:
    (text, left), (other_text, right) = parts
    return f"({text}) and {other_text}", lambda row: three_valued_and(left(row), right(row))


def either(
    parts: tuple[tuple[str, Callable[[Row], Known]], ...],
) -> tuple[str, Callable[[Row], Known]]:
    """Uses De Morgan's law, so that the model needs no OR of its own."""
    (text, left), (other_text, right) = parts
    return f"(({text}) or ({other_text}))", lambda row: three_valued_not(
        three_valued_and(three_valued_not(left(row)), three_valued_not(right(row)))
    )


def opposite(part: tuple[str, Callable[[Row], Known]]) -> tuple[str, Callable[[Row], Known]]:
    text, model = part
    return f"not ({text})", lambda row: three_valued_not(model(row))


names = st.sampled_from("abc")
texts = st.sampled_from(["1", "2", "x", "true"])
leaves = st.builds(equal, names, texts | st.integers(0, 2)) | names.map(
    lambda name: (f"{name} is null", lambda row: name not in row)
)
expressions = st.recursive(
    leaves,
    lambda parts: (
        st.tuples(parts, parts).map(both)
        | st.tuples(parts, parts).map(either)
        | parts.map(opposite)
    ),
    max_leaves=12,
)


@given(expressions, st.dictionaries(names, texts))
def test_conditions_evaluate_as_the_model_does(
    expression: tuple[str, Callable[[Row], Known]], row: dict[Name, str]
) -> None:
    text, model = expression
    assert parse_condition(text).is_match(row) is (model(row) is True)
