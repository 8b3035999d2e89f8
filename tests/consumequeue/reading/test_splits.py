"""Plans for parallel readers: every offset once, cut at batch borders, nearly equal in bytes."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.consumequeue.index import index as index_module
from holdfast.consumequeue.index.consume_queue import ConsumeQueue, CqUnit
from holdfast.consumequeue.index.index import Index, ReputPosition
from holdfast.consumequeue.index.queue_lookup import first_unit_reaching
from holdfast.consumequeue.reading.splits import Split, choose_piece_bytes, cut_parts, measure_parts

_topics = itertools.count(1)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    index = Index(tmp_path_factory.mktemp("index"), 1 << 30)
    yield index
    index.close()


@pytest.fixture
def look_ups(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The arguments of all searches in an index."""
    made: list[object] = []

    def search(*args: Any) -> CqUnit | None:
        made.append(args)
        return first_unit_reaching(*args)

    monkeypatch.setattr("holdfast.consumequeue.reading.splits.first_unit_reaching", search)
    return made


def queue(*batches: tuple[int, int]) -> ConsumeQueue:
    """Return a queue of batches, each (count, bytes)."""
    cq = ConsumeQueue(None, 0, 0)
    base = at = 0
    for count, size in batches:
        cq.show(CqUnit(base, 4096 + at, size, count, 0, 0, at))
        base, at = base + count, at + size
    return cq


def plan_splits(
    index: Index,
    topic_id: int,
    parts: Sequence[tuple[int, ConsumeQueue, int, int]],
    max_bytes: int | None,
    min_splits: int,
    max_splits: int = 2**63,
) -> list[Split]:
    """Return the pieces of the parts."""
    sized = list(measure_parts(index, topic_id, parts))
    target = choose_piece_bytes(
        sized, max_bytes=max_bytes, min_splits=min_splits, max_splits=max_splits
    )
    return list(cut_parts(index, topic_id, sized, target))


def test_without_limits_there_is_one_piece(index: Index) -> None:
    cq = queue((10, 100), (10, 100))
    assert plan_splits(index, 1, [(0, cq, 0, 20)], None, 1) == [Split(0, 0, 20, 200)]


def test_max_bytes_limits_the_pieces(index: Index) -> None:
    cq = queue(*[(10, 100)] * 6)
    assert plan_splits(index, 1, [(3, cq, 0, 60)], 200, 1) == [
        Split(3, 0, 20, 200),
        Split(3, 20, 40, 200),
        Split(3, 40, 60, 200),
    ]


def test_min_splits_counts_pieces_of_all_queues(index: Index) -> None:
    parts = [(0, queue(*[(10, 100)] * 6), 0, 60), (1, queue(*[(1, 50)] * 4), 0, 4)]
    plan = plan_splits(index, 1, parts, None, 4)
    assert [(split.queue, split.start_offset, split.end_offset) for split in plan] == [
        (0, 0, 20),
        (0, 20, 40),
        (0, 40, 60),
        (1, 0, 4),
    ]


def test_a_batch_is_never_cut(index: Index) -> None:
    assert plan_splits(index, 1, [(0, queue((1000, 9999)), 0, 1000)], 10, 50) == [
        Split(0, 0, 1000, 9999)
    ]


def test_the_ends_of_a_range_may_be_inside_a_batch(index: Index) -> None:
    cq = queue((10, 100), (10, 100), (10, 100))
    plan = plan_splits(index, 1, [(0, cq, 5, 25)], 100, 1)
    assert [(split.start_offset, split.end_offset) for split in plan] == [
        (5, 10),
        (10, 20),
        (20, 25),
    ]


