"""Spark's batch read while the broker, retention or an executor fails: exact rows, or an error."""

import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from holdfast.client import Client
from holdfast.running_broker import RunningBroker
from holdfast.spark.errors import DataLost, JavaMissing
from holdfast.spark.read.batch_source import HoldfastReader
from holdfast.spark.session import require_java
from holdfast.spark.source import HoldfastDataSource
from tests.support.clients.broker_calls import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

TOPIC = "orders"
QUEUES = 2
MESSAGES = 12_000
BODY = b"and so on, for half a kilobyte; " * 16
#: Small segments and small replies, so that a read is many pulls; retention runs all the time.
ARGUMENTS = (*("--commitlog-segment-bytes", "1MiB"), *("--commitlog-retention-interval-ms", "50"))
FETCH = {"fetchMaxBytes": "64k", "maxBytesPerPartition": "1m", "columns": "queue,offset,body"}


@dataclass
class Sum:
    """The count and the sums of the rows."""

    count: int = 0
    offsets: int = 0
    crcs: int = 0
    by_queue: dict[int, int] = field(default_factory=dict)

    def add(self, queue: int, offset: int, body: bytes) -> None:
        self.count += 1
        self.offsets += offset
        self.crcs += zlib.crc32(body)
        self.by_queue[queue] = self.by_queue.get(queue, 0) + 1


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path / "data", ARGUMENTS) as broker:
        yield broker


@pytest.fixture
def expected(broker: RunningBroker) -> Sum:
    """The published rows, as a client without Spark reads them."""
    with broker.client() as client:
        client.create_topic(TOPIC, queues=QUEUES)
        publish(client, TOPIC, MESSAGES)
        return pulled(client)


def publish(client: Client, topic: str, count: int) -> None:
    with client.producer(topic, batch_bytes=16 * 1024) as producer:
        for number in range(count):
            producer.send(b"%d " % number + BODY, key=f"{number % 100}")


def pulled(client: Client) -> Sum:
    found = Sum()
    for queue in client.describe_topic(TOPIC)["queues"]:
        for message in client.pull(
            TOPIC, queue=queue["queue"], offset=queue["min_offset"], follow=False
        ):
            found.add(message.queue, message.offset, message.body)
    return found


def reader(broker: RunningBroker, **options: str) -> HoldfastReader:
    given = {"url": broker.url, "topic": TOPIC, **FETCH, **options}
    source = HoldfastDataSource(given)
    source.schema()
    return source.reader(StructType())


def add_up(reader: HoldfastReader, parts: list[InputPartition]) -> Sum:
    found = Sum()
    for part in parts:
        for batch in reader.read(part):
            add_rows(found, batch)
    return found


def add_rows(found: Sum, batch: object) -> None:
    for row in batch.to_pylist():  # type: ignore[attr-defined]
        found.add(row["queue"], row["offset"], row["body"])


def restart_beside(broker: RunningBroker) -> threading.Thread:
    """Start the broker again while the reader already sends requests."""
    thread = threading.Thread(target=broker.start)
    thread.start()
    return thread


def test_a_broker_that_is_killed_between_plan_and_read(
    broker: RunningBroker, expected: Sum
) -> None:
    reading = reader(broker)
    parts = reading.partitions()
    broker.kill()
    starting = restart_beside(broker)
    assert add_up(reading, parts) == expected
    starting.join()


def test_a_broker_that_is_killed_in_the_middle_of_a_read(
    broker: RunningBroker, expected: Sum
) -> None:
    reading = reader(broker)
    parts = reading.partitions()
    found = Sum()
    kills = 0
    for part in parts:
        for number, batch in enumerate(reading.read(part)):
            add_rows(found, batch)
            if number == 1 and kills < 3:
                kills += 1
                broker.kill()
                broker.start()
    assert kills == 3
    assert found == expected


def trim(broker: RunningBroker) -> None:
    """Let retention delete nearly all of the topic, and return after its pass."""
    with broker.client() as client:

        def begin_of_witness() -> int:
            return int(client.describe_topic("witness")["queues"][0]["min_offset"])

        client.create_topic("witness", queues=1, retention_bytes=64 * 1024)
        client.change_topic(TOPIC, retention_bytes=256 * 1024)
        for _ in range(2):  # a pass that ends after the change may have begun before it
            begin = begin_of_witness()
            publish(client, "witness", 500)
            wait_until(lambda begin=begin: begin_of_witness() > begin, "a pass of retention")  # type: ignore[misc]


