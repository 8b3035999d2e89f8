import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from holdfast.commitlog.format.segment_format import SEGMENT_HEADER_SIZE, SegmentHeader
from holdfast.log_files import segment_file
from holdfast.log_files.segment_file import SegmentFile, file_system_of

START = 8192
SIZE = 65_536


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SegmentFile:
    monkeypatch.setattr(segment_file, "file_system_of", lambda _: "xfs")
    header = SegmentHeader(START, SIZE, 1).encode().ljust(SEGMENT_HEADER_SIZE, b"\0")
    content = header + bytes(range(256)) * ((SIZE - len(header)) // 256)
    (tmp_path / f"{START:020d}").write_bytes(content)
    return SegmentFile.open(tmp_path, START)


def test_a_mapping_has_the_bytes_of_the_file_after_the_file_is_closed(file: SegmentFile) -> None:
    expected = file.read(START, SIZE)
    mapped = file.map([(START + 5000, START + 5001), (START + 9000, START + SIZE)])
    file.close()
    file.path.unlink()
    assert mapped is not None
    assert mapped.readonly
    assert bytes(mapped) == expected


@pytest.mark.parametrize("extent", [(START, START + SIZE + 1), (START - 1, START + 10)])
def test_bytes_outside_the_file_are_not_mapped(file: SegmentFile, extent: tuple[int, int]) -> None:
    assert file.map([extent]) is None


def test_a_file_on_a_file_server_is_not_mapped(
    file: SegmentFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_file, "file_system_of", lambda _: "nfs4")
    assert file.map([(START, START + 10)]) is None


def test_bytes_that_the_disk_cannot_give_any_more_are_not_mapped(file: SegmentFile) -> None:
    assert file.map([(START, START + SIZE)]) is not None
    with file.path.open("r+b") as shorter:
        shorter.truncate(SIZE // 2)
    assert file.map([(START, START + SIZE // 2)]) is not None
    assert file.map([(START, START + SIZE)]) is None


def test_the_file_system_of_a_file_is_known() -> None:
    with Path("/proc/self/status").open() as file:
        assert file_system_of(file.fileno()) == "proc"


@pytest.mark.parametrize("may_map", [True, False])
def test_a_view_has_the_bytes_that_a_read_has(file: SegmentFile, may_map: bool) -> None:
    file.may_map = may_map
    for first, size in ((START, SIZE), (START + 5000, 10), (START + SIZE - 10, 20)):
        assert bytes(file.view(first, size)) == file.read(first, size)


@pytest.fixture
def sparse(tmp_path: Path) -> Iterator[SegmentFile]:
    """A file of zeros. Only its header page and one more page are written."""
    path = tmp_path / f"{START:020d}"
    with path.open("wb") as file:
        file.write(SegmentHeader(START, SIZE, 1).encode().ljust(SEGMENT_HEADER_SIZE, b"\0"))
        os.posix_fallocate(file.fileno(), 0, SIZE)
        file.seek(SIZE // 2)
        file.write(bytes(4096))
    opened = SegmentFile.open(tmp_path, START)
    yield opened
    opened.close()


def test_a_file_is_zero_after_its_last_written_byte(sparse: SegmentFile) -> None:
    assert sparse.is_zero(START + SEGMENT_HEADER_SIZE)
    assert sparse.is_zero(START + SIZE)
    for place in (SEGMENT_HEADER_SIZE, SIZE // 2 + 4095, SIZE - 1):
        with sparse.path.open("r+b") as file:
            file.seek(place)
            file.write(b"\1")
            file.flush()
            assert not sparse.is_zero(START + SEGMENT_HEADER_SIZE)
            assert not sparse.is_zero(START + place)
            assert sparse.is_zero(START + place + 1)
            file.seek(place)
            file.write(b"\0")


def test_room_that_was_never_written_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if it is in the page cache, because another reader read too far."""
    size = 16 * 1024 * 1024
    path = tmp_path / f"{START:020d}"
    with path.open("wb") as made:
        made.write(SegmentHeader(START, size, 1).encode().ljust(SEGMENT_HEADER_SIZE, b"\0"))
        os.posix_fallocate(made.fileno(), 0, size)
    with path.open("rb") as opened:
        if os.lseek(opened.fileno(), size // 2, os.SEEK_HOLE) == size:
            pytest.skip("this file system does not report unwritten room")
    file = SegmentFile.open(tmp_path, START)
    file.read(START, size)
    sizes = []
    pread = os.pread

    def noted(descriptor: int, size: int, position: int) -> bytes:
        sizes.append(size)
        return pread(descriptor, size, position)

    monkeypatch.setattr("os.pread", noted)
    assert file.is_zero(START + SEGMENT_HEADER_SIZE)
    assert sum(sizes) < size // 2
    file.close()


@pytest.mark.parametrize("may_map", [True, False])
def test_only_a_file_that_may_be_mapped_records_what_was_verified(
    file: SegmentFile, *, may_map: bool
) -> None:
    opened = SegmentFile.open(file.path.parent, START, may_map=may_map)
    opened.add_verified(START + 5000, START + 6000)
    places = np.array([START + 4999, START + 5000, START + 5999, START + 6000])
    assert opened.are_verified(places).tolist() == [False, may_map, may_map, False]
