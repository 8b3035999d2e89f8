"""The page: it has the last record or nothing, and is valid only in its own boot or if closed in
order."""

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.commitlog.format.checksum import crc32c
from holdfast.groups.cursor.cursor import Cursor, CursorKey, End
from holdfast.groups.cursor.heads import Head
from holdfast.groups.cursor.leases import Grant
from holdfast.groups.cursor.page_records import Progress
from holdfast.groups.storage import progress_page
from holdfast.groups.storage.progress_page import ProgressPage, kernel_boot_id

BOOT, OTHER_BOOT = bytes(range(1, 17)), bytes(range(2, 18))
KEY, SECOND = (7, 3, 1), (7, 3, 2)
END_MS = 1_700_000_030_000


_begun: list[ProgressPage] = []


def begun(path: Path, cursors: dict[CursorKey, Cursor] | None = None) -> ProgressPage:
    """Begin a page. It is closed after the test."""
    _begun.append(ProgressPage(path, BOOT))
    _begun[-1].begin({} if cursors is None else cursors)
    return _begun[-1]


@pytest.fixture(autouse=True)
def close_pages() -> Iterator[None]:
    yield
    while _begun:
        _begun.pop().close()


def killed(path: Path) -> Path:
    """Return a copy of the file as a kill at this moment leaves it."""
    return Path(shutil.copy(path, path.with_suffix(".killed")))


def found(path: Path, boot_id: bytes = BOOT) -> dict[CursorKey, Progress]:
    """Return the progress of each cursor in a file that has one epoch per cursor."""
    epochs = ProgressPage(path, boot_id).found
    return {key: progress for key, (progress,) in ((k, v.values()) for k, v in epochs.items())}


def noted(path: Path, key: CursorKey = KEY) -> list[tuple[int, int, str, int]]:
    """Return (offset, lease number, member, end) of the leases that a file records."""
    leases = found(path)[key].leases.values()
    return sorted((each.head.offset, each.number, each.member, each.deadline_ms) for each in leases)


def new_cursor(*offsets: int, member: str = "m", end_ms: int = END_MS) -> Cursor:
    cursor = Cursor(boot=1, end=1_000_000, epoch=122_000_000)
    if offsets:
        lease(cursor, *offsets, member=member, end_ms=end_ms)
    return cursor


def lease(cursor: Cursor, *offsets: int, member: str = "m", end_ms: int = END_MS) -> None:
    cursor.lease([Head(each) for each in offsets], member, end_ms, end_ms - 30_000, 1)


def note(page: ProgressPage, cursor: Cursor, key: CursorKey = KEY) -> None:
    page.note(key, cursor)
    page.write()


def take_ended(cursor: Cursor) -> list[Grant]:
    """Return the records that become useless when the changes up to now are durable."""
    grants, cursor.leases.ended_grants = cursor.leases.ended_grants, []
    return grants


def expected(cursor: Cursor) -> list[tuple[int, int, str, int]]:
    return sorted((e.head.offset, e.number, e.member, e.deadline_ms) for e in cursor.leases)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "groups.page"


def test_each_lease_outlives_a_kill_with_its_own_end(path: Path) -> None:  # R1
    cursor, other = new_cursor(), new_cursor(9)
    page = begun(path, {KEY: cursor, SECOND: other})
    lease(cursor, 1, 2, 3, 7)
    lease(cursor, 4, end_ms=END_MS + 9, member="another")
    note(page, cursor)
    lease(cursor, 20, 21)
    note(page, cursor)
    assert ProgressPage(killed(path), BOOT).is_trusted
    assert noted(killed(path)) == expected(cursor)
    assert noted(killed(path), SECOND) == expected(other)
    assert found(killed(path))[KEY].next == 22


def test_an_extended_lease_has_its_last_end(path: Path) -> None:
    cursor = new_cursor(1, 2, 3)
    page = begun(path, {KEY: cursor})
    for end_ms in (END_MS + 5_000, END_MS + 9_000, END_MS - 1_000):
        leased = cursor.leases.get(2)
        assert leased is not None
        cursor.extend(leased, end_ms)
        note(page, cursor)
        assert noted(killed(path)) == expected(cursor)


