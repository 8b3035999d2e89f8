import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.disk.disk import Disk, PooledFile
from holdfast.commitlog.errors import (
    BatchTooLarge,
    CorruptRecord,
    DiskFull,
    DiskLow,
    NoSegment,
    UnknownFormatVersion,
)
from holdfast.commitlog.format.batch import key_hash
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.checksum import crc32c
from holdfast.commitlog.format.segment_format import (
    END_MARK_SIZE,
    Blocks,
    Keys,
    SegmentHeader,
    is_end_mark,
    parse_segment_name,
)
from holdfast.commitlog.segments import commit_log
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.footer import block_tables, read_footer, seal_segment
from holdfast.commitlog.segments.log_scan import Damage, scan_segment
from holdfast.commitlog.segments.recovery import recover
from holdfast.commitlog.segments.segment import Segment
from tests.support.simulation.simulated_disk import SimulatedDisk
from tests.support.storage.batches import Columns, columns
from tests.support.storage.small_log import (
    FIRST,
    NOW_US,
    SEGMENT_BYTES,
    SmallLog,
    flip_bit,
    open_small_log,
    overwrite,
    raw_batch,
    segment_path,
    walk,
)

LOG = Path("/log")
KEY_OF_HASH_0 = "bbfsptr"
MIB = 1024 * 1024


@pytest.fixture
def simulated() -> Iterator[SmallLog]:
    """Yield a new log on a simulated disk."""
    small = open_small_log(LOG, SimulatedDisk())
    yield small
    small.close()


def _disk(small: SmallLog) -> SimulatedDisk:
    assert isinstance(small.disk, SimulatedDisk)
    return small.disk


def new_log(small: SmallLog, min_free_bytes: int = 0, **callbacks: Callable[[], Any]) -> CommitLog:
    config = CommitLogConfig(segment_bytes=SEGMENT_BYTES, min_free_bytes=min_free_bytes)
    return CommitLog(LOG, config, small.disk, now_us=lambda: NOW_US, **callbacks)


def fail_to_read(*args: object) -> bytes:
    raise OSError(errno.EIO, "Input/output error")


def footer_of(segment: Segment) -> tuple[Blocks, Keys]:
    tables = read_footer(segment)
    assert tables is not None
    return tables


def end_first_segment(small: SmallLog) -> Segment:
    ended = small.log.segments[0]
    small.log.roll()
    return ended


def _fill_segments(small: SmallLog, count: int) -> None:
    """Make `count` segments with one block each; all except the last are ended."""
    for _ in range(count):
        small.log.roll()
        small.append(raw_batch())


# -- opening ---------------------------------------------------------------------------------


def test_a_new_log_is_empty(small: SmallLog) -> None:
    log = small.log
    assert log.directory.is_dir()
    assert log.segments == ()
    assert (log.min_offset, log.written_offset, log.size_bytes) == (0, 0, 0)
    assert log.segment_at(0) is None
    assert not log.has_room(1, 0, 1)


def test_opening_finds_the_segments_and_removes_unfinished_ones(small: SmallLog) -> None:
    _fill_segments(small, 3)
    (small.directory / f"{7:020d}.new").write_bytes(b"half")
    (small.directory / "README").write_bytes(b"not ours")
    reopened = small.reopen_unrecovered()
    assert [s.start_offset for s in reopened.log.segments] == [0, SEGMENT_BYTES, 2 * SEGMENT_BYTES]
    assert reopened.log.damaged_headers == []
    assert reopened.log.size_bytes == 3 * SEGMENT_BYTES
    assert not list(small.directory.glob("*.new"))
    assert (small.directory / "README").exists()


def test_a_damaged_header_page_loses_no_block(small: SmallLog) -> None:
    _fill_segments(small, 2)
    places = walk(small.log)
    flip_bit(segment_path(small.log, 0), 8)
    reopened = small.reopen_unrecovered()
    assert walk(reopened.log) == places
    [(path, reason)] = reopened.log.damaged_headers
    assert parse_segment_name(path.name) == 0
    assert "checksum" in reason


