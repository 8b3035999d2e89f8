import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.commitlog.format.segment_format import parse_segment_name
from holdfast.commitlog.segments.footer import read_footer, seal_segment
from holdfast.commitlog.segments.segment_keeper import SegmentKeeper
from tests.support.simulation.simulated_disk import SimulatedDisk
from tests.support.storage.small_log import SEGMENT_BYTES, SmallLog, open_small_log, raw_batch

LOG = Path("/log")
DEADLINE_S = 20.0


@pytest.fixture
def small() -> Iterator[SmallLog]:
    made = open_small_log(LOG, SimulatedDisk())
    yield made
    made.close()


def _starts(small: SmallLog) -> list[int | None]:
    return [parse_segment_name(name) for name in small.disk.names(LOG)]


def _worked_off(keeper: SegmentKeeper) -> None:
    """Wait until the keeper has done all submitted work."""
    done = threading.Event()
    keeper.submit(done.set)
    assert done.wait(DEADLINE_S)


def test_starting_prepares_a_segment_and_seals_unsealed_ones(small: SmallLog) -> None:
    for _ in range(3):
        small.log.roll()
        small.append(raw_batch())
    first, second, active = small.log.segments
    seal_segment(second)
    keeper = SegmentKeeper(small.log)
    keeper.start()
    _worked_off(keeper)
    assert (first.sealed, second.sealed, active.sealed) == (True, True, False)
    assert _starts(small) == [0, SEGMENT_BYTES, 2 * SEGMENT_BYTES, 3 * SEGMENT_BYTES]
    keeper.stop()


def test_after_a_roll_the_next_is_prepared_and_the_last_is_sealed(small: SmallLog) -> None:
    small.append(raw_batch())
    keeper = SegmentKeeper(small.log)
    keeper.start()
    ended = small.log.roll()
    assert ended is not None
    keeper.seal_ended(ended)
    _worked_off(keeper)
    assert ended.sealed
    assert read_footer(ended) is not None
    assert _starts(small) == [0, SEGMENT_BYTES, 2 * SEGMENT_BYTES]
    keeper.stop()


def test_jobs_run_one_after_another_in_the_segment_thread(small: SmallLog) -> None:
    keeper = SegmentKeeper(small.log)
    done: list[tuple[int, str]] = []
    for number in range(5):
        keeper.submit(lambda n=number: done.append((n, threading.current_thread().name)))  # type: ignore[misc]
    keeper.start()
    keeper.stop()
    assert done == [(number, "holdfast-segments") for number in range(5)]


def test_a_failed_job_is_logged_and_the_next_ones_run(
    small: SmallLog, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = SegmentKeeper(small.log)
    keeper.start()
    keeper.submit(lambda: 1 / 0)
    _worked_off(keeper)
    keeper.stop()
    [record] = caplog.records
    assert (record.levelno, "failed" in record.message) == (logging.ERROR, True)


def test_a_full_disk_is_a_warning(small: SmallLog, caplog: pytest.LogCaptureFixture) -> None:
    small.append(raw_batch())
    assert isinstance(small.disk, SimulatedDisk)
    small.disk.full = True
    keeper = SegmentKeeper(small.log)
    keeper.start()
    keeper.stop()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert _starts(small) == [0]


def test_stopping_finishes_the_submitted_jobs(small: SmallLog) -> None:
    keeper = SegmentKeeper(small.log)
    done: list[int] = []
    keeper.start()
    for number in range(3):
        keeper.submit(lambda n=number: done.append(n))  # type: ignore[misc]
    keeper.stop()
    keeper.stop()
    assert done == [0, 1, 2]
    SegmentKeeper(small.log).stop()
