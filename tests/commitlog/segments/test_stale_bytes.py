"""Stale bytes: the room after the last block holds intact blocks of an earlier segment.

The broker never reuses a file, so a healthy disk does not cause this. A disk may: it returns old
content for a write that it lost, or writes to the wrong place. No reader may take such a block for
one of the segment, except in the last test, which shows why files are not reused (docs/adr/0036).
"""

import random
from pathlib import Path

import pytest

from holdfast.commitlog.disk.disk import LinuxDisk
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE
from holdfast.commitlog.segments.footer import read_footer, seal_segment
from holdfast.commitlog.segments.log_scan import Damage
from holdfast.commitlog.segments.segment import Segment, create_segment, read_trailer
from holdfast.log_files.segment_file import SegmentFile
from holdfast.log_files.walked_blocks import WalkedBlocks
from tests.support.simulation.simulated_disk import SimulatedDisk
from tests.support.storage.batches import stamped
from tests.support.storage.small_log import (
    FIRST,
    NOW_US,
    SEGMENT_BYTES,
    SmallLog,
    open_small_log,
    raw_batch,
    walk,
)

LOG = Path("/log")
BLOCK = len(raw_batch())


def _log_with_stale_bytes(
    directory: Path, disk: SimulatedDisk | None, sizes: list[int], *, with_footer: bool = True
) -> SmallLog:
    """Return a log whose active segment has only stale bytes after its header page: those of an
    earlier, sealed segment with blocks of these sizes. The earlier segment is deleted."""
    small = open_small_log(directory, disk)
    for size in sizes:
        small.append(raw_batch(size))
        small.sync()
    earlier = small.log.roll()
    assert earlier is not None
    if with_footer:
        seal_segment(earlier)
    room = earlier.size - FIRST
    active = small.log.segments[-1]
    active.file.write([earlier.read(earlier.first_offset, room)], FIRST)
    active.file.sync()
    small.log.delete_before(active.start_offset)
    small.headers.clear()
    return small


def _active(small: SmallLog) -> Segment:
    return small.log.segments[-1]


@pytest.mark.parametrize("seed", range(40))
def test_no_crash_makes_a_stale_block_part_of_the_log(seed: int) -> None:
    rng = random.Random(seed)
    disk = SimulatedDisk()
    # With one size, each stale block begins exactly where a block of the segment may begin.
    sizes = [200] if seed % 2 else [10, 200, 600, 5_000, 70_000]
    small = _log_with_stale_bytes(LOG, disk, rng.choices(sizes, k=60)[:40])
    for _ in range(4):
        synced = len(small.headers)
        for size in rng.choices(sizes, k=rng.randint(0, 6)):
            small.append(raw_batch(size, fill=b"new"))
            if rng.random() < 0.4:
                small.sync()
                synced = len(small.headers)
        before, disk = small.headers, disk.crash(rng)
        small = SmallLog(LOG, disk)
        recovered = small.open()
        assert small.headers == before[: len(small.headers)]
        assert len(small.headers) >= synced
        assert recovered.damage == []
        assert recovered.written_offset == small.log.written_offset
        active = _active(small)
        assert not active.ended
        # Recovery leaves no stale bytes, neither now nor after another power loss.
        assert not any(active.read(active.written, SEGMENT_BYTES))


def test_a_stale_end_mark_and_footer_do_not_end_a_segment(tmp_path: Path) -> None:
    small = _log_with_stale_bytes(tmp_path / "log", None, [200] * 5)
    places = [small.append(raw_batch()).header.physical_offset for _ in range(5)]
    # The stale end mark lies exactly where the end mark of the segment will be.
    end = _active(small).written
    assert _active(small).read(end, 4) == b"HFND"
    assert walk(small.log) == [*places, Damage(end, _active(small).end_offset, "bad-magic")]
    reopened, recovered = small.reopen()
    assert (recovered.written_offset, recovered.damage) == (end, [])
    assert not _active(reopened).ended
    assert reopened.append(raw_batch()).header.physical_offset == end
    reopened.close()


def test_the_footer_of_another_segment_is_damage_and_is_written_again(tmp_path: Path) -> None:
    small = _log_with_stale_bytes(tmp_path / "log", None, [200] * 5)
    block = small.append(raw_batch())
    ended = small.log.roll()
    assert ended is not None
    with pytest.raises(CorruptBatch, match="belongs to the segment at 0"):
        read_trailer(ended)
    assert read_footer(ended) is None
    small.append(raw_batch())
    small.sync()
    reopened, _ = small.reopen()
    first = reopened.log.segments[0]
    assert not first.sealed
    seal_segment(first)
    tables = read_footer(first)
    assert tables is not None
    assert tables[0]["physical_offset"].tolist() == [block.header.physical_offset]
    reopened.close()


def test_a_reader_of_files_stops_at_stale_bytes(tmp_path: Path) -> None:
    small = _log_with_stale_bytes(tmp_path / "log", None, [200] * 5, with_footer=False)
    file = SegmentFile.open(small.directory, SEGMENT_BYTES)
    walked = WalkedBlocks(file)
    for count in range(8):
        walked.advance()
        assert (len(walked), walked.is_ended) == (count, False)
        assert walked.end == SEGMENT_BYTES + FIRST + count * BLOCK
        small.append(raw_batch())
    file.close()
    small.close()


def test_the_room_of_a_new_segment_is_zero(tmp_path: Path) -> None:
    """Recovery is safe only because of this; see the next test."""
    made = create_segment(LinuxDisk(), tmp_path, 0, SEGMENT_BYTES, NOW_US)
    assert not any(made.read(FIRST, SEGMENT_BYTES))
    made.file.close()


def test_a_stale_body_can_contain_a_block_with_the_right_physical_offset() -> None:
    """A publisher knows the size of segments and can predict physical offsets. If files were
    reused as they are, it could plant blocks for a later segment in its bodies. Their checksums and
    physical offsets match, a scan searches the bytes after the tail, and the durable offset of a
    planted block "proves" that the bytes before it were durable."""
    small = open_small_log(LOG, SimulatedDisk())
    place = SEGMENT_BYTES + FIRST + HEADER_SIZE + 8  # where the body of one message begins
    body_at = FIRST + HEADER_SIZE + 8
    planted = stamped(
        encode_batch([b"planted"]),
        physical_offset=place,
        durable_offset=place,
        base_offset=0,
        topic_id=9,
        queue_id=0,
        store_timestamp_us=NOW_US,
    )
    small.append(encode_batch([bytes(planted.block)]))
    earlier = small.log.roll()
    assert earlier is not None
    stale = earlier.read(body_at, planted.header.total_size)
    assert stale == bytes(planted.block)
    active = _active(small)
    active.file.write([stale], place - active.start_offset)
    small.sync()
    reopened, recovered = small.reopen()
    assert [damage.end for damage in recovered.damage] == [place]
    assert reopened.headers[-1].topic_id == planted.header.topic_id
