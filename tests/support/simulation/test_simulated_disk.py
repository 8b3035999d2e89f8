"""The simulated disk must lose what Linux may lose. Otherwise no crash test is meaningful."""

import errno
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.commitlog.disk.disk import Disk, File, LinuxDisk
from tests.support.simulation.simulated_disk import PAGE_BYTES, SECTOR_BYTES, SimulatedDisk

DIRECTORY = Path("/simulated")
PATH = DIRECTORY / "file"
SIZE = 16 * PAGE_BYTES


def _file(disk: Disk, path: Path = PATH) -> File:
    """Create a durable file; only later writes to it are not durable."""
    file = disk.create(path.with_suffix(".new"), SIZE)
    file.sync()
    disk.rename(path.with_suffix(".new"), path)
    return file


def _crashes(disk: SimulatedDisk, count: int = 50) -> list[SimulatedDisk]:
    """Return many possible disks after the same crash."""
    return [disk.crash(random.Random(seed)) for seed in range(count)]


# -- behaviour that both disks share --------------------------------------------------------------


@pytest.fixture(params=[SimulatedDisk, LinuxDisk])
def disk(request: pytest.FixtureRequest) -> Disk:
    made: Disk = request.param()
    return made


def test_written_bytes_are_read(disk: Disk, tmp_path: Path) -> None:
    file = _file(disk, tmp_path / "file")
    file.write([b"one", b"two"], 5)
    assert file.read(10, 3) == b"\0\0onetwo\0\0"
    assert file.read(10, SIZE - 4) == bytes(4)
    assert file.read(10, SIZE) == b""
    assert file.read_nowait(6, 5) in (b"onetwo", None)
    assert file.read_nowait(10, SIZE - 4) is None
    assert file.size() == SIZE


def test_names_follow_create_rename_and_remove(disk: Disk, tmp_path: Path) -> None:
    _file(disk, tmp_path / "b")
    _file(disk, tmp_path / "a")
    assert disk.names(tmp_path) == ["a", "b"]
    disk.rename(tmp_path / "a", tmp_path / "c")
    disk.remove(tmp_path / "b")
    disk.remove(tmp_path / "b")
    assert disk.names(tmp_path) == ["c"]
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "a")
    with pytest.raises(FileExistsError):
        disk.create(tmp_path / "c", SIZE)


def test_a_removed_file_stays_readable_while_open(disk: Disk, tmp_path: Path) -> None:
    file = _file(disk, tmp_path / "file")
    file.write([b"kept"], 0)
    disk.remove(tmp_path / "file")
    assert file.read(4, 0) == b"kept"
    file.close()
    file.close()


def test_the_end_of_the_data_is_found_by_pages(disk: Disk, tmp_path: Path) -> None:
    file = _file(disk, tmp_path / "file")
    file.write([b"x"], 3 * PAGE_BYTES)
    file.sync()
    assert file.data_end(0) == 4 * PAGE_BYTES
    assert file.data_end(9 * PAGE_BYTES) == 9 * PAGE_BYTES


# -- power loss --------------------------------------------------------------------------------


def test_synced_bytes_survive_every_crash() -> None:
    disk = SimulatedDisk()
    file = _file(disk)
    file.write([b"x" * SIZE], 0)
    file.sync()
    for crashed in _crashes(disk):
        assert crashed.open(PATH).read(SIZE, 0) == b"x" * SIZE


def test_unsynced_bytes_are_kept_or_lost_by_sectors() -> None:
    disk = SimulatedDisk()
    file = _file(disk)
    file.write([b"x" * SIZE], 0)
    found = [crashed.open(PATH).read(SIZE, 0) for crashed in _crashes(disk)]
    sectors = [
        [image[at : at + SECTOR_BYTES] for at in range(0, SIZE, SECTOR_BYTES)] for image in found
    ]
    assert all(
        sector in (b"x" * SECTOR_BYTES, bytes(SECTOR_BYTES))
        for image in sectors
        for sector in image
    )
    pages = [image[at : at + PAGE_BYTES] for image in found for at in range(0, SIZE, PAGE_BYTES)]
    torn = [page for page in pages if page not in (b"x" * PAGE_BYTES, bytes(PAGE_BYTES))]
    assert torn, "no page was ever torn"
    assert any(image.count(0) == 0 for image in found), "everything never made it"
    assert any(image[: 8 * PAGE_BYTES].count(b"x") == 0 for image in found), "nothing was lost"


def test_the_same_seed_loses_the_same_bytes() -> None:
    disk = SimulatedDisk()
    _file(disk).write([b"x" * SIZE], 0)
    first, second = (disk.crash(random.Random(7)).open(PATH).read(SIZE, 0) for _ in range(2))
    assert first == second


def test_a_sync_does_not_cover_writes_after_its_start() -> None:
    disk = SimulatedDisk()
    file = _file(disk)
    file.write([b"before"], 0)
    disk.hold_syncs()
    syncing = threading.Thread(target=file.sync)
    syncing.start()
    disk.wait_for_held_sync()
    file.write([b"after!"], 0)
    file.write([b"elsewhere"], PAGE_BYTES)
    disk.release_syncs()
    syncing.join()
    found = {
        (image.read(6, 0), image.read(9, PAGE_BYTES))
        for image in (crashed.open(PATH) for crashed in _crashes(disk))
    }
    assert {start for start, _ in found} == {b"before", b"after!"}
    assert (b"before", bytes(9)) in found


