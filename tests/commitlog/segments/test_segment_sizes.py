"""O9: a new broker allocated a whole segment of 1 GiB on disk for its first message."""

from pathlib import Path

from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.disk.disk import Disk
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.recovery import recover
from tests.support.simulated_disk import SimulatedDisk

LOG = Path("/log")
MIB = 1024 * 1024


def _log(disk: Disk, first: int = MIB, most: int = 5 * MIB) -> CommitLog:
    config = CommitLogConfig(segment_bytes=most, first_segment_bytes=first)
    return CommitLog(LOG, config, disk, now_us=lambda: 1)


def _sizes(log: CommitLog) -> list[int]:
    return [segment.size // MIB for segment in log.segments]


def test_segments_double_up_to_the_configured_size() -> None:
    log = _log(SimulatedDisk())
    for _ in range(5):
        log.roll()
    assert _sizes(log) == [1, 2, 4, 5, 5]
    assert [segment.start_offset // MIB for segment in log.segments] == [0, 1, 3, 7, 12]


def test_a_first_segment_is_never_larger_than_the_others() -> None:
    log = _log(SimulatedDisk(), first=8 * MIB)
    log.roll()
    assert _sizes(log) == [5]


def test_a_large_batch_gets_a_segment_that_is_large_enough() -> None:
    log = _log(SimulatedDisk())
    for size in (3 * MIB // 2, 3 * MIB):
        log.roll(size, 0, 1)
        assert log.has_room(size, 0, 1)
    assert _sizes(log) == [2, 4]
    log.roll(99 * MIB, 0, 1)  # no segment fits this, but the roll still ends one
    assert _sizes(log) == [2, 4, 5]


def test_after_a_restart_sizes_continue_from_the_prepared_segment() -> None:
    disk = SimulatedDisk()
    log = _log(disk)
    log.roll()
    log.prepare_next()
    log.close()
    log = _log(disk)
    log.open()
    recover(log, from_offset=0, from_counts=(0, 0, 0), on_blocks=lambda run: None)
    assert _sizes(log) == [1]
    log.roll()
    log.roll()
    assert _sizes(log) == [1, 2, 4]
    assert len(disk.names(LOG)) == 3


def test_a_smaller_configured_size_applies_to_the_next_segment() -> None:
    disk = SimulatedDisk()
    log = _log(disk)
    for _ in range(4):
        log.roll()
    log.close()
    log = _log(disk, most=2 * MIB)
    log.open()
    log.roll()
    assert _sizes(log) == [1, 2, 4, 5, 2]
