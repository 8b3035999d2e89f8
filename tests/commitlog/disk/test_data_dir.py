import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.commitlog.disk.data_dir import (
    LAYOUT_VERSION,
    DamagedVersion,
    DataDir,
    DataDirInUse,
    NotADataDir,
)
from holdfast.commitlog.errors import UnknownFormatVersion

RESERVE = 64 * 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


def _contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


# -- opening ---------------------------------------------------------------------------------


def test_a_new_directory_is_made_with_lock_version_and_reserve(path: Path) -> None:
    opened = DataDir(path / "deep", RESERVE)
    assert sorted(_contents(path / "deep")) == ["VERSION", "lock", "reserve"]
    assert (path / "deep" / "VERSION").read_text() == "2\n" == f"{LAYOUT_VERSION}\n"
    assert (path / "deep" / "lock").read_text() == f"{os.getpid()}\n"
    assert (path / "deep" / "reserve").stat().st_blocks * 512 >= RESERVE
    assert opened.commitlog == path / "deep" / "commitlog"
    assert opened.consumequeue == path / "deep" / "consumequeue"
    assert opened.state == path / "deep" / "state"
    opened.close()


def test_a_directory_can_be_opened_repeatedly(path: Path) -> None:
    for _ in range(3):
        DataDir(path, RESERVE).close()
    assert sorted(_contents(path)) == ["VERSION", "lock", "reserve"]


@pytest.mark.parametrize("left", ["VERSION.new", "lock", "lost+found", "reserve.new"])
def test_files_of_an_interrupted_start_do_no_harm(path: Path, left: str) -> None:
    if left == "reserve.new":
        DataDir(path, 0).close()
    path.mkdir(exist_ok=True)
    if left == "lost+found":
        (path / left).mkdir()
    else:
        (path / left).write_bytes(b"half")
    opened = DataDir(path, RESERVE)
    assert (path / "VERSION").read_text() == "2\n"
    assert (path / "reserve").stat().st_size == RESERVE
    opened.close()
    assert not list(path.glob("*.new"))


# -- refusals --------------------------------------------------------------------------------


def test_a_second_holder_is_refused(path: Path) -> None:
    first = DataDir(path, 0)
    with pytest.raises(DataDirInUse, match=f"process {os.getpid()}") as raised:
        DataDir(path, 0)
    assert raised.value.path == path
    assert "--data-dir" in str(raised.value)
    first.close()
    first.close()
    DataDir(path, 0).close()


