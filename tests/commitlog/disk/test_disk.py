"""Properties of Linux's disk alone; those that the simulated disk shares are tested with it."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.commitlog.disk.disk import Bytes, File, LinuxDisk, LinuxFile, sync_directory

SIZE = 64 * 1024


@pytest.fixture
def file(tmp_path: Path) -> File:
    return LinuxDisk().create(tmp_path / "file", SIZE)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_a_file_has_all_its_room_at_once(file: File, tmp_path: Path) -> None:
    stat = (tmp_path / "file").stat()
    assert stat.st_size == file.size() == SIZE
    assert stat.st_blocks * 512 >= SIZE
    assert stat.st_mode & 0o777 == 0o600  # S2: with any umask


def test_an_existing_file_is_not_created_over(file: File, tmp_path: Path) -> None:
    file.write([b"kept"], 0)
    with pytest.raises(FileExistsError):
        LinuxDisk().create(tmp_path / "file", SIZE)
    assert file.read(4, 0) == b"kept"


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def full(descriptor: int, offset: int, size: int) -> None:
        opened.append(descriptor)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="full"):
        LinuxDisk().create(tmp_path / "file", SIZE)
    assert list(tmp_path.iterdir()) == []
    assert not _is_open(opened[0])


@pytest.mark.parametrize("count", [1, 2, 1023, 1024, 1025, 2500])
def test_any_number_of_buffers_is_written(file: File, count: int) -> None:
    buffers = [bytes([i % 251]) * (i % 5) for i in range(count)]
    file.write(buffers, 7)
    written = b"".join(buffers)
    assert file.read(len(written) + 1, 7) == written + b"\0"
    assert file.read(7, 0) == bytes(7)


@pytest.mark.parametrize("most", [1, 3, 100])
def test_a_short_write_is_finished(file: File, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """The kernel may write only a part of the buffers, up to any byte."""
    pwrite = os.pwrite

    def short_pwritev(descriptor: int, buffers: Sequence[Bytes], position: int) -> int:
        return pwrite(descriptor, b"".join(buffers)[:most], position)

    monkeypatch.setattr(os, "pwritev", short_pwritev)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[: most + 1], at))
    data = bytes(range(250))
    file.write([data[:10], bytearray(data[10:11]), memoryview(data)[11:]], 5)
    assert file.read(260, 0) == bytes(5) + data + bytes(5)


@pytest.mark.parametrize("most", [1, 7])
def test_a_short_read_is_finished(file: File, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, most), at))
    file.write([b"0123456789"], SIZE - 10)
    assert file.read(10, SIZE - 10) == b"0123456789"
    assert file.read(30, SIZE - 10) == b"0123456789"
    assert file.read(1, SIZE) == b""


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EOPNOTSUPP])
def test_a_read_that_would_wait_gives_nothing(
    file: File, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "preadv", refuse)
    assert file.read_nowait(10, 0) is None


def test_another_failure_of_a_read_is_told(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> int:
        raise OSError(errno.EIO, "unreadable")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(OSError, match="unreadable"):
        file.read_nowait(10, 0)


def test_data_ends_after_the_last_page_written(file: File) -> None:
    assert file.data_end(0) == 0
    assert file.data_end(100) == 100
    file.write([b"x"], 20_000)
    assert 20_001 <= file.data_end(0) <= 24_576
    file.write([b"x"], 50_000)
    assert 50_001 <= file.data_end(0) <= 53_248
    assert file.data_end(60_000) == 60_000
    assert file.data_end(SIZE) == SIZE


def test_a_descriptor_closes_once_and_with_its_last_holder(tmp_path: Path) -> None:
    disk = LinuxDisk()
    disk.create(tmp_path / "file", SIZE).close()
    descriptor = os.open(tmp_path / "file", os.O_RDWR)
    file = LinuxFile(descriptor)
    other = file
    del file
    assert _is_open(descriptor)
    del other
    assert not _is_open(descriptor)
    closed = disk.open(tmp_path / "file")
    closed.close()
    closed.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        closed.read(1, 0)


def test_an_open_file_outlives_its_name(file: File, tmp_path: Path) -> None:
    file.write([b"still here"], 0)
    LinuxDisk().remove(tmp_path / "file")
    LinuxDisk().remove(tmp_path / "file")
    assert LinuxDisk().names(tmp_path) == []
    assert file.read(10, 0) == b"still here"


def test_syncs_go_to_the_file_and_to_the_directory(
    file: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fdatasync", note)
    monkeypatch.setattr(os, "fsync", note)
    file.sync()
    assert synced == [tmp_path / "file"]
    LinuxDisk().rename(tmp_path / "file", tmp_path / "renamed")
    LinuxDisk().remove(tmp_path / "renamed")
    sync_directory(tmp_path)
    assert synced[1:] == [tmp_path] * 3