@pytest.mark.parametrize("what", ["short", "wrong start"])
def test_a_header_that_does_not_match_its_file_is_reported(small: SmallLog, what: str) -> None:
    _fill_segments(small, 2)
    path = segment_path(small.log, 0)
    if what == "short":
        with path.open("r+b") as file:
            file.truncate(500_000)
    else:
        overwrite(path, 0, SegmentHeader(8, SEGMENT_BYTES, NOW_US).encode())
    reopened = small.reopen_unrecovered()
    assert [found for found, _ in reopened.log.damaged_headers] == [path]
    assert walk(reopened.log)[0] == FIRST
    assert reopened.log.segments[0].end_offset == SEGMENT_BYTES


@pytest.mark.parametrize("size", [0, 1, 4095])
def test_a_file_too_short_for_its_header_is_reported_and_not_changed(
    small: SmallLog, size: int
) -> None:
    _fill_segments(small, 3)
    path = segment_path(small.log, 1)
    with path.open("r+b") as file:
        file.truncate(size)
    reopened = small.reopen_unrecovered()
    assert reopened.log.damaged_headers == [(path, f"{size} bytes: too short for a segment")]
    assert [s.start_offset for s in reopened.log.segments] == [0, 2 * SEGMENT_BYTES]
    assert path.stat().st_size == size


def test_a_newer_segment_is_refused(small: SmallLog) -> None:
    _fill_segments(small, 1)
    page = bytearray(SegmentHeader(0, SEGMENT_BYTES, NOW_US).encode())
    page[4] = 2
    page[32:36] = crc32c(bytes(page[:32])).to_bytes(4, "little")
    overwrite(segment_path(small.log, 0), 0, bytes(page))
    before = {path: path.read_bytes() for path in small.directory.iterdir()}
    with pytest.raises(UnknownFormatVersion, match="Nothing was changed"):
        small.reopen_unrecovered()
    assert {path: path.read_bytes() for path in small.directory.iterdir()} == before


def test_an_overlapping_file_hides_no_segment(small: SmallLog) -> None:
    _fill_segments(small, 2)
    places = walk(small.log)
    extra = small.directory / f"{5:020d}"
    extra.write_bytes(segment_path(small.log, 0).read_bytes())
    reopened = small.reopen_unrecovered()
    assert walk(reopened.log) == places
    assert [path for path, _ in reopened.log.damaged_headers] == [extra]
    assert extra.exists()


# -- rolling ---------------------------------------------------------------------------------


def test_the_first_roll_creates_the_first_segment(small: SmallLog) -> None:
    assert small.log.roll() is None
    assert small.log.written_offset == FIRST
    assert small.log.has_room(100, 0, 1)


def test_a_roll_ends_one_segment_and_begins_the_next(small: SmallLog) -> None:
    _fill_segments(small, 1)
    first = small.log.segments[0]
    end = first.written
    assert small.log.roll() is first
    assert first.ended
    assert is_end_mark(first.read(end, END_MARK_SIZE), end)
    assert not first.has_room(1, 0, 1)
    assert [s.start_offset for s in small.log.segments] == [0, SEGMENT_BYTES]
    assert small.log.written_offset == SEGMENT_BYTES + FIRST


def test_the_prepared_segment_is_the_next(simulated: SmallLog) -> None:
    log, disk = simulated.log, _disk(simulated)
    log.prepare_next()  # no segment exists yet
    assert disk.names(LOG) == []
    _fill_segments(simulated, 1)
    log.prepare_next()
    log.prepare_next()
    assert [parse_segment_name(name) for name in disk.names(LOG)] == [0, SEGMENT_BYTES]
    assert len(log.segments) == 1
    changes = disk.changes
    log.roll()
    assert disk.changes == changes + 1  # only the end mark
    assert log.segments[-1].start_offset == SEGMENT_BYTES