def test_a_hole_left_by_a_crash_is_not_data() -> None:
    disk = SimulatedDisk()
    file = _file(disk)
    file.write([b"x"], 0)
    file.sync()
    file.write([b"x"], 5 * PAGE_BYTES)
    ends = {crashed.open(PATH).data_end(0) for crashed in _crashes(disk)}
    assert ends == {PAGE_BYTES, 6 * PAGE_BYTES}


def test_a_name_is_durable_only_once_its_directory_was_synced() -> None:
    disk = SimulatedDisk()
    disk.create(PATH, SIZE).sync()
    assert {tuple(crashed.names(DIRECTORY)) for crashed in _crashes(disk)} == {(), ("file",)}
    disk = SimulatedDisk()
    _file(disk)
    assert {tuple(crashed.names(DIRECTORY)) for crashed in _crashes(disk)} == {("file",)}


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda disk: disk.rename(PATH, DIRECTORY / "other"), {("file",), ("other",)}),
        (lambda disk: disk.remove(PATH), {("file",), ()}),
    ],
)
def test_a_crash_before_the_directory_sync_may_undo_names(
    change: Callable[[SimulatedDisk], None], left: set[tuple[str, ...]]
) -> None:
    disk = SimulatedDisk()
    _file(disk)
    disk.freeze_after(1)
    with pytest.raises(OSError, match="power"):
        change(disk)
    assert {tuple(crashed.names(DIRECTORY)) for crashed in _crashes(disk)} == left


def test_an_unsynced_file_may_have_no_room_after_a_crash() -> None:
    disk = SimulatedDisk()
    disk.create(PATH, SIZE)
    sizes = {crashed.open(PATH).size() for crashed in _crashes(disk) if crashed.names(DIRECTORY)}
    assert sizes == {0}


# -- the end of a process ----------------------------------------------------------------------


def test_a_kill_loses_nothing_and_makes_nothing_durable() -> None:
    disk = SimulatedDisk()
    file = _file(disk)
    file.write([b"written"], 0)
    killed = disk.kill()
    assert killed.open(PATH).read(7, 0) == b"written"
    found = {crashed.open(PATH).read(7, 0) for crashed in _crashes(killed)}
    assert found == {b"written", bytes(7)}


def test_a_dead_process_changes_nothing() -> None:
    disk = SimulatedDisk()
    file = _file(disk)
    survivor = disk.kill()
    for change in (
        lambda: file.write([b"late"], 0),
        file.sync,
        lambda: disk.create(DIRECTORY / "late", SIZE),
        lambda: disk.remove(PATH),
    ):
        with pytest.raises(OSError, match="power"):
            change()
    assert survivor.names(DIRECTORY) == ["file"]
    survivor.open(PATH).write([b"alive"], 0)
    assert file.read(5, 0) == bytes(5)


def test_the_power_can_fail_during_a_write() -> None:
    disk = SimulatedDisk()
    file = _file(disk)
    disk.freeze_after(1)
    file.write([b"a" * 8], 0)
    with pytest.raises(OSError, match=r".") as caught:
        file.write([b"b" * 8], 8)
    assert caught.value.errno == errno.EIO
    assert disk.frozen
    assert disk.kill().open(PATH).read(16, 0) == b"a" * 8 + b"b" * 4 + bytes(4)


def test_a_freeze_blocks_held_syncs() -> None:
    disk = SimulatedDisk()
    file = _file(disk)
    file.write([b"x" * SIZE], 0)
    disk.hold_syncs()
    failed = []

    def sync() -> None:
        try:
            file.sync()
        except OSError as error:
            failed.append(error)

    syncing = threading.Thread(target=sync)
    syncing.start()
    disk.wait_for_held_sync()
    disk.freeze()
    syncing.join()
    assert failed
    assert any(b"x" not in c.open(PATH).read(SIZE, 0) for c in _crashes(disk))


# -- errors on demand --------------------------------------------------------------------------


def test_a_failed_sync_marks_its_pages_as_clean() -> None:
    disk = SimulatedDisk()
    file = _file(disk)
    file.write([b"gone"], 0)
    disk.fail("sync")
    with pytest.raises(OSError, match=r".") as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    file.sync()  # it reports success wrongly, as the kernel does
    assert file.read(4, 0) == b"gone"
    assert {c.open(PATH).read(4, 0) for c in _crashes(disk)} == {bytes(4)}


def test_a_failing_write_may_write_a_part() -> None:
    disk = SimulatedDisk()
    file = _file(disk)
    disk.fail("write", after=1, share=0.5)
    file.write([b"whole"], 0)
    with pytest.raises(OSError, match=r"."):
        file.write([b"half"], 8)
    file.write([b"again"], 16)
    assert file.read(21, 0) == b"whole" + bytes(3) + b"ha" + bytes(6) + b"again"


def test_a_full_disk_refuses_a_file_and_leaves_nothing() -> None:
    disk = SimulatedDisk()
    file = _file(disk)
    disk.full = True
    with pytest.raises(OSError, match=r".") as caught:
        disk.create(DIRECTORY / "more", SIZE)
    assert caught.value.errno == errno.ENOSPC
    assert disk.names(DIRECTORY) == ["file"]
    file.write([b"room was allocated"], 0)
    disk.full = False
    disk.create(DIRECTORY / "more", SIZE)
