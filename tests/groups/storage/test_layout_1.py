"""Group state of layout 1: it is read and replaced, even if starts are interrupted several
times."""

import tarfile
from pathlib import Path

import pytest

from holdfast.groups.cursor.cursor import Cursor, State
from tests.groups.storage.test_cursor_store import raw
from tests.groups.storage.test_open import BOOT, KEY, LEASE_MS, NOW_MS, OTHER_BOOT, Directory, kill

GOLDEN = Path(__file__).parents[1] / "golden"
KINDS = pytest.mark.parametrize("kind", ["closed", "killed"])


def left_behind(kind: str, to: Path) -> Directory:
    """Return a directory in which 0 to 9 were delivered.

    0, 1 and 4 are acknowledged, 5 and 6 given back, 7 delayed, 8 rejected; 2, 3 and 9 are leased.
    """
    with tarfile.open(GOLDEN / f"state-1-{kind}.tar.xz") as tar:
        tar.extractall(to, filter="data")
    directory = Directory(to / "state")
    directory.ends = {0: 100, 1: 50, 2: 5}
    directory.now_ms = NOW_MS + 1_000
    return directory


def check(cursor: Cursor, boot: int) -> None:
    assert cursor.boot == boot
    assert (cursor.floor, cursor.next) == (2, 10)
    assert [at for at in range(2, 10) if cursor.state(at) is State.DONE] == [4, 8]
    assert cursor.delays.get(7) == NOW_MS + 60_000
    assert [cursor.attempt(at) for at in (5, 6, 7, 9)] == [2, 2, 2, 1]
    assert [cursor.failures(at) for at in (5, 6, 7)] == [1, 0, 1]
    # The page does not record which: until the last lease has ended, any of them may be leased.
    assert [at for at in range(12) if cursor.state(at) is State.GRACE] == [2, 3, 5, 6, 9]
    assert cursor.grace_end_ms == NOW_MS + LEASE_MS
    assert not cursor.is_redelivery(10)


@KINDS
def test_groups_continue_from_the_old_page(kind: str, tmp_path: Path) -> None:
    directory = left_behind(kind, tmp_path)
    check(directory.cursor(), boot=2)
    for boot in (3, 4):
        check(directory.cursor(), boot)
    assert not [key for key in raw(directory.path / "groups") if key[:1] == b"\4"]


def test_a_page_of_another_boot_is_trusted_only_if_it_was_closed(tmp_path: Path) -> None:
    assert left_behind("closed", tmp_path / "c").cursor(OTHER_BOOT).next == 10
    assert left_behind("killed", tmp_path / "k").cursor(OTHER_BOOT).next == 100


@KINDS
@pytest.mark.parametrize(
    "cut_at",
    [
        "holdfast.groups.storage.cursor_store._apply",
        "holdfast.groups.storage.open.ProgressPage.begin",
        "holdfast.groups.storage.progress_page._write",
        "holdfast.groups.storage.progress_page.sync_directory",
    ],
)
def test_a_kill_while_it_is_replaced_changes_nothing(
    kind: str, cut_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = left_behind(kind, tmp_path)
    for _ in range(2):
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(cut_at, _killed)
            directory.open(BOOT)
    opened = directory.open(BOOT)
    check(opened.cursors[KEY], opened.boot)
    kill(opened)


class Killed(BaseException):
    pass


def _killed(*args: object) -> None:
    raise Killed
