"""The messages that a pull returns: bounds, filters, gaps and damage."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.commitlog.errors import CorruptRecord
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.consumequeue.index.consume_queue import ConsumeQueue, CqUnit
from holdfast.consumequeue.lost_ranges import LostRange, LostRanges
from holdfast.consumequeue.reading import reader
from holdfast.consumequeue.reading.fetched import MAX_SKIPPED_RANGES, Fetched, Wanted, message_sizes
from holdfast.consumequeue.reading.reader import (
    SKIPPED_BATCH_BYTES,
    NeedsDisk,
    Place,
    collect,
    first_match,
)
from tests.support.storage.batches import stamped

KEY = (1, 0)
BODY_BYTES = 10


class Queue:
    """Batches of a queue, whose bodies contain their offsets, and the index entries for them."""

    def __init__(self, *counts: int, tags: Sequence[str] = ()) -> None:
        self.batches: dict[int, Batch] = {}
        self.units: list[CqUnit] = []
        self.reads: list[int] = []
        physical, base = 4096, 0
        for number, count in enumerate(counts):
            tag = tags[number] if tags else None
            raw = encode_batch(
                [b"%010d" % (base + row) for row in range(count)], tags=[tag] * count
            )
            batch = stamped(raw, physical_offset=physical, base_offset=base)
            header = batch.header
            self.batches[physical] = batch
            self.units.append(
                CqUnit(base, physical, header.total_size, count, 0, header.tag_summary, 0)
            )
            physical, base = header.end_physical_offset, base + count
        self.max_offset = base

    def without(self, *numbers: int) -> "Queue":
        """Remove entries, as if their blocks had been damaged when the index was built."""
        self.units = [unit for number, unit in enumerate(self.units) if number not in numbers]
        return self

    def damage(self, number: int) -> "Queue":
        """Let reads of one entry's block fail."""
        del self.batches[self.units[number].physical_offset]
        return self

    def read(self, unit: CqUnit) -> Batch:
        self.reads.append(unit.base_offset)
        try:
            return self.batches[unit.physical_offset]
        except KeyError:
            raise CorruptRecord(unit.physical_offset, "payload-crc") from None

    def pull(
        self,
        offset: int,
        *,
        max_messages: int = 1000,
        max_bytes: int = 1_000_000,
        wanted: "Matching | None" = None,
        max_offset: int | None = None,
        filter_end: int = sys.maxsize,
        skip_corrupt: bool = False,
        lost: LostRanges = (),
        **options: Any,
    ) -> Fetched:
        units = (unit for unit in self.units if unit.end_offset > offset)
        end = self.max_offset if max_offset is None else max_offset
        place = Place(KEY, ConsumeQueue(None, 0, 0), offset, end, lost)
        limits = Wanted(
            max_messages, max_bytes, wanted, skip_corrupt=skip_corrupt, filter_end=filter_end
        )
        return collect(units, self.read, place, limits, **options)


class Matching:
    """A filter that matches given offsets, or a tag by its summary."""

    def __init__(
        self, offsets: Iterable[int] = (), *, summary: int | None = None, message_us: float = 0.1
    ) -> None:
        self.offsets = set(offsets)
        self.summary = summary
        self.message_us = message_us

    def may_match(self, tag_summary: int) -> bool:
        return self.summary is None or bool(tag_summary & self.summary)

    def cost_us(self, messages: int, text_bytes: int) -> float:
        return messages * self.message_us

    def matching_rows(self, batch: Batch, start_row: int, end_row: int) -> Sequence[int]:
        base = batch.header.base_offset
        return [row for row in range(start_row, end_row) if base + row in self.offsets]


def offsets(fetched: Fetched) -> list[int]:
    found = [int(piece.batch.body(row)) for piece in fetched.slices for row in piece.rows]
    assert fetched.message_count == len(found)
    return found


# -- bounds --------------------------------------------------------------------------------


def test_a_pull_takes_batches_up_to_the_end() -> None:
    fetched = Queue(3, 1, 2).pull(0)
    assert offsets(fetched) == [0, 1, 2, 3, 4, 5]
    assert (fetched.next_offset, fetched.min_offset, fetched.max_offset) == (6, 0, 6)


