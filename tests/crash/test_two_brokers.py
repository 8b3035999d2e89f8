"""One data directory and several processes: two brokers, a process group, and commands."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.running_broker import RunningBroker
from tests.support.clients.broker_calls import wait_until
from tests.support.storage.sound import assert_sound

pytestmark = [pytest.mark.fault, pytest.mark.crash, pytest.mark.timeout(120)]

HOLDFAST = (sys.executable, "-m", "holdfast")
REFUSED = 6
SMALL = ("--commitlog-segment-bytes", "1MiB", "--commitlog-reserve-bytes", "0")


def _serve(data_dir: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*HOLDFAST, "serve", "--data-dir", str(data_dir), "--port", "0", *SMALL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_of_brokers_that_start_at_once_on_one_directory_one_serves(tmp_path: Path) -> None:
    for attempt in range(2):
        data_dir = tmp_path / f"data-{attempt}"
        brokers = [_serve(data_dir) for _ in range(3)]
        try:
            wait_until(lambda b=brokers: _ended(b) == 2, "two of three give up")  # type: ignore[misc]
            for process in brokers:
                if process.poll() is None:
                    assert process.stdout is not None
                    assert process.stdout.readline().startswith("holdfast: serving on ")
                    process.terminate()
                    assert process.wait(10) == 0
                else:
                    assert process.returncode == REFUSED
                    assert "is in use by another broker" in process.communicate()[1]
        finally:
            for process in brokers:
                process.kill()
                process.communicate()
        assert_sound(data_dir)


def _ended(brokers: "list[subprocess.Popen[str]]") -> int:
    return sum(process.poll() is not None for process in brokers)


def test_after_sigkill_another_broker_takes_over_at_once(tmp_path: Path) -> None:
    first = RunningBroker(tmp_path / "data", SMALL)
    second = RunningBroker(tmp_path / "data", SMALL)
    try:
        for number in range(6):
            first.start()
            with first.client() as client:
                assert client.publish("t", b"%d" % number, queue=0).offset == number
            first.kill()
            first, second = second, first
        first.start()
        with first.client() as client:
            found = [bytes(message.body) for message in client.pull("t", queue=0, follow=False)]
        assert found == [b"%d" % number for number in range(6)]
    finally:
        first.kill()
        second.kill()


def test_commands_that_need_the_directory_are_refused_beside_a_broker(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data", SMALL) as broker:
        with broker.client() as client:
            client.publish("t", b"x")
        done = _command("check", str(broker.data_dir))
        assert done.returncode == REFUSED, done
        assert "is in use by another broker" in done.stderr
        done = _command("backup", str(tmp_path / "copy"), "--data-dir", str(broker.data_dir))
        assert done.returncode == 0, done
        with broker.client() as client:
            assert client.publish("t", b"y").durable
    assert _command("check", str(broker.data_dir)).returncode == 0
    assert _command("check", str(tmp_path / "copy")).returncode == 0


def _command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*HOLDFAST, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def test_kill_9_of_the_whole_process_group_loses_nothing(tmp_path: Path) -> None:
    """The broker and the command that publishes to it end at the same moment."""
    broker = RunningBroker(tmp_path / "data", SMALL)
    broker.start()  # to get an address
    broker.stop()
    # One process group of a shell, a publisher and a broker, so that all are killed together.
    publish = f"seq 1 200000 | {' '.join(HOLDFAST)} publish t --queue 0 --url {broker.url}"
    ready = tmp_path / "ready"
    wait = f"until [ -e {ready} ]; do sleep 0.02; done"
    broker.program = (
        "setsid",
        *("bash", "-c", f'{{ {wait}; {publish}; }} & exec "$@"', "group"),
        *HOLDFAST,
    )
    broker.start()
    try:
        with broker.client() as client:
            client.create_topic("t", queues=1)
            ready.touch()
            wait_until(lambda: _end(client) > 1000, "the command publishes")
            seen = _end(client)
        os.killpg(broker.pid, signal.SIGKILL)
        broker.kill()
        assert_sound(broker.data_dir)
        broker.program = HOLDFAST
        broker.start()
        with broker.client() as client:
            found = [int(message.body) for message in client.pull("t", queue=0, follow=False)]
        assert len(found) >= seen
        assert found == list(range(1, len(found) + 1))
    finally:
        broker.kill()


def _end(client: object) -> int:
    return int(client.describe_topic("t")["queues"][0]["max_offset"])  # type: ignore[attr-defined]
