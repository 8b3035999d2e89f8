"""Drivers, executors and tasks die while they write, or two attempts run at once.

Each row is stored once.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.cluster.spark_processes import running
from tests.spark.write.test_task import bodies

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.fault, pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
ROWS = 20_000
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
}


def run(folder: Path, *arguments: str) -> int:
    """Run the program to its end and return its exit status; its log is in the folder."""
    command = [sys.executable, "-m", "tests.spark.sink_program", *arguments]
    with (folder / "program.log").open("ab") as log:
        return subprocess.run(
            command, cwd=folder, env=ENVIRONMENT, stdout=log, stderr=log, timeout=500, check=False
        ).returncode


def log_of(folder: Path) -> str:
    return (folder / "program.log").read_text(errors="replace")[-6000:]


def test_a_driver_killed_between_the_write_and_its_commit_stores_nothing_twice(
    tmp_path: Path,
) -> None:
    files = 3
    (tmp_path / "in").mkdir()
    for file in range(files):
        lines = [str(number) for number in range(file, files * 4000, files)]
        (tmp_path / "in" / f"{file}.txt").write_text("\n".join(lines))
    with RunningBroker(tmp_path / "data", TEST_ARGUMENTS) as broker:
        with broker.client() as client:
            client.create_topic("orders", queues=3)
        arguments = ("stream", broker.url, "orders", str(tmp_path))
        assert run(tmp_path, *arguments, "dies") == -signal.SIGKILL, log_of(tmp_path)
        committed = {path.name for path in (tmp_path / "checkpoint" / "commits").iterdir()}
        assert "0" in committed
        assert "1" not in committed
        assert sum(map(len, bodies(broker, "orders").values())) == 2 * 4000
        assert run(tmp_path, *arguments) == 0, log_of(tmp_path)
        found = [int(body) for queue in bodies(broker, "orders").values() for body in queue]
        assert sorted(found) == list(range(files * 4000))


def test_tasks_and_executors_that_die_store_nothing_twice(tmp_path: Path) -> None:
    names = ("before", "behind", "executor")
    with RunningBroker(tmp_path / "data", TEST_ARGUMENTS) as broker:
        with broker.client() as client:
            for name in names:
                client.create_topic(f"orders.{name}", queues=3)
        assert run(tmp_path, "tasks", broker.url, "orders", str(tmp_path)) == 0, log_of(tmp_path)
        for name in names:
            found = bodies(broker, f"orders.{name}")
            numbers = sorted(int(body) for queue in found.values() for body in queue)
            assert numbers == list(range(ROWS)), name
    log = (tmp_path / "program.log").read_text(errors="replace")
    assert "planned: before the write" in log
    assert "planned: after the write" in log


@contextmanager
def two_hosts(folder: Path) -> Iterator[str]:
    """Yield a master with a worker on each of two addresses of this machine. Spark sees two hosts.
    It never starts a second attempt on the host of the first one."""
    deploy = "org.apache.spark.deploy"
    ports = ("--port", "0", "--webui-port", "0")
    with ExitStack() as stack:
        master = stack.enter_context(
            running(
                [f"{deploy}.master.Master", "--host", "127.0.0.1", *ports],
                ENVIRONMENT,
                folder / "master.log",
                ready=r"Starting Spark master at (spark://\S+)",
            )
        )[1]
        for host in ("127.0.0.1", "127.0.0.2"):
            worker = [f"{deploy}.worker.Worker", "--host", host, *ports]
            worker += ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / host), master]
            stack.enter_context(
                running(
                    worker,
                    ENVIRONMENT,
                    folder / f"{host}.log",
                    ready="Successfully registered with master",
                )
            )
        yield master


def test_two_attempts_that_speculation_runs_at_once_store_each_row_once(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data", TEST_ARGUMENTS) as broker, two_hosts(tmp_path) as master:
        with broker.client() as client:
            client.create_topic("orders", queues=3)
        arguments = ("speculation", broker.url, "orders", str(tmp_path), master)
        assert run(tmp_path, *arguments) == 0, log_of(tmp_path)
        found = bodies(broker, "orders")
    assert sorted(int(body) for queue in found.values() for body in queue) == list(range(ROWS))
    assert (tmp_path / "attempt-1").exists()
