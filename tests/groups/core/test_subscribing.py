"""The subscription that applies to a topic. Pure."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.consumequeue.errors import InvalidName
from holdfast.consumequeue.slices import ITEMS_A_TURN, LoopBudget
from holdfast.consumequeue.topics import Topic, TopicConfig
from holdfast.groups.core import subscribing
from holdfast.groups.core.subscribing import Match, Subscriptions, check_subscription, matches
from tests.support.event_loop.calls_a_turn import calls_a_turn

CONFIG = TopicConfig("fsync", None, None, 1)


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [
        ("*", ["a", "a.b", "_x"], ["__state", "__x"]),
        ("orders.*", ["orders.", "orders.eu", "orders.eu.x"], ["orders", "ordersx", "my.orders.a"]),
        ("*.dead", ["a.dead", ".dead"], ["dead", "a.deadx", "axdead"]),
        ("a?c", ["abc", "a.c"], ["ac", "abbc"]),
        ("a*c*e", ["ace", "abcde", "accee"], ["aec", "abcd"]),
        ("??", ["ab"], ["a", "abc", "__"]),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, fits: list[str], fails: list[str]) -> None:
    # R7: glob patterns, not regular expressions
    assert [name for name in fits + fails if matches(pattern, name)] == fits


@given(
    pattern=st.text("ab_.*?", min_size=1, max_size=12),
    topic=st.text("ab_.", min_size=1, max_size=12),
)
def test_a_pattern_equals_a_regular_expression(pattern: str, topic: str) -> None:
    signs = ({"*": ".*", "?": "."}.get(each, re.escape(each)) for each in pattern)
    expected = re.fullmatch("".join(signs), topic) is not None and not topic.startswith("__")
    assert matches(pattern, topic) == expected


def test_many_stars_are_matched_without_backtracking() -> None:
    # As a regular expression this pattern would need practically infinite time.
    pattern = "orders.*zq*" + "?*" * 50 + "X"
    assert not matches(pattern, "orders." + "zq" * 55)
    assert matches(pattern, "orders.zq" + "a" * 60 + "X")


def test_valid_subscriptions_are_accepted_and_others_refused() -> None:
    for name in ("orders", "*", "a?", "a.*-_?", "x" * 127, "*" * 127):
        assert check_subscription(name) == name
    for name in ("", ".", "a b", "a/*", "__*", "__state", "[a]*", "*" * 128, "\u00e4*"):
        with pytest.raises(InvalidName):
            check_subscription(name)


async def test_names_precede_patterns_and_long_patterns_short_ones() -> None:
    given = Subscriptions({"*": 1, "or*": 2, "o*": 3, "?r*": 4, "orders": 5})
    assert await given.find("orders", LoopBudget()) == ("orders", 5)
    # Of two patterns of the same length, the alphabetically first has precedence.
    assert await given.find("orca", LoopBudget()) == ("?r*", 4)
    assert await given.find("olive", LoopBudget()) == ("o*", 3)
    assert await given.find("x", LoopBudget()) == ("*", 1)
    assert await Subscriptions({"a": 1}).find("b", LoopBudget()) is None


async def _match(
    given: Subscriptions[int], name: str, *, had: bool = False, dead: bool = False, may: bool = True
) -> Match[int] | None:
    return await given.match(
        Topic(name, 7, 1, CONFIG, 0),
        LoopBudget(),
        was_matched=had,
        is_dead_letters=dead,
        may_match=lambda asked: may and asked == name,
    )


async def test_a_pattern_matches_permitted_topics_and_no_dead_letters() -> None:
    given = Subscriptions({"a*": 1, "named": 2})
    assert await _match(given, "ab") == Match(2, 7, "ab", 1)
    assert await _match(given, "ab", may=False) is None
    assert await _match(given, "ab", may=False, had=True) == Match(1, 7, "ab", 1)
    assert await _match(given, "ab", had=True, dead=True) is None
    assert await _match(given, "named", may=False, dead=True) == Match(0, 7, "named", 2)
    assert await _match(given, "other") is None


async def test_patterns_are_matched_in_slices() -> None:
    given = Subscriptions({f"{number}.*x": number for number in range(1_000)})
    with calls_a_turn(subscribing, "matches") as tried:
        assert await given.find("orders", LoopBudget()) is None
    assert tried.total == 1_000
    assert tried.most <= ITEMS_A_TURN
