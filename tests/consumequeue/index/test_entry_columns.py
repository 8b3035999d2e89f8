"""Entries as arrays: equal to those of index and memory, and limited to the bounds of a read."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from holdfast.consumequeue.index.consume_queue import CqUnit
from holdfast.consumequeue.index.entry_columns import (
    UNIT_DTYPE,
    EntryColumns,
    encode_units,
    unit_at,
)
from holdfast.consumequeue.index.index import Index, ReputPosition, _encode_unit

KEY = (1, 2)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    index = Index(tmp_path, 16 * 1024 * 1024)
    yield index
    index.close()


def units(*counts: int, size: int = 100) -> list[CqUnit]:
    found: list[CqUnit] = []
    for count in counts:
        base = found[-1].end_offset if found else 0
        found.append(CqUnit(base, 4096 + size * len(found), size, count, 1, 0, 0))
    return found


def rows(columns: EntryColumns | None) -> list[tuple[int, ...]]:
    assert columns is not None
    return list(
        zip(
            columns.base_offsets.tolist(),
            columns.physical_offsets.tolist(),
            columns.sizes.tolist(),
            columns.message_counts.tolist(),
            strict=True,
        )
    )


def expected(units: list[CqUnit]) -> list[tuple[int, ...]]:
    return [unit[:4] for unit in units]


def within(columns: EntryColumns, offset: int, **bounds: int) -> list[int]:
    limits = {"end_offset": 10**6, "max_messages": 10**6, "max_bytes": 10**6, **bounds}
    found: list[int] = columns.within(offset, **limits).base_offsets.tolist()
    return found


def test_entries_in_memory_become_columns() -> None:
    assert rows(EntryColumns.of_units(units(1, 2, 3))) == expected(units(1, 2, 3))
    assert len(EntryColumns.of_units([])) == 0


@pytest.mark.parametrize("count", [1, 16, 17, 1000])
@pytest.mark.parametrize("start", [0, 1, 5])
def test_entries_on_disk_start_at_the_offset(index: Index, count: int, start: int) -> None:
    stored = units(*[3] * count)
    others = [((1, 1), unit) for unit in stored] + [((1, 3), unit) for unit in stored]
    index.commit([*((KEY, unit) for unit in stored), *others], ReputPosition())
    found = index.columns(KEY, start, max_messages=10_000, max_bytes=10**6)
    after = [unit for unit in stored if unit.end_offset > start]
    if after:
        assert rows(found) == expected(after)
    else:
        assert found is None


def test_about_as_many_entries_are_read_as_needed(index: Index) -> None:
    index.commit([(KEY, unit) for unit in units(*[10] * 3000)], ReputPosition())
    for bounds in ({"max_messages": 5000}, {"max_bytes": 50_000}, {"max_messages": 1}):
        limits = {"max_messages": 10**6, "max_bytes": 10**6, **bounds}
        found = index.columns(KEY, 0, **limits)
        assert found is not None
        enough = min(limits["max_messages"] // 10, limits["max_bytes"] // 100)
        assert enough <= len(found) <= enough + 16


def test_an_offset_in_a_gap_has_no_entries(index: Index) -> None:
    first, _, third = units(1, 1, 1)
    index.commit([(KEY, first), (KEY, third)], ReputPosition())
    assert index.columns(KEY, 1, max_messages=10, max_bytes=1000) is None
    found = index.columns(KEY, 0, max_messages=10, max_bytes=1000)
    assert found is not None
    assert within(found, 0) == [0]  # the next entry is after the gap
    assert within(found, 1) == []


def test_only_whole_entries_within_the_limits_are_taken() -> None:
    columns = EntryColumns.of_units(units(2, 3, 4))
    assert within(columns, 0) == [0, 2, 5]
    assert within(columns, 1) == [0, 2, 5]
    assert within(columns, 2) == [2, 5]
    assert within(columns, 9) == []
    assert within(columns, 0, end_offset=8) == [0, 2]
    assert within(columns, 0, max_bytes=299) == [0, 2]
    assert within(columns, 0, max_messages=5) == [0, 2]
    assert within(columns, 1, max_messages=4) == [0, 2]
    assert within(columns, 1, max_messages=3) == [0]
    assert within(columns, 0, max_messages=1) == []


LARGE_KEY = (2**32 - 1, 7)
UNIT = CqUnit(
    base_offset=2**40 + 3,
    physical_offset=2**50 + 1,
    size=2**31,
    message_count=9,
    store_timestamp_us=1_700_000_000_000_000,
    tag_summary=2**63 + 5,
    queue_bytes=2**41,
)


def _row(key: tuple[int, int], unit: CqUnit) -> tuple[int, ...]:
    return (
        *key,
        unit.base_offset,
        unit.physical_offset,
        unit.queue_bytes,
        unit.store_timestamp_us,
        unit.tag_summary,
        unit.size,
        unit.message_count,
    )


def test_a_table_is_encoded_like_single_entries() -> None:
    others = [UNIT._replace(base_offset=offset) for offset in (0, 1, 255, 256)]
    entries = [(LARGE_KEY, UNIT), *(((1, 0), unit) for unit in others)]
    table = np.array([_row(*entry) for entry in entries], UNIT_DTYPE)
    assert encode_units(table) == [_encode_unit(*entry) for entry in entries]
    assert encode_units(table[:0]) == []
    assert [unit_at(row) for row in table] == [unit for _, unit in entries]
