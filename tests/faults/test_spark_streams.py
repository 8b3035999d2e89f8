"""Streams with an aggregation give exact output while drivers and the broker are killed."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from holdfast.running_broker import RunningBroker
from holdfast.spark.errors import JavaMissing
from holdfast.spark.session import require_java
from holdfast.testing import TEST_ARGUMENTS
from tests.support.histories.stream_job import MAX_OFFSETS

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

JOB = Path(__file__).parents[1] / "support" / "histories" / "stream_job.py"
KEYS = 997
Totals = dict[str, tuple[int, int]]


class Job:
    """A driver with a stream. The driver and its JVM are a process group of their own."""

    def __init__(self, broker: RunningBroker, directory: Path, *how: str) -> None:
        self._log = directory / "job.log"
        self.said: list[str] = []
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, JOB, broker.url, "events", "totals", directory / "ck", *how],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def until(self, line: str) -> None:
        """Wait until the job has printed that it reached this point."""
        assert self._process.stdout is not None
        for said in self._process.stdout:
            self.said.append(said.strip())
            if self.said[-1] == line:
                return
        pytest.fail(f"never {line!r}, but {self.said}: {self._log.read_text()[-5000:]}")

    def finish(self) -> None:
        """Tell the job to end with the messages that exist, and wait for its end."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.until("done")

    def kill(self) -> None:
        """Kill the driver and its JVM at once; do nothing if the job has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path / "data", TEST_ARGUMENTS) as broker:
        with broker.client() as client:
            client.create_topic("events", queues=3)
            client.create_topic("totals", queues=2)
        yield broker


@pytest.fixture
def start(broker: RunningBroker, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    try:
        require_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    jobs: list[Job] = []

    def make(*how: str) -> Job:
        jobs.append(Job(broker, tmp_path, *how))
        return jobs[-1]

    yield make
    for job in jobs:
        job.kill()


def publish(broker: RunningBroker, first: int, last: int, *, queue: int | None = None) -> None:
    with broker.client() as client, client.producer("events", queue=queue) as producer:
        for number in range(first, last):
            producer.send(b"%d" % number, key=f"k{number % KEYS}")


def expected(count: int) -> Totals:
    """Return count and sum of the numbers below `count`, by key."""
    found = {}
    for rest in range(min(KEYS, count)):
        numbers = range(rest, count, KEYS)
        found[f"k{rest}"] = (len(numbers), sum(numbers))
    return found


def written(broker: RunningBroker) -> Totals:
    """Return the last totals of each key; fail if a count did not grow, as after a duplicate."""
    found: Totals = {}
    with broker.client() as client:
        for queue in client.describe_topic("totals")["queues"]:
            for message in client.pull("totals", queue=queue["queue"], offset=0, follow=False):
                assert message.key is not None
                messages, total = map(int, message.body.split())
                assert messages > found.get(message.key, (0, 0))[0], f"{message.key} twice"
                found[message.key] = (messages, total)
    return found


def test_a_million_messages_are_counted_exactly_though_the_driver_is_killed_twice(
    broker: RunningBroker, start: Callable[..., Job]
) -> None:
    count = 1_000_000
    publish(broker, 0, count)
    first = start("now", "2")
    first.until("written 2")  # stored, but not in the checkpoint
    first.kill()
    second = start("now", "4")
    second.until("writing 4")  # the middle of the write, or its end
    second.kill()
    assert second.said[:2] == ["writing 2", "written 2"]
    third = start("now")
    third.until("done")
    assert third.said[:2] == ["writing 4", "written 4"]
    assert third.said[-2] == f"written {count // MAX_OFFSETS}"
    assert written(broker) == expected(count)


def test_a_stream_goes_on_over_a_killed_broker_and_finds_a_new_queue(
    broker: RunningBroker, start: Callable[..., Job]
) -> None:
    publish(broker, 0, 200_000)
    job = start("on")
    job.until("writing 1")
    broker.kill()
    starting = threading.Thread(target=broker.start)
    starting.start()
    job.until("written 1")
    starting.join()
    with broker.client() as client:
        client.change_topic("events", queues=4)
    publish(broker, 200_000, 230_000, queue=3)
    publish(broker, 230_000, 250_000)
    job.finish()
    assert written(broker) == expected(250_000)
