import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.commitlog.errors import NoSegment, UnknownFormatVersion
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE
from holdfast.commitlog.format.segment_format import END_MARK_SIZE
from holdfast.commitlog.segments.footer import read_footer, seal_segment
from holdfast.commitlog.segments.log_scan import Damage
from holdfast.commitlog.segments.recovery import RecoveryResult, recover
from tests.commitlog.format.test_batch_header import resealed
from tests.support.simulation.simulated_disk import SimulatedDisk
from tests.support.storage.small_log import (
    FIRST,
    NOW_US,
    SEGMENT_BYTES,
    SmallLog,
    flip_bit,
    open_small_log,
    overwrite,
    raw_batch,
    walk,
)

BLOCK = len(raw_batch())
LOG = Path("/log")


def _blocks(small: SmallLog, count: int) -> list[int]:
    """Append equal blocks without a sync; return their offsets."""
    return [small.append(raw_batch()).header.physical_offset for _ in range(count)]


def _synced_blocks(small: SmallLog, count: int) -> list[int]:
    """Append equal blocks; each records that all earlier blocks are durable."""
    places = []
    for _ in range(count):
        places += _blocks(small, 1)
        small.sync()
    return places


def _places(small: SmallLog) -> list[int]:
    return [header.physical_offset for header in small.headers]


def _files(small: SmallLog) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(small.directory.iterdir())}


def _zeroed(data: bytes, start: int) -> bytes:
    return data[:start] + bytes(len(data) - start)


# -- nothing wrong ---------------------------------------------------------------------------


def test_nothing_is_recovered_from_an_empty_log(tmp_path: Path) -> None:
    small = SmallLog(tmp_path / "log")
    assert small.open() == RecoveryResult(written_offset=0)
    small.append(raw_batch())
    small.close()


def test_an_intact_log_is_scanned_and_not_changed(small: SmallLog) -> None:
    for size in (10, 400_000, 300_000, 500_000):
        small.append(raw_batch(size))
    small.log.prepare_next()
    before, headers = _files(small), small.headers
    reopened, recovered = small.reopen()
    assert reopened.headers == headers
    assert recovered == RecoveryResult(
        written_offset=headers[-1].end_physical_offset,
        blocks=4,
        bytes=sum(header.total_size for header in headers),
        last_timestamp_us=NOW_US + 3,
    )
    assert _files(reopened) == before
    assert [segment.ended for segment in reopened.log.segments] == [True, False]
    assert reopened.log.written_offset == recovered.written_offset


def test_the_prepared_segment_is_used_after_a_restart(small: SmallLog) -> None:
    _blocks(small, 1)
    small.log.prepare_next()
    reopened, _ = small.reopen()
    assert len(reopened.log.segments) == 1
    inode = (small.directory / f"{SEGMENT_BYTES:020d}").stat().st_ino
    reopened.log.roll()
    assert reopened.log.segments[-1].path.stat().st_ino == inode


@pytest.mark.parametrize("header", [b"", b"\xff"], ids=["intact", "damaged"])
def test_a_truncated_prepared_segment_is_created_again(small: SmallLog, header: bytes) -> None:
    _blocks(small, 1)
    small.log.prepare_next()
    prepared = small.directory / f"{SEGMENT_BYTES:020d}"
    with prepared.open("r+b") as file:
        file.write(header)
        file.truncate(FIRST + 1)
    reopened, _ = small.reopen()
    reopened.log.roll()
    assert reopened.log.segments[-1].path == prepared
    assert prepared.stat().st_blocks * 512 >= SEGMENT_BYTES  # its space is allocated


def test_a_recovery_from_a_position_starts_with_its_counts(small: SmallLog) -> None:
    for _ in range(3):
        small.append(raw_batch(keys=10))
    position = small.headers[1].end_physical_offset
    reopened, recovered = small.reopen(position, (0, 2, 20))
    assert (recovered.blocks, len(reopened.headers)) == (1, 1)
    segment = reopened.log.segments[0]
    assert (segment.block_count, segment.key_count) == (3, 30)
    assert segment.written == small.headers[2].end_physical_offset


def test_a_recovery_from_the_end_finds_no_blocks(small: SmallLog) -> None:
    _blocks(small, 2)
    end = small.log.written_offset
    reopened, recovered = small.reopen(end, (0, 2, 0))
    assert recovered == RecoveryResult(written_offset=end)
    assert _blocks(reopened, 1) == [end]


