"""S1, S2, D6: only files of the data directory are opened, and other users cannot read them."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.commitlog.disk.data_dir import DataDir
from holdfast.commitlog.disk.owned_files import (
    FILES,
    FOLDERS,
    UnsafeFile,
    check_file,
    create_file,
    open_file,
    read_file,
    refuse_planted,
    tighten,
)

Plant = Callable[[Path, Path], None]


def _socket(path: Path, _other: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


PLANTS: dict[str, Plant] = {
    "symbolic link": lambda path, other: path.symlink_to(other),
    "symbolic link to nothing": lambda path, other: path.symlink_to(other.with_name("nothing")),
    "hard link": lambda path, other: path.hardlink_to(other),
    "FIFO": lambda path, other: os.mkfifo(path),
    "socket": _socket,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Return a file of another user, outside the folder."""
    path = tmp_path / "other"
    path.write_bytes(b"theirs")
    return path


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT])
@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_only_regular_files_of_the_owner_are_opened(
    plant: Plant, flags: int, folder: Path, other: Path
) -> None:
    plant(folder / "name", other)
    with pytest.raises(UnsafeFile, match=r"it is|names") as raised:
        open_file(folder / "name", flags)
    assert raised.value.path == folder / "name"
    with pytest.raises(UnsafeFile):
        check_file(folder / "name")
    assert other.read_bytes() == b"theirs"
    assert not (folder.parent / "nothing").exists()


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT])
@pytest.mark.parametrize(
    ("plant", "kind"),
    [(PLANTS["FIFO"], "a FIFO"), (PLANTS["socket"], "a socket"), (Path.mkdir, "a folder")],
)
def test_the_error_names_the_kind_of_the_file(
    plant: Callable[..., object], kind: str, flags: int, folder: Path, other: Path
) -> None:
    path = folder / "name"
    plant(path) if kind == "a folder" else plant(path, other)
    with pytest.raises(UnsafeFile, match=f"it is no regular file but {kind}; nothing is opened"):
        open_file(path, flags)


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_created_file_replaces_a_planted_one(plant: Plant, folder: Path, other: Path) -> None:
    plant(folder / "name", other)
    with os.fdopen(create_file(folder / "name"), "wb") as file:
        file.write(b"ours")
    assert read_file(folder / "name") == b"ours"
    assert other.read_bytes() == b"theirs"
    assert not (folder.parent / "nothing").exists()


def test_a_folder_that_is_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "name").write_bytes(b"theirs")
    (folder / "sub").symlink_to(tmp_path / "elsewhere")
    for open_it in (open_file, create_file, check_file, read_file):
        with pytest.raises(UnsafeFile, match="symbolic link"):
            open_it(folder / "sub" / "name")
    assert (tmp_path / "elsewhere" / "name").read_bytes() == b"theirs"


@pytest.mark.parametrize("names", [1, 2])
def test_a_second_hard_link_is_refused_unless_allowed(names: int, folder: Path) -> None:
    (folder / "name").write_bytes(b"ours")
    for number in range(1, names):
        (folder / f"name-{number}").hardlink_to(folder / "name")
    os.close(open_file(folder / "name", may_have_names=True))
    if names == 1:
        os.close(open_file(folder / "name"))
    else:
        with pytest.raises(UnsafeFile, match="2 names"):
            open_file(folder / "name")


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: it cannot give files away")
def test_a_file_of_another_user_is_not_opened(folder: Path) -> None:
    (folder / "name").write_bytes(b"theirs")
    os.chown(folder / "name", 4242, 4242)
    with pytest.raises(UnsafeFile, match="4242"):
        open_file(folder / "name")
    os.chown(folder, 4242, 4242)
    os.close(open_file(folder / "name"))  # the folder's owner


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
@pytest.mark.parametrize("name", [*sorted(FILES | FOLDERS), "state/data.mdb", "state/groups/x"])
def test_a_start_refuses_planted_files_of_any_name(
    name: str, plant: Plant, folder: Path, other: Path
) -> None:
    (folder / "VERSION").write_text("1\n")
    path = folder / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    plant(path, other)
    with pytest.raises(UnsafeFile) as raised:
        DataDir(folder, 0)
    assert raised.value.path == path
    assert other.read_bytes() == b"theirs"


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_folder_where_a_file_is_expected_is_refused(name: str, folder: Path) -> None:
    (folder / name).mkdir()
    with pytest.raises(UnsafeFile, match="folder"):
        refuse_planted(folder)


@pytest.mark.parametrize("name", sorted(FOLDERS))
def test_a_file_where_a_folder_is_expected_is_refused(name: str, folder: Path) -> None:
    (folder / name).touch()
    with pytest.raises(UnsafeFile, match="no folder"):
        refuse_planted(folder)


def test_unknown_names_are_not_checked(folder: Path, other: Path) -> None:
    (folder / "VERSION").write_text("1\n")
    (folder / "notes").symlink_to(other)
    DataDir(folder, 0).close()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_are_only_for_the_owner_with_any_umask(umask: int, folder: Path) -> None:
    before = os.umask(umask)
    try:
        DataDir(folder / "data", 4096).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "data").stat().st_mode) == 0o750 & ~umask
    for path in (folder / "data").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_start_removes_excess_permissions(folder: Path) -> None:
    for name in ("state", "state/groups", "commitlog", "state.corrupt-1"):
        (folder / name).mkdir(0o755)
        (folder / name / "file").touch(0o666)
        (folder / name / "file").chmod(0o666)
    (folder / "VERSION").write_text("1\n")
    folder.chmod(0o2775)
    DataDir(folder, 0).close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o2750
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o750 if path.is_dir() else 0o600), path


def test_permissions_that_cannot_be_removed_are_logged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(descriptor: int, mode: int) -> None:
        raise PermissionError(1, "not permitted")

    (folder / "VERSION").write_text("1\n")
    (folder / "VERSION").chmod(0o644)
    monkeypatch.setattr(os, "fchmod", refused)
    tighten(folder)
    assert "other users may read files" in caplog.text