def begins(broker: RunningBroker) -> dict[int, int]:
    with broker.client() as client:
        queues = client.describe_topic(TOPIC)["queues"]
    return {queue["queue"]: queue["min_offset"] for queue in queues}


def test_a_planned_range_that_is_trimmed_is_lost_data(broker: RunningBroker, expected: Sum) -> None:
    reading = reader(broker, leaseMs="0")
    parts = reading.partitions()
    trim(broker)
    assert all(begin > 0 for begin in begins(broker).values())
    with pytest.raises(DataLost, match="trimmed by retention"):
        add_up(reading, parts)


def test_a_planned_range_that_is_trimmed_is_skipped_and_counted_where_that_is_allowed(
    broker: RunningBroker, expected: Sum, caplog: pytest.LogCaptureFixture
) -> None:
    reading = reader(broker, leaseMs="0", failOnDataLoss="false")
    parts = reading.partitions()
    trim(broker)
    with caplog.at_level(logging.WARNING, "holdfast.spark"):
        found = add_up(reading, parts)
    with broker.client() as client:
        assert found == pulled(client)
    skipped = sum(map(int, re.findall(r"skipped (\d+) messages", caplog.text)))
    assert skipped == sum(begins(broker).values()) == expected.count - found.count


def test_a_planned_range_that_is_leased_is_there_until_it_is_read(
    broker: RunningBroker, expected: Sum
) -> None:
    reading = reader(broker, leaseMs="600000")
    parts = reading.partitions()
    trim(broker)
    assert set(begins(broker).values()) == {0}
    assert add_up(reading, parts) == expected


def test_tasks_keep_a_lease_that_is_shorter_than_they_are(
    broker: RunningBroker, expected: Sum
) -> None:
    lease_s = 6  # extended at half of it: a busy machine may be late by the other half
    reading = reader(broker, leaseMs=str(lease_s * 1000))
    parts = reading.partitions()
    rows = reading.read(parts[0])
    found = Sum()
    add_rows(found, next(iter(rows)))
    over = time.monotonic() + lease_s + 1
    trim(broker)
    while time.monotonic() < over:  # without an extension the lease would have ended by now
        assert set(begins(broker).values()) == {0}
        time.sleep(0.1)
    for batch in rows:
        add_rows(found, batch)
    assert add_up(reading, parts[:1]) == found
    rest = add_up(reading, parts[1:])
    assert (found.count + rest.count, found.offsets + rest.offsets, found.crcs + rest.crcs) == (
        expected.count,
        expected.offsets,
        expected.crcs,
    )


#: Program: the function kills its executor once, while it holds rows of a task.
_JOB = """
import json, os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
from holdfast.spark import register

url, mark, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])

def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def deadly(batches):
    for number, batch in enumerate(batches):
        if number == 1:
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                executor = parent_of(os.getppid())  # above the daemon that forked this worker
                os.write(os.open(mark, os.O_WRONLY), str(executor).encode())
                os.kill(executor, signal.SIGKILL)
        yield batch

builder = SparkSession.builder.master("local-cluster[2,1,1024]").config(map={
    "spark.executor.memory": "800m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "200",  # a task hands over several
})
spark = builder.getOrCreate()
register(spark)
frame = spark.read.format("holdfast").options(url=url, topic="orders", **options).load()
row = frame.mapInArrow(deadly, frame.schema).selectExpr(
    "count(*)", "sum(offset)", "sum(crc32(body))"
).first()
print(json.dumps(list(row)))
"""


def test_an_executor_that_is_killed_in_the_middle_of_a_task(
    broker: RunningBroker, expected: Sum, tmp_path: Path
) -> None:
    try:
        require_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    mark = tmp_path / "killed"
    job = tmp_path / "job.py"
    job.write_text(_JOB)
    ran = subprocess.run(
        [sys.executable, str(job), broker.url, str(mark), json.dumps(FETCH)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert json.loads(ran.stdout) == [expected.count, expected.offsets, expected.crcs]
    killed = int(mark.read_text())
    assert not Path(f"/proc/{killed}").exists()
