import pytest

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import Rows, as_batch
from holdfast.consumequeue.reading.fetched import MessageFilter
from holdfast.groups.errors import TooCostlyMandatory
from holdfast.groups.serving.unroutable import distinct_filters, find_unroutable, is_quick
from holdfast.holdservice.filters import Sql92Filter, TagFilter

RED, BLUE = TagFilter(frozenset({"red"})), TagFilter(frozenset({"blue"}))
LARGE = Sql92Filter("size > 3")
PLENTY_US = 1e9


def batch(*tags: str, sizes: tuple[int, ...] = ()) -> Batch:
    properties = [{"size": str(size)} for size in sizes] if sizes else None
    return as_batch(Rows(0, [b""] * len(tags), 1, None, tags, properties))


def test_the_first_message_that_no_filter_matches_is_found() -> None:
    cases: list[tuple[list[MessageFilter], list[Batch], int | None]] = [
        ([], [batch("red")], 0),
        ([RED], [batch("red", "red")], None),
        ([RED], [batch("red", "blue", "red", "blue")], 1),
        ([RED, BLUE], [batch("red", "blue", "red")], None),
        ([RED, BLUE], [batch("red", "blue"), batch("red", "green", "grey")], 3),
        ([RED, LARGE], [batch("blue", "red", "blue", sizes=(4, 1, 9))], None),
        ([LARGE, RED], [batch("blue", "red", "blue", sizes=(4, 1, 3))], 2),
    ]
    for filters, batches, index in cases:
        assert find_unroutable(filters, batches, PLENTY_US) == index, (filters, index)


def cost_us(filters: list[MessageFilter], batches: list[Batch]) -> float:
    count, text_bytes = len(batches[0]), sum(len(t) for t in (batches[0].tags, batches[0].values))
    return sum([each.cost_us(count, text_bytes) for each in filters])


def test_equal_filters_count_once_and_a_group_without_a_filter_takes_everything() -> None:
    assert distinct_filters([RED, TagFilter(frozenset({"red"})), BLUE]) == [RED, BLUE]
    assert distinct_filters([RED, None]) is None
    assert distinct_filters([]) == []


def test_a_comparison_that_may_take_too_long_is_refused() -> None:
    batches = [batch("blue", "blue", sizes=(9, 1))]
    needed_us = cost_us([RED, LARGE], batches)
    assert is_quick([RED, LARGE], batches, needed_us + 0.1)
    assert not is_quick([RED, LARGE], batches, needed_us - 0.1)
    assert not is_quick([RED, LARGE], 2 * batches, needed_us + 1)
    assert find_unroutable([LARGE, RED], batches, needed_us + 1) == 1
    assert find_unroutable([LARGE, RED], batches, needed_us) == 1
    with pytest.raises(TooCostlyMandatory):
        find_unroutable([LARGE, RED], batches, needed_us - 1)
    # A filter that is not needed costs nothing: after the first one every message has matched.
    red = [batch("red", "red", sizes=(9, 1))]
    assert find_unroutable([LARGE, RED], red, cost_us([RED], red)) is None
