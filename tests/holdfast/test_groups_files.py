"""Groups with leases in a data directory: opened with it, checked, repaired, backed up."""

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import lmdb
import pytest

from holdfast.backup.create import make_backup
from holdfast.backup.restore import restore_backup
from holdfast.backup.source import StateGrows, copy_cursors, live_cursors
from holdfast.backup.stored import read_manifest
from holdfast.check import CheckReport, check_data_dir
from holdfast.cli.exits import Failure, failure_of
from holdfast.groups.cursor.cursor import Cursor, End
from holdfast.groups.cursor.heads import Head
from holdfast.groups.cursor.rows import key_prefix, take_writes
from holdfast.groups.settings import Subscription
from holdfast.groups.storage.cursor_store import has_rows
from holdfast.groups.storage.group_records import GroupRecord
from holdfast.repair import repair_data_dir
from holdfast.storage.storage import Storage
from tests.support.storage.stored import batch, open_storage, small_config

KEY = (1, 1, 0)


async def put_group(storage: Storage, name: str = "g") -> None:
    """Store a new group on topic `t` as the group service does."""
    groups = storage.groups
    topic_id = storage.store.table.get("t").topic_id
    group = GroupRecord(name, groups.table.next_group_id, topics={topic_id: Subscription()})
    changes = groups.table.changes_of(group)
    await storage.store.state.commit(changes)
    groups.table.mark_stored(group, changes)


def settle(storage: Storage, cursor: Cursor, *offsets: int) -> None:
    """Deliver up to the last of these offsets and settle them."""
    for offset in range(cursor.next, max(offsets) + 1):
        cursor.lease([Head(offset)], "m", 1, 0, 1)
    for offset in offsets:
        cursor.finish(offset, End.ACKED)
    is_durable = threading.Event()

    def done(error: Exception | None) -> None:
        assert error is None
        is_durable.set()

    storage.groups.store.commit(take_writes(cursor, key_prefix(*KEY)), done)
    assert is_durable.wait(20)
    storage.groups.page.note(KEY, cursor)
    storage.groups.page.write()


@pytest.fixture
async def data_dir(tmp_path: Path) -> Path:
    """A directory with a group that has settled offsets 0, 1 and 4 of ten messages."""
    path = tmp_path / "data"
    async with open_storage(small_config(path)) as storage:
        topic, _ = await storage.store.topics.create("t", queues=1)
        for number in range(10):
            await storage.store.publishing.publish(topic, [batch(f"body {number}", 0)])
        await put_group(storage)
    async with open_storage(small_config(path)) as storage:
        settle(storage, storage.groups.cursors[KEY], 0, 1, 4)
    return path


async def cursor_of(path: Path) -> tuple[int, bool, int]:
    """Open the directory; return the floor, whether offset 4 is settled, and the epoch."""
    async with open_storage(small_config(path)) as storage:
        cursor = storage.groups.cursors[KEY]
        return cursor.floor, 4 in cursor.done, cursor.epoch


def kinds(report: CheckReport) -> list[tuple[str, bool]]:
    return [(finding.kind, finding.damage) for finding in report.findings]


def damage(directory: Path, table: bytes) -> None:
    env = lmdb.open(str(directory), map_size=1 << 24)
    with env.begin(write=True) as txn:
        for key in [bytes(key) for key, _ in txn.cursor() if key.startswith(table)]:
            txn.put(key, b"damaged")
    env.close()


async def test_cursors_and_the_receipt_key_survive_a_restart(data_dir: Path) -> None:
    async with open_storage(small_config(data_dir)) as storage:
        groups = storage.groups
        key = groups.table.receipt_key
        assert groups.boot == 3
        cursor = groups.cursors[KEY]
        assert (cursor.floor, cursor.next, 4 in cursor.done) == (2, 5, True)
        assert storage.degraded == []
    async with open_storage(small_config(data_dir)) as storage:
        assert storage.groups.table.receipt_key == key
        assert storage.groups.table.next_group_id == 2


async def test_a_lost_state_keeps_groups_and_cursors(data_dir: Path) -> None:
    before = await cursor_of(data_dir)
    (data_dir / "state" / "data.mdb").unlink()
    assert await cursor_of(data_dir) == before