def test_a_full_disk_is_reported_and_tried_again_later(
    simulated: SmallLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    reports = []
    log = new_log(simulated, disk_full=lambda: reports.append(True))
    log.open()
    log.roll()
    disk = _disk(simulated)
    disk.full = True
    before = log.segments
    for _ in range(3):
        with pytest.raises(DiskFull) as raised:
            log.roll()
        assert raised.value.needed_bytes == SEGMENT_BYTES
    with pytest.raises(DiskFull):
        log.prepare_next()
    assert len(reports) == 1  # one call of the disk
    assert log.segments is before
    assert not before[0].ended
    disk.full = False
    with pytest.raises(DiskFull):
        log.roll()
    now += commit_log.DISK_FULL_RETRY_S
    log.roll()
    assert len(log.segments) == 2


def test_no_segment_is_created_without_the_reserve(simulated: SmallLog) -> None:
    has_reserve = False
    log = new_log(simulated, has_reserve=lambda: has_reserve)
    with pytest.raises(DiskFull):
        log.roll()
    has_reserve = True
    log.roll()


@pytest.mark.parametrize("call", ["create", "write", "sync", "rename"])
def test_a_segment_that_cannot_be_created_now_changes_nothing(
    simulated: SmallLog, call: Literal["create", "write", "sync", "rename"]
) -> None:
    """File descriptors run out and become free again; no other code knows the segment yet."""
    before = simulated.log.segments
    _disk(simulated).fail(call, errno.EMFILE)
    with pytest.raises(NoSegment, match="Too many open files"):
        simulated.log.roll()
    assert simulated.log.segments is before
    simulated.log.roll()
    assert len(simulated.log.segments) == len(before) + 1


@pytest.mark.parametrize(("spare", "is_refused"), [(-1, True), (0, False), (1, False)])
def test_no_segment_is_created_from_the_last_free_bytes(
    simulated: SmallLog, spare: int, is_refused: bool
) -> None:
    least = 10_000
    free = SEGMENT_BYTES + least + spare
    log = new_log(simulated, min_free_bytes=least, free_bytes=lambda: free)
    if is_refused:
        with pytest.raises(DiskLow, match=f"next segment needs {SEGMENT_BYTES} "):
            log.roll()
    else:
        log.roll()
    assert len(log.segments) == (0 if is_refused else 1)


def test_a_block_that_the_disk_fails_to_read_is_unreadable(
    simulated: SmallLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.log.roll()
    place = simulated.log.written_offset
    for name in ("read", "read_nowait"):
        monkeypatch.setattr(PooledFile, name, fail_to_read)
    with pytest.raises(CorruptRecord) as raised:
        simulated.log.read_batch(place, 100)
    assert raised.value.reason == "unreadable"
    assert simulated.log.read_batch_nowait(place, 100) is None


def test_a_footer_that_the_disk_fails_to_read_is_none(
    small: SmallLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill_segments(small, 2)
    ended = small.log.segments[0]
    seal_segment(ended)
    assert read_footer(ended) is not None
    monkeypatch.setattr(PooledFile, "read", fail_to_read)
    assert read_footer(ended) is None


def test_a_segment_of_another_size_starts_where_the_last_one_ends(tmp_path: Path) -> None:
    small = open_small_log(tmp_path)
    _fill_segments(small, 1)
    small.close()
    larger = SmallLog(tmp_path, segment_bytes=2 * SEGMENT_BYTES)
    larger.open()
    larger.log.roll()
    assert [(s.start_offset, s.size) for s in larger.log.segments] == [
        (0, SEGMENT_BYTES),
        (SEGMENT_BYTES, 2 * SEGMENT_BYTES),
    ]
    larger.close()


def test_two_threads_create_a_segment_only_once(simulated: SmallLog) -> None:
    """The appender rolls while the segment thread prepares; a slow create forces the overlap."""
    log, disk = simulated.log, _disk(simulated)
    _fill_segments(simulated, 1)
    disk.hold_syncs()
    rolling = threading.Thread(target=log.roll)
    rolling.start()
    disk.wait_for_held_sync()  # the roll is making segment 1
    preparing = threading.Thread(target=log.prepare_next)
    preparing.start()
    disk.release_syncs()
    rolling.join(10)
    preparing.join(10)
    block = simulated.append(raw_batch())
    names = [parse_segment_name(name) for name in disk.names(LOG)]
    assert names == [0, SEGMENT_BYTES, 2 * SEGMENT_BYTES]
    # If it were created twice, the file in use would have lost its name.
    file = disk.open(LOG / f"{SEGMENT_BYTES:020d}")
    assert file.read(len(block.block), FIRST) == block.block


# -- the largest batch -----------------------------------------------------------------------


def test_a_batch_is_checked_against_the_largest(small: SmallLog) -> None:
    largest = small.log.largest_batch
    small.log.check_size(largest - 1)
    small.log.check_size(largest)
    with pytest.raises(BatchTooLarge) as raised:
        small.log.check_size(largest + 1)
    assert (raised.value.size, raised.value.limit) == (largest + 1, largest)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 20_000), st.booleans(), st.integers(0, 400)),
        min_size=1,
        max_size=12,
    )
)
def test_the_footer_of_accepted_batches_fits(batches: list[tuple[int, bool, int]]) -> None:
    small = open_small_log(LOG, SimulatedDisk())
    for messages, is_keyed, body in batches:
        keys = [str(i % 10) for i in range(messages)] if is_keyed else None
        raw = encode_batch([b"x" * (body if i == 0 else 0) for i in range(messages)], keys=keys)
        if len(raw) <= small.log.largest_batch:
            small.append(raw)
    small.log.roll()
    for segment in small.log.segments[:-1]:
        blocks = [h for h in small.headers if small.log.segment_at(h.physical_offset) is segment]
        seal_segment(segment)
        assert segment.sealed
        tables = footer_of(segment)
        assert sorted(tables[0]["physical_offset"].tolist()) == [h.physical_offset for h in blocks]
        assert len(list(walk(small.log))) >= len(small.headers)
    found = [place for place in walk(small.log) if isinstance(place, int)]
    assert found == [header.physical_offset for header in small.headers]