def test_records_contain_heads_if_keys_or_times_matter(path: Path) -> None:
    cursor = new_cursor()
    page = begun(path, {KEY: cursor})
    heads = [Head(1, 20, 1 << 32 | 5, 0), Head(3, 21, 0, 77)]
    cursor.lease(heads, "m", END_MS, END_MS - 1, 1, "once")
    note(page, cursor)
    leases = found(killed(path))[KEY].leases
    assert [each.head for each in leases.values()] == heads
    assert {each.attempt_id for each in leases.values()} == {"once"}


def test_a_file_does_not_grow_with_ended_leases(path: Path) -> None:
    cursor = new_cursor()
    page = begun(path, {KEY: cursor})
    size = path.stat().st_size
    for offset in range(0, 30_000, 3):
        lease(cursor, offset, offset + 1)
        note(page, cursor)
        cursor.finish(offset, End.ACKED)
        cursor.finish(offset + 1, End.ACKED)
        page.free(take_ended(cursor))
    assert path.stat().st_size == size
    assert found(killed(path))[KEY].next == 29_999


def test_the_room_of_a_lease_is_not_used_before_its_end_is_durable(path: Path) -> None:
    """A returned message may be leased again in memory: the page must record that until a row
    does."""
    cursor = new_cursor()
    page = begun(path, {KEY: cursor})
    lease(cursor, 5)
    note(page, cursor)
    live = cursor.leases.get(5)
    assert live is not None
    cursor.give_back(5, End.RELEASED, live.number)
    for offset in range(6, 50):
        lease(cursor, offset)
        note(page, cursor)
    assert 5 in found(killed(path))[KEY].leases


def test_a_record_is_kept_until_all_ends_of_its_leases_are_durable(path: Path) -> None:
    """This also holds if the other leases of the record were extended into another record."""
    cursor, other = new_cursor(), new_cursor()
    page = begun(path, {KEY: cursor, SECOND: other})
    lease(cursor, 5, 6)
    note(page, cursor)
    cursor.finish(5, End.ACKED)
    left = cursor.leases.get(6)
    assert left is not None
    cursor.extend(left, END_MS + 5_000)
    for _ in range(2):
        note(page, cursor)
    for offset in range(4):
        lease(other, offset)
        note(page, other, SECOND)
    assert sorted(found(killed(path))[KEY].leases) == [5, 6]
    page.free(take_ended(cursor))
    for offset in range(4, 8):
        lease(other, offset)
        note(page, other, SECOND)
    assert noted(killed(path)) == expected(cursor)


@pytest.mark.parametrize("is_ack_in_flight", [False, True])
def test_a_seek_that_is_not_durable_leaves_the_records_of_the_epoch_before(
    path: Path, is_ack_in_flight: bool
) -> None:
    """Until the commit the rows belong to the old epoch, and only its records contain the leases.

    This also holds if the commit of the end of their last lease is in flight at the seek.
    """
    cursor, other = new_cursor(), new_cursor()
    page = begun(path, {KEY: cursor, SECOND: other})
    lease(cursor, 5)
    note(page, cursor)
    cursor.finish(5, End.ACKED)
    acked = take_ended(cursor)
    if not is_ack_in_flight:
        page.free(acked)
    before = cursor.epoch
    for _ in range(2):
        cursor.seek(0)
        note(page, cursor)
    sought = take_ended(cursor)
    if is_ack_in_flight:
        page.free(acked)
    for offset in range(50):
        lease(other, offset)
        note(page, other, SECOND)
    epochs = ProgressPage(killed(path), BOOT).found[KEY]
    assert epochs[before].next == 6
    assert epochs[cursor.epoch].next == 0
    page.free(sought)
    for number in range(4):
        note(page, new_cursor(), (1, 1, number))
        note(page, new_cursor(5), (1, 2, number))
    assert list(ProgressPage(killed(path), BOOT).found[KEY]) == [cursor.epoch]


def test_how_far_deliveries_went_outlives_the_leases(path: Path) -> None:
    cursor = new_cursor()
    page = begun(path, {KEY: cursor})
    cursor.reach(40)  # settled when sent: no lease
    note(page, cursor)
    assert found(killed(path))[KEY].next == 41
    lease(cursor, 41)
    note(page, cursor)
    cursor.finish(41, End.ACKED)
    page.free(cursor.leases.ended_grants)
    assert found(killed(path))[KEY].next == 42