async def test_a_damaged_state_is_moved_without_the_cursors(data_dir: Path) -> None:
    before = await cursor_of(data_dir)
    (data_dir / "state" / "data.mdb").write_bytes(b"no environment" * 1000)
    assert await cursor_of(data_dir) == before
    (aside,) = data_dir.glob("state.corrupt-*")
    assert {path.name for path in aside.iterdir()} == {"data.mdb", "lock.mdb"}


@pytest.mark.parametrize("lost", ["state", "state/groups"])
async def test_lost_cursors_start_at_the_stored_offsets(data_dir: Path, lost: str) -> None:
    async with open_storage(small_config(data_dir)) as storage:
        await storage.store.offsets.store_offsets("g", storage.store.table.get("t"), {0: 1})
    shutil.rmtree(data_dir / lost)
    async with open_storage(small_config(data_dir)) as storage:
        cursor = storage.groups.cursors[KEY]
        assert (cursor.floor, 4 in cursor.done) == (1, False)
        assert [fault.reason for fault in storage.degraded] == ["damaged-groups"]


async def test_cursors_of_a_deleted_topic_are_deleted_at_a_start(data_dir: Path) -> None:
    async with open_storage(small_config(data_dir)) as storage:
        await storage.store.topics.delete("t")
    async with open_storage(small_config(data_dir)) as storage:
        assert storage.groups.cursors == {}
        assert storage.groups.store.load().cursors == {}


# -- check and repair ----------------------------------------------------------------------


def test_a_sound_directory_with_groups_has_no_findings(data_dir: Path) -> None:
    report = check_data_dir(data_dir)
    assert report.findings == []
    assert report.groups == 1


@pytest.mark.parametrize("table", [b"\1", b"\2"])
async def test_a_repair_deletes_damaged_rows(data_dir: Path, table: bytes) -> None:
    damage(data_dir / "state" / "groups", table)
    report = check_data_dir(data_dir)
    assert kinds(report) == [("groups-row", True)]
    assert "group g on queue 0 of 't'" in report.findings[0].what
    repaired = repair_data_dir(data_dir, accept_loss=False)
    assert repaired.loss.is_nothing
    assert repaired.is_sound
    assert check_data_dir(data_dir).findings == []
    floor, has_fourth, _ = await cursor_of(data_dir)
    assert (floor, has_fourth) == ((2, False) if table == b"\2" else (0, False))


async def test_a_repair_moves_an_unusable_environment(data_dir: Path) -> None:
    (data_dir / "state" / "groups" / "data.mdb").write_bytes(b"no environment" * 1000)
    assert kinds(check_data_dir(data_dir)) == [("groups-damaged", True)]
    repaired = repair_data_dir(data_dir, accept_loss=False)
    assert repaired.is_sound
    assert repaired.copies is not None
    assert (repaired.copies / "state" / "groups" / "data.mdb").exists()
    assert kinds(check_data_dir(data_dir)) == [("groups-missing", False)]
    assert (await cursor_of(data_dir))[0] == 0


async def test_a_cursor_beyond_the_log_is_reset_by_the_next_start(data_dir: Path) -> None:
    async with open_storage(small_config(data_dir)) as storage:
        cursor = storage.groups.cursors[KEY]
        cursor.end = 20  # as after a power loss that removed later messages
        settle(storage, cursor, 15)
    assert kinds(check_data_dir(data_dir)) == [("groups-beyond-log", False)]
    before = cursor.epoch
    assert (await cursor_of(data_dir))[2] > before
    assert check_data_dir(data_dir).findings == []


def found_beside(data_dir: Path) -> list[tuple[str, str, str]]:
    """Check while a broker runs and return the findings.

    It uses another process, because LMDB can open an environment only once per process.
    """
    command = [sys.executable, "-m", "holdfast", "check", str(data_dir), "--live"]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [(row["kind"], row["finding"], row["what"]) for row in rows if "finding" in row]


DAMAGE_BESIDE = """
import sys
from pathlib import Path
from tests.holdfast.test_groups_files import damage
damage(Path(sys.argv[1]), bytes([2]))
"""


async def test_cursors_are_checked_while_a_broker_runs(data_dir: Path) -> None:
    groups = data_dir / "state" / "groups"
    async with open_storage(small_config(data_dir)) as storage:
        assert await asyncio.to_thread(found_beside, data_dir) == []
        cursor = storage.groups.cursors[KEY]
        cursor.end = 20
        settle(storage, cursor, 15)
        ((kind, finding, what),) = await asyncio.to_thread(found_beside, data_dir)
        assert (kind, finding) == ("note", "groups-beyond-log")
        assert "group g on queue 0 of 't' has settled messages at or after offset 10" in what
        subprocess.run([sys.executable, "-c", DAMAGE_BESIDE, str(groups)], check=True)
        ((kind, finding, what),) = await asyncio.to_thread(found_beside, data_dir)
        assert (kind, finding) == ("damage", "groups-row")
        assert what.startswith("rows of group g on queue 0 of 't' are damaged")