# -- sealing ---------------------------------------------------------------------------------


def _sealed(small: SmallLog) -> list[int]:
    """Fill a segment with blocks of several queues, end and seal it."""
    for queue, keys in [(1, ["b", "a"]), (0, None), (1, [KEY_OF_HASH_0, None]), (0, ["c", "a"])]:
        small.append(encode_batch([b"1", b"2"], keys=keys), queue_id=queue)
    small.append(raw_batch(), topic_id=0, queue_id=5)
    ended = end_first_segment(small)
    seal_segment(ended)
    assert ended.sealed
    return [header.physical_offset for header in small.headers]


def test_a_footer_lists_blocks_by_queue_and_keys_by_hash(small: SmallLog) -> None:
    places = _sealed(small)
    tables = footer_of(small.log.segments[0])
    blocks, keys = tables
    rows = [(b["topic_id"], b["queue_id"], b["base_offset"]) for b in blocks]
    assert rows == [(0, 5, 0), (1, 0, 0), (1, 0, 2), (1, 1, 0), (1, 1, 2)]
    assert blocks["physical_offset"].tolist() == [places[i] for i in (4, 1, 3, 0, 2)]
    expected = sorted(
        [(key_hash("b"), 3), (key_hash("a"), 3), (0, 4), (key_hash("c"), 2), (key_hash("a"), 2)]
    )
    assert key_hash(KEY_OF_HASH_0) == 0
    assert sorted(zip(keys["key_hash"].tolist(), keys["block"].tolist(), strict=True)) == expected
    assert np.all(np.diff(keys["key_hash"].astype(np.int64)) >= 0)


@given(st.lists(st.tuples(columns(max_messages=4), st.integers(0, 2)), max_size=6))
@settings(max_examples=30, deadline=None)
def test_a_footer_lists_the_blocks_of_a_scan(sent: list[tuple[Columns, int]]) -> None:
    small = open_small_log(LOG, SimulatedDisk())
    small.log.roll()
    hashes = []
    for each, queue in sent:
        small.append(each.encode(), queue_id=queue)
        hashes += [key_hash(key) for key in each.keys or [] if key]
    segment = end_first_segment(small)
    seal_segment(segment)
    found = footer_of(segment)
    assert found[1]["key_hash"].tolist() == sorted(hashes)
    rows = [
        (h.topic_id, h.queue_id, h.base_offset, h.physical_offset, h.total_size, h.message_count,
         h.store_timestamp_us, h.tag_summary, h.body_bytes, h.flags)
        for h in sorted(small.headers, key=lambda h: (h.topic_id, h.queue_id, h.base_offset))
    ]  # fmt: skip
    assert [row.item() for row in found[0]] == rows