def test_a_pull_may_begin_inside_a_batch() -> None:
    assert offsets(Queue(3, 2).pull(2)) == [2, 3, 4]


def test_a_pull_of_nothing_is_empty() -> None:
    fetched = Queue().pull(0)
    assert (fetched.slices, fetched.next_offset) == ([], 0)


def test_later_messages_are_not_delivered() -> None:
    fetched = Queue(3, 2).pull(0, max_offset=3)
    assert offsets(fetched) == [0, 1, 2]
    assert fetched.max_offset == 3


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7])
def test_max_messages_limits_a_pull(count: int) -> None:
    fetched = Queue(3, 1, 2).pull(0, max_messages=count)
    assert offsets(fetched) == list(range(min(count, 6)))
    assert fetched.next_offset == min(count, 6)


@pytest.mark.parametrize(
    ("max_bytes", "taken"), [(1, 1), (9, 1), (10, 1), (19, 1), (20, 2), (29, 2), (30, 3), (31, 3)]
)
def test_max_bytes_limits_a_pull_after_the_first_message(max_bytes: int, taken: int) -> None:
    fetched = Queue(8).pull(0, max_bytes=max_bytes)
    assert offsets(fetched) == list(range(taken))
    assert fetched.next_offset == taken


def test_bytes_are_counted_over_several_batches() -> None:
    queue = Queue(1, 1, 1)
    for max_bytes in range(1, 600):
        fetched = queue.pull(0, max_bytes=max_bytes)
        assert fetched.message_count >= 1
        assert max_bytes < BODY_BYTES or fetched.message_count * BODY_BYTES <= max_bytes
    assert offsets(queue.pull(0, max_bytes=600)) == [0, 1, 2]


def test_a_message_that_does_not_fit_waits_for_the_next_pull() -> None:
    queue = Queue(1, 5)
    size = queue.units[0].size
    fetched = queue.pull(0, max_bytes=size + 5)
    assert offsets(fetched) == [0]
    assert fetched.next_offset == 1


def test_the_size_of_a_message_is_that_of_its_texts() -> None:
    raw = encode_batch(
        [b"123", b"", b"1"],
        keys=["ab", None, "é"],
        tags=[None, "t", None],
        properties=[{"n": "vv"}, None, {"a": "1", "b": ""}],
    )
    assert message_sizes(Batch.decode(raw)).tolist() == [3 + 2 + 3, 1, 1 + 2 + 3]


@given(
    counts=st.lists(st.integers(1, 6), max_size=8),
    max_messages=st.integers(1, 12),
    max_bytes=st.integers(1, 400),
    wanted=st.none() | st.sets(st.integers(0, 50)),
)
def test_repeated_pulls_deliver_every_message_once_in_order(
    counts: list[int], max_messages: int, max_bytes: int, wanted: set[int] | None
) -> None:
    queue = Queue(*counts)
    found: list[int] = []
    at = 0
    while at < queue.max_offset:
        fetched = queue.pull(
            at,
            max_messages=max_messages,
            max_bytes=max_bytes,
            wanted=None if wanted is None else Matching(wanted),
        )
        assert fetched.message_count <= max_messages
        assert at < fetched.next_offset <= queue.max_offset
        found += offsets(fetched)
        at = fetched.next_offset
    everything = range(queue.max_offset)
    assert found == [n for n in everything if wanted is None or n in wanted]


# -- filters -------------------------------------------------------------------------------


def test_a_filter_delivers_only_matching_messages() -> None:
    fetched = Queue(3, 3, 3).pull(0, wanted=Matching({1, 7}))
    assert offsets(fetched) == [1, 7]
    assert fetched.next_offset == 9


def test_a_full_pull_ends_at_the_next_match_not_at_the_next_message() -> None:
    fetched = Queue(9).pull(0, max_messages=1, wanted=Matching({2, 7}))
    assert offsets(fetched) == [2]
    assert fetched.next_offset == 7


def test_a_pull_without_matches_advances() -> None:
    fetched = Queue(3, 3).pull(1, wanted=Matching())
    assert (fetched.slices, fetched.next_offset) == ([], 6)


