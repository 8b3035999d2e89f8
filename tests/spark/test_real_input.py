"""A real broker and a real access log: every way of reading must give the same counts."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.spark.bound import bind
from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.support.storage.access_log import KEY_COUNT, STATUSES, key_and_tag, read_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

TOPIC = "access-log"
QUEUES = 4


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    return read_lines()


@pytest.fixture(scope="module")
def published(
    lines: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> Iterator["PublishedLog"]:
    """The log, published in two halves with a pause in between."""
    with RunningBroker(tmp_path_factory.mktemp("broker") / "data", TEST_ARGUMENTS) as broker:
        with broker.client() as client:
            client.create_topic(TOPIC, queues=QUEUES)
        half = len(lines) // 2
        publish(broker, lines[:half])
        middle_ms = newest_ms(broker) + 1
        while time.time_ns() // 1_000_000 < middle_ms:
            time.sleep(0.001)
        publish(broker, lines[half:])
        yield PublishedLog(broker, middle_ms, half)


class PublishedLog:
    def __init__(self, broker: RunningBroker, middle_ms: int, half: int) -> None:
        self.broker = broker
        self.url = broker.url
        self.middle_ms = middle_ms
        self.half = half

    def load(self, spark: "SparkSession", **options: object) -> "DataFrame":
        given = {name: str(value) for name, value in options.items()}
        return spark.read.format("holdfast").options(url=self.url, topic=TOPIC, **given).load()


def publish(broker: RunningBroker, lines: list[bytes]) -> None:
    with broker.client() as client, client.producer(TOPIC) as producer:
        for line in lines:
            key, tag = key_and_tag(line)
            producer.send(line, key=key, tag=tag)


def newest_ms(broker: RunningBroker) -> int:
    with broker.client() as client:
        queues = client.describe_topic(TOPIC)["queues"]
    return max(int(queue["newest_timestamp_ms"]) for queue in queues)


def statuses(frame: "DataFrame") -> dict[str, int]:
    return {row["tag"]: row["count"] for row in frame.groupBy("tag").count().collect()}


def test_the_whole_topic(spark: "SparkSession", published: PublishedLog) -> None:
    frame = published.load(spark)
    assert frame.selectExpr("count(*)", "count(distinct key)").first() == (10_000, KEY_COUNT)
    assert statuses(frame) == STATUSES


def test_every_line_arrives_byte_for_byte_in_the_order_of_its_key(
    spark: "SparkSession", published: PublishedLog, lines: list[bytes]
) -> None:
    expected: dict[str, list[bytes]] = {}
    for line in lines:
        expected.setdefault(line.split(b" ", 1)[0].decode(), []).append(line)
    found: dict[str, list[bytes]] = {}
    ordered = published.load(spark).orderBy("queue", "offset").select("key", "body")
    for key, body in ordered.collect():
        found.setdefault(key, []).append(bytes(body))
    assert found == expected


#: A batch job written for the Kafka connector; only the format, the address and, for the columns'
#: names, the schema differ.
KAFKA_JOB = {
    "subscribe": TOPIC,
    "startingOffsets": f'{{"{TOPIC}": {{"0": 0, "1": 0, "2": -2, "3": -2}}}}',
    "endingOffsets": f'{{"{TOPIC}": {{"0": -1, "1": -1, "2": -1, "3": -1}}}}',
    "failOnDataLoss": "true",
    "minPartitions": "6",
    "includeHeaders": "true",
}


def kafka_job(
    spark: "SparkSession", published: PublishedLog, options: dict[str, str]
) -> "DataFrame":
    return (
        spark.read.format("holdfast")
        .option("kafka.bootstrap.servers", published.url.removeprefix("http://"))
        .option("schema", "kafka")
        .options(**options)
        .load()
    )


def hits_by_status(frame: "DataFrame") -> dict[str, int]:
    """Compute the job's result from the columns of the Kafka connector only."""
    lines = frame.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING) AS line", "partition")
    found = lines.selectExpr("regexp_extract(line, '\" ([0-9]{3}) ', 1) AS status")
    return {row["status"]: row["count"] for row in found.groupBy("status").count().collect()}


def test_a_job_for_kafka_runs_with_its_format_and_address_changed(
    spark: "SparkSession", published: PublishedLog
) -> None:
    frame = kafka_job(spark, published, KAFKA_JOB)
    assert frame.columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    assert hits_by_status(frame) == STATUSES
    found = frame.selectExpr(
        "count(headers)", "count(distinct key)", "count(distinct partition)",
        "count_if(value like '%GET /presentations/%') > 0",
    )  # fmt: skip
    assert found.first() == (0, KEY_COUNT, QUEUES, True)


