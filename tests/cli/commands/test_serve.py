"""holdfast serve as a process: the ready line, signals, and refused starts."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.client import Client

READY = "holdfast: serving on http://127.0.0.1:"
PROGRAM = [sys.executable, "-m", "holdfast"]
SERVE = [*PROGRAM, "serve"]
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOLDFAST_COMMITLOG_SEGMENT_BYTES": "1MiB"}


@contextmanager
def serving(
    data_dir: Path, *options: str, soft_limit: int = 1024
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a broker's process and its address; always kill the process at the end."""
    limited = ["bash", "-c", f'ulimit -Sn {soft_limit}; exec "$@"', "serve"]
    process = subprocess.Popen(
        [*limited, *SERVE, "--data-dir", str(data_dir), "--port", "0", *options],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(READY), process.communicate()[1]
        yield process, line.removeprefix("holdfast: serving on ").strip()
    finally:
        process.kill()
        process.communicate()


def refused(*arguments: object) -> str:
    """Return the one error line of a broker that refuses to start."""
    done = subprocess.run(
        [*SERVE, *map(str, arguments)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 6, done.stderr
    assert done.stdout == ""
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("holdfast: ")]
    assert "Traceback" not in done.stderr
    return line


@pytest.fixture(scope="module")
def used_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a killed broker that had a topic, a message and a group. Tests copy it."""
    data = tmp_path_factory.mktemp("used") / "d"
    with serving(data) as (_, url), Client(url) as client:
        client.publish("t", b"x")
        client.create_group("g", ["t"])
    return data


@dataclass(frozen=True)
class Served:
    """A broker's process, its address and its directory."""

    process: subprocess.Popen[str]
    url: str
    data_dir: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A broker that no test stops. Each test uses its own topic."""
    data = tmp_path_factory.mktemp("served") / "d"
    with serving(data, "--topics-default-queues", "7", soft_limit=256) as (process, url):
        yield Served(process, url, data)


def contents(folder: Path) -> dict[Path, int]:
    """Return each file's modification time, except the lock: it records the last start attempt."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != "lock"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path / "d") as (process, url):
        with Client(url) as client:
            assert client.publish("t", b"x").durable
        process.send_signal(number)
        assert process.wait(timeout=30) == 0
    with serving(tmp_path / "d") as (_, url), Client(url) as client:
        (message,) = client.pull("t", follow=False)
        assert bytes(message.body) == b"x"


def test_an_interrupted_follower_ends_without_a_traceback(served: Served) -> None:
    with Client(served.url) as client:
        client.publish("followed", b"x")
    follower = subprocess.Popen(
        [*PROGRAM, "pull", "followed", "--follow", "--url", served.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["body"] == "x"
    follower.send_signal(signal.SIGINT)
    _, err = follower.communicate(timeout=30)
    assert follower.returncode == 130
    assert err.strip() == ""


def test_logs_are_json_lines_on_standard_error(tmp_path: Path) -> None:
    with serving(tmp_path / "d", "--log-format", "json") as (process, url):
        process.terminate()
        out, err = process.communicate(timeout=30)
    assert out == ""
    events = [json.loads(line) for line in err.splitlines()]
    assert any(event["message"] == "serving" and event["url"] == url for event in events)


def test_a_flag_reaches_the_broker(served: Served) -> None:
    with Client(served.url) as client:
        client.create_topic("of-seven")
        assert client.describe_topic("of-seven")["queue_count"] == 7


def test_it_takes_as_many_connections_as_it_may(served: Served) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)


def test_a_second_broker_on_the_directory_is_refused(served: Served) -> None:
    said = refused("--data-dir", served.data_dir, "--port", 0)
    assert f"{served.data_dir} is in use by another broker (process {served.process.pid})" in said
    with Client(served.url) as client:
        client.publish("published-after", b"x")


def test_an_address_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    arguments = ("--data-dir", tmp_path / "d", "--host", "192.0.2.1", "--port", 0)
    assert "--access-insecure-remote true" in refused(*arguments)
    said = refused(*arguments, "--access-insecure-remote", "true")
    assert "cannot listen on 192.0.2.1" in said


def test_a_directory_of_an_unknown_version_is_left_alone(used_before: Path, tmp_path: Path) -> None:
    shutil.copytree(used_before, tmp_path / "d")
    (tmp_path / "d" / "VERSION").write_text("999\n")
    before = contents(tmp_path / "d")
    assert "999" in refused("--data-dir", tmp_path / "d", "--port", 0)
    assert contents(tmp_path / "d") == before


def test_somebody_elses_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    assert "not a Holdfast data directory" in refused("--data-dir", tmp_path, "--port", 0)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    said = refused("--data-dir", tmp_path / "f", "--port", 0)
    assert str(tmp_path / "f") in said
    assert "--data-dir" in said


@pytest.mark.parametrize(
    "name", ["state/groups.page", "commitlog/00000000000000000000", "consumequeue/data.mdb"]
)
@pytest.mark.parametrize(("plant", "kind"), [(Path.mkdir, "a folder"), (os.mkfifo, "a FIFO")])
def test_an_object_in_the_place_of_a_file_is_named_with_advice(
    used_before: Path, tmp_path: Path, name: str, plant: Callable[[Path], None], kind: str
) -> None:
    data = shutil.copytree(used_before, tmp_path / "d")
    (data / name).unlink()
    plant(data / name)
    said = refused("--data-dir", data, "--port", 0)
    assert f"{data / name}: it is no regular file but {kind}" in said
    assert "Move this file away, put the broker's own file back" in said
    assert f"'holdfast check {data}' before the next start" in said
    assert "writable" not in said