def test_progress_grows_up_to_the_last_block(small: SmallLog) -> None:
    damaged, *_, last = _synced_blocks(small, 5)
    flip_bit(small.log.segments[0].path, damaged + HEADER_SIZE)
    reopened = small.reopen_unrecovered()
    seen: list[tuple[int, int]] = []
    recover(
        reopened.log,
        from_offset=0,
        from_counts=(0, 0, 0),
        on_blocks=lambda run: None,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(damaged, SEGMENT_BYTES), (last, SEGMENT_BYTES)]


# -- torn tails ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_front_lost", [False, True], ids=["end lost", "front lost"])
def test_a_torn_tail_of_any_length_is_cut_and_nothing_else(
    small: SmallLog, is_front_lost: bool
) -> None:
    small.append(raw_batch(100))
    small.append(encode_batch([b"a", b"b"], keys=["k", None], tags=[None, "t"]))
    last = small.append(encode_batch([b"c"], keys=["k"], properties=[{"n": "v"}]))
    start, size = last.header.physical_offset, last.header.total_size
    path, kept = small.log.segments[0].path, _places(small)[:2]
    whole = path.read_bytes()
    small.close()
    for torn in range(size):
        block = whole[start : start + size]
        block = bytes(torn) + block[torn:] if is_front_lost else block[:torn] + bytes(size - torn)
        if block == whole[start : start + size]:
            continue  # the lost bytes were zero anyway
        overwrite(path, start, block)
        reopened = SmallLog(small.directory)
        recovered = reopened.open()
        assert _places(reopened) == kept, torn
        assert recovered.written_offset == start
        assert bool(recovered.cut_bytes) == any(block)
        assert recovered.cut_bytes <= size
        assert recovered.damage == []
        reopened.close()
        assert path.read_bytes() == _zeroed(whole, start), torn


def test_a_flipped_bit_above_the_durable_offset_is_a_torn_tail(small: SmallLog) -> None:
    places = _blocks(small, 3)
    path = small.log.segments[0].path
    whole = path.read_bytes()
    flip_bit(path, places[2] + 140, 3)
    reopened, recovered = small.reopen()
    assert (_places(reopened), recovered.damage) == (places[:2], [])
    assert path.read_bytes() == _zeroed(whole, places[2])


def test_everything_after_a_hole_that_was_never_durable_is_cut(small: SmallLog) -> None:
    places = _blocks(small, 6)
    path = small.log.segments[0].path
    whole = path.read_bytes()
    overwrite(path, places[2], bytes(BLOCK))
    reopened, recovered = small.reopen()
    assert _places(reopened) == places[:2]
    assert recovered.cut_bytes == 4 * BLOCK
    assert path.read_bytes() == _zeroed(whole, places[2])


def test_cut_blocks_do_not_reappear_after_a_new_block(small: SmallLog) -> None:
    places = _blocks(small, 4)
    flip_bit(small.log.segments[0].path, places[1])
    second, _ = small.reopen()
    # It is as large as the torn block: stale blocks would follow it directly.
    assert _blocks(second, 1) == [places[1]]
    third, _ = second.reopen()
    assert _places(third) == places[:2]
    assert third.headers[1].store_timestamp_us == second.headers[1].store_timestamp_us


def test_a_cut_reaches_over_later_segments(small: SmallLog) -> None:
    places = _blocks(small, 2)
    small.log.roll()
    _blocks(small, 2)
    small.log.roll()
    _blocks(small, 2)
    flip_bit(small.log.segments[0].path, places[1])
    reopened, _ = small.reopen()
    assert _places(reopened) == places[:1]
    # The next segment is kept, empty, as the prepared one; later segments are deleted.
    assert sorted(_files(reopened)) == [f"{0:020d}", f"{SEGMENT_BYTES:020d}"]
    assert len(reopened.log.segments) == 1
    reopened.log.roll()
    assert walk(reopened.log, SEGMENT_BYTES) == [
        Damage(SEGMENT_BYTES + FIRST, 2 * SEGMENT_BYTES, "unwritten")
    ]


