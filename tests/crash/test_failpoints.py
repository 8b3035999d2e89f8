"""Power losses at named failpoints: the next start finds everything that was acknowledged."""

import json
import subprocess
import sys
import threading
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import pytest

from holdfast.client.errors import UnknownTopic
from holdfast.http_api.access.token_file import TokenFile
from holdfast.running_broker import RunningBroker
from tests.crash.test_layout_1 import OF_LAYOUT_1
from tests.support.clients.broker_calls import Calls, fetch, wait_until
from tests.support.damage.failpoint_program import PLACES, wait_until_stopped
from tests.support.damage.loop_volume import LoopVolume
from tests.support.histories.workload import ARGUMENTS, Workload
from tests.support.storage.sound import assert_sound

pytestmark = [pytest.mark.fault, pytest.mark.crash, pytest.mark.timeout(300)]

HOLDFAST = (sys.executable, "-m", "holdfast")

#: Failpoints where a broker under load stops, and at which pass over the failpoint it does.
UNDER_LOAD = {
    "segment allocated": 3,
    "segment header written": 3,
    "segment synced": 3,
    "segment renamed": 3,
    "segment entered": 3,
    "segment ended": 2,
    "footer written": 1,
    "footer synced": 1,
    "segment unlinked": 2,
    "index not committed": 5,
    "index committed": 5,
    "state not committed": 20,
    "state committed": 20,
    "cursors not committed": 30,
    "cursors committed": 30,
}

#: The same for the first start of a broker, on an empty disk.
AT_FIRST_START = [
    ("version written", 1),
    ("version renamed", 1),
    ("version entered", 1),
    ("folder made", 1),
    ("folder made", 2),
    ("LMDB made", 1),
    ("LMDB made", 2),
]

#: The same for `holdfast token`, which writes two copies, and for `holdfast backup`.
IN_TOKEN_COMMANDS = [
    ("tokens written", 1),
    ("tokens renamed", 1),
    ("tokens written", 2),
    ("tokens renamed", 2),
]
IN_BACKUP = ["manifest written", "manifest renamed"]

#: The same for a broker whose group has dead letters.
OF_DEAD_LETTERS = ["letter not appended", "letter appended", "letter marked"]


def test_every_place_is_tried() -> None:
    in_commands = {*dict(IN_TOKEN_COMMANDS), *IN_BACKUP}
    of_brokers = {*UNDER_LOAD, *dict(AT_FIRST_START), *OF_DEAD_LETTERS, *OF_LAYOUT_1}
    assert set(PLACES) == of_brokers | in_commands


@pytest.mark.parametrize("place", UNDER_LOAD)
def test_power_loss_at_a_named_place_under_load(volume: LoopVolume, place: str) -> None:
    arguments = [*ARGUMENTS, "--consumequeue-commit-interval-ms", "50"]
    is_unlinked = place == "segment unlinked"
    if is_unlinked:
        arguments += ["--commitlog-max-total-bytes", "3MiB"]
    broker = RunningBroker(volume.path, arguments, start_timeout_s=60)
    broker.program = _stopping_at(place, UNDER_LOAD[place])
    broker.start()
    try:
        with Workload(broker.url, written_only=is_unlinked, written_body_bytes=20_000) as load:
            wait_until_stopped(broker.pid)
            load.lose_power(volume, broker)
            broker.program = HOLDFAST
            _assert_sound_start(broker)
            load.pause()
            print(load.judge(power_was_lost=True))
            load.resume()
            load.wait_for_more()
        assert broker.stop() == 0
        assert_sound(broker.data_dir)
    finally:
        broker.kill()


@pytest.mark.parametrize(("place", "count"), AT_FIRST_START)
def test_power_loss_at_the_first_start(volume: LoopVolume, place: str, count: int) -> None:
    broker = RunningBroker(volume.path, ARGUMENTS, start_timeout_s=60)
    broker.program = _stopping_at(place, count)
    try:
        process = broker.launch()
        wait_until_stopped(process.pid)
        volume.lose_power(broker.kill)
        broker.program = HOLDFAST
        broker.start()
        with broker.client() as client:
            assert client.publish("t", b"x").durable
        broker.kill()
        _assert_sound_start(broker)
        with broker.client() as client:
            (message,) = client.pull("t", follow=False)
        assert bytes(message.body) == b"x"
    finally:
        broker.kill()


