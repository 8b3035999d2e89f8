"""Linux's disk, and the limit of open files. The properties that the simulated disk shares are
tested with the simulated disk."""

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.commitlog.disk.disk import (
    Bytes,
    File,
    LinuxDisk,
    LinuxFile,
    PooledDisk,
    PooledFile,
    most_open_files,
    sync_directory,
)

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


def test_the_room_of_a_new_file_is_allocated(file: File, tmp_path: Path) -> None:
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
def test_a_read_that_would_wait_returns_none(
    file: File, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "preadv", refuse)
    assert file.read_nowait(10, 0) is None


def test_another_error_of_a_read_propagates(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_descriptor_closes_once_with_its_last_reference(tmp_path: Path) -> None:
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


def test_an_open_file_is_readable_after_its_removal(file: File, tmp_path: Path) -> None:
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


# -- the limit of open files ---------------------------------------------------------------------


def _disk(tmp_path: Path, most: int, files: int = 8) -> tuple[PooledDisk, list[PooledFile]]:
    for number in range(files):
        (tmp_path / str(number)).write_bytes(b"%d" % number * 10)
    disk = PooledDisk(LinuxDisk(), most)
    opened = []
    for number in range(files):
        file = disk.open(tmp_path / str(number))
        assert isinstance(file, PooledFile)
        opened.append(file)
    return disk, opened


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names, not paths


@pytest.mark.parametrize("most", [1, 2, 7, 8, 9])
def test_the_number_of_open_files_is_limited(tmp_path: Path, most: int) -> None:
    before = _descriptors()
    disk, files = _disk(tmp_path, most)
    for _ in range(2):
        for number, file in enumerate(files):
            assert file.read(10, 0) == b"%d" % number * 10
            assert file.size() == 10
        assert disk.open_count == min(most, 8)
        assert _descriptors() == before + min(most, 8)
    for file in files:
        file.close()
        file.close()
    assert _descriptors() == before


def test_read_nowait_opens_no_file(tmp_path: Path) -> None:
    _, files = _disk(tmp_path, 1)
    assert files[0].read_nowait(10, 0) is None
    assert files[0].read(10, 0) == b"0" * 10
    assert files[0].read_nowait(10, 0) == b"0" * 10


def test_files_with_unsynced_writes_stay_open(tmp_path: Path) -> None:
    disk, files = _disk(tmp_path, 1)
    for number in (2, 5):
        files[number].write([b"new"], 0)
    inner = files[2]._file
    for file in files:
        file.read(10, 0)
    assert files[2]._file is inner
    assert disk.open_count == 3  # both, and the last one that was read
    for number in (2, 5):
        files[number].sync()
    files[7].size()
    files[6].size()
    assert disk.open_count == 1
    assert files[2].read(3, 0) == b"new"


def test_a_removed_file_stays_readable_for_its_holders(tmp_path: Path) -> None:
    before = _descriptors()
    disk, files = _disk(tmp_path, 1)
    disk.remove(tmp_path / "0")
    disk.remove(tmp_path / "0")
    assert files[0].read(10, 0) == b"0" * 10
    for file in files[1:]:
        file.read(10, 0)
    assert files[0].read(10, 0) == b"0" * 10
    files.clear()
    assert _descriptors() <= before + 1, "its descriptor outlives it"


def test_a_renamed_file_is_opened_by_its_new_name(tmp_path: Path) -> None:
    disk = PooledDisk(LinuxDisk(), 1)
    file = disk.create(tmp_path / "a.new", 100)
    file.write([b"hello"], 0)
    file.sync()
    disk.rename(tmp_path / "a.new", tmp_path / "a")
    other = disk.create(tmp_path / "b", 100)
    other.sync()
    assert other.read(5, 0) == bytes(5)
    assert file.read(5, 0) == b"hello"


def test_a_closed_file_is_not_opened_again(tmp_path: Path) -> None:
    _, files = _disk(tmp_path, 8)
    files[0].close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        files[0].read(1, 0)


def test_many_threads_share_one_open_file(tmp_path: Path) -> None:
    _, files = _disk(tmp_path, 1)
    failures: list[BaseException] = []

    def read(start: int) -> None:
        try:
            for turn in range(300):
                number = (start + turn) % len(files)
                assert files[number].read(10, 0) == b"%d" % number * 10
                if number == start % len(files):
                    files[number].write([b"%d" % number], 0)
                    files[number].sync()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_quarter_of_the_descriptors_at_most_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (100, 4096))
    assert [most_open_files(each) for each in (1, 24, 25, 26, 256)] == [1, 24, 25, 25, 25]