def test_a_torn_end_mark_cuts_the_next_segment(small: SmallLog) -> None:
    places = _blocks(small, 2)
    small.log.roll()
    _blocks(small, 1)
    overwrite(small.log.segments[0].path, places[1] + BLOCK, bytes(END_MARK_SIZE))
    reopened, recovered = small.reopen()
    assert (_places(reopened), recovered.damage) == (places, [])
    assert recovered.written_offset == places[1] + BLOCK
    assert not any(_files(reopened)[f"{SEGMENT_BYTES:020d}"][FIRST:])


def test_blocks_cut_from_the_prepared_segment_do_not_reappear() -> None:
    """A power loss right after recovery must not bring back what recovery zeroed."""
    disk = SimulatedDisk()
    small = open_small_log(LOG, disk)
    small.append(raw_batch(400_000))
    small.log.roll()
    small.append(raw_batch(100))
    small.sync()  # so the stale block is on the disk
    first = small.log.segments[0]
    first.file.write([bytes(END_MARK_SIZE)], first.written)
    first.file.sync()
    second = open_small_log(LOG, disk.kill())
    assert len(second.headers) == 1
    after = second.disk
    assert isinstance(after, SimulatedDisk)
    third = SmallLog(LOG, after.crash(random.Random(0)))
    third.log.open()
    assert not any(third.log.segments[1].read(SEGMENT_BYTES + FIRST, SEGMENT_BYTES))


# -- preserved damage ------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 40, HEADER_SIZE, BLOCK - 1])
def test_damage_below_the_durable_offset_is_kept_and_reported(small: SmallLog, at: int) -> None:
    places = _synced_blocks(small, 4)
    flip_bit(small.log.segments[0].path, places[1] + at)
    before = _files(small)
    reopened, recovered = small.reopen()
    [damage] = recovered.damage
    assert (damage.start, damage.end) == (places[1], places[2])
    assert recovered.cut_bytes == 0
    assert recovered.written_offset == places[3] + BLOCK
    assert _files(reopened) == before
    if at < HEADER_SIZE:
        assert _places(reopened) == [places[0], *places[2:]]
    else:  # its header has the lost offsets: they are not reused
        assert _places(reopened) == places
        assert damage.header == small.headers[1]
    assert reopened.append(raw_batch()).header.base_offset == 4


def test_the_position_of_the_index_proves_durability(small: SmallLog) -> None:
    places = _blocks(small, 3)  # no block records durability
    flip_bit(small.log.segments[0].path, places[0])
    reopened, recovered = small.reopen(places[1], (0, 1, 0))
    assert (recovered.damage, recovered.cut_bytes) == ([], 0)
    assert _places(reopened) == places[1:]


def test_a_later_intact_block_proves_an_earlier_hole(small: SmallLog) -> None:
    places = _blocks(small, 3)
    small.sync()
    small.log.roll()
    places += _blocks(small, 2)
    flip_bit(small.log.segments[0].path, places[1])
    # Its header still records durability.
    flip_bit(small.log.segments[1].path, places[3] + 140 - SEGMENT_BYTES)
    before = _files(small)
    reopened, recovered = small.reopen()
    assert [damage.start for damage in recovered.damage] == [places[1]]
    # The damaged block in the next segment was not durable: it is a torn tail.
    assert _places(reopened) == [places[0], places[2]]
    assert _files(reopened)[f"{0:020d}"] == before[f"{0:020d}"]


def test_a_hole_over_the_durable_offset_is_cut_where_it_may_be_torn(small: SmallLog) -> None:
    places = _synced_blocks(small, 2)
    places += _blocks(small, 3)  # all record: durable up to places[2]
    path = small.log.segments[0].path
    flip_bit(path, places[1])
    for place in places[2:4]:
        flip_bit(path, place + 140)
    whole = path.read_bytes()
    reopened, recovered = small.reopen()
    assert [damage.start for damage in recovered.damage] == [places[1]]
    assert recovered.written_offset == places[2]
    # The kept data is not overwritten, though no intact block ends there.
    assert _blocks(reopened, 1) == [places[2]]
    assert path.read_bytes()[: places[2]] == whole[: places[2]]