@pytest.mark.parametrize("place", OF_DEAD_LETTERS)
def test_power_loss_while_dead_letters_are_appended(volume: LoopVolume, place: str) -> None:
    """Each dead letter is stored exactly once; no member receives its message again."""
    broker = RunningBroker(volume.path, ARGUMENTS, start_timeout_s=60)
    broker.program = _stopping_at(place, 1)
    broker.start()
    try:
        calls = Calls(broker.url, timeout_s=10)
        for number in range(10):
            assert calls.publish("work", f"message {number}", "?queue=0").status == 200
        settings = {"topics": {"work": {}}, "dead_letter_topic": "dead", "lease_ms": 2000}
        assert calls("PUT", "/v1/groups/g", settings).status == 201
        received = calls("POST", "/v1/groups/g/receive", {"member": "m", "max_messages": 10})
        receipts = [each["receipt"] for each in received.json["messages"]]
        assert len(receipts) == 10
        rejected = {"receipts": receipts[2:5]}
        threading.Thread(target=_tried, args=(calls, rejected)).start()
        wait_until_stopped(broker.pid)
        volume.lose_power(broker.kill)
        broker.program = HOLDFAST
        broker.start()
        again = calls("POST", "/v1/groups/g/reject", rejected)
        assert {each["status"] for each in again.json["results"]} <= {"done", "stale"}
        others = {"receipts": receipts[:2] + receipts[5:]}
        settled = calls("POST", "/v1/groups/g/ack", others).json["results"]
        assert {each["status"] for each in settled} == {"done"}
        wait_until(lambda: len(_bodies(broker, "dead")) >= 3, "the letters are there")
        empty = {"member": "n", "wait_ms": 4000}
        assert calls("POST", "/v1/groups/g/receive", empty).json["messages"] == []
        assert sorted(_bodies(broker, "dead")) == [b"message 2", b"message 3", b"message 4"]
    finally:
        broker.kill()


def _tried(calls: Calls, rejected: object) -> None:
    with suppress(OSError, HTTPException):
        calls("POST", "/v1/groups/g/reject", rejected)


def _bodies(broker: RunningBroker, topic: str) -> list[bytes]:
    with broker.client() as client, suppress(UnknownTopic):
        return [bytes(message.body) for message in client.pull(topic, follow=False)]
    return []


@pytest.mark.parametrize(("place", "count"), IN_TOKEN_COMMANDS)
def test_power_loss_while_a_token_is_revoked(volume: LoopVolume, place: str, count: int) -> None:
    data_dir = ("--data-dir", str(volume.path))
    made = [_said("token", "create", *data_dir, "--name", n, "--allow", "all") for n in "ab"]
    token_id = json.loads(made[1])["token_id"]
    _run_until_power_is_lost(volume, place, count, "token", "revoke", *data_dir, token_id)
    # The interrupted command may have taken effect or not; all earlier commands have taken effect.
    tokens = TokenFile(volume.path)
    after = {token.name for token in tokens.read().content.tokens}
    assert {"a"} <= after <= {"a", "b"}
    _said("token", "create", *data_dir, "--name", "c", "--allow", "all")
    assert {token.name for token in tokens.read().content.tokens} == {*after, "c"}
    assert tokens.read().faults == ()


@pytest.mark.parametrize("place", IN_BACKUP)
def test_power_loss_at_the_end_of_a_backup(volume: LoopVolume, place: str, tmp_path: Path) -> None:
    data_dir, target = volume.path / "data", volume.path / "backup"
    bodies = [b"%d" % n for n in range(100)]
    with RunningBroker(data_dir, ARGUMENTS) as broker, broker.client() as client:
        for body in bodies:
            client.publish("t", body, queue=0)
        command = ("backup", str(target), "--data-dir", str(data_dir))
        _run_until_power_is_lost(volume, place, 1, *command, broker=broker)
    restored = tmp_path / "restored"
    done = _run("restore", str(target), "--data-dir", str(restored))
    if done.returncode == 0:  # the backup is complete, or restore refuses it
        with RunningBroker(restored, ARGUMENTS) as broker, broker.client() as client:
            assert [bytes(m.body) for m in client.pull("t", queue=0, follow=False)] == bodies
    else:
        assert not restored.exists() or not any(restored.iterdir())
        assert "Traceback" not in done.stderr
    _said("backup", str(volume.path / "another"), "--data-dir", str(data_dir))
    _said("restore", str(volume.path / "another"), "--data-dir", str(tmp_path / "again"))


def _run_until_power_is_lost(
    volume: LoopVolume, place: str, count: int, *command: str, broker: RunningBroker | None = None
) -> None:
    """Run a command until it stops at its failpoint, and cut the power there."""
    process = subprocess.Popen([*_stopping_at(place, count), *command], stdout=subprocess.DEVNULL)
    try:
        wait_until_stopped(process.pid)
        volume.cut_power()
    finally:
        process.kill()
        process.wait()
        if broker is not None:
            broker.kill()
    volume.restore_power()


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*HOLDFAST, *command], capture_output=True, text=True, check=False, timeout=60
    )


def _said(*command: str) -> str:
    done = _run(*command)
    assert done.returncode == 0, done
    return done.stdout


def _stopping_at(place: str, count: int) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.support.damage.failpoint_program", place, str(count))


def _assert_sound_start(broker: RunningBroker) -> None:
    assert_sound(broker.data_dir)
    broker.start()
    assert fetch(f"{broker.url}/readyz").json["degraded"] == []
