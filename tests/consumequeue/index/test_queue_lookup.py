"""Memory and disk as one index: the answers do not depend on the border between them."""

import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.consumequeue.index.consume_queue import ConsumeQueue, CqUnit
from holdfast.consumequeue.index.index import Index, ReputPosition
from holdfast.consumequeue.index.queue_lookup import (
    PHYSICAL_OFFSET,
    QUEUE_BYTES,
    STORE_TIMESTAMP,
    first_unit_reaching,
    queue_bytes_at,
    units_from,
)
from holdfast.consumequeue.topics import QueueKey

_topics = itertools.count(1)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    index = Index(tmp_path_factory.mktemp("index"), 1 << 30)
    yield index
    index.close()


@st.composite
def _queues(draw: st.DrawFn) -> tuple[list[CqUnit], int, int, int]:
    """Draw the entries of a queue, with gaps as damage leaves them.

    Also draw the number of entries on disk, the first entry in memory, and the queue's first
    offset.
    """
    shapes = draw(st.lists(st.tuples(st.sampled_from((0, 0, 0, 2)), st.integers(1, 4)), max_size=9))
    units = []
    at = timestamp = 0
    for number, (gap, count) in enumerate(shapes):
        at += gap
        timestamp += draw(st.integers(0, 2))
        units.append(CqUnit(at, 4096 + number * 10, 10, count, timestamp, 0, number * 10))
        at += count
    on_disk = draw(st.integers(0, len(units)))
    in_memory = draw(st.integers(0, on_disk))
    begin = draw(st.sampled_from([0, at, *(unit.base_offset for unit in units)]))
    return units, on_disk, in_memory, begin


def make(
    index: Index, drawn: tuple[list[CqUnit], int, int, int]
) -> tuple[QueueKey, ConsumeQueue, list[CqUnit]]:
    units, on_disk, in_memory, begin = drawn
    key = (next(_topics), 1)
    index.commit([(key, unit) for unit in units[:on_disk]], ReputPosition())
    cq = ConsumeQueue(units[on_disk - 1] if on_disk else None, 0, 0)
    for unit in units[in_memory:]:
        cq.show(unit)
    cq.trim_queue(begin, queue_bytes_at(index, key, cq, begin))
    return key, cq, units


@settings(deadline=None)  # it waits for the disk
@given(drawn=_queues(), offset=st.integers(0, 45))
def test_iteration_joins_disk_and_memory(
    index: Index, drawn: tuple[list[CqUnit], int, int, int], offset: int
) -> None:
    key, cq, units = make(index, drawn)
    assert list(units_from(index, key, cq, offset)) == [u for u in units if u.end_offset > offset]


@settings(deadline=None)  # it waits for the disk
@given(
    drawn=_queues(),
    attribute=st.sampled_from((STORE_TIMESTAMP, QUEUE_BYTES, PHYSICAL_OFFSET)),
    place=st.integers(0, 10),
    delta=st.sampled_from((-1, 0, 1)),
)
def test_a_search_finds_the_first_kept_entry_that_reaches_a_value(
    index: Index,
    drawn: tuple[list[CqUnit], int, int, int],
    attribute: Callable[[CqUnit], int],
    place: int,
    delta: int,
) -> None:
    key, cq, units = make(index, drawn)
    values = [attribute(unit) for unit in units] or [0]
    value = values[place % len(values)] + delta
    expected = next(
        (u for u in units if u.end_offset > cq.min_offset and attribute(u) >= value), None
    )
    assert first_unit_reaching(index, key, cq, attribute, value) == expected


@settings(deadline=None)  # it waits for the disk
@given(drawn=_queues())
def test_the_bytes_of_a_queue_are_those_of_its_kept_entries(
    index: Index, drawn: tuple[list[CqUnit], int, int, int]
) -> None:
    _, cq, units = make(index, drawn)
    assert cq.bytes == sum(unit.size for unit in units if unit.end_offset > cq.min_offset)


def test_invisible_entries_are_not_found(index: Index) -> None:
    shown = CqUnit(0, 4096, 10, 5, 100, 0, 0)
    hidden = CqUnit(5, 4106, 10, 5, 200, 0, 10)
    key = (next(_topics), 1)
    index.commit([(key, shown), (key, hidden)], ReputPosition())
    cq = ConsumeQueue(shown, 0, 0)
    assert first_unit_reaching(index, key, cq, STORE_TIMESTAMP, 150) is None
    assert first_unit_reaching(index, key, cq, STORE_TIMESTAMP, 50) == shown