def test_a_batch_excluded_by_its_tags_is_not_read() -> None:
    queue = Queue(2, 2, 2, tags=["a", "b", "a"])
    summary = queue.units[1].tag_summary
    fetched = queue.pull(0, wanted=Matching(range(9), summary=summary))
    assert offsets(fetched) == [2, 3]
    assert fetched.next_offset == 6
    assert queue.reads == [2]


@pytest.mark.parametrize(("filter_end", "examined"), [(2, [0]), (3, [0, 2]), (4, [0, 2])])
def test_no_batch_is_examined_from_the_filters_end_on(filter_end: int, examined: list[int]) -> None:
    queue = Queue(2, 2, 2, 2)
    fetched = queue.pull(0, wanted=Matching({1}), filter_end=filter_end)
    assert (offsets(fetched), queue.reads) == ([1], examined)
    assert fetched.next_offset == 2 * len(examined)


def test_a_gap_before_the_filters_end_is_reported() -> None:
    queue = Queue(2, 2, 2).without(1)
    fetched = queue.pull(2, wanted=Matching(), filter_end=4, skip_corrupt=True)
    assert (fetched.next_offset, queue.reads) == (4, [])
    assert [(lost.start_offset, lost.end_offset) for lost in fetched.skipped] == [(2, 4)]


def test_a_pull_scans_a_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(1, 1, 1, 1)
    size = queue.units[0].size
    for limit, reached in ((0, 1), (size, 1), (2 * size, 2), (2 * size + 1, 2), (9 * size, 4)):
        monkeypatch.setattr(reader, "MAX_SCAN_BYTES", limit)
        assert queue.pull(0, wanted=Matching()).next_offset == reached


@pytest.mark.parametrize(("message_us", "looked_at"), [(1, 100), (250, 80), (8000, 3), (1e9, 1)])
def test_a_costly_filter_may_stop_within_a_batch(message_us: float, looked_at: int) -> None:
    queue = Queue(50, 50)
    wanted = Matching([99], message_us=message_us)
    fetched = queue.pull(0, wanted=wanted)
    assert fetched.next_offset == pytest.approx(looked_at, abs=1)
    at = 0
    found: list[int] = []
    while at < 100:
        fetched = queue.pull(at, wanted=wanted)
        assert fetched.next_offset > at
        at, found = fetched.next_offset, found + offsets(fetched)
    assert found == [99]


def test_skipped_batches_count_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_SCAN_BYTES", 3 * SKIPPED_BATCH_BYTES)
    fetched = Queue(1, 1, 1, 1, 1).pull(0, wanted=Matching(summary=1))
    assert (fetched.message_count, fetched.next_offset) == (0, 3)


# -- gaps and damage -----------------------------------------------------------------------


def test_a_pull_ends_before_a_gap() -> None:
    fetched = Queue(2, 2, 2).without(1).pull(0)
    assert offsets(fetched) == [0, 1]
    assert fetched.next_offset == 2


def test_the_error_of_a_gap_has_its_end() -> None:
    queue = Queue(2, 2, 2).without(1)
    for offset in (2, 3):
        with pytest.raises(CorruptRecord) as caught:
            queue.pull(offset)
        assert (caught.value.reason, caught.value.next_offset) == ("missing-block", 4)


def test_a_pull_ends_before_a_damaged_batch() -> None:
    fetched = Queue(2, 2, 2).damage(1).pull(0)
    assert offsets(fetched) == [0, 1]
    assert fetched.next_offset == 2


def test_the_error_of_a_damaged_batch_has_its_end() -> None:
    queue = Queue(2, 2, 2).damage(1)
    for offset in (2, 3):
        with pytest.raises(CorruptRecord) as caught:
            queue.pull(offset)
        assert (caught.value.reason, caught.value.next_offset) == ("payload-crc", 4)
    assert offsets(queue.pull(4)) == [4, 5]


def test_adjacent_damage_is_reported_as_one_range() -> None:
    queue = Queue(2, 2, 2, 2, 2, 2).damage(1).damage(2).without(3).damage(3)  # entry 3 is now 4
    for offset in range(2, 10):
        with pytest.raises(CorruptRecord) as caught:
            queue.pull(offset)
        assert caught.value.next_offset == 10
    assert offsets(queue.pull(10)) == [10, 11]
    assert offsets(queue.pull(0)) == [0, 1]


