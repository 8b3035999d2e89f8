import errno
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.commitlog.disk.disk import LinuxDisk
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.segment_format import (
    END_MARK_SIZE,
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    footer_size,
)
from holdfast.commitlog.segments.segment import (
    Segment,
    create_segment,
    keyed_messages,
    largest_batch,
    read_trailer,
)
from tests.support.simulation.simulated_disk import SimulatedDisk
from tests.support.storage.small_log import NOW_US, SEGMENT_BYTES, open_small_log, raw_batch

MIB = 1024 * 1024


def _segment(tmp_path: Path, start: int = 0) -> Segment:
    return create_segment(LinuxDisk(), tmp_path, start, SEGMENT_BYTES, NOW_US)


def test_a_new_segment_has_only_a_header(tmp_path: Path) -> None:
    segment = _segment(tmp_path, 3 * MIB)
    assert [path.name for path in tmp_path.iterdir()] == ["00000000000003145728"]
    assert segment.path.stat().st_size == SEGMENT_BYTES
    assert segment.path.stat().st_blocks * 512 >= SEGMENT_BYTES
    assert SegmentHeader.decode(segment.file.read(4096, 0)) == SegmentHeader(
        3 * MIB, SEGMENT_BYTES, NOW_US
    )
    assert segment.written == segment.first_offset == 3 * MIB + 4096
    assert segment.end_offset == 4 * MIB
    assert not any(segment.read(segment.first_offset, SEGMENT_BYTES))
    assert read_trailer(segment) is None


def test_an_unfinished_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000.new").write_bytes(b"half a segment")
    _segment(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["0" * 20]


@pytest.mark.parametrize("left", [b"", b"no segment", bytes(4096)])
def test_an_existing_file_is_renamed(tmp_path: Path, left: bytes) -> None:
    (tmp_path / ("0" * 20)).write_bytes(left)
    segment = _segment(tmp_path)
    kept = tmp_path / f"{'0' * 20}.damaged-{NOW_US}"
    assert sorted(tmp_path.iterdir()) == [segment.path, kept]
    assert kept.read_bytes() == left


@pytest.mark.parametrize(
    ("step", "after"),
    [
        ("create", 0),
        ("write", 0),
        ("sync", 0),
        ("rename", 0),
        ("sync_directory", 0),
        ("sync_directory", 1),  # the rename is done, but may not be durable
    ],
)
def test_a_failed_creation_leaves_no_file(step: str, after: int) -> None:
    disk = SimulatedDisk()
    disk.fail(step, errno.EIO, after=after)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="error"):
        create_segment(disk, Path("/log"), 0, SEGMENT_BYTES, NOW_US)
    assert disk.names(Path("/log")) == []
    create_segment(disk, Path("/log"), 0, SEGMENT_BYTES, NOW_US)


def test_reads_are_by_physical_offset(tmp_path: Path) -> None:
    segment = _segment(tmp_path, 2 * MIB)
    segment.file.write([b"abc"], 5000)
    assert segment.read(2 * MIB + 5000, 3) == b"abc"
    assert segment.read_nowait(2 * MIB + 5000, 3) in (b"abc", None)
    assert segment.read(3 * MIB - 2, 10) == b"\0\0"


def test_a_failed_sync_is_final_for_the_segment() -> None:
    disk = SimulatedDisk()
    segment = create_segment(disk, Path("/log"), 0, SEGMENT_BYTES, NOW_US)
    disk.fail("sync")
    for _ in range(3):  # the disk itself would accept the second
        with pytest.raises(OSError, match=r"sync failed|error"):
            segment.sync()


# -- room ------------------------------------------------------------------------------------


def test_room_for_the_end_mark_and_the_footer_is_reserved(tmp_path: Path) -> None:
    segment = _segment(tmp_path)
    for keys, blocks in [(0, 1), (5, 1), (1000, 3)]:
        room = SEGMENT_BYTES - SEGMENT_HEADER_SIZE - END_MARK_SIZE - footer_size(blocks, keys)
        assert segment.has_room(room - 1, keys, blocks)
        assert segment.has_room(room, keys, blocks)
        assert not segment.has_room(room + 1, keys, blocks)
        assert not segment.has_room(room, keys + 1, blocks)
        assert not segment.has_room(room, keys, blocks + 1)


def test_what_fits_a_segment_leaves_room_for_its_end_mark_and_footer(tmp_path: Path) -> None:
    small = open_small_log(tmp_path)
    for keys, blocks in [(0, 1), (5, 1), (1000, 3)]:
        footer_bytes = footer_size(blocks, keys)
        room = SEGMENT_BYTES - SEGMENT_HEADER_SIZE - END_MARK_SIZE - footer_bytes
        fits = [small.log.fits_segment(room + more, keys, blocks) for more in (-1, 0, 1)]
        assert fits == [True, True, False]
    small.close()


def test_stored_blocks_reduce_the_room(tmp_path: Path) -> None:
    small = open_small_log(tmp_path)
    header = small.append(raw_batch(keys=10)).header
    segment = small.log.segments[0]
    assert (segment.block_count, segment.key_count) == (1, 10)
    assert segment.written == header.end_physical_offset
    room = segment.end_offset - segment.written - END_MARK_SIZE - footer_size(2, 10)
    assert segment.has_room(room, 0, 1)
    assert not segment.has_room(room + 1, 0, 1)
    small.close()


def test_an_ended_segment_has_no_room(tmp_path: Path) -> None:
    segment = _segment(tmp_path)
    segment.ended = True
    assert not segment.has_room(0, 0, 0)


def test_keyed_messages_counts_possible_rows_of_the_key_table() -> None:
    assert keyed_messages(Batch.decode(encode_batch([b"a", b"b"])).header) == 0
    assert keyed_messages(Batch.decode(encode_batch([b""] * 3, keys=["a", None, "b"])).header) == 3


@given(
    st.integers(1, 40_000),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([MIB, 4 * MIB, 1024 * MIB]),
)
def test_every_batch_up_to_the_largest_fits_an_empty_segment(
    messages: int, key_size: int, is_keyed: bool, segment_bytes: int
) -> None:
    # The worst case for the footer: many messages with only a key.
    keys = ["k" * key_size] * messages if is_keyed else None
    header = Batch.decode(encode_batch([b""] * messages, keys=keys)).header
    assume(header.total_size <= largest_batch(segment_bytes))
    segment = Segment(
        SimulatedDisk().create(Path("/s"), 0), Path("/s"), 0, segment_bytes, SEGMENT_HEADER_SIZE
    )
    assert segment.has_room(header.total_size, keyed_messages(header), 1)


def test_the_largest_batch_fits_with_any_number_of_keys() -> None:
    # A keyed message takes 12 bytes of offsets and hash, and 8 of the footer.
    for segment_bytes in (MIB, 4 * MIB, 1024 * MIB):
        size = largest_batch(segment_bytes)
        room = segment_bytes - SEGMENT_HEADER_SIZE - END_MARK_SIZE - footer_size(1, size // 12)
        assert size <= room