def test_an_active_segment_is_not_sealed(small: SmallLog) -> None:
    _fill_segments(small, 1)
    active = small.log.segments[0]
    seal_segment(active)
    assert not active.sealed
    assert read_footer(active) is None


def test_sealing_again_changes_nothing(small: SmallLog) -> None:
    _sealed(small)
    path = segment_path(small.log, 0)
    before = path.read_bytes()
    seal_segment(small.log.segments[0])
    assert path.read_bytes() == before


def test_a_segment_before_the_recovered_part_can_be_sealed(small: SmallLog) -> None:
    _fill_segments(small, 2)
    small.log.segments[0].sealed = False
    start = small.headers[1].physical_offset
    reopened, _ = small.reopen(start, (SEGMENT_BYTES, 0, 0))
    first = reopened.log.segments[0]
    assert first.ended
    assert not first.sealed
    seal_segment(first)
    tables = footer_of(first)
    assert tables[0]["physical_offset"].tolist() == [FIRST]


def test_a_segment_with_a_damaged_end_mark_gets_no_footer(small: SmallLog) -> None:
    _fill_segments(small, 2)
    ended = small.log.segments[0]
    flip_bit(ended.path, ended.written)
    before = ended.path.read_bytes()
    seal_segment(ended)
    assert not ended.sealed
    assert ended.path.read_bytes() == before


def test_a_damaged_payload_keeps_the_row_of_its_block(small: SmallLog) -> None:
    for key in "abcd":
        small.append(encode_batch([b"x"], keys=[key]))
    places = [header.physical_offset for header in small.headers]
    ended = end_first_segment(small)
    flip_bit(ended.path, places[1] + 130)  # payload
    flip_bit(ended.path, places[2] + 30)  # header
    damage: list[Damage] = []
    blocks, keys = block_tables(ended, damage.append)
    assert blocks["physical_offset"].tolist() == [places[0], places[1], places[3]]
    assert sorted(keys["key_hash"].tolist()) == sorted([key_hash("a"), key_hash("d")])
    assert [found.start for found in damage] == places[1:3]
    seal_segment(ended)
    assert ended.sealed


def test_sealing_finds_the_same_tables_as_a_full_scan(small: SmallLog) -> None:
    for number in range(24):
        keys = ["k"] if number % 3 == 0 else None
        small.append(encode_batch([b"x" * number * 7], keys=keys))
    ended = end_first_segment(small)
    blocks, keys_found = block_tables(ended)
    seal_segment(ended)
    sealed = footer_of(ended)
    assert len(blocks) == 24
    assert len(keys_found) == 8
    assert sealed[0].tobytes() == blocks.tobytes()
    assert sealed[1].tobytes() == keys_found.tobytes()


def test_sealing_does_not_verify_payloads_without_keys(small: SmallLog) -> None:
    for keys in (None, ["k"]):
        small.append(encode_batch([b"x"], keys=keys))
    places = [header.physical_offset for header in small.headers]
    ended = end_first_segment(small)
    for place in places:
        flip_bit(ended.path, place + 130)
    seal_segment(ended)
    sealed = footer_of(ended)
    assert sealed[0]["physical_offset"].tolist() == places
    assert sealed[1].tolist() == []
    assert [found.start for found in scan_segment(ended) if isinstance(found, Damage)] == places


@pytest.mark.parametrize("at", [0, 57, -40, -64, -1 - 24])
def test_a_damaged_footer_is_not_read(small: SmallLog, at: int) -> None:
    _sealed(small)
    segment = small.log.segments[0]
    tables = footer_of(segment)
    size = tables[0].nbytes + tables[1].nbytes + 64
    flip_bit(segment.path, segment.size - size + at if at >= 0 else segment.size + at)
    assert read_footer(segment) is None


def test_a_footer_of_another_segment_is_not_read(small: SmallLog) -> None:
    _sealed(small)
    small.append(raw_batch())
    second = small.log.segments[1]
    small.log.roll()
    data = segment_path(small.log, 0).read_bytes()[-4096:]
    overwrite(second.path, SEGMENT_BYTES - 4096, data)
    assert read_footer(second) is None


# -- reading and deleting --------------------------------------------------------------------


