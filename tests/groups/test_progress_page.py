"""The page: what was noted last, or nothing; believed in its own boot alone, or closed in order."""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.commitlog.checksum import crc32c
from holdfast.groups.cursor_rows import Page
from holdfast.groups.progress_page import ProgressPage, kernel_boot_id
from holdfast.groups.rows import CursorKey

BOOT, OTHER_BOOT = bytes(range(1, 17)), bytes(range(2, 18))
KEY, SECOND = (7, 3, 1), (7, 3, 2)
NOTED = Page(122_000_000, 41, 1_700_000_030_000)


def begun(path: Path, pages: dict[CursorKey, Page] | None = None) -> ProgressPage:
    page = ProgressPage(path, BOOT)
    page.begin({} if pages is None else pages)
    return page


def killed(path: Path) -> Path:
    """Return the file as a kill at this moment leaves it."""
    return Path(shutil.copy(path, path.with_suffix(".killed")))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "groups.page"


def test_what_was_noted_outlives_a_kill(path: Path) -> None:
    page = begun(path, {KEY: Page(1, 2, 3)})
    page.note(KEY, NOTED)
    page.note(SECOND, Page(5, 6, 7))
    found = ProgressPage(killed(path), BOOT)
    assert found.is_believed
    assert found.found == {KEY: NOTED, SECOND: Page(5, 6, 7)}
    page.close()


_NOTER = """
import sys
from pathlib import Path
from holdfast.groups.cursor_rows import Page
from holdfast.groups.progress_page import ProgressPage, kernel_boot_id

page = ProgressPage(Path(sys.argv[1]), kernel_boot_id())
page.begin(page.found)
number = max((each.next for each in page.found.values()), default=0)
while True:
    number += 1
    for queue in (0, 1):
        page.note((1, 1, queue), Page(1, number, number))
    if number % 1000 == 0:
        print(number, flush=True)
"""


