"""Ranges of lost offsets, compared with a plain set of offsets."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.consumequeue.lost_ranges import (
    LostRange,
    LostRanges,
    is_accepted,
    overlaps,
    with_lost,
    without,
)

_ENDS = st.tuples(st.integers(0, 20), st.integers(1, 8)).map(lambda at: (at[0], at[0] + at[1]))
_FOUND = st.builds(
    lambda ends, reason, accepted: LostRange(ends[0], ends[1], reason, accepted),
    _ENDS,
    st.sampled_from(["payload-crc", "missing-segment"]),
    st.booleans(),
)


def offsets(ranges: LostRanges) -> dict[int, bool]:
    """Return for each offset whether it is accepted."""
    found: dict[int, bool] = {}
    for each in ranges:
        for offset in range(each.start_offset, each.end_offset):
            assert offset not in found
            found[offset] = each.accepted
    return found


@given(st.lists(_FOUND), _ENDS)
def test_ranges_are_a_set_of_offsets_in_order(
    found: list[LostRange], queried: tuple[int, int]
) -> None:
    ranges: LostRanges = ()
    expected: dict[int, bool] = {}
    for each in found:
        ranges = with_lost(ranges, each)
        expected = {**offsets((each,)), **expected}
    assert offsets(ranges) == expected
    assert list(ranges) == sorted(ranges, key=lambda each: each.start_offset)
    assert all(each.count > 0 for each in ranges)

    start, end = queried
    left = without(ranges, start, end)
    assert offsets(left) == {at: kind for at, kind in expected.items() if not start <= at < end}
    assert overlaps(ranges, start, end) == any(at in expected for at in range(start, end))
    assert is_accepted(ranges, start, end) == all(
        expected.get(at, False) for at in range(start, end)
    )


def test_adjacent_ranges_are_joined_unless_one_is_accepted() -> None:
    ranges: LostRanges = ()
    for start, reason in ((4, "payload-crc"), (0, "bad-magic"), (2, "payload-crc")):
        ranges = with_lost(ranges, LostRange(start, start + 2, reason))
    assert ranges == (LostRange(0, 6, "bad-magic"),)
    ranges = with_lost(ranges, LostRange(6, 8, "bad-magic", accepted=True))
    assert ranges == (LostRange(0, 6, "bad-magic"), LostRange(6, 8, "bad-magic", accepted=True))