def test_a_lost_end_of_a_queue_is_reported() -> None:
    queue = Queue(2, 2, 2).without(2)
    assert offsets(queue.pull(0)) == [0, 1, 2, 3]
    for lacking in (queue, queue.damage(1)):
        with pytest.raises(CorruptRecord) as caught:
            lacking.pull(4)
        assert (caught.value.reason, caught.value.next_offset) == ("missing-block", 6)
    with pytest.raises(CorruptRecord) as caught:
        queue.pull(2)
    assert (caught.value.reason, caught.value.next_offset) == ("payload-crc", 6)
    with pytest.raises(CorruptRecord):
        Queue(2).without(0).pull(0)


@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    damaged=st.sets(st.integers(0, 7)),
    missing=st.sets(st.integers(0, 7)),
    start=st.integers(0, 31),
    most=st.integers(1, 9),
    wanted=st.none() | st.sets(st.integers(0, 31)),
)
def test_reads_past_damage_deliver_all_intact_messages(
    counts: list[int],
    damaged: set[int],
    missing: set[int],
    start: int,
    most: int,
    wanted: set[int] | None,
) -> None:
    """Continue after its errors, or with skip_corrupt, in pieces of any size."""
    queue = Queue(*counts)
    ends = {unit.base_offset: unit.end_offset for unit in queue.units}
    whole = [
        offset
        for number, unit in enumerate(queue.units)
        if number not in damaged | missing
        for offset in range(unit.base_offset, unit.end_offset)
        if offset >= start
    ]
    for number in damaged & set(range(len(counts))):
        queue.damage(number)
    queue.without(*missing)
    matching = None if wanted is None else Matching(wanted)
    expected = [offset for offset in whole if wanted is None or offset in wanted]
    for skip in (False, True):
        found, lost, at = [], set[int](), min(start, queue.max_offset)
        while at < queue.max_offset:
            try:
                fetched = queue.pull(at, max_messages=most, wanted=matching, skip_corrupt=skip)
            except CorruptRecord as error:
                assert not skip
                assert error.next_offset is not None
                lost |= set(range(at, error.next_offset))
                following = error.next_offset
            else:
                found += offsets(fetched)
                for each in fetched.skipped:
                    assert at <= each.start_offset < each.end_offset <= fetched.next_offset
                    lost |= set(range(each.start_offset, each.end_offset))
                following = fetched.next_offset
            assert following > at
            at = following
        assert found == expected
        assert lost == set(range(min(start, queue.max_offset), queue.max_offset)) - set(whole)
    assert ends


def test_a_missing_segment_is_skipped_in_one_step() -> None:
    queue = Queue(*[1] * 10)
    reads = queue.reads

    def read(unit: CqUnit) -> Batch:
        reads.append(unit.base_offset)
        if 2 <= unit.base_offset < 8:
            raise CorruptRecord(unit.physical_offset, "missing-segment")
        return queue.batches[unit.physical_offset]

    queue.read = read  # type: ignore[method-assign]
    with pytest.raises(CorruptRecord) as caught:
        queue.pull(2, gap_end=lambda unit: 8)
    assert caught.value.next_offset == 8
    assert reads == [2, 8]
    fetched = queue.pull(0, skip_corrupt=True, gap_end=lambda unit: 8)
    assert offsets(fetched) == [0, 1, 8, 9]
    assert fetched.skipped == (LostRange(2, 8, "missing-segment"),)


def test_accepted_losses_are_always_skipped() -> None:
    queue = Queue(2, 2, 2, 2).damage(1).damage(2)
    accepted = (LostRange(2, 4, "payload-crc", accepted=True),)
    fetched = queue.pull(0, lost=accepted)
    assert (offsets(fetched), fetched.next_offset, fetched.skipped) == ([0, 1], 4, accepted)
    with pytest.raises(CorruptRecord) as caught:
        queue.pull(4, lost=accepted)
    assert caught.value.next_offset == 6
    both = (LostRange(2, 6, "payload-crc", accepted=True),)
    assert offsets(queue.pull(3, lost=both)) == [6, 7]


