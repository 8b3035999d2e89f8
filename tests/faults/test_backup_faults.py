"""Backups of a broker under full load: interrupted, on full disks and through power losses.
TEST_BACKUPS sets the number of backups and of kills (default 3 each), TEST_SEED the moments."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.backup.create import make_backup
from holdfast.backup.manifest import NotABackup
from holdfast.backup.restore import restore_backup
from holdfast.backup.stored import read_manifest, verify_files
from holdfast.check import check_data_dir
from holdfast.client import Client
from holdfast.running_broker import RunningBroker
from tests.support.clients.broker_calls import fetch
from tests.support.damage.loop_volume import FILE_SYSTEMS, LoopVolume, loop_volume
from tests.support.damage.small_disk import MIB, SmallDisk
from tests.support.histories.history import History, check_history
from tests.support.histories.workload import ARGUMENTS, Workload, read_everything
from tests.support.histories.workload_clients import LoadTopic
from tests.support.storage.sound import assert_sound

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]

BACKUPS = int(os.environ.get("TEST_BACKUPS", "3"))
SEED = int(os.environ.get("TEST_SEED", "20261121"))


def backup_command(data_dir: Path, target: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "holdfast", "backup"),
        *("--data-dir", str(data_dir), str(target), "--incremental"),
    ]


def promised_so_far(topic: LoadTopic) -> History:
    """Return which messages of a topic were acknowledged or received until now."""
    with topic.history._lock:
        return History(acks=dict(topic.history.acks), seen=list(topic.history.seen))


def judge(restored: Path, promises: dict[str, tuple[LoadTopic, History]]) -> tuple[int, int]:
    """Start a broker on a restored backup; return the counts of promised and stored messages."""
    promised = stored = 0
    with RunningBroker(restored, ARGUMENTS) as broker, Client(broker.url) as client:
        ready = fetch(f"{broker.url}/readyz").json
        assert (ready["phase"], ready["degraded"]) == ("ready", [])
        for topic, history in promises.values():
            final, begins = read_everything(client, topic)
            # The backup may also contain messages that were sent since.
            history.sends = list(topic.history.sends)
            check_history(
                history, final, allow_duplicates=not topic.is_idempotent, min_offsets=begins
            )
            promised += len(history.acks)
            stored += len(final)
        groups = fetch(f"{broker.url}/v1/groups/consumers")
        ends = {
            state["queue"]: state["max_offset"]
            for state in client.describe_topic("durable")["queues"]
        }
        if groups.status == 200:
            path = f"{broker.url}/v1/groups/consumers/topics/durable/offsets"
            for queue, offset in fetch(path).json["offsets"].items():
                assert offset <= ends[int(queue)], "an offset behind what was backed up"
    return promised, stored


def test_backups_under_load_hold_all_that_was_acknowledged_before(tmp_path: Path) -> None:
    pause = random.Random(SEED)
    print(f"seed {SEED}, {BACKUPS} backups")
    data_dir, target = tmp_path / "data", tmp_path / "backup"
    promised = stored = reused = 0
    with RunningBroker(data_dir, ARGUMENTS) as broker, Workload(broker.url) as load:
        for number in range(BACKUPS):
            load.wait_for_more(200)
            time.sleep(pause.uniform(0, 0.3))  # let the load run until the backup begins
            promises = {topic.name: (topic, promised_so_far(topic)) for topic in load.topics}
            done = subprocess.run(
                backup_command(data_dir, target), capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            load.verify()
            assert_sound(data_dir, live=True)
            assert verify_files(target, read_manifest(target)) == []
            restored = tmp_path / f"restored-{number}"
            restore_backup(target, restored)
            assert_sound(restored)
            counts = judge(restored, promises)
            promised, stored = promised + counts[0], stored + counts[1]
            reused += '"reused_bytes":0' not in done.stdout
        load.pause()
        print(load.judge())
    print(f"{promised} promised over all backups, {stored} restored; {reused} reused segments")


def test_a_killed_backup_leaves_the_earlier_one_whole(tmp_path: Path) -> None:
    when = random.Random(SEED)
    print(f"seed {SEED}, {BACKUPS} kills")
    data_dir, target = tmp_path / "data", tmp_path / "backup"
    killed = 0
    with RunningBroker(data_dir, ARGUMENTS) as broker, Workload(broker.url) as load:
        load.wait_for_more(300)
        make_backup(data_dir, target)
        began = time.monotonic()
        subprocess.run(backup_command(data_dir, target), check=True, capture_output=True)
        takes_s = time.monotonic() - began
        for _ in range(BACKUPS):
            load.wait_for_more(200)
            earlier = read_manifest(target)
            # Kill only after the copying has begun: the start of Python takes the first half of the
            # time.
            process = subprocess.Popen(backup_command(data_dir, target), stdout=subprocess.DEVNULL)
            time.sleep(when.uniform(0.3, 1.0) * takes_s)
            process.send_signal(signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
            found = read_manifest(target)
            assert found.backup_id >= earlier.backup_id
            assert verify_files(target, found) == []
        subprocess.run(backup_command(data_dir, target), check=True, capture_output=True)
        load.pause()
    names = {path.name for path in target.iterdir()}
    assert "UNFINISHED" not in names
    parts = {name.partition("-")[0] for name in names}
    assert parts == {"MANIFEST", "commitlog", "state", "groups"}
    assert len(names) == len(parts), names
    restore_backup(target, tmp_path / "restored", finish=assert_sound)
    print(f"{killed} of {BACKUPS} were killed before they ended")


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """Return the directory of a stopped broker that had filled six segments."""
    arguments = ("--commitlog-segment-bytes", "1MiB", "--commitlog-reserve-bytes", "0")
    with RunningBroker(tmp_path / "data", arguments) as broker, Client(broker.url) as client:
        client.create_topic("t", queues=1)
        for _ in range(60):
            client.publish("t", os.urandom(90_000), queue=0)
    return tmp_path / "data"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return an empty disk of 3 MiB."""
    with SmallDisk(tmp_path / "small", 3 * MIB) as disk:
        yield disk.path


