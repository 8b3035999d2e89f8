"""Faults of a stream's broker and checkpoint while Spark runs it: each row is read exactly once.

These tests need Spark and a real broker, so they are in the second tier: some seconds per test.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.running_broker import RunningBroker
from holdfast.spark import reason
from holdfast.testing import TEST_ARGUMENTS
from tests.support.clients.broker_calls import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.fault, pytest.mark.spark, pytest.mark.timeout(600)]

TIMEOUT_S = 90
QUEUES = 2
ROWS = 10
BODY = b"x" * 2_000
#: The size of a block: ROWS bodies and the overhead.
BLOCK_BYTES = 21_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    arguments = (*TEST_ARGUMENTS, "--commitlog-retention-interval-ms", "50")
    with RunningBroker(tmp_path / "data", arguments) as broker:
        yield broker


def publish(broker: RunningBroker, blocks: int) -> None:
    """Publish `blocks` blocks to each queue."""
    with broker.client() as client:
        for queue in range(QUEUES):
            for _ in range(blocks):
                # One block, however slow the machine: the linger timeout does not split it.
                with client.producer("orders", queue=queue, linger_ms=60_000) as producer:
                    for _ in range(ROWS):
                        producer.send(BODY)


def bounds(broker: RunningBroker) -> dict[int, tuple[int, int]]:
    """Return where each queue begins and ends."""
    with broker.client() as client:
        queues = client.describe_topic("orders")["queues"]
    return {queue["queue"]: (queue["min_offset"], queue["max_offset"]) for queue in queues}


Rows = list[tuple[int, int]]


class Sink:
    """The latest rows of each micro-batch by its number, and an action after each one."""

    def __init__(self) -> None:
        self.batches: dict[int, Rows] = {}
        self.then: Callable[[int], None] = lambda _: None

    def write(self, frame: "DataFrame", batch: int) -> None:
        rows = sorted((row["queue"], row["offset"]) for row in frame.collect())
        if rows:
            self.batches[batch] = rows
            self.then(batch)

    @property
    def rows(self) -> Rows:
        return sorted(row for rows in self.batches.values() for row in rows)


@pytest.fixture
def sink() -> Sink:
    return Sink()


Start = Callable[..., "StreamingQuery"]


@pytest.fixture
def start(
    spark: "SparkSession", broker: RunningBroker, sink: Sink, tmp_path: Path
) -> Iterator[Start]:
    """Start a stream of "orders" into the sink, from this test's checkpoint."""
    running: list[StreamingQuery] = []

    def make(*, now: bool = False, **options: str) -> "StreamingQuery":
        given = {"startingOffsets": "earliest", "columns": "queue,offset", **options}
        frame = spark.readStream.format("holdfast").options(url=broker.url, topic="orders", **given)
        writer = frame.load().writeStream.foreachBatch(sink.write)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        running.append((writer.trigger(availableNow=True) if now else writer).start())
        return running[-1]

    yield make
    for query in running:
        query.stop()


def finished(query: "StreamingQuery") -> None:
    assert query.awaitTermination(TIMEOUT_S)


def all_rows(broker: RunningBroker) -> Rows:
    return [(q, offset) for q, (_, end) in sorted(bounds(broker).items()) for offset in range(end)]


def test_a_stream_keeps_ahead_of_retention_through_many_micro_batches(
    broker: RunningBroker, start: Start, sink: Sink
) -> None:
    limit, behind = 5 * BLOCK_BYTES, 3 * 20 * BLOCK_BYTES
    with broker.client() as client:
        client.create_topic("orders", queues=QUEUES, retention_bytes=behind)
    publish(broker, 20)
    sink.then = lambda batch: publish(broker, 2) if batch < 25 else None
    query = start(maxBytesPerTrigger=str(limit))
    query.processAllAvailable()
    assert sink.rows == all_rows(broker)
    assert len(sink.batches) > 25
    assert max(len(rows) for rows in sink.batches.values()) <= ROWS * limit // BLOCK_BYTES
    wait_until(
        lambda: all(first > 0 for first, _ in bounds(broker).values()), "retention", TIMEOUT_S
    )


