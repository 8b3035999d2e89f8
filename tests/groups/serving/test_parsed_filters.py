import pytest

from holdfast.groups.serving.parsed_filters import filter_of
from holdfast.holdservice.errors import InvalidFilter
from holdfast.holdservice.filters import Sql92Filter, TagFilter


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("404", {"404"}),
        ("404,500", {"404", "500"}),
        (" paid , shipped-late ", {"paid", "shipped-late"}),
        ("a||b", {"a", "b"}),
        ("v1.2", {"v1.2"}),
    ],
)
def test_bare_words_are_tags(text: str, tags: set[str]) -> None:
    assert filter_of(text) == TagFilter(frozenset(tags))


@pytest.mark.parametrize("text", ["region = 'EU'", "price > 3", "TAG = '404'", "a IS NULL"])
def test_anything_else_is_a_condition(text: str) -> None:
    assert filter_of(text) == Sql92Filter(text)


def test_nothing_and_a_star_want_every_message() -> None:
    assert filter_of(None) is None
    assert filter_of("*") is None


@pytest.mark.parametrize("text", ["", "a b", "= 3", "a,,b"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(InvalidFilter):
        filter_of(text)