def test_a_full_disk_ends_a_backup_in_one_line_and_is_not_left_full(
    filled: Path, small_disk: Path
) -> None:
    target = small_disk / "backup"
    done = subprocess.run(
        backup_command(filled, target), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1
    stats = os.statvfs(small_disk)
    assert stats.f_bavail * stats.f_frsize > 2.5 * MIB
    with pytest.raises(NotABackup, match="not finished"):
        restore_backup(target, small_disk / "restored")


def test_a_disk_that_is_mounted_read_only_is_checked_and_backed_up(
    filled: Path, small_disk: Path, tmp_path: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    source = Path(shutil.copytree(filled, small_disk / "data"))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert_sound(source)
    make_backup(source, tmp_path / "backup")
    restore_backup(tmp_path / "backup", tmp_path / "restored", finish=assert_sound)


def test_a_full_disk_ends_a_restore_and_leaves_nothing(
    filled: Path, small_disk: Path, tmp_path: Path
) -> None:
    make_backup(filled, tmp_path / "backup")
    with pytest.raises(OSError, match="No space left"):
        restore_backup(tmp_path / "backup", small_disk / "data")
    assert list(small_disk.iterdir()) == []


@pytest.fixture(params=FILE_SYSTEMS)
def volume(request: pytest.FixtureRequest) -> Iterator[LoopVolume]:
    """Return a file system that can lose its power."""
    with loop_volume(request.param) as volume:
        yield volume


def test_where_the_file_system_can_sealed_segments_share_their_blocks(
    filled: Path, volume: LoopVolume, request: pytest.FixtureRequest
) -> None:
    source = Path(shutil.copytree(filled, volume.path / "data"))
    report = make_backup(source, volume.path / "backup")
    sealed = sum(file.size for file in report.manifest.files if file.identity)
    assert sealed >= 4 * MIB
    assert report.cloned_bytes == (sealed if "xfs" in request.node.name else 0)
    # A change on one side does not change the other side.
    for path in (source / "commitlog").iterdir():
        path.write_bytes(b"\0" * path.stat().st_size)
    restore_backup(volume.path / "backup", volume.path / "restored", finish=assert_sound)


def test_a_backup_that_ended_and_a_restore_survive_a_power_loss(
    filled: Path, volume: LoopVolume
) -> None:
    make_backup(filled, volume.path / "backup")
    volume.cut_power()
    volume.restore_power()
    assert_sound(volume.path / "backup")
    restore_backup(volume.path / "backup", volume.path / "data")
    volume.cut_power()
    volume.restore_power()
    assert_sound(volume.path / "data")
    assert check_data_dir(volume.path / "data").messages >= 60