def test_a_missing_segment_is_reported_and_nothing_is_cut(small: SmallLog) -> None:
    places = []
    for _ in range(4):
        small.log.roll()
        places += _synced_blocks(small, 1)
    small.log.segments[1].path.unlink()
    before = _files(small)
    reopened, recovered = small.reopen()
    assert recovered.damage == [Damage(SEGMENT_BYTES, 2 * SEGMENT_BYTES, "missing-segment")]
    assert _places(reopened) == [places[0], *places[2:]]
    assert _files(reopened) == before
    assert [segment.ended for segment in reopened.log.segments] == [True, True, False]


def test_segments_after_a_missing_last_segment_are_not_changed(small: SmallLog) -> None:
    """A misplaced file, or the rest of a log: no crash leaves such a hole."""
    places = _blocks(small, 3)
    path = small.log.segments[0].path
    away = path.with_name(f"{9 * SEGMENT_BYTES:020d}")
    away.write_bytes(path.read_bytes())
    before = away.read_bytes()
    again, recovered = small.reopen()
    assert recovered.left_out == [away]
    assert walk(again.log)[:-1] == places
    assert away.read_bytes() == before
    assert len(again.log.segments) == 1


def test_a_lost_end_mark_below_the_durable_offset_is_damage(small: SmallLog) -> None:
    places = _synced_blocks(small, 2)
    small.log.roll()
    places += _synced_blocks(small, 2)
    overwrite(small.log.segments[0].path, places[1] + BLOCK, b"\xff" * END_MARK_SIZE)
    before = _files(small)
    reopened, recovered = small.reopen()
    assert recovered.damage == [Damage(places[1] + BLOCK, SEGMENT_BYTES, "bad-magic")]
    assert _places(reopened) == places
    assert _files(reopened) == before


@pytest.mark.timeout(20)
def test_partly_proven_damage_up_to_the_end_of_a_segment_ends_there(small: SmallLog) -> None:
    first, damaged = _synced_blocks(small, 2)
    ended = small.log.roll()
    assert ended is not None
    second = _blocks(small, 1)[0]  # records durability only up to the end mark
    overwrite(ended.path, damaged, b"\xff" * (BLOCK + END_MARK_SIZE))
    small, recovered = small.reopen()
    assert recovered.damage == [Damage(damaged, SEGMENT_BYTES, "bad-magic")]
    assert _places(small) == [first, second]
    small.close()


@pytest.mark.parametrize("where", ["header page", "footer"])
def test_a_damaged_header_page_or_footer_loses_no_message(small: SmallLog, where: str) -> None:
    places = _synced_blocks(small, 2)
    ended = small.log.segments[0]
    small.log.roll()
    seal_segment(ended)
    places += _synced_blocks(small, 1)
    flip_bit(ended.path, 9 if where == "header page" else SEGMENT_BYTES - 64)
    reopened, recovered = small.reopen()
    assert (_places(reopened), recovered.damage, recovered.cut_bytes) == (places, [], 0)
    first = reopened.log.segments[0]
    assert first.sealed == (where == "header page")
    seal_segment(first)
    assert read_footer(first) is not None


# -- crashes at the seams --------------------------------------------------------------------


def test_a_grown_file_with_a_damaged_header_hides_no_segment(small: SmallLog) -> None:
    places = _synced_blocks(small, 2)
    ended = small.log.segments[0]
    small.log.roll()
    places += _synced_blocks(small, 2)
    overwrite(ended.path, 0, b"\xff" * 8)
    overwrite(ended.path, SEGMENT_BYTES, b"\xff" * 100)
    reopened, recovered = small.reopen()
    assert (recovered.damage, recovered.cut_bytes) == ([], 0)
    assert _places(reopened) == places


def test_a_next_segment_is_created_after_an_ended_one(small: SmallLog) -> None:
    places = _synced_blocks(small, 2)
    small.log.roll()
    small.log.segments[1].path.unlink()
    reopened, recovered = small.reopen()
    assert (_places(reopened), recovered.damage, recovered.cut_bytes) == (places, [], 0)
    assert reopened.log.segments[0].ended
    assert _blocks(reopened, 1) == [SEGMENT_BYTES + FIRST]


def test_an_unfinished_segment_is_created_again(small: SmallLog) -> None:
    _synced_blocks(small, 1)
    (small.directory / f"{SEGMENT_BYTES:020d}.new").write_bytes(b"HFSG")
    reopened, _ = small.reopen()
    assert sorted(_files(reopened)) == [f"{0:020d}"]
    reopened.log.roll()
    assert len(_blocks(reopened, 1)) == 1