def test_blocks_are_read_by_offset_and_size(small: SmallLog) -> None:
    sent = [small.append(raw_batch(size)) for size in (5, 300_000, 400_000, 500_000)]
    assert len(small.log.segments) == 2
    for batch in sent:
        header = batch.header
        read = small.log.read_batch(header.physical_offset, header.total_size)
        assert read.block == batch.block
        nowait = small.log.read_batch_nowait(header.physical_offset, header.total_size)
        assert nowait is None or nowait.block == batch.block


@pytest.mark.parametrize("read", ["read_batch", "read_batch_nowait"])
def test_a_read_of_another_range_is_a_corrupt_record(small: SmallLog, read: str) -> None:
    first, second = (small.append(raw_batch()).header for _ in range(2))
    reading = getattr(small.log, read)
    path = segment_path(small.log, 0)

    def reason(offset: int, size: int) -> str:
        with pytest.raises(CorruptRecord) as raised:
            reading(offset, size)
        assert raised.value.physical_offset == offset
        return raised.value.reason

    assert reason(SEGMENT_BYTES, 100) == "missing-segment"
    assert reason(first.physical_offset, first.total_size - 8) == "truncated"
    assert reason(first.physical_offset + 8, first.total_size) == "bad-magic"
    overwrite(path, second.physical_offset, path.read_bytes()[FIRST : FIRST + first.total_size])
    assert reason(second.physical_offset, second.total_size) == "misplaced"
    flip_bit(path, FIRST + 140)
    assert reason(first.physical_offset, first.total_size) == "payload-crc"


def test_segment_at_finds_the_segment_of_an_offset(small: SmallLog) -> None:
    _fill_segments(small, 3)
    log = small.log
    for index, segment in enumerate(log.segments):
        for offset in (segment.start_offset, segment.end_offset - 1):
            assert log.segment_at(offset) is log.segments[index]
    assert log.segment_at(3 * SEGMENT_BYTES) is None
    log.delete_before(SEGMENT_BYTES)
    assert log.segment_at(SEGMENT_BYTES - 1) is None
    assert log.min_offset == SEGMENT_BYTES


def test_whole_segments_are_deleted_oldest_first_and_never_the_last(small: SmallLog) -> None:
    _fill_segments(small, 4)
    log = small.log
    row = log.segments
    assert log.delete_before(SEGMENT_BYTES - 1) == []
    assert log.delete_before(2 * SEGMENT_BYTES + 5) == list(row[:2])
    assert [path.name for path in sorted(small.directory.iterdir())] == [
        segment.path.name for segment in row[2:]
    ]
    assert log.delete_before(10**18) == [row[2]]
    assert log.segments == (row[3],)


def test_a_segment_that_cannot_be_deleted_stays_with_all_later_ones(simulated: SmallLog) -> None:
    """Otherwise the next pass would delete later segments: a hole, which the next start would
    find."""
    _fill_segments(simulated, 4)
    log = simulated.log
    row = log.segments
    _disk(simulated).fail("remove", after=1)
    with pytest.raises(OSError):
        log.delete_before(3 * SEGMENT_BYTES)
    assert log.segments == row[1:]
    assert log.delete_before(3 * SEGMENT_BYTES) == list(row[1:3])


def test_a_read_in_progress_survives_the_deletion_of_its_segment(small: SmallLog) -> None:
    _fill_segments(small, 2)
    header = small.headers[0]
    held = small.log.segment_at(header.physical_offset)
    small.log.delete_before(SEGMENT_BYTES)
    assert held is not None
    assert held.read(header.physical_offset, 4) == b"HFBT"
    with pytest.raises(CorruptRecord):
        small.log.read_batch(header.physical_offset, header.total_size)


def test_a_log_may_be_closed_twice(small: SmallLog) -> None:
    _fill_segments(small, 2)
    small.log.prepare_next()
    small.log.close()
    small.log.close()
    assert small.log.segments == ()


def test_a_failed_write_counts_no_block(simulated: SmallLog) -> None:
    simulated.append(raw_batch())
    written = simulated.log.written_offset
    _disk(simulated).fail("write", share=0.5)
    with pytest.raises(OSError, match="error"):
        simulated.append(raw_batch())
    assert simulated.log.written_offset == written


# -- the sizes of segments ---------------------------------------------------------------------


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
