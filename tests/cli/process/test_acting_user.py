"""Root acts as the owner of a directory and follows no planted link on the way to it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.process.acting_user import (
    CannotActAsOwner,
    _make_for,
    _open_folders,
    act_as_owner,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="not root")

OWNER = 65534


@pytest.fixture
def owners(tmp_path: Path) -> Path:
    """Return a folder of another user with a data directory of that user in it."""
    folder = tmp_path / "owners"
    (folder / "data").mkdir(parents=True)
    for each in (folder, folder / "data"):
        os.chown(each, OWNER, OWNER)
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return a folder that root owns."""
    folder = tmp_path / "outside"
    folder.mkdir()
    return folder


def test_links_of_root_and_dots_are_followed(tmp_path: Path, owners: Path) -> None:
    (tmp_path / "relative").symlink_to("other/aside/../owners/./data")
    (tmp_path / "other").symlink_to(tmp_path)
    (tmp_path / "aside").mkdir()
    for path in ("relative", "other/relative", "owners/../relative", "owners/data"):
        with _open_folders(tmp_path / path) as place:
            assert (place.path, place.missing) == (owners / "data", ())
            assert place.found.st_uid == OWNER
    for path in ("relative/new/deep", "none/../relative/new/deep"):
        with _open_folders(tmp_path / path) as place:
            assert (place.path, place.missing) == (owners / "data/new/deep", ("new", "deep"))


def test_a_cycle_of_links_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"), _open_folders(tmp_path / "a"):
        pass


@pytest.mark.parametrize("name", ["link", "link/below"])
def test_a_link_of_another_user_is_not_followed(owners: Path, outside: Path, name: str) -> None:
    (owners / "link").symlink_to(outside)
    os.lchown(owners / "link", OWNER, OWNER)
    with pytest.raises(CannotActAsOwner, match="is a link"), _open_folders(owners / name):
        pass


def test_a_path_of_root_inside_a_folder_of_another_user_is_refused(owners: Path) -> None:
    """After the check, that user could replace it by a link to any file of root's."""
    (owners / "roots").mkdir()
    with pytest.raises(CannotActAsOwner, match="replace it in"):
        act_as_owner(owners / "roots")
    with pytest.raises(CannotActAsOwner, match="replace it in"):
        act_as_owner(owners / "roots" / "new")


@pytest.mark.parametrize("step", range(12))
@pytest.mark.parametrize("replaced", ["owners/data", "owners"])
def test_a_path_replaced_during_the_walk_is_not_followed(
    tmp_path: Path, owners: Path, outside: Path, monkeypatch: Any, step: int, replaced: str
) -> None:
    (outside / "data").mkdir()
    steps = [0]

    def replacing(call: Callable[..., Any]) -> Callable[..., Any]:
        def replace(*args: Any, **named: Any) -> Any:
            if steps[0] == step:
                (tmp_path / replaced).rename(tmp_path / "aside")
                (tmp_path / replaced).symlink_to(outside)
                os.lchown(tmp_path / replaced, OWNER, OWNER)
            steps[0] += 1
            return call(*args, **named)

        return replace

    monkeypatch.setattr(os, "open", replacing(os.open))
    monkeypatch.setattr(os, "fstat", replacing(os.fstat))
    monkeypatch.setattr(os, "lstat", replacing(os.lstat))
    try:
        with _open_folders(owners / "data") as place:
            uid = place.found.st_uid
    except CannotActAsOwner:
        uid = OWNER
    assert uid == OWNER


def test_a_created_folder_is_chowned_by_its_descriptor(
    tmp_path: Path, owners: Path, outside: Path, monkeypatch: Any
) -> None:
    with _open_folders(owners / "data") as source, _open_folders(tmp_path / "new/backup") as place:
        _make_for(source.found, place)
    assert (tmp_path / "new").stat().st_uid == 0
    assert (tmp_path / "new/backup").stat().st_uid == OWNER

    mkdir = os.mkdir

    def replaced(name: str, mode: int, *, dir_fd: int) -> None:
        mkdir(name, mode, dir_fd=dir_fd)
        os.rmdir(name, dir_fd=dir_fd)
        os.symlink(outside, name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", replaced)
    with (
        _open_folders(owners / "data") as source,
        _open_folders(tmp_path / "other") as place,
        pytest.raises(OSError),
    ):
        _make_for(source.found, place)
    assert outside.stat().st_uid == 0


_COMMAND = """
import builtins, importlib.util, os, sys
from holdfast.cli.process import acting_user
from holdfast.cli.main import main

load = builtins.__import__
def load_as_root(name, *args):
    if os.geteuid() != 0 and name not in sys.modules:
        raise ModuleNotFoundError(f"No module named {name!r}")
    return load(name, *args)
builtins.__import__ = load_as_root
acting_user.NEEDED = (sys.argv.pop(1),)
main()
"""


def test_a_python_that_only_root_can_read_is_named(tmp_path: Path, owners: Path) -> None:
    secret = tmp_path / "python"
    secret.touch(0o600)
    ran = subprocess.run(
        [sys.executable, "-c", _COMMAND, str(secret), "check", str(owners / "data")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 6, ran.stderr
    assert f"cannot read {secret}" in ran.stderr
    assert "Traceback" not in ran.stderr