def test_a_stream_for_kafka_runs_with_its_format_and_address_changed(
    spark: "SparkSession", published: PublishedLog, tmp_path: Path
) -> None:
    stream = (
        spark.readStream.format("holdfast")
        .option("kafka.bootstrap.servers", published.url.removeprefix("http://"))
        .option("schema", "kafka")
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "4000")
        .option("failOnDataLoss", "true")
        .load()
    )
    query = (
        stream.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "partition", "offset")
        .writeStream.format("memory")
        .queryName("kafka_lines")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert len([each for each in query.recentProgress if each["numInputRows"]]) == 3
    assert hits_by_status(spark.table("kafka_lines")) == STATUSES
    assert spark.table("kafka_lines").select("partition", "offset").distinct().count() == 10_000


def test_a_job_for_kafka_by_time(spark: "SparkSession", published: PublishedLog) -> None:
    times = {TOPIC: {str(queue): published.middle_ms for queue in range(QUEUES)}}
    by_times = json.dumps(times)
    first = kafka_job(spark, published, {"subscribe": TOPIC, "endingOffsetsByTimestamp": by_times})
    second = {"subscribe": TOPIC, "startingOffsetsByTimestamp": by_times}
    assert first.count() == published.half
    assert Counter(hits_by_status(first)) + Counter(
        hits_by_status(kafka_job(spark, published, second))
    ) == Counter(STATUSES)
    same = {"subscribePattern": "access-.*", "startingTimestamp": str(published.middle_ms)}
    assert kafka_job(spark, published, same).count() == 10_000 - published.half
    never = {"subscribe": TOPIC, "startingTimestamp": str(newest_ms(published.broker) + 10**9)}
    with pytest.raises(Exception, match="startingOffsetsByTimestampStrategy=latest"):
        kafka_job(spark, published, never).count()
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert kafka_job(spark, published, never | strategy).count() == 0


def test_offset_ranges_add_up(spark: "SparkSession", published: PublishedLog) -> None:
    whole = bind(published.url, TOPIC).offsets[TOPIC]
    middle = {str(queue): (start + end) // 2 for queue, (start, end) in whole.items()}
    offsets = str(middle).replace("'", '"')
    first = published.load(spark, endingOffsets=offsets)
    second = published.load(spark, startingOffsets=offsets)
    assert first.count() == sum(middle.values())
    assert statuses(first.union(second)) == STATUSES


def test_time_ranges_add_up(spark: "SparkSession", published: PublishedLog) -> None:
    first = published.load(spark, endingTimestamp=published.middle_ms)
    second = published.load(spark, startingTimestamp=published.middle_ms)
    assert first.count() == published.half
    assert statuses(first.union(second)) == STATUSES
    newest = newest_ms(published.broker)
    both = published.load(spark, startingTimestamp=0, endingTimestamp=newest + 1)
    assert statuses(both) == STATUSES


def test_a_groups_stored_offsets(spark: "SparkSession", published: PublishedLog) -> None:
    first = bind(published.url, TOPIC, group="nightly", endingTimestamp=published.middle_ms)
    first_counts = statuses(first.load(spark))
    first.save()
    rest = published.load(spark, startingOffsets="group:nightly")
    done = published.load(spark, endingOffsets="group:nightly")
    assert Counter(statuses(rest)) + Counter(first_counts) == STATUSES
    assert statuses(done) == first_counts
    second = bind(published.url, TOPIC, group="nightly")
    second.save()
    assert published.load(spark, startingOffsets="group:nightly").count() == 0
    assert statuses(first.load(spark).union(second.load(spark))) == STATUSES


def test_tags_and_filters_are_evaluated_by_the_broker(
    spark: "SparkSession", published: PublishedLog
) -> None:
    assert statuses(published.load(spark, tag="404")) == {"404": STATUSES["404"]}
    filtered = published.load(spark, filter="TAGS IN ('404', '500')").collect()
    tagged = published.load(spark, tag="404,500").collect()
    assert sorted(filtered) == sorted(tagged)
    assert len(filtered) == STATUSES["404"] + STATUSES["500"]


def test_a_broker_that_is_killed_before_the_tasks_read_is_waited_for(
    spark: "SparkSession", published: PublishedLog
) -> None:
    frame = published.load(spark, endingTimestamp=published.middle_ms)
    published.broker.kill()
    starting = threading.Thread(target=published.broker.start)
    starting.start()  # while the tasks already send requests
    try:
        assert frame.count() == published.half
    finally:
        starting.join()