def test_few_pieces_need_few_look_ups(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making four pieces of a queue with 20,000 batches on disk reads a few hundred entries."""
    topic = next(_topics)
    units = [CqUnit(n, 4096 + n, 1, 1, 0, 0, n) for n in range(20_000)]
    index.commit([((topic, 0), unit) for unit in units], ReputPosition())
    decoded = 0
    decode = index_module._decode_unit

    def counted(key: bytes, value: bytes) -> CqUnit:
        nonlocal decoded
        decoded += 1
        return decode(key, value)

    monkeypatch.setattr(index_module, "_decode_unit", counted)
    plan = plan_splits(index, topic, [(0, ConsumeQueue(units[-1], 0, 0), 0, 20_000)], None, 4)
    assert [split.bytes for split in plan] == [5000] * 4
    assert decoded < 300


def test_few_batches_need_few_look_ups(index: Index, look_ups: list[object]) -> None:
    """Otherwise one request for pieces of one byte would keep a reader thread busy for hours."""
    plan = plan_splits(index, 1, [(0, queue(*[(10, 10_000)] * 3), 0, 30)], 1, 1)
    assert plan == [Split(0, 0, 10, 10_000), Split(0, 10, 20, 10_000), Split(0, 20, 30, 10_000)]
    assert len(look_ups) <= 3


@pytest.mark.parametrize(("max_splits", "count"), [(9, 9), (10, 10), (11, 10)])
def test_max_splits_makes_pieces_larger(index: Index, max_splits: int, count: int) -> None:
    cq = queue(*[(1, 100)] * 10)
    plan = plan_splits(index, 1, [(0, cq, 0, 10)], 1, 1, max_splits)
    assert len(plan) == count
    assert (plan[0].start_offset, plan[-1].end_offset) == (0, 10)
    assert sum(split.bytes for split in plan) == 1000


@pytest.mark.parametrize("max_splits", [1, 2, 4, 5, 6, 100])
def test_each_queue_has_a_piece_with_any_max_splits(index: Index, max_splits: int) -> None:
    parts = [(n, queue(*[(1, 100)] * 4), 0, 4) for n in range(5)]
    plan = plan_splits(index, 1, parts, 1, 1, max_splits)
    assert {split.queue for split in plan} == set(range(5))
    assert len(plan) <= max_splits + 4
    assert sum(split.bytes for split in plan) == 2000


def test_max_splits_allows_min_splits(index: Index) -> None:
    parts = [(n, queue(*[(1, 100)] * 10), 0, 10) for n in range(3)]
    assert len(plan_splits(index, 1, parts, None, 9, 9)) >= 9


def test_a_plan_is_computed_piece_by_piece(index: Index, look_ups: list[object]) -> None:
    """Otherwise the planning could not be stopped."""
    (part,) = measure_parts(index, 1, [(0, queue(*[(1, 100)] * 1000), 0, 1000)])
    pieces = cut_parts(index, 1, [part], 1)
    for number in range(1, 20):
        next(pieces)
        assert len(look_ups) <= 2 * number


@settings(deadline=None)  # it waits for the disk
@given(
    batches=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 50)), min_size=1, max_size=20),
    on_disk=st.integers(0, 20),
    ends=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    max_bytes=st.none() | st.integers(1, 300),
    min_splits=st.integers(1, 10),
)
def test_pieces_cover_the_range_once_and_are_small(
    index: Index,
    batches: list[tuple[int, int]],
    on_disk: int,
    ends: tuple[float, float],
    max_bytes: int | None,
    min_splits: int,
) -> None:
    whole = queue(*batches)
    topic = next(_topics)
    index.commit([((topic, 0), unit) for unit in whole.entries[:on_disk]], ReputPosition())
    cq = ConsumeQueue(None, 0, 0)
    for unit in whole.entries[min(on_disk, len(batches) - 1) :]:
        cq.show(unit)
    start, end = sorted(int(part * whole.max_offset) for part in ends)
    if start == end:
        return
    plan = plan_splits(index, topic, [(0, cq, start, end)], max_bytes, min_splits)
    assert plan[0].start_offset == start
    assert plan[-1].end_offset == end
    for before, after in itertools.pairwise(plan):
        assert before.end_offset == after.start_offset
    inside = [u for u in whole.entries if u.end_offset > start and u.base_offset < end]
    total = sum(unit.size for unit in inside)
    assert sum(split.bytes for split in plan) == total
    target = min(max_bytes or total, -(-total // min_splits))
    largest = max(unit.size for unit in inside)
    for split in plan:
        assert split.start_offset < split.end_offset
        assert split.bytes <= target + largest