def test_a_topic_recreated_fails_the_stream_and_is_then_read_from_its_beginning(
    broker: RunningBroker, start: Start, sink: Sink
) -> None:
    def make_again(_: int) -> None:
        """Recreate the topic while Spark sends no request that would find it missing."""
        with broker.client() as client:
            client.delete_topic("orders")
            client.create_topic("orders", queues=QUEUES)
        publish(broker, 3)
        sink.then = lambda _: None

    with broker.client() as client:
        client.create_topic("orders", queues=QUEUES)
    publish(broker, 2)
    sink.then = make_again
    query = start()
    with pytest.raises(Exception, match="Traceback") as caught:
        query.awaitTermination(TIMEOUT_S)
    assert "'orders' was deleted and created again" in str(reason(caught.value))
    assert sum(map(len, sink.batches.values())) == QUEUES * 2 * ROWS
    sink.batches.clear()
    finished(start(now=True, failOnDataLoss="false"))
    assert sink.rows == all_rows(broker)
    publish(broker, 1)
    finished(start(now=True))
    assert sink.rows == all_rows(broker)


def test_a_stream_continues_after_its_broker_was_killed_and_restarted(
    broker: RunningBroker, start: Start, sink: Sink
) -> None:
    def kill(batch: int) -> None:
        if batch in {2, 4}:
            broker.kill()
            broker.start()

    with broker.client() as client:
        client.create_topic("orders", queues=QUEUES)
    publish(broker, 10)
    sink.then = kill
    query = start(maxOffsetsPerTrigger="30")
    query.processAllAvailable()
    broker.kill()  # while the stream waits for more
    broker.start()
    publish(broker, 3)
    query.processAllAvailable()
    assert query.isActive
    assert sink.rows == all_rows(broker)


def test_from_an_older_checkpoint_the_same_rows_come_again(
    broker: RunningBroker, start: Start, sink: Sink, tmp_path: Path
) -> None:
    with broker.client() as client:
        client.create_topic("orders", queues=QUEUES)
    publish(broker, 10)
    checkpoint, older = tmp_path / "checkpoint", tmp_path / "older"

    def keep(batch: int) -> None:
        """Copy the checkpoint while a batch runs: planned, and not committed."""
        if batch == 3:
            shutil.copytree(checkpoint, older)

    sink.then = keep
    finished(start(now=True, maxOffsetsPerTrigger="30"))
    first, sink.batches = sink.batches, {}
    assert sum(map(len, first.values())) == 2 * 10 * ROWS
    shutil.rmtree(checkpoint)
    shutil.move(older, checkpoint)
    publish(broker, 5)
    finished(start(now=True, maxOffsetsPerTrigger="70"))
    assert sink.batches[3] == first[3]
    before = [row for batch in range(3) for row in first[batch]]
    assert sorted(before + sink.rows) == all_rows(broker)


def test_leases_are_released_when_a_micro_batch_fails(
    broker: RunningBroker, start: Start, sink: Sink
) -> None:
    leased: list[Any] = []

    def fail(_: int) -> None:
        leased.append(read_leases(broker))
        raise RuntimeError("planned")

    with broker.client() as client:
        client.create_topic("orders", queues=QUEUES)
    publish(broker, 1)
    sink.then = fail
    query = start()
    with pytest.raises(Exception, match="planned"):
        query.awaitTermination(TIMEOUT_S)
    assert leased[0]["count"] == 1
    # released, not expired
    wait_until(lambda: not read_leases(broker), "the lease's end", TIMEOUT_S)


def read_leases(broker: RunningBroker) -> Any:
    with broker.client() as client:
        return client.describe_topic("orders").get("read_leases")
