"""The rows alone decide where windows are cut."""

from itertools import pairwise

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.spark.write.rows import ROW_BYTES, row_weights
from holdfast.spark.write.windows import cut_windows


def rows(sizes: list[int]) -> pa.RecordBatch:
    bodies = pa.array([b"x" * size for size in sizes], pa.binary())
    numbers = pa.array([str(number) for number in range(len(sizes))], pa.string())
    return pa.RecordBatch.from_arrays([bodies, numbers], names=["body", "topic"])


def split(batch: pa.RecordBatch, cuts: list[int]) -> list[pa.RecordBatch]:
    ends = sorted({cut for cut in cuts if cut < len(batch)} | {0, len(batch)})
    return [batch.slice(a, b - a) for a, b in pairwise(ends)]


def cut(
    batches: list[pa.RecordBatch], max_rows: int, max_bytes: int
) -> list[tuple[int, list[str]]]:
    found = cut_windows(batches, max_rows=max_rows, max_bytes=max_bytes)
    return [(each.first_row, each.rows.column("topic").to_pylist()) for each in found]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 100), max_size=30),
    st.lists(st.integers(1, 29), max_size=5),
    st.integers(1, 10),
    st.integers(1, 600),
)
def test_cuts_do_not_depend_on_record_batches(
    sizes: list[int], cuts: list[int], max_rows: int, max_bytes: int
) -> None:
    batch = rows(sizes)
    whole = cut([batch], max_rows, max_bytes)
    assert cut(split(batch, cuts), max_rows, max_bytes) == whole
    assert [name for _, names in whole for name in names] == [str(n) for n in range(len(sizes))]
    at = 0
    for first_row, names in whole:
        assert first_row == at
        at += len(names)
        weight = sum(sizes[int(name)] + ROW_BYTES for name in names)
        assert len(names) <= max_rows
        assert weight <= max_bytes or len(names) == 1
        if at < len(sizes):  # the next row did not fit
            assert len(names) == max_rows or weight + sizes[at] + ROW_BYTES > max_bytes


def test_limits_are_met_exactly() -> None:
    sizes = [10] * 6
    each = 10 + ROW_BYTES
    for limit, expected in ((3 * each - 1, 2), (3 * each, 3), (3 * each + 1, 3)):
        assert len(cut([rows(sizes)], 100, limit)[0][1]) == expected
    for limit, expected in ((2, 2), (3, 3), (4, 4)):
        assert len(cut([rows(sizes)], limit, 1 << 20)[0][1]) == expected


def test_no_rows_no_window() -> None:
    assert cut([], 10, 10) == cut([rows([])], 10, 10) == []


def test_properties_and_texts_count() -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([b"12345", b""]),
            pa.array(["é", None]),
            pa.array([[("ab", "c"), ("d", "")], None], pa.map_(pa.string(), pa.string())),
        ],
        names=["body", "key", "properties"],
    )
    both = row_weights(batch)
    assert both.tolist() == [ROW_BYTES + 5 + 2 + 4 + 2 * 8, ROW_BYTES]
    assert row_weights(batch.slice(1)).tolist() == both[1:].tolist()
