"""Runs return the same blocks as single reads, with the fewest calls, and end at damage."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.segments import run_reader
from holdfast.commitlog.segments.run_reader import FEW, NEAR_BYTES, read_queue_runs, read_runs
from tests.support.storage.small_log import (
    SmallLog,
    flip_bit,
    open_small_log,
    raw_batch,
    segment_path,
)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallLog]:
    log = open_small_log(tmp_path / "log")
    log.log.roll()
    yield log
    log.close()


def read(small: SmallLog, batches: list[Batch]) -> list[BatchRun | Batch]:
    places = np.array([batch.header.physical_offset for batch in batches], np.int64)
    sizes = np.array([batch.header.total_size for batch in batches], np.int64)
    return list(read_runs(small.log, places, sizes))


def joined(found: Sequence[BatchRun | Batch]) -> bytes:
    return b"".join(each.buffer if isinstance(each, BatchRun) else each.block for each in found)


def wanted(batches: list[Batch]) -> bytes:
    return b"".join(batch.block for batch in batches)


@pytest.fixture
def calls(small: SmallLog, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the sizes of later reads from the log."""
    found: list[int] = []
    read_bytes = small.log.read_bytes

    def counted(physical_offset: int, size: int) -> bytes:
        found.append(size)
        return read_bytes(physical_offset, size)

    monkeypatch.setattr(small.log, "read_bytes", counted)
    return found


def test_adjacent_blocks_are_read_by_one_call(small: SmallLog, calls: list[int]) -> None:
    batches = [small.append(raw_batch(size)) for size in range(FEW)]
    found = read(small, batches)
    assert joined(found) == wanted(batches)
    assert calls == [len(wanted(batches))]


def test_blocks_of_other_queues_are_dropped(small: SmallLog, calls: list[int]) -> None:
    batches = []
    for _ in range(FEW):
        batches.append(small.append(raw_batch(100)))
        small.append(raw_batch(1000), queue_id=1)
    assert joined(read(small, batches)) == wanted(batches)
    assert len(calls) == 1


def test_distant_blocks_are_read_separately_into_one_run(small: SmallLog, calls: list[int]) -> None:
    batches = []
    for _ in range(FEW):
        batches.append(small.append(raw_batch(100)))
        small.append(raw_batch(2 * NEAR_BYTES), queue_id=1)
    (run,) = read(small, batches)
    assert joined([run]) == wanted(batches)
    assert calls == [batch.header.total_size for batch in batches]


def test_a_few_blocks_are_decoded_as_batches(small: SmallLog) -> None:
    batches = [small.append(raw_batch(100)) for _ in range(FEW - 1)]
    found = read(small, batches)
    assert [type(each) for each in found] == [Batch] * (FEW - 1)
    assert joined(found) == wanted(batches)


def test_no_blocks_are_no_run(small: SmallLog) -> None:
    assert read(small, []) == []


def test_reads_and_runs_stay_within_their_limits(
    small: SmallLog, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_reader, "MAX_RUN_BYTES", 20_000)
    monkeypatch.setattr(run_reader, "MAX_EXTENT_BYTES", 5_000)
    batches = []
    for _ in range(200):
        batches.append(small.append(raw_batch(100)))
        small.append(raw_batch(300), queue_id=1)
    found = read(small, batches)
    assert joined(found) == wanted(batches)
    assert max(calls) <= 5_000
    runs = [len(each.buffer) for each in found if isinstance(each, BatchRun)]
    assert len(runs) > 1
    assert max(runs) <= 20_000


