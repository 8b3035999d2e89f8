import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.holdservice import like
from holdfast.holdservice.like import InvalidPattern, compile_like


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("", "", True),
        ("", "a", False),
        ("%", "", True),
        ("%", "anything\nat all", True),
        ("_", "", False),
        ("_", "é", True),
        ("_", "ab", False),
        ("abc", "abc", True),
        ("abc", "ABC", False),
        ("a%", "a", True),
        ("a%", "ba", False),
        ("%c", "abc", True),
        ("%c", "abcd", False),
        ("%b%", "abc", True),
        ("a_c", "abc", True),
        ("a_c", "ac", False),
        ("%a%b%", "xxbxxa", False),
        ("a%a", "a", False),
        ("a%%a", "aa", True),
        ("_%", "", False),
        ("[a-z].*", "[a-z].*", True),
    ],
)
def test_a_pattern_fits_a_whole_text(pattern: str, text: str, expected: bool) -> None:
    assert compile_like(pattern)(text) is expected


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("100!%", "100%", True),
        ("100!%", "1000", False),
        ("a!_b", "a_b", True),
        ("a!_b", "axb", False),
        ("wow!!", "wow!", True),
        ("!!%", "!x", True),
    ],
)
def test_an_escaped_character_is_literal(pattern: str, text: str, expected: bool) -> None:
    assert compile_like(pattern, "!")(text) is expected


@pytest.mark.parametrize(("pattern", "index"), [("ab!c", 2), ("ab!", 2)])
def test_an_escape_before_anything_else_is_refused(pattern: str, index: int) -> None:
    with pytest.raises(InvalidPattern) as caught:
        compile_like(pattern, "!")
    assert caught.value.index == index


@given(st.text("ab%_", max_size=8), st.text("ab", max_size=10))
def test_patterns_match_as_a_regular_expression_does(pattern: str, text: str) -> None:
    meaning = {"%": ".*", "_": "."}
    expected = re.fullmatch("".join(meaning.get(c, c) for c in pattern), text, re.DOTALL)
    assert compile_like(pattern)(text) is bool(expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(like, "MAX_SEARCHED", 0)  # forces the method for long patterns
        assert compile_like(pattern)(text) is bool(expected)


class CountedText(str):
    """A text that counts how often its characters are read."""

    looks: int

    def __new__(cls, text: str) -> "CountedText":
        counted = super().__new__(cls, text)
        counted.looks = 0
        return counted

    def __iter__(self) -> Iterator[str]:
        for character in super().__iter__():
            self.looks += 1
            yield character


@pytest.mark.parametrize(
    "pattern", ["%_%_%_%_%b", "%a%a%a%a%a%a%a%ab", "_a" * 500 + "b", "%a_" * 300]
)
def test_each_character_is_examined_once(pattern: str) -> None:
    text = CountedText("a" * 5000)
    compile_like(pattern)(text)
    assert text.looks <= len(text)


@pytest.mark.parametrize(("pattern", "looks"), [("_b%", 3), ("%_b%", 3), ("x_%", 1)])
def test_a_decided_match_ends_the_examination(
    pattern: str, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(like, "MAX_SEARCHED", 0)
    text = CountedText("ab" * 1000)
    compile_like(pattern)(text)
    assert text.looks == looks
