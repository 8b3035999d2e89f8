from pathlib import Path

import numpy as np
import pytest

from holdfast.commitlog.format.segment_format import (
    BLOCK_DTYPE,
    KEY_DTYPE,
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    encode_footer,
    segment_name,
)
from holdfast.log_files import sealed_blocks
from holdfast.log_files.sealed_blocks import SealedBlocks
from holdfast.log_files.segment_file import SegmentFile

START = 2**20


def segment(folder: Path, queues: list[int], base_offsets: list[int]) -> Path:
    """Make a segment file that has only a header page and a footer. The footer lists a block of ten
    messages for each queue and base offset, in topic 0."""
    rows = np.zeros(len(queues), BLOCK_DTYPE)
    rows["queue_id"], rows["base_offset"], rows["message_count"] = queues, base_offsets, 10
    footer = encode_footer(START, rows, np.zeros(5, KEY_DTYPE))
    size = SEGMENT_HEADER_SIZE + len(footer)
    path = folder / segment_name(START)
    path.write_bytes(SegmentHeader(START, size, 1).encode() + footer)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A segment with three blocks of queue 0."""
    return segment(tmp_path, [0, 0, 0], [0, 10, 20])


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the reads from segment files, in order."""
    sizes: list[int] = []
    read = SegmentFile.read

    def noted(self: SegmentFile, physical_offset: int, size: int) -> bytes:
        sizes.append(size)
        return read(self, physical_offset, size)

    monkeypatch.setattr(SegmentFile, "read", noted)
    return sizes


@pytest.fixture
def _remembers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_blocks, "_UNCHANGED_NS", -(2**62))
    monkeypatch.setattr(sealed_blocks, "_intact", set())


def opened(path: Path) -> SealedBlocks:
    blocks = SealedBlocks.of(SegmentFile.open(path.parent, START))
    assert blocks is not None
    return blocks


def flip(path: Path) -> None:
    """Damage the first row."""
    with path.open("r+b") as file:
        file.seek(SEGMENT_HEADER_SIZE)
        file.write(b"\xff")


def flip_later(path: Path) -> None:
    """Damage the first row late enough that the file system records a new change time."""
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:
        flip(path)


def test_a_footer_with_a_flipped_bit_is_not_intact(path: Path) -> None:
    assert opened(path).is_intact()
    flip(path)
    assert not opened(path).is_intact()


@pytest.mark.usefixtures("_remembers_at_once")
def test_a_footer_is_read_once_by_a_process(path: Path, reads: list[int]) -> None:
    assert opened(path).is_intact()
    blocks = opened(path)
    reads.clear()
    assert blocks.is_intact()
    assert reads == []


@pytest.mark.usefixtures("_remembers_at_once")
def test_a_file_that_has_changed_is_read_again(path: Path) -> None:
    blocks = opened(path)
    assert blocks.is_intact()
    flip_later(path)
    assert not blocks.is_intact()
    assert not opened(path).is_intact()


@pytest.mark.usefixtures("_remembers_at_once")
def test_no_more_is_remembered_than_the_limit(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_blocks, "_MAX_REMEMBERED", 2)
    for count, at_most in ((1, 1), (2, 2), (3, 1)):
        folder = tmp_path / str(count)
        folder.mkdir()
        copy = folder / path.name
        copy.write_bytes(path.read_bytes())
        assert opened(copy).is_intact()
        assert len(sealed_blocks._intact) == at_most


def test_any_range_has_the_blocks_that_reach_into_it(path: Path) -> None:
    blocks = opened(path)
    for start in range(31):
        for end in range(start + 1, 32):
            found = [base for rows in blocks.rows(0, 0, start, end) for base in rows["base_offset"]]
            assert found == [base for base in (0, 10, 20) if base < end and base + 10 > start]
    assert list(blocks.rows(0, 1, 0, 30)) == list(blocks.rows(1, 0, 0, 30)) == []


def test_all_of_a_queue_is_found_without_a_search(path: Path, reads: list[int]) -> None:
    blocks = opened(path)
    assert blocks.queues(0) == {0: (0, 30)}
    reads.clear()
    (rows,) = blocks.rows(0, 0, 0, 30)
    assert len(rows) == 3
    assert len(reads) == 3  # the first row, the last row, and all rows


def test_a_search_that_damage_leads_astray_gives_no_other_queues_rows(tmp_path: Path) -> None:
    # The row in the middle names queue 3, so the rows after it seem to be of queue 2 or above.
    blocks = opened(segment(tmp_path, [1, 1, 1, 3, 1, 1, 2], [0, 10, 20, 30, 40, 50, 0]))
    found = [rows for start in (0, 5) for rows in blocks.rows(0, 2, start, 10)]
    assert [rows["queue_id"].tolist() for rows in found] == [[2], [2]]
