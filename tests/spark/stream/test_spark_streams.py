"""Streams under Spark itself: one test per promise."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clients.broker_calls import wait_until
from tests.support.servers.fake_broker import FakeBroker, FakeQueue, FakeTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

TIMEOUT_S = 90


@pytest.fixture(autouse=True)
def topic(broker: FakeBroker) -> FakeTopic:
    """Two queues, each with ten blocks of ten messages."""
    topic = broker.topic("orders", queues=2)
    for queue in range(2):
        for block in range(10):
            topic.publish(queue, [b"%d" % (10 * block + n) for n in range(10)])
    return topic


class Sink:
    """The rows of a stream's micro-batches by number; a replayed micro-batch is kept as well."""

    def __init__(self) -> None:
        self.batches: dict[int, list[list[tuple[int, int]]]] = {}
        self.fail_once: set[int] = set()

    def write(self, frame: "DataFrame", batch: int) -> None:
        rows = sorted((row["queue"], row["offset"]) for row in frame.collect())
        self.batches.setdefault(batch, []).append(rows)
        if batch in self.fail_once:
            self.fail_once.remove(batch)
            raise RuntimeError("the sink fails after it has written")

    @property
    def rows(self) -> list[tuple[int, int]]:
        return sorted(row for attempts in self.batches.values() for row in attempts[-1])


@pytest.fixture
def sink() -> Sink:
    return Sink()


Start = Callable[..., "StreamingQuery"]


@pytest.fixture
def start(spark: "SparkSession", broker: FakeBroker, sink: Sink, tmp_path: Path) -> Iterator[Start]:
    """Start a stream of the topic "orders" into the sink, from this test's checkpoint."""
    running: list[StreamingQuery] = []

    def make(*, trigger: dict[str, Any] | None = None, **options: str) -> "StreamingQuery":
        frame = (
            spark.readStream.format("holdfast")
            .options(url=broker.url, topic="orders", columns="queue,offset,body", **options)
            .load()
        )
        writer = frame.writeStream.foreachBatch(sink.write).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        running.append((writer.trigger(**trigger) if trigger else writer).start())
        return running[-1]

    yield make
    for query in running:
        query.stop()


def finished(query: "StreamingQuery") -> None:
    assert query.awaitTermination(TIMEOUT_S)
    assert query.exception() is None


NOW = {"availableNow": True}


def test_available_now_reads_existing_messages_and_ends(
    start: Start, sink: Sink, topic: FakeTopic
) -> None:
    finished(start(trigger=NOW, startingOffsets="earliest", maxOffsetsPerTrigger="90"))
    sizes = [len(rows) for ((rows),) in sink.batches.values()]
    assert sizes == [90, 90, 20]
    assert sink.rows == [(queue, offset) for queue in range(2) for offset in range(100)]
    topic.publish(0, [b"late"] * 3)
    finished(start(trigger=NOW))
    assert sink.batches[3] == [[(0, 100), (0, 101), (0, 102)]]


def test_a_failed_micro_batch_is_repeated_unchanged(
    start: Start, sink: Sink, topic: FakeTopic
) -> None:
    sink.fail_once.add(1)
    query = start(trigger=NOW, startingOffsets="earliest", maxOffsetsPerTrigger="30")
    with pytest.raises(Exception, match="the sink fails"):
        query.awaitTermination(TIMEOUT_S)
    topic.publish(1, [b"late"] * 100)
    finished(start(trigger=NOW, maxOffsetsPerTrigger="1000"))
    first, again = sink.batches[1]
    assert first == again
    assert len(first) == 30
    assert sink.rows == [
        (queue, offset) for queue in range(2) for offset in range(100 + 100 * queue)
    ]


def test_a_stream_starts_at_latest_and_continues(
    start: Start, sink: Sink, broker: FakeBroker, topic: FakeTopic
) -> None:
    query = start(groupId="billing")
    query.processAllAvailable()
    assert sink.rows == []  # only the empty micro-batch with which Spark begins a checkpoint
    topic.publish(1, [b"a", b"b"])
    query.processAllAvailable()
    topic.queues.append(FakeQueue())
    topic.publish(2, [b"c"])
    query.processAllAvailable()
    assert list(sink.batches.values())[1:] == [[[(1, 100), (1, 101)]], [[(2, 0)]]]

    progress = query.lastProgress
    assert progress is not None
    source = dict(progress)["sources"][0]
    assert '"2": 1' in str(source["latestOffset"])

    # Spark commits a micro-batch when it plans the next one.
    assert broker.groups["billing"]["orders"][0] == {0: 100, 1: 102}

    query.stop()
    assert not query.isActive


def test_a_held_request_does_not_keep_a_stream_from_stopping(
    start: Start, broker: FakeBroker
) -> None:
    held, stopped = threading.Event(), threading.Event()
    in_time: list[bool] = []

    def hold(target: str) -> None:
        if "/messages?offsets" in target:
            held.set()
            in_time.append(stopped.wait(TIMEOUT_S))

    broker.faults.append(hold)
    query = start(idleWaitMs="10000")
    assert held.wait(TIMEOUT_S)
    query.stop()
    stopped.set()
    wait_until(lambda: bool(in_time), "the broker's answer")
    assert in_time == [True]
    assert not query.isActive


def test_lost_data_fails_the_query(start: Start, sink: Sink, topic: FakeTopic) -> None:
    finished(start(trigger=NOW, startingOffsets="earliest"))
    topic.queues[1].min_offset = 107
    topic.publish(1, [b"late"] * 10)
    query = start(trigger=NOW)
    with pytest.raises(Exception, match="no messages from offset 100 to 107"):
        query.awaitTermination(TIMEOUT_S)
    finished(start(trigger=NOW, failOnDataLoss="false"))
    assert list(sink.batches.values())[-1] == [[(1, offset) for offset in range(107, 110)]]


def test_kafka_columns(spark: "SparkSession", broker: FakeBroker, tmp_path: Path) -> None:
    frame = (
        spark.readStream.format("holdfast")
        .option("kafka.bootstrap.servers", broker.url)
        .option("subscribe", "orders")
        .option("startingOffsets", '{"orders": {"0": -2, "1": 98}}')
        .option("schema", "kafka")
        .load()
    )
    query = (
        frame.selectExpr("CAST(value AS STRING)", "partition")
        .writeStream.format("memory")
        .queryName("kafka_rows")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    finished(query)
    counts = spark.sql("select partition, count(*), max(value) from kafka_rows group by 1")
    assert sorted(map(tuple, counts.collect())) == [(0, 100, "99"), (1, 2, "99")]