def test_another_process_is_refused_until_the_holder_dies(path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from holdfast.commitlog.disk.data_dir import DataDir\n"
        "held = DataDir(Path(sys.argv[1]), 0); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DataDirInUse) as raised:
            DataDir(path, 0)
        assert raised.value.holder == str(holder.pid)
        holder.kill()
        holder.wait(20)
    DataDir(path, 0).close()


@pytest.mark.parametrize("found", ["3", "", "one", "1.0", "\x00\xff", "9" * 200])
def test_another_version_is_refused_and_nothing_is_changed(path: Path, found: str) -> None:
    DataDir(path, 0).close()
    (path / "VERSION").write_bytes(found.encode("latin-1"))
    (path / "lock").write_bytes(b"")
    before = _contents(path)
    with pytest.raises(UnknownFormatVersion) as raised:
        DataDir(path, RESERVE)
    assert len(str(raised.value)) < 400 + len(str(path))
    before["lock"] = f"{os.getpid()}\n".encode()
    assert _contents(path) == before
    (path / "VERSION").write_text("1")
    DataDir(path, 0).close()  # the refused start has released the lock


def test_an_older_layout_is_opened_and_upgraded_by_renew(path: Path) -> None:
    DataDir(path, 0).close()
    (path / "VERSION").write_text("1\n")
    opened = DataDir(path, 0)
    assert (path / "VERSION").read_text() == "1\n"
    (path / "VERSION.new").write_text("2")  # left by an interrupted start
    for _ in range(2):
        opened.renew()
        assert (path / "VERSION").read_text() == "2\n"
    opened.close()


@pytest.mark.parametrize("found", ["", "one", "q\n", "\x00", "1.0"])
def test_the_error_of_a_damaged_version_states_the_remedy(path: Path, found: str) -> None:
    DataDir(path, 0).close()
    (path / "VERSION").write_text(found)
    with pytest.raises(DamagedVersion, match="write that again"):
        DataDir(path, 0)


@pytest.mark.parametrize("name", ["lock", "reserve"])
@pytest.mark.parametrize("left", [b"", b"\xff" * 64, None])
def test_the_content_of_lock_and_reserve_does_not_matter(
    path: Path, name: str, left: bytes | None
) -> None:
    DataDir(path, RESERVE).close()
    (path / name).unlink()
    if left is not None:
        (path / name).write_bytes(left)
    opened = DataDir(path, RESERVE)
    assert (path / "lock").read_bytes() == f"{os.getpid()}\n".encode()
    assert opened.has_reserve()
    opened.close()


def test_a_foreign_folder_is_refused_and_not_changed(path: Path) -> None:
    path.mkdir()
    (path / "thesis.tex").write_text("years of work")
    with pytest.raises(NotADataDir, match=r"thesis\.tex"):
        DataDir(path, RESERVE)
    assert _contents(path) == {"thesis.tex": b"years of work"}


def test_a_log_without_its_version_is_refused(path: Path) -> None:
    (path / "commitlog").mkdir(parents=True)
    with pytest.raises(NotADataDir, match="commitlog"):
        DataDir(path, RESERVE)


def test_a_file_instead_of_a_directory_is_refused(path: Path) -> None:
    path.write_text("not a folder")
    with pytest.raises(FileExistsError):
        DataDir(path, 0)


# -- the reserve -----------------------------------------------------------------------------


def test_the_reserve_is_released_and_allocated_again(path: Path) -> None:
    opened = DataDir(path, RESERVE)
    assert opened.has_reserve()
    opened.release_reserve()
    opened.release_reserve()
    assert not (path / "reserve").exists()
    assert opened.has_reserve()
    assert (path / "reserve").stat().st_size == RESERVE
    opened.close()


def test_no_reserve_is_created_if_none_is_configured(path: Path) -> None:
    opened = DataDir(path, 0)
    opened.release_reserve()
    assert opened.has_reserve()
    assert opened.restore_reserve()
    assert not (path / "reserve").exists()
    opened.close()


@pytest.mark.parametrize(
    ("free_blocks", "expected"),
    [(2 * RESERVE // 4096 - 1, False), (2 * RESERVE // 4096, True), (10**6, True)],
)
def test_the_reserve_needs_twice_its_size_of_free_room(
    path: Path, monkeypatch: pytest.MonkeyPatch, free_blocks: int, expected: bool
) -> None:
    opened = DataDir(path, RESERVE)
    opened.release_reserve()
    real = os.statvfs(path)

    def statvfs(asked: object) -> os.statvfs_result:
        return os.statvfs_result((4096, 4096, *real[2:4], free_blocks, *real[5:]))

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert opened.has_reserve() == expected
    assert (path / "reserve").exists() == expected
    opened.close()


def _full(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "full")


def test_a_reserve_that_does_not_fit_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = DataDir(path, RESERVE)
    opened.release_reserve()

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", _full)
        assert not opened.has_reserve()
        assert sorted(_contents(path)) == ["VERSION", "lock"]
    assert opened.has_reserve()
    opened.close()


def test_a_reserve_that_cannot_be_deleted_is_logged_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened = DataDir(path, RESERVE)
    (path / "reserve").unlink()
    (path / "reserve" / "something").mkdir(parents=True)
    for _ in range(3):
        opened.release_reserve()
    assert len([line for line in caplog.messages if "cannot be deleted" in line]) == 1
    assert opened.has_reserve()
    opened.close()


def test_a_reserve_released_before_the_start_is_allocated_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = DataDir(path, RESERVE)
    before.release_reserve()
    before.close()

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", _full)
        opened = DataDir(path, RESERVE)
        assert not opened.has_reserve()
    assert opened.has_reserve()
    assert (path / "reserve").stat().st_size == RESERVE
    opened.close()


def test_an_error_while_the_reserve_is_allocated_releases_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.EIO, "unwritable")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", fail)
        with pytest.raises(OSError, match="unwritable"):
            DataDir(path, RESERVE)
    DataDir(path, RESERVE).close()