_NOTER = """
import sys
from pathlib import Path
from holdfast.groups.cursor.cursor import Cursor, End
from holdfast.groups.cursor.heads import Head
from holdfast.groups.storage.progress_page import ProgressPage, kernel_boot_id

page = ProgressPage(Path(sys.argv[1]), kernel_boot_id())
cursors = [Cursor(boot=1, end=1 << 40) for _ in range(2)]
page.begin({(1, 1, queue): cursor for queue, cursor in enumerate(cursors)})
number = 0
while True:
    number += 1
    for queue, cursor in enumerate(cursors):
        cursor.lease([Head(number)], "m" * (number % 100), number, 0, 1)
        page.note((1, 1, queue), cursor)
        page.write()
        cursor.finish(number, End.ACKED)
        page.free(cursor.leases.ended_grants)
        cursor.leases.ended_grants = []
    if number % 1000 == 0:
        print(number, flush=True)
"""


def test_a_killed_process_leaves_its_records(path: Path) -> None:
    for lines in (1, 5, 2):
        child = subprocess.Popen([sys.executable, "-c", _NOTER, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        last = [int(child.stdout.readline()) for _ in range(lines)][-1]
        child.kill()
        child.wait()
        child.stdout.close()
        page = ProgressPage(path, kernel_boot_id())
        assert page.is_trusted
        assert len(page.found) == 2
        for epochs in page.found.values():
            assert epochs[1].next > last
            assert last <= max(epochs[1].leases)


def test_a_page_from_before_a_reboot_is_read_but_not_trusted(path: Path) -> None:
    cursor = new_cursor(5)
    begun(path, {KEY: cursor})
    assert not ProgressPage(killed(path), OTHER_BOOT).is_trusted
    assert noted(killed(path)) == expected(cursor)


def test_a_page_that_was_closed_cleanly_is_trusted_after_a_reboot(path: Path) -> None:
    cursor = new_cursor()
    page = begun(path, {KEY: cursor})
    lease(cursor, 5)
    note(page, cursor)
    page.close()
    page.close()
    again = ProgressPage(path, OTHER_BOOT)
    assert again.is_trusted
    assert noted(path) == expected(cursor)
    # It is not valid if it was begun again and the machine then fails.
    again.begin({})
    assert not ProgressPage(killed(path), BOOT).is_trusted
    again.close()


def test_a_page_that_was_not_begun_is_not_changed(path: Path) -> None:
    begun(path, {KEY: new_cursor(5)}).close()
    before = path.read_bytes()
    page = ProgressPage(path, OTHER_BOOT)
    note(page, new_cursor(6), SECOND)
    page.drop(KEY)
    page.write()
    page.close()
    assert path.read_bytes() == before


def test_a_page_without_a_boot_id_is_not_trusted(path: Path) -> None:
    page = ProgressPage(path, bytes(16))
    page.begin({})
    assert not ProgressPage(killed(path), bytes(16)).is_trusted
    page.close()
    assert ProgressPage(path, bytes(16)).is_trusted


def test_a_dropped_cursor_is_not_found_and_its_room_is_used_again(path: Path) -> None:
    page = begun(path, {KEY: new_cursor(5, 9)})
    for _ in range(2):
        page.drop(KEY)
        page.write()
    assert found(killed(path)) == {}
    size = path.stat().st_size
    for number in range(2000):
        note(page, new_cursor(5, 9), (1, 1, number))
        page.drop((1, 1, number))
        page.write()
    assert path.stat().st_size == size
    assert found(killed(path)) == {}


@pytest.mark.parametrize("count", [1, 1022, 1023, 1024, 5000])
def test_it_grows_with_the_cursors(path: Path, count: int) -> None:
    page = begun(path)
    cursors = {(1, 2, queue): Cursor(boot=1, floor=queue) for queue in range(count)}
    for key, each in cursors.items():
        note(page, each, key)
    assert path.stat().st_size == max(1 << 16, 1 << (64 * count + 63).bit_length())
    says = {key: (each.epoch, each.next) for key, each in found(killed(path)).items()}
    assert says == {key: (1, each.next) for key, each in cursors.items()}


def test_the_bytes_are_pinned(path: Path) -> None:
    cursor = new_cursor()
    cursor.lease([Head(40), Head(41)], "anna", END_MS, END_MS - 30_000, 1, "x")
    page = begun(path, {KEY: cursor})
    content = path.read_bytes()
    header = b"HFPG" + bytes.fromhex("02000000") + BOOT
    assert content[:64] == (header + struct.pack("<I", crc32c(header))).ljust(64, b"\0")
    record = struct.pack(
        "<IIIIIQQQQHHBBH", 93, 7, 3, 1, 122_000_000, 1, 42, END_MS, END_MS - 30_000, 1, 0, 4, 1, 0
    )
    record += struct.pack("<QQII", 40, (1 << 40) + 1, 2, 1) + b"annax"
    assert content[64:157] == struct.pack("<I", crc32c(record)) + record
    assert content[157:] == bytes(64 * 1024 - 157)
    page.close()
    assert path.read_bytes()[6] == 1


def test_a_record_that_was_being_written_is_not_found(path: Path) -> None:
    cursor = new_cursor(5)
    page = begun(path, {KEY: cursor, SECOND: new_cursor(6)})
    before = path.read_bytes()
    lease(cursor, 8)
    note(page, cursor)
    after = path.read_bytes()
    page.close()
    changed = [at for at in range(len(after)) if before[at] != after[at]]
    for cut in range(changed[0], changed[-1] + 2):
        path.write_bytes(after[:cut] + before[cut:])
        is_whole = cut > changed[-1]
        assert sorted(found(path)[KEY].leases) == ([5, 8] if is_whole else [5])
        assert sorted(found(path)[SECOND].leases) == [6]


def test_a_damaged_header_or_a_short_file_has_no_records(path: Path) -> None:
    begun(path, {KEY: new_cursor(5)}).close()
    good = path.read_bytes()
    flipped = [good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :] for at in range(28)]
    for content in [*flipped, *(good[:size] for size in range(64))]:
        path.write_bytes(content)
        page = ProgressPage(path, BOOT)
        assert not page.is_trusted
        assert page.found == {}
    for size in range(64, 64 + 89):
        path.write_bytes(good[:size])
        assert found(path) == {}


def test_a_flipped_bit_in_a_record_hides_it(path: Path) -> None:
    begun(path, {KEY: new_cursor(5), SECOND: new_cursor(6)}).close()
    good = path.read_bytes()
    for at in range(64, 64 + 89):
        path.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        assert list(found(path)) == [SECOND]


def _full(*args: object) -> None:
    raise OSError(28, "No space left on device")


def test_on_a_full_disk_the_page_is_void_until_there_is_room(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_page, "RETRY_S", 0.0)
    cursor = new_cursor(5)
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", _full)
        page = begun(path, {KEY: cursor})
        lease(cursor, 8)
        note(page, cursor)
        assert not ProgressPage(killed(path), BOOT).is_trusted
    lease(cursor, 9)
    note(page, cursor)
    assert ProgressPage(killed(path), BOOT).is_trusted
    assert noted(killed(path)) == expected(cursor)


def test_a_page_that_cannot_grow_is_void_until_it_can(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_page, "RETRY_S", 0.0)
    page = begun(path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", _full)
        for queue in range(1024):
            note(page, new_cursor(), (1, 1, queue))
        assert not ProgressPage(killed(path), BOOT).is_trusted
    note(page, new_cursor(), (1, 1, 1024))
    assert len(found(killed(path))) == 1025


@pytest.mark.parametrize("size", [None, 0, 64, 100, 4096])
def test_a_page_that_is_cut_or_deleted_while_it_is_used_is_made_again(  # D5
    path: Path, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_page, "RETRY_S", 0.0)
    cursor = new_cursor(*range(0, 400, 2))
    page = begun(path, {KEY: cursor})
    if size is None:
        path.unlink()
    else:
        os.truncate(path, size)
    lease(cursor, 1001)
    note(page, cursor)
    assert size is None or not ProgressPage(killed(path), BOOT).is_trusted
    page.write()
    assert ProgressPage(killed(path), BOOT).is_trusted
    assert noted(killed(path)) == expected(cursor)
    page.close()
    assert noted(path) == expected(cursor)


def test_the_kernel_provides_a_boot_id() -> None:
    assert len(kernel_boot_id()) == 16
    assert kernel_boot_id() == kernel_boot_id()