# -- backups -------------------------------------------------------------------------------


async def test_a_backup_of_a_running_broker_has_cursors_and_voids_receipts(
    data_dir: Path, tmp_path: Path
) -> None:
    async with open_storage(small_config(data_dir)) as storage:
        cursor = storage.groups.cursors[KEY]
        settle(storage, cursor, 6)
        # Another process: LMDB can open an environment only once per process.
        program = "import sys; from pathlib import Path; from holdfast.backup.create import *\n"
        program += "assert not make_backup(Path(sys.argv[1]), Path(sys.argv[2])).notes"
        arguments = [sys.executable, "-c", program, str(data_dir), str(tmp_path / "backup")]
        subprocess.run(arguments, check=True)
        settle(storage, cursor, 2, 3)
    backup = tmp_path / "backup"
    assert [file.name for file in read_manifest(backup).of_role("groups")] == [
        "state/groups/data.mdb"
    ]
    assert check_data_dir(backup).findings == []
    restore_backup(backup, tmp_path / "restored")
    assert check_data_dir(tmp_path / "restored").is_sound
    floor, has_fourth, epoch = await cursor_of(tmp_path / "restored")
    assert (floor, has_fourth) == (2, True)
    assert epoch > cursor.epoch
    assert (await cursor_of(tmp_path / "restored"))[2] == epoch


async def test_damaged_rows_of_a_backup_are_found(data_dir: Path, tmp_path: Path) -> None:
    damage(data_dir / "state" / "groups", b"\1")
    make_backup(data_dir, tmp_path / "backup")
    assert kinds(check_data_dir(tmp_path / "backup")) == [("groups-row", True)]


async def test_a_backup_is_made_without_an_unusable_environment(
    data_dir: Path, tmp_path: Path
) -> None:
    (data_dir / "state" / "groups" / "data.mdb").write_bytes(b"no environment" * 1000)
    report = make_backup(data_dir, tmp_path / "backup")
    assert [note.partition(":")[0] for note in report.notes] == ["state/groups"]
    assert list(read_manifest(tmp_path / "backup").of_role("groups")) == []
    restore_backup(tmp_path / "backup", tmp_path / "restored")
    assert (await cursor_of(tmp_path / "restored"))[0] == 0


async def test_an_incremental_backup_has_only_the_newest_cursors(
    data_dir: Path, tmp_path: Path
) -> None:
    make_backup(data_dir, tmp_path / "backup")
    async with open_storage(small_config(data_dir)) as storage:
        settle(storage, storage.groups.cursors[KEY], 2)
    make_backup(data_dir, tmp_path / "backup", incremental=True)
    assert len(list((tmp_path / "backup").glob("groups-*"))) == 1
    restore_backup(tmp_path / "backup", tmp_path / "restored")
    assert (await cursor_of(tmp_path / "restored"))[0] == 3


async def test_a_backup_without_groups_has_no_file_for_them(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path / "data")) as storage:
        await storage.store.topics.create("t")
    make_backup(tmp_path / "data", tmp_path / "backup")
    assert list(read_manifest(tmp_path / "backup").of_role("groups")) == []
    assert not list((tmp_path / "backup").glob("groups-*"))


@pytest.mark.parametrize("failures", [2, 1000])
def test_cursors_are_copied_completely_while_their_map_grows(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    def resized(transaction: "lmdb.Transaction[bytes]") -> bool:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise lmdb.MapResizedError("enlarged")
        return has_rows(transaction)

    monkeypatch.setattr("holdfast.backup.source.has_rows", resized)
    cursors, target = data_dir / "state" / "groups", tmp_path / "copy"
    target.mkdir()
    if failures > 2:
        for read in (lambda: copy_cursors(cursors, target), lambda: live_cursors(cursors)):
            with pytest.raises(StateGrows, match="try again when it stores less"):
                read()
        assert isinstance(failure_of(StateGrows(cursors)), Failure)
        return
    assert copy_cursors(cursors, target)
    assert live_cursors(target) == live_cursors(cursors)