def test_recovering_again_changes_nothing(small: SmallLog) -> None:
    places = _synced_blocks(small, 3)
    places += _blocks(small, 2)
    path = small.log.segments[0].path
    flip_bit(path, places[1])
    flip_bit(path, places[4])
    second, first_time = small.reopen()
    assert first_time.cut_bytes
    after = _files(second)
    third, second_time = second.reopen()
    assert (second_time.damage, second_time.cut_bytes) == (first_time.damage, 0)
    assert _places(third) == _places(second)
    assert _files(third) == after


def test_a_crash_during_recovery_loses_nothing() -> None:
    disk = SimulatedDisk()
    small = open_small_log(LOG, disk)
    for _ in range(3):  # three segments; the last two will be cut
        for _ in range(2):
            small.append(raw_batch(300_000))
        small.log.roll()
    kept = _places(small)[:1]
    small.log.segments[0].file.write([b"\xff"], small.headers[1].physical_offset)
    for segment in small.log.segments:
        segment.sync()
    torn = disk.kill()
    changes = 0
    for changes in range(200):
        attempt = torn.kill()
        attempt.freeze_after(changes)
        try:
            SmallLog(LOG, attempt).open()
        except OSError:
            after = attempt.crash(random.Random(changes))
        else:
            break
        again = SmallLog(LOG, after)
        recovered = again.open()
        assert (_places(again), recovered.damage) == (kept, []), changes
        _blocks(again, 2)
        while len(again.log.segments) < 3:
            again.append(raw_batch(300_000))
        last = open_small_log(LOG, after.kill())
        assert last.headers == again.headers, changes
    assert 8 < changes < 199


@pytest.mark.parametrize("changes", range(1, 12))
def test_a_crash_while_segments_are_deleted_leaves_no_hole(changes: int) -> None:
    """So much of the log is cut that several files become empty."""
    for seed in range(8):
        rng = random.Random(seed)
        disk = SimulatedDisk()
        small = open_small_log(LOG, disk)
        _synced_blocks(small, 1)
        for _ in range(8):
            small.append(raw_batch(500_000))
        disk = disk.crash(rng)
        disk.freeze_after(changes)
        again = SmallLog(LOG, disk)
        try:
            again.open()
        except OSError:
            disk = disk.crash(rng)
            again = SmallLog(LOG, disk)
            assert again.open().left_out == []


def test_the_names_of_segments_are_synced_at_a_start() -> None:
    for seed in range(20):
        disk = SimulatedDisk()
        small = open_small_log(LOG, disk)
        small.append(raw_batch())
        small.sync()
        disk.freeze_after(6)  # freeze after: remove, sync, create, write, sync, rename
        with pytest.raises(NoSegment):
            small.log.prepare_next()
        disk = disk.kill()
        assert len(disk.names(LOG)) == 2
        small = open_small_log(LOG, disk)
        small.log.roll()
        small.append(raw_batch())
        small.sync()
        disk = disk.crash(random.Random(seed))
        small = open_small_log(LOG, disk)
        assert len(small.headers) == 2, f"seed {seed}"


@pytest.mark.parametrize("fault", ["sync", "write"])
def test_an_error_of_the_disk_propagates(fault: str) -> None:
    disk = SimulatedDisk()
    small = open_small_log(LOG, disk)
    places = _blocks(small, 3)
    small.log.segments[0].file.write([b"\xff"], places[2])
    after = disk.kill()
    after.fail(fault, errno.EIO)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="error"):
        SmallLog(LOG, after).open()


# -- newer logs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "edit",
    [lambda header: resealed(header, 4, "<H", 2), lambda header: resealed(header, 6, "<H", 0x8000)],
    ids=["version", "flag"],
)
def test_a_newer_block_is_refused_and_nothing_is_changed(
    small: SmallLog, edit: Callable[[bytes], bytes]
) -> None:
    places = _blocks(small, 3)
    path = small.log.segments[0].path
    overwrite(path, places[1], edit(path.read_bytes()[places[1] : places[2]]))
    before = _files(small)
    with pytest.raises(UnknownFormatVersion):
        small.reopen()
    assert _files(small) == before
