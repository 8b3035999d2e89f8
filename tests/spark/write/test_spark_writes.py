"""The sink under Spark itself: one test per promise."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.testing import RunningBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


def read(spark: "SparkSession", broker: RunningBroker, topic: str, **options: str) -> "DataFrame":
    reader = spark.read.format("holdfast").options(url=broker.url, topic=topic, **options)
    return reader.load()


def write(frame: "DataFrame", broker: RunningBroker, **options: str) -> None:
    frame.write.format("holdfast").mode("append").options(url=broker.url, **options).save()


def rows(frame: "DataFrame") -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def numbers(spark: "SparkSession", count: int) -> "DataFrame":
    return spark.range(0, count, 1, 3).selectExpr(
        "concat('k', id % 11) as key", "string(id) as value"
    )


def test_rows_that_were_read_are_written_unchanged(
    spark: "SparkSession", running: RunningBroker, topic: str
) -> None:
    copy = f"{topic}.copy"
    with running.client() as client:
        client.create_topic(copy, queues=3)
        for number in range(200):
            client.publish(
                topic,
                b"%d\xff" % number,
                key=f"k{number % 7}" if number % 3 else None,
                tag="even" if number % 2 == 0 else None,
                properties={"n": str(number), "empty": ""} if number % 5 else None,
            )
    source = read(spark, running, topic)
    assert source.count() == 200
    write(source.drop("offset", "store_timestamp"), running, topic=copy)
    columns = ["queue", "offset", "key", "tag", "properties['n']", "body", "born_timestamp"]
    first, second = (read(spark, running, name).selectExpr(*columns) for name in (topic, copy))
    in_order = "queue", "offset"
    assert first.sort(*in_order).collect() == second.sort(*in_order).collect()


def test_a_kafka_job_writes_by_its_own_names(
    spark: "SparkSession", running: RunningBroker, topic: str
) -> None:
    frame = spark.sql(
        "select 'a' as key, 'one' as value, 2 as partition, "
        "array(struct('h' as key, binary('x') as value)) as headers"
    )
    options = {"kafka.bootstrap.servers": running.url.removeprefix("http://"), "topic": topic}
    frame.write.format("holdfast").mode("append").options(**options).save()
    found = read(spark, running, topic, schema="kafka", includeHeaders="true")
    assert rows(
        found.selectExpr("string(key)", "string(value)", "partition", "string(headers[0].value)")
    ) == [("a", "one", 2, "x")]


def test_a_task_that_failed_after_its_write_stores_nothing_twice(
    spark: "SparkSession", running: RunningBroker, topic: str, tmp_path: Path
) -> None:
    """In local mode Spark gives a task one attempt: the test repeats the same transaction."""
    marker = str(tmp_path / "failed")
    described = f"{running.url}/v1/topics/{topic}"

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        import json
        import time
        from pathlib import Path as TaskPath
        from urllib.request import urlopen

        def stored_rows() -> int:
            with urlopen(described, timeout=30) as reply:
                return sum(each["max_offset"] for each in json.load(reply)["queues"])

        for number, batch in enumerate(batches):
            if number == 3 and not TaskPath(marker).exists():
                TaskPath(marker).touch()
                deadline = time.monotonic() + 60
                while not stored_rows() and time.monotonic() < deadline:
                    time.sleep(0.05)
                raise RuntimeError("planned")
            yield batch

    frame = spark.range(0, 60_000, 1, 1).selectExpr("string(id) as body", "string(id % 11) as key")
    failing = frame.mapInArrow(fail_once, frame.schema)
    options = {"topic": topic, "txnAppId": topic, "txnVersion": "1", "maxBatchRows": "1000"}
    with pytest.raises(Exception, match="planned"):
        write(failing, running, **options)
    assert 0 < read(spark, running, topic).count() < 60_000
    write(failing, running, **options)
    write(failing, running, **options)
    found = read(spark, running, topic).selectExpr("count(*)", "count(distinct body)")
    assert rows(found) == [(60_000, 60_000)]
    write(failing, running, **{**options, "txnVersion": "2"})
    assert read(spark, running, topic).count() == 120_000


@pytest.mark.parametrize(
    ("mode", "says"),
    [("overwrite", "cannot be overwritten"), ("error", "append"), ("ignore", "append")],
    ids=["overwrite", "error", "ignore"],
)
def test_other_modes_than_append_are_refused(
    spark: "SparkSession", running: RunningBroker, topic: str, mode: str, says: str
) -> None:
    writer = numbers(spark, 10).write.format("holdfast").options(url=running.url, topic=topic)
    with pytest.raises(Exception, match=f"(?i){says}"):
        writer.mode(mode).save()


def start(frame: "DataFrame", broker: RunningBroker, checkpoint: Path, **options: str) -> Any:
    writer = frame.writeStream.format("holdfast").options(url=broker.url, **options)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def source_of(spark: "SparkSession", folder: Path) -> "DataFrame":
    return spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(str(folder))


def test_a_stream_stores_each_row_once_if_its_last_batch_is_repeated(
    spark: "SparkSession", running: RunningBroker, topic: str, tmp_path: Path
) -> None:
    """The test deletes the commit of the last batch, as if the driver had died before it."""
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    folder.mkdir()
    for file in range(3):
        lines = "\n".join(str(file * 100 + n) for n in range(100))
        (folder / f"{file}.txt").write_text(lines)
    frame = source_of(spark, folder).selectExpr("value as body", "value as key")
    assert start(frame, running, checkpoint, topic=topic).awaitTermination(90)
    assert read(spark, running, topic).count() == 300
    commits = checkpoint / "commits"
    for name in ("2", ".2.crc"):
        (commits / name).unlink()
    (folder / "3.txt").write_text("\n".join(str(300 + n) for n in range(100)))
    assert start(frame, running, checkpoint, topic=topic).awaitTermination(90)
    found = read(spark, running, topic).selectExpr("int(string(body)) as n")
    assert rows(found) == [(n,) for n in range(400)]


def test_complete_output_cannot_be_written(
    spark: "SparkSession", running: RunningBroker, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("a\nb\n")
    counts = source_of(spark, tmp_path / "in").groupBy("value").count()
    writer = counts.selectExpr("value as key", "string(count) as body").writeStream
    query = writer.format("holdfast").outputMode("complete").options(
        url=running.url, topic=topic, checkpointLocation=str(tmp_path / "checkpoint")
    )  # fmt: skip
    with pytest.raises(Exception, match="cannot be overwritten"):
        query.trigger(availableNow=True).start().awaitTermination(90)