@pytest.mark.parametrize("seed", range(20))
def test_runs_have_the_same_blocks_as_single_reads(tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    small = SmallLog(tmp_path / "log", segment_bytes=64 * 1024)
    small.open()
    small.log.roll()
    batches = [
        small.append(raw_batch(drawn.choice((8, 100, 3000))), queue_id=drawn.randrange(3))
        for _ in range(300)
    ]
    assert len(small.log.segments) > 2
    for queue in range(3):
        chosen = [batch for batch in batches if batch.header.queue_id == queue]
        assert joined(read(small, chosen)) == wanted(chosen)
    small.close()


@pytest.mark.parametrize("position", [40, HEADER_SIZE + 12])
def test_reading_ends_before_a_damaged_run(
    small: SmallLog, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_reader, "MAX_RUN_BYTES", 240 * FEW)
    batches = [small.append(raw_batch(100)) for _ in range(3 * FEW)]
    damaged = batches[FEW + 3].header.physical_offset
    flip_bit(segment_path(small.log, 0), damaged + position)
    assert joined(read(small, batches)) == wanted(batches[:FEW])


@pytest.mark.parametrize("count", [1, FEW])
def test_reading_ends_before_a_misplaced_block(small: SmallLog, count: int) -> None:
    batches = [small.append(raw_batch(100)) for _ in range(2 * FEW)]
    places = np.array([batch.header.physical_offset for batch in batches[:count]], np.int64)
    sizes = np.array([batch.header.total_size for batch in batches[:count]], np.int64)
    path = segment_path(small.log, 0)
    block = bytes(batches[FEW].block)
    with path.open("r+b") as file:
        file.seek(int(places[-1]) - small.log.segments[0].start_offset)
        file.write(block)
    assert list(read_runs(small.log, places, sizes)) == []


def test_reading_ends_at_a_deleted_segment(tmp_path: Path) -> None:
    small = SmallLog(tmp_path / "log", segment_bytes=64 * 1024)
    small.open()
    small.log.roll()
    batches = [small.append(raw_batch(1000)) for _ in range(100)]
    small.log.delete_before(small.log.segments[1].start_offset)
    assert read(small, batches) == []
    small.close()


def read_queue(
    small: SmallLog, first: Batch, extent_bytes: int = 2**20, **limits: int
) -> list[BatchRun]:
    bounds = {"end_offset": 10_000, "max_bytes": 2**24, **limits}
    place = first.header.physical_offset
    return list(read_queue_runs(small.log, place, extent_bytes, (1, 0), **bounds))


def test_a_queue_is_read_without_its_entries(small: SmallLog, calls: list[int]) -> None:
    batches = []
    for number in range(3 * FEW):
        batches.append(small.append(raw_batch(number)))
        if number % 3 == 0:
            small.append(raw_batch(5), queue_id=1)
    assert joined(read_queue(small, batches[2])) == wanted(batches[2:])
    assert len(calls) == 1
    assert len(read_queue(small, batches[-FEW])) == 1
    assert read_queue(small, batches[1 - FEW]) == []


def test_each_run_of_a_queue_is_read_by_one_call(
    small: SmallLog, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_reader, "MAX_RUN_BYTES", 10_000)
    batches = []
    for number in range(300):
        batches.append(small.append(raw_batch(number % 50)))
        if number % 7 == 0:
            small.append(raw_batch(9), queue_id=1)
    extent = small.log.written_offset - batches[0].header.physical_offset
    runs = read_queue(small, batches[0], extent)
    found = joined(runs)
    assert len(calls) >= len(runs) > 4
    assert max(len(run.buffer) for run in runs) <= 10_000
    assert found == wanted(batches)[: len(found)]
    assert len(wanted(batches)) - len(found) < 10_000  # the last blocks may be too few for a run
    limited = joined(read_queue(small, batches[0], extent, max_bytes=25_001))
    assert 25_001 - 2 * FEW * 240 < len(limited) <= 25_001
    assert sum(map(len, read_queue(small, batches[0], extent, end_offset=250))) <= 250


def test_a_gap_between_two_reads_ends_the_runs(
    small: SmallLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [small.append(raw_batch(8)) for _ in range(2 * FEW)]
    small.next_offsets[1, 0] += 1
    for _ in range(2 * FEW):
        small.append(raw_batch(8))
    monkeypatch.setattr(run_reader, "MAX_RUN_BYTES", len(wanted(batches)))
    assert joined(read_queue(small, batches[0])) == wanted(batches)


def test_limits_of_a_queue_run(small: SmallLog) -> None:
    batches = [small.append(raw_batch(8)) for _ in range(3 * FEW)]
    size = batches[0].header.total_size

    def count(**limits: int) -> int:
        return sum(map(len, read_queue(small, batches[0], **limits)))

    assert count() == 3 * FEW
    assert count(end_offset=2 * FEW) == 2 * FEW
    assert count(max_bytes=2 * FEW * size + 1) == 2 * FEW
    assert count(extent_bytes=2 * FEW * size + size - 1) == 2 * FEW
    assert count(end_offset=FEW - 1) == 0


@pytest.mark.parametrize("position", [0, 9, 12, 24, 40, 48, 52, HEADER_SIZE + 1])
def test_a_queue_run_never_has_a_damaged_block(small: SmallLog, position: int) -> None:
    batches = [small.append(raw_batch(8)) for _ in range(3 * FEW)]
    place = batches[2 * FEW].header.physical_offset
    (segment,) = [each for each in small.log.segments if each.start_offset <= place]
    flip_bit(segment.path, place - segment.start_offset + position)
    # Damage that the search for blocks cannot see makes the whole run invalid.
    assert joined(read_queue(small, batches[0])) in (b"", wanted(batches[: 2 * FEW]))


def test_a_queue_run_begins_with_the_given_block(small: SmallLog) -> None:
    other = small.append(raw_batch(8), queue_id=1)
    batches = [small.append(raw_batch(8)) for _ in range(2 * FEW)]
    assert read_queue(small, other) == []
    deleted = batches[0].header.physical_offset + 2**40
    runs = read_queue_runs(small.log, deleted, 10, (1, 0), end_offset=1, max_bytes=1)
    assert list(runs) == []
