from dataclasses import dataclass

import pytest

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.routing.params import choice, read_params, text, whole, whole_number
from holdfast.http_api.wire.problems import Problem


@dataclass(frozen=True, slots=True)
class Example:
    count: int = whole("How many.", minimum=1, maximum="max_page_size", default="page_size")
    offset: int | None = whole("Where.")
    from_: str | None = choice("Which end.", "earliest", "latest", name="from")
    key: str | None = text("Which.", maximum=4)


CONFIG = HttpConfig(max_page_size=10, page_size=5)


def read(*pairs: tuple[str, str]) -> Example:
    return read_params(Example, pairs, CONFIG)


def test_what_is_not_given_has_its_default() -> None:
    assert read() == Example(5, None, None, None)


def test_values_are_read_as_declared() -> None:
    given = read(("offset", "0"), ("from", "latest"), ("key", "é a"), ("count", "7"))
    assert given == Example(7, 0, "latest", "é a")


@pytest.mark.parametrize("count", ["1", "9", "10"])
def test_the_bounds_are_allowed(count: str) -> None:
    assert read(("count", count)).count == int(count)


@pytest.mark.parametrize(
    ("name", "value", "slug"),
    [
        ("count", "0", "invalid-parameter"),
        ("count", "11", "limit-exceeded"),
        ("count", "+5", "invalid-parameter"),
        ("count", " 5", "invalid-parameter"),
        ("count", "5_0", "invalid-parameter"),
        ("count", "٥", "invalid-parameter"),
        ("count", "9" * 5000, "limit-exceeded"),
        ("from", "Latest", "invalid-parameter"),
        ("key", "", "invalid-parameter"),
        ("key", "ééé", "limit-exceeded"),
        ("key", "\udcff", "invalid-parameter"),
        ("from_", "latest", "invalid-parameter"),
    ],
)
def test_what_is_not_allowed_names_the_parameter(name: str, value: str, slug: str) -> None:
    with pytest.raises(Problem) as caught:
        read((name, value))
    assert caught.value.slug == slug
    assert caught.value.members["parameter"] == name


def test_a_parameter_given_twice_is_refused() -> None:
    with pytest.raises(Problem, match="more than once"):
        read(("offset", "1"), ("offset", "1"))


def test_an_unknown_parameter_names_the_known_ones() -> None:
    with pytest.raises(Problem, match="count, offset, from, key"):
        read(("ofset", "1"))


def test_only_plain_digits_are_a_whole_number() -> None:
    assert whole_number("007") == 7
    assert [whole_number(each) for each in ("", "-1", "1.0", "²", "1" * 20)] == [None] * 5
