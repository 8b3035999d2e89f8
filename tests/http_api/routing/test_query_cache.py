import pytest

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.endpoints.pull import PollParams, PullParams
from holdfast.http_api.routing.params import Queries
from holdfast.http_api.wire.problems import Problem

CONFIG = HttpConfig(max_pull_messages=10, default_pull_messages=5)


def test_a_query_that_differs_in_an_offset_is_read_as_if_it_were_the_first() -> None:
    queries = Queries(CONFIG)
    for offset in (0, 1, 2):
        found = queries.read(PullParams, f"wait_ms=7&offset={offset}")
        assert (found.offset, found.wait_ms, found.max_messages) == (offset, 7, 5)


def test_a_value_is_its_own_parameters_alone() -> None:
    queries = Queries(CONFIG)
    assert queries.read(PullParams, "tag=7").tag == "7"
    assert queries.read(PullParams, "offset=7").offset == 7
    assert queries.read(PullParams, "wait_ms=7").wait_ms == 7
    assert queries.read(PollParams, "offsets=0:7").offsets == "0:7"
    with pytest.raises(Problem, match="there is no parameter"):
        queries.read(PollParams, "offset=7")


@pytest.mark.parametrize(
    "query", ["max_messages=11", "max_messages=0", "offset=1&offset=2", "offset=1&offsets=2"]
)
def test_what_is_refused_is_refused_again(query: str) -> None:
    queries = Queries(CONFIG)
    queries.read(PullParams, "offset=1")
    said = set()
    for _ in range(2):
        with pytest.raises(Problem) as caught:
            queries.read(PullParams, query)
        said.add(str(caught.value))
    assert len(said) == 1


def test_long_queries_are_read_as_short_ones_are_and_not_kept() -> None:
    queries = Queries(CONFIG)
    offsets = ",".join(f"{queue}:{queue}" for queue in range(200))
    assert queries.read(PollParams, f"offsets={offsets}&wait_ms=1").offsets == offsets
    assert queries._cached.cache_info().currsize == 0
    assert queries._value_of.cache_info().currsize == 0
