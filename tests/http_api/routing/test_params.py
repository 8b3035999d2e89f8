from dataclasses import dataclass

import pytest

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.endpoints.pull import PollParams, PullParams
from holdfast.http_api.routing.params import Queries, choice, read_params, text, whole, whole_number
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


def test_a_missing_parameter_has_its_default() -> None:
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
def test_an_invalid_value_is_refused_with_the_parameters_name(
    name: str, value: str, slug: str
) -> None:
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


PULL_CONFIG = HttpConfig(max_pull_messages=10, default_pull_messages=5)


def test_queries_that_differ_in_the_offset_are_parsed_correctly() -> None:
    queries = Queries(PULL_CONFIG)
    for offset in (0, 1, 2):
        found = queries.read(PullParams, f"wait_ms=7&offset={offset}")
        assert (found.offset, found.wait_ms, found.max_messages) == (offset, 7, 5)


def test_a_cached_value_belongs_to_one_parameter() -> None:
    queries = Queries(PULL_CONFIG)
    assert queries.read(PullParams, "tag=7").tag == "7"
    assert queries.read(PullParams, "offset=7").offset == 7
    assert queries.read(PullParams, "wait_ms=7").wait_ms == 7
    assert queries.read(PollParams, "offsets=0:7").offsets == "0:7"
    with pytest.raises(Problem, match="there is no parameter"):
        queries.read(PollParams, "offset=7")


@pytest.mark.parametrize(
    "query", ["max_messages=11", "max_messages=0", "offset=1&offset=2", "offset=1&offsets=2"]
)
def test_a_refused_query_is_refused_again(query: str) -> None:
    queries = Queries(PULL_CONFIG)
    queries.read(PullParams, "offset=1")
    said = set()
    for _ in range(2):
        with pytest.raises(Problem) as caught:
            queries.read(PullParams, query)
        said.add(str(caught.value))
    assert len(said) == 1


def test_long_queries_are_parsed_and_not_cached() -> None:
    queries = Queries(PULL_CONFIG)
    offsets = ",".join(f"{queue}:{queue}" for queue in range(200))
    assert queries.read(PollParams, f"offsets={offsets}&wait_ms=1").offsets == offsets
    assert queries._cached.cache_info().currsize == 0
    assert queries._value_of.cache_info().currsize == 0