def test_a_killed_process_leaves_what_it_had_noted(path: Path) -> None:
    for lines in (1, 5, 2):
        child = subprocess.Popen([sys.executable, "-c", _NOTER, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        last = [int(child.stdout.readline()) for _ in range(lines)][-1]
        child.kill()
        child.wait()
        child.stdout.close()
        page = ProgressPage(path, kernel_boot_id())
        assert page.is_believed
        # A slot that was being written at the kill may be missing, but never say less.
        assert len(page.found) >= 1
        assert all(each.next >= last for each in page.found.values())


def test_a_page_of_before_a_reboot_is_not_believed_but_told(path: Path) -> None:
    page = begun(path, {KEY: NOTED})
    found = ProgressPage(killed(path), OTHER_BOOT)
    assert not found.is_believed
    assert found.found == {KEY: NOTED}
    page.close()


def test_one_closed_in_order_is_believed_after_a_reboot(path: Path) -> None:
    page = begun(path)
    page.note(KEY, NOTED)
    page.close()
    page.close()
    found = ProgressPage(path, OTHER_BOOT)
    assert found.is_believed
    assert found.found == {KEY: NOTED}
    # But not once it was begun again, and the machine fails then.
    found.begin(found.found)
    assert not ProgressPage(killed(path), BOOT).is_believed
    found.close()


def test_one_that_was_not_begun_stays_as_it_is(path: Path) -> None:
    begun(path, {KEY: NOTED}).close()
    before = path.read_bytes()
    page = ProgressPage(path, OTHER_BOOT)
    page.note(SECOND, NOTED)
    page.drop(KEY)
    page.close()
    assert path.read_bytes() == before


def test_a_kernel_that_does_not_say_its_boot_is_not_believed(path: Path) -> None:
    page = ProgressPage(path, bytes(16))
    page.begin({KEY: NOTED})
    assert not ProgressPage(killed(path), bytes(16)).is_believed
    page.close()
    assert ProgressPage(path, bytes(16)).is_believed


def test_a_dropped_cursor_is_not_found_and_its_room_is_used_again(path: Path) -> None:
    page = begun(path, {KEY: NOTED})
    page.drop(KEY)
    page.drop(KEY)
    assert ProgressPage(killed(path), BOOT).found == {}
    size = path.stat().st_size
    for number in range(2000):
        page.note((1, 1, number), NOTED)
        page.drop((1, 1, number))
    assert path.stat().st_size == size
    page.close()


@pytest.mark.parametrize("count", [1, 407, 408, 409, 5000])
def test_it_grows_with_the_cursors(path: Path, count: int) -> None:
    page = begun(path)
    expected = {(1, 2, queue): Page(queue, queue, queue) for queue in range(count)}
    for key, each in expected.items():
        page.note(key, each)
    assert ProgressPage(killed(path), BOOT).found == expected
    again = begun(killed(path), expected)
    assert ProgressPage(killed(path), BOOT).found == expected
    again.close()
    page.close()


def test_the_bytes_are_pinned(path: Path) -> None:
    page = begun(path, {KEY: NOTED})
    content = path.read_bytes()
    header = b"HFGP" + bytes.fromhex("01000000") + BOOT
    slot = bytes.fromhex("070000000300000001000000809245072900000000000000")
    slot += struct.pack("<Q", 1_700_000_030_000)
    assert content[:64] == (header + struct.pack("<I", crc32c(header))).ljust(64, b"\0")
    assert content[64:104] == slot + struct.pack("<I", crc32c(slot)) + bytes(4)
    assert content[104:] == bytes(16 * 1024 - 104)
    page.close()
    assert path.read_bytes()[6] == 1


def test_a_slot_that_was_being_written_is_not_found(path: Path) -> None:
    page = begun(path, {KEY: NOTED, SECOND: Page(1, 2, 3)})
    before = killed(path).read_bytes()
    page.note(KEY, Page(NOTED.epoch + 1, 1 << 40, 1))
    after = killed(path).read_bytes()
    page.close()
    for cut in range(64, 104):
        path.write_bytes(after[:cut] + before[cut:])
        found = ProgressPage(path, BOOT).found
        assert found.pop(SECOND) == Page(1, 2, 3)
        if before[:cut] == after[:cut]:
            assert found == {KEY: NOTED}
        elif before[cut:104] == after[cut:104]:
            assert found == {KEY: Page(NOTED.epoch + 1, 1 << 40, 1)}
        else:
            assert found == {}


def test_a_damaged_header_or_a_short_file_says_nothing(path: Path) -> None:
    begun(path, {KEY: NOTED}).close()
    good = path.read_bytes()
    flipped = [good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :] for at in range(64)]
    for content in [*flipped, *(good[:size] for size in range(64))]:
        path.write_bytes(content)
        page = ProgressPage(path, BOOT)
        assert not page.is_believed
        assert page.found == {}
    for size in range(64, 104):
        path.write_bytes(good[:size])
        assert ProgressPage(path, BOOT).found == {}


def test_a_flipped_bit_in_a_slot_hides_that_cursor(path: Path) -> None:
    begun(path, {KEY: NOTED, SECOND: NOTED}).close()
    good = path.read_bytes()
    for at in range(64, 100):
        path.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        assert ProgressPage(path, BOOT).found == {SECOND: NOTED}


def test_on_a_full_disk_nothing_is_noted_and_nothing_fails(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(path, {KEY: NOTED}).close()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    page = begun(path, {KEY: NOTED})
    page.note(SECOND, NOTED)
    page.drop(SECOND)
    page.close()
    assert ProgressPage(path, BOOT).found == {}
    monkeypatch.undo()
    page = begun(path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    for queue in range(500):
        page.note((1, 1, queue), NOTED)
    assert ProgressPage(killed(path), BOOT).found == {(1, 1, each): NOTED for each in range(408)}
    page.close()


def test_the_kernel_tells_one_boot_from_another() -> None:
    assert len(kernel_boot_id()) == 16
    assert kernel_boot_id() == kernel_boot_id()
