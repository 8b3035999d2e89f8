"""Settled offsets compared with a set, and the format of their rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.groups.cursor import rows
from holdfast.groups.cursor.rows import AttemptsRow, CursorRow
from holdfast.groups.cursor.settled_offsets import FULL, SettledOffsets

offsets = st.integers(0, 3_500)


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("add"), offsets, st.just(0)),
            st.tuples(st.just("range"), offsets, st.integers(0, 2_500)),
            st.tuples(st.just("raise"), offsets, st.just(0)),
            st.tuples(st.just("remove"), offsets, st.just(0)),
        ),
        max_size=40,
    ),
    floor=offsets,
    end=offsets,
)
def test_it_behaves_as_a_set_with_a_floor(
    steps: list[tuple[str, int, int]], floor: int, end: int
) -> None:
    done, model = SettledOffsets(floor), set(range(floor))
    for verb, start, count in steps:
        if verb == "add":
            assert done.add(start) == (start not in model)
            model.add(start)
        elif verb == "range":
            added = set(range(start, start + count)) - model
            assert done.add_range(start, start + count) == len(added)
            model |= added
        elif verb == "remove":
            start = max(start, done.floor)
            assert done.remove_from(start) == len([each for each in model if each >= start])
            model -= set(range(start, 10_000))
        else:
            done.raise_floor(start)
            model |= set(range(start))
        first = next(each for each in range(10_000) if each not in model)
        assert done.floor == first
        assert done.count_all == len(model)
        assert done.count(start, start + 700) == len(model & set(range(start, start + 700)))
        assert done.first_open(start) == next(
            each for each in range(start, 10_000) if each not in model
        )
        assert all((each in done) == (each in model) for each in range(start, start + 9))
    written = {
        number: rows.decode_chunk(rows.encode_chunk(bits))
        for number in done.chunks()
        if (bits := done.chunk_to_write(number)) is not None
    }
    again = SettledOffsets.restore(min(done.floor, end), written, end)
    assert [each in again for each in range(end)] == [each in model for each in range(end)]
    assert end in model or end not in again or again.floor > end


def test_a_full_chunk_is_one_byte_and_a_chunk_below_the_floor_is_dropped() -> None:
    done = SettledOffsets()
    for offset in range(1024, 2048):
        done.add(offset)
    assert done.chunks()[1] is FULL
    assert rows.encode_chunk(FULL) == b"\x01"
    done.add_range(0, 1024)
    assert done.floor == 2048
    assert done.chunks() == {}
    assert done.dirty == {0, 1}


def test_a_million_settled_offsets_are_skipped_in_chunks() -> None:
    done = SettledOffsets()
    done.add_range(1, 1_000_000)
    assert done.first_open(5) == 1_000_000
    assert len(done.chunks()) == 977
    done.add(0)
    assert done.floor == 1_000_000


def test_rows_are_pinned() -> None:
    prefix = rows.key_prefix(1, 2, 3)
    assert prefix.hex() == "000000010000000200000003"
    assert rows.numbered_key(prefix, 5).hex() == prefix.hex() + "0000000000000005"
    assert rows.parse_prefix(rows.numbered_key(prefix, 5)) == (1, 2, 3)
    row = CursorRow(1, 2, 3, 4, 5, 6, 7)
    assert rows.encode_cursor(row).hex() == (
        "00000000000000010000000000000002" "0000000300000004"
        "000000000000000500000000000000060000000000000007"
    )  # fmt: skip
    assert rows.decode_cursor(rows.encode_cursor(row)) == row
    attempts = AttemptsRow(2, 70_000, 9, 1 << 40, 5, 3)
    assert rows.encode_attempts(attempts).hex() == (
        "000200011170" "0000000000000009" "0000010000000000" "05" "00000003"
    )  # fmt: skip
    assert rows.decode_attempts(rows.encode_attempts(attempts)) == attempts
    assert rows.decode_attempts(bytes.fromhex("0002ffff0000000000000009")) == (
        AttemptsRow(2, 65_535, 9)
    ), "of layout 1"
    settled = rows.SettledRow(7, 1 << 40, 4)
    assert rows.encode_settled(settled).hex() == "0000000000000007000001000000000004"
    assert rows.decode_settled(rows.encode_settled(settled)) == settled
    assert rows.decode_settled(bytes(8)) is None, "of layout 1"
    assert rows.parse_group(rows.group_key(7)) == 7
    assert rows.encode_chunk(1 << 8 | 1)[:2].hex() == "0101"
    with pytest.raises(ValueError, match="not 2"):
        rows.decode_chunk(b"ab")
