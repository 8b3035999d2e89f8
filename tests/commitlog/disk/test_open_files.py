"""M5: each segment used a descriptor: a log of 409 segments did not start with 100 descriptors."""

import os
import threading
from pathlib import Path

import pytest

from holdfast.commitlog.disk.disk import LinuxDisk
from holdfast.commitlog.disk.open_files import PooledDisk, PooledFile, most_open_files


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
def test_only_so_many_are_open_and_all_can_be_read(tmp_path: Path, most: int) -> None:
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


def test_a_look_that_must_not_wait_opens_nothing(tmp_path: Path) -> None:
    _, files = _disk(tmp_path, 1)
    assert files[0].read_nowait(10, 0) is None
    assert files[0].read(10, 0) == b"0" * 10
    assert files[0].read_nowait(10, 0) == b"0" * 10


def test_what_is_not_synced_stays_open(tmp_path: Path) -> None:
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


def test_what_is_removed_is_read_on_by_those_who_have_it(tmp_path: Path) -> None:
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


def test_one_that_is_renamed_is_found_again(tmp_path: Path) -> None:
    disk = PooledDisk(LinuxDisk(), 1)
    file = disk.create(tmp_path / "a.new", 100)
    file.write([b"hello"], 0)
    file.sync()
    disk.rename(tmp_path / "a.new", tmp_path / "a")
    other = disk.create(tmp_path / "b", 100)
    other.sync()
    assert other.read(5, 0) == bytes(5)
    assert file.read(5, 0) == b"hello"


def test_one_that_was_closed_is_not_opened_again(tmp_path: Path) -> None:
    _, files = _disk(tmp_path, 8)
    files[0].close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        files[0].read(1, 0)


def test_many_threads_read_through_one_open_file(tmp_path: Path) -> None:
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


def test_no_more_than_a_quarter_of_what_the_process_may_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (100, 4096))
    assert [most_open_files(each) for each in (1, 24, 25, 26, 256)] == [1, 24, 25, 25, 25]
