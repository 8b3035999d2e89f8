from pathlib import Path

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
