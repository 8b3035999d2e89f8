"""The in-memory end of a queue: visible entries, look-ups, and removed entries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.consumequeue.index.consume_queue import ConsumeQueue, CqUnit, first_reaching


def unit(base: int, count: int = 1) -> CqUnit:
    return CqUnit(base, base * 100, 100, count, base, 0, base * 100)


def showing(*units: CqUnit) -> ConsumeQueue:
    cq = ConsumeQueue(None, 0, 0)
    for each in units:
        cq.show(each)
    return cq


def from_tail(cq: ConsumeQueue, offset: int) -> list[int] | None:
    tail = cq.from_tail(offset)
    return None if tail is None else [each.base_offset for each in tail]


def test_the_ends_of_a_unit_are_computed() -> None:
    one = CqUnit(10, 4096, 256, 5, 1, 0, 1000)
    assert (one.end_offset, one.end_physical_offset, one.end_queue_bytes) == (15, 4352, 1256)


def test_an_empty_queue_begins_and_ends_at_zero() -> None:
    cq = ConsumeQueue(None, 0, 0)
    assert (cq.min_offset, cq.max_offset, cq.bytes, cq.newest) == (0, 0, 0, None)
    assert from_tail(cq, 0) is None


def test_a_queue_without_messages_continues_at_its_end() -> None:
    assert ConsumeQueue(None, 70, 0).max_offset == 70
    assert ConsumeQueue(unit(40, 2), 70, 0).max_offset == 70
    assert ConsumeQueue(unit(80, 2), 70, 0).max_offset == 82


def test_showing_moves_the_end_and_counts_bytes() -> None:
    cq = showing(unit(0, 3), unit(3, 2))
    assert cq.max_offset == 5
    assert cq.newest == unit(3, 2)
    assert cq.bytes == 400
    cq.trim_queue(3, 300)
    assert (cq.min_offset, cq.bytes) == (3, 100)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (9, None),  # older than the entries in memory
        (10, [10, 13, 20]),
        (12, [10, 13, 20]),
        (13, [13, 20]),
        (14, [20]),  # a gap: the next entry begins after it
        (19, [20]),
        (20, [20]),
        (21, []),  # the end
    ],
)
def test_the_tail_starts_with_the_entry_of_an_offset(
    offset: int, expected: list[int] | None
) -> None:
    cq = showing(unit(10, 3), unit(13, 1), unit(20, 1))
    assert from_tail(cq, offset) == expected


def test_committed_entries_are_dropped_except_the_newest() -> None:
    cq = showing(*(unit(base) for base in range(10)))
    cq.trim_entries(4, keep=3)
    assert cq.entries[0] == unit(4)
    cq.trim_entries(10, keep=3)
    assert cq.entries == [unit(7), unit(8), unit(9)]
    cq.trim_entries(10, keep=3)
    assert len(cq.entries) == 3


def test_an_entry_after_the_committed_offset_stays() -> None:
    cq = showing(unit(0, 5), unit(5, 5))
    cq.trim_entries(9, keep=1)
    assert cq.entries == [unit(5, 5)]
    cq = showing(unit(0, 5), unit(5, 5))
    cq.trim_entries(4, keep=1)
    assert len(cq.entries) == 2


def test_a_reader_keeps_its_entries_while_entries_are_dropped() -> None:
    cq = showing(*(unit(base) for base in range(5)))
    tail = cq.from_tail(0)
    assert tail is not None
    cq.trim_entries(5, keep=1)
    assert [each.base_offset for each in tail] == [0, 1, 2, 3, 4]


@given(st.lists(st.integers(0, 30)), st.integers(-1, 31))
def test_first_reaching_finds_the_first_entry(values: list[int], wanted: int) -> None:
    row = [unit(value) for value in sorted(values)]
    expected = next((each for each in row if each.base_offset >= wanted), None)
    assert first_reaching(row, lambda each: each.base_offset, wanted) == expected
