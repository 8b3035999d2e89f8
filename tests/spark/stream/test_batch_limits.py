from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.log_files.descriptions import Split
from holdfast.spark.stream.batch_limits import (
    MAX_OVERSHOOT,
    divide_limit,
    find_count,
    take_pieces,
    whole_blocks,
)
from holdfast.spark.stream.offsets import QueueKey


def key(number: int) -> QueueKey:
    return QueueKey("t", number)


keys = st.builds(QueueKey, st.sampled_from("ab"), st.integers(0, 3))
backlogs = st.dictionaries(keys, st.integers(0, 10**12), min_size=1)


@settings(deadline=None)
@given(backlogs, st.integers(1, 10**12), st.none() | keys)
def test_a_limit_is_used_up_and_kept(
    waiting: dict[QueueKey, int], limit: int, after: QueueKey | None
) -> None:
    shares = divide_limit(waiting, limit, after=after)
    assert sum(shares.values()) == min(limit, sum(waiting.values()))
    assert all(1 <= share <= waiting[each] for each, share in shares.items())
    backlogged = [each for each, count in waiting.items() if count]
    if limit >= len(backlogged):
        assert shares.keys() == set(backlogged)
        for each in backlogged:  # in proportion, except that each queue gets at least one
            fair = limit * waiting[each] / max(sum(waiting.values()), limit)
            assert abs(shares[each] - fair) <= len(backlogged) + 1 + fair * 1e-9


def test_shares_are_proportional_to_backlogs() -> None:
    assert divide_limit({key(0): 9000, key(1): 900, key(2): 100}, 100) == {
        key(0): 88,
        key(1): 10,
        key(2): 2,
    }


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 8))
def test_queues_take_turns_if_not_all_can_be_served(queues: int, limit: int) -> None:
    waiting = {key(n): 1000 for n in range(queues)}
    served, after = dict.fromkeys(waiting, 0), None
    for _ in range(queues):
        shares = divide_limit(waiting, limit, after=after)
        after = next(reversed(shares))
        for each, share in shares.items():
            served[each] += share
    assert max(served.values()) - min(served.values()) <= queues
    assert min(served.values()) >= 1


def pieces_of(sizes: list[int]) -> list[Split]:
    return [Split(0, 10 * n, 10 * n + 10, size) for n, size in enumerate(sizes)]


@settings(deadline=None)
@given(
    st.dictionaries(keys, st.lists(st.integers(1, 50), max_size=6), min_size=1),
    st.integers(1, 200),
    st.none() | keys,
)
def test_the_limit_in_bytes_is_kept_except_by_a_single_piece(
    sizes: dict[QueueKey, list[int]], limit: int, after: QueueKey | None
) -> None:
    ends = take_pieces({each: pieces_of(s) for each, s in sizes.items()}, limit, after=after)
    taken = {each: sizes[each][: end // 10] for each, end in ends.items()}
    total = sum(map(sum, taken.values()))
    assert total <= limit or sum(map(len, taken.values())) == 1
    assert all(taken.values())
    assert bool(ends) == any(sizes.values())
    if sum(map(sum, sizes.values())) <= limit:
        assert taken == {each: s for each, s in sizes.items() if s}


def test_bytes_are_shared_in_proportion_after_a_piece_each() -> None:
    pieces = {key(0): pieces_of([1] * 90), key(1): pieces_of([1] * 10)}
    assert take_pieces(pieces, 20) == {key(0): 180, key(1): 20}


def test_a_piece_too_large_for_the_limit_has_its_turn() -> None:
    pieces = {key(0): pieces_of([5] * 9), key(1): pieces_of([100])}
    assert take_pieces(pieces, 10) == {key(0): 20}
    assert take_pieces(pieces, 10, after=key(0)) == {key(1): 10}


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=30), st.integers(1, 10**9))
def test_a_count_of_the_wanted_size_is_found(sizes: list[int], max_bytes: int) -> None:
    total_of = [0, *accumulate(sizes)]
    count, size = find_count(total_of.__getitem__, len(sizes), max_bytes)
    assert 1 <= count <= len(sizes)
    assert size == total_of[count]
    assert count == len(sizes) or size >= max_bytes
    # The excess is as small as possible.
    assert size <= MAX_OVERSHOOT * max_bytes or total_of[count - 1] < max_bytes


def test_a_large_backlog_is_not_cut_into_small_pieces() -> None:
    asked: list[int] = []

    def size_of(count: int) -> int:
        asked.append(count)
        return 10 * count if count < 10**6 else 10**7 + (count - 10**6) * 10_000

    count, size = find_count(size_of, 10**9, 10**6)
    assert 10**6 <= size == 10 * count <= 4 * 10**6
    assert len(asked) < 10


def test_pieces_that_may_end_inside_a_block_are_omitted_but_not_all() -> None:
    pieces = {key(0): pieces_of([1, 2, 3]), key(1): pieces_of([4])}
    assert whole_blocks(pieces) == {key(0): pieces_of([1, 2]), key(1): pieces_of([4])}