def test_one_pull_skips_a_limited_number_of_ranges() -> None:
    count = 2 * MAX_SKIPPED_RANGES + 1
    queue = Queue(*[1] * count)
    for number in range(0, count, 2):
        queue.damage(number)
    fetched = queue.pull(0, skip_corrupt=True)
    assert len(fetched.skipped) == MAX_SKIPPED_RANGES
    following = queue.pull(fetched.next_offset, skip_corrupt=True)
    assert len(following.skipped) == 1
    assert following.next_offset == count


def test_a_limited_size_of_damage_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(*[1] * 10)
    for number in range(10):
        queue.damage(number)
    monkeypatch.setattr(reader, "MAX_SCAN_BYTES", 3 * queue.units[0].size)
    with pytest.raises(CorruptRecord) as caught:
        queue.pull(0)
    assert caught.value.next_offset == 4
    assert queue.pull(0, skip_corrupt=True).next_offset == 4


def test_a_filtered_pull_ends_before_damage() -> None:
    for queue in (Queue(2, 2, 2).damage(1), Queue(2, 2, 2).without(1)):
        fetched = queue.pull(0, wanted=Matching())
        assert (fetched.slices, fetched.next_offset) == ([], 2)


def test_damage_in_excluded_batches_is_not_reported() -> None:
    queue = Queue(2, 2, 2, tags=["a", "b", "a"]).damage(1)
    summary = queue.units[0].tag_summary
    assert offsets(queue.pull(0, wanted=Matching(range(9), summary=summary))) == [0, 1, 4, 5]


@pytest.mark.parametrize("other", [{"topic_id": 2}, {"queue_id": 1}, {"base_offset": 7}])
def test_a_block_of_another_queue_is_not_delivered(other: dict[str, int]) -> None:
    queue = Queue(2)
    physical = queue.units[0].physical_offset
    queue.batches[physical] = stamped(encode_batch([b"0", b"1"]), physical_offset=physical, **other)
    with pytest.raises(CorruptRecord) as caught:
        queue.pull(0)
    assert caught.value.reason == "index-mismatch"


def test_a_hot_read_raises_needs_disk() -> None:
    queue = Queue(2, 2)

    def read(unit: CqUnit) -> Batch:
        if unit.base_offset:
            raise NeedsDisk
        return queue.read(unit)

    with pytest.raises(NeedsDisk):
        collect(queue.units, read, Place(KEY, ConsumeQueue(None, 0, 0), 0, 4), Wanted(9, 9999))


# -- the first match -----------------------------------------------------------------------


def _first(queue: Queue, start: int, end: int, wanted: Matching) -> int:
    units = (unit for unit in queue.units if unit.end_offset > start)
    return first_match(units, queue.read, KEY, start, end, wanted)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 9, 4), (4, 9, 4), (5, 9, 7), (0, 4, 4), (0, 3, 3), (8, 9, 9), (5, 7, 7), (3, 3, 3)],
)
def test_the_first_match_or_the_end(start: int, end: int, expected: int) -> None:
    assert _first(Queue(3, 3, 3), start, end, Matching({4, 7})) == expected


def test_a_damaged_batch_counts_as_a_match() -> None:
    queue = Queue(3, 3, 3).damage(1)
    assert _first(queue, 0, 9, Matching({8})) == 3
    assert _first(queue, 4, 9, Matching({8})) == 4
    assert _first(queue, 6, 9, Matching({8})) == 8


def test_excluded_batches_are_not_read_for_a_match() -> None:
    queue = Queue(3, 3, tags=["a", "b"])
    wanted = Matching(range(9), summary=queue.units[1].tag_summary)
    assert _first(queue, 0, 6, wanted) == 3
    assert queue.reads == [3]


@given(
    counts=st.lists(st.integers(1, 6), max_size=8),
    wanted=st.sets(st.integers(0, 50)),
    start=st.integers(0, 50),
    length=st.integers(0, 50),
)
def test_the_first_match_is_correct(
    counts: list[int], wanted: set[int], start: int, length: int
) -> None:
    queue = Queue(*counts)
    start = min(start, queue.max_offset)
    end = min(start + length, queue.max_offset)
    expected = next((n for n in range(start, end) if n in wanted), end)
    assert _first(queue, start, end, Matching(wanted)) == expected
