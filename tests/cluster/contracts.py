"""Contracts that hold on every cluster: functions of a job that return the same values everywhere.

A contract changes only topics and groups with its job's name in their names, so several jobs can
use one broker.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.functions import expr

import holdfast
from holdfast.spark import bind
from tests.cluster.published import ORDERS, TRIMMED, Published

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

CONTRACTS: dict[str, Callable[["Job"], Any]] = {}


@dataclass(frozen=True)
class Job:
    """A session on some cluster, and the published data. `folder` is its own, and there on the
    driver and on every worker."""

    name: str
    spark: "SparkSession"
    published: Published
    folder: Path

    @property
    def url(self) -> str:
        """The broker's address."""
        return self.published.url

    def load(self, topic: str = ORDERS, **options: object) -> "DataFrame":
        """Return a read of a topic."""
        given = {name: str(value) for name, value in options.items()}
        return self.spark.read.format("holdfast").options(url=self.url, topic=topic, **given).load()


def contract(check: Callable[[Job], Any]) -> Callable[[Job], Any]:
    """Register a contract under its name."""
    CONTRACTS[check.__name__] = check
    return check


def summary(frame: "DataFrame") -> list[list[Any]]:
    """Return a fingerprint of the rows of each queue: count, first and last offset, checksums."""
    rows = frame.groupBy("queue").agg(*map(expr, _SUMMED)).collect()
    return sorted(list(row) for row in rows)


_SUMMED = (
    "count(*)",
    "min(offset)",
    "max(offset)",
    "sum(crc32(body))",
    "sum(crc32(encode(coalesce(key, '-') || '/' || coalesce(tag, '-'), 'utf-8')))",
)


def refusal(action: Callable[[], object], kind: str = "holdfast.spark.errors.") -> str:
    """Return the line of Spark's error that begins with `kind`, else all of it. An error of a
    planner or a task travels as text, with Spark's own around it."""
    try:
        action()
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines()]
        return next((line for line in lines if line.startswith(kind)), str(error))
    return "nothing was raised"


def publish_numbers(job: Job, topic: str, numbers: range) -> None:
    """Publish one message per number. Create the topic if it does not exist."""
    with holdfast.Client(job.url) as client:
        client.create_topic(topic, queues=2)
        with client.producer(topic) as producer:
            for number in numbers:
                producer.send(b"%d" % number, key=f"k{number % 7}")


@contract
def every_row_once(job: Job) -> Any:
    """A topic is read completely."""
    return summary(job.load())


@contract
def the_files_have_the_same_rows(job: Job) -> Any:
    """Executors that see the data directory read its files."""
    reader = job.spark.read.format("holdfast").option("path", job.published.data_dir)
    return summary(reader.option("topic", ORDERS).load())


@contract
def columns_as_asked(job: Job) -> Any:
    """The chosen columns have Spark's types; timestamps are whole milliseconds."""
    columns = "message_id,properties,born_timestamp,topic"
    frame = job.load(columns=columns, startingOffsets='{"0": 7}')
    row = frame.selectExpr("topic", "properties['n']", "unix_millis(born_timestamp)").first()
    return [frame.dtypes, list(row or ()), frame.count()]


@contract
def one_queue_by_several_tasks(job: Job) -> Any:
    """One queue is cut between blocks, and each part is read by another task."""
    reader = job.spark.read.format("holdfast").options(url=job.url, minPartitions="5")
    frame = reader.option("assign", json.dumps({ORDERS: [0]})).load()
    tasks = frame.selectExpr("spark_partition_id() as task", "offset").groupBy("task")
    return sorted(list(row) for row in tasks.agg({"offset": "min"}).collect())


@contract
def kafka_columns(job: Job) -> Any:
    """A job written for the Kafka connector needs only another format and address."""
    frame = (
        job.spark.read.format("holdfast")
        .option("kafka.bootstrap.servers", job.url.removeprefix("http://"))
        .option("schema", "kafka")
        .option("subscribe", ORDERS)
        .option("startingOffsets", json.dumps({ORDERS: {"0": 3, "1": -2}}))
        .load()
    )
    cast = frame.selectExpr("CAST(value AS STRING) as value", "CAST(key AS STRING) as key")
    return [cast.count(), cast.where("key = 'customer-7'").count(), frame.columns]


@contract
def tags_and_filters(job: Job) -> Any:
    """The broker omits messages that the options exclude."""
    return [job.load(tag="paid").count(), job.load(filter="n > 19000", columns="offset").count()]


@contract
def a_bound_read_is_replayed(job: Job) -> Any:
    """Options that were kept before later publishes read the same rows every time."""
    loaded = job.spark.read.format("holdfast").options(**job.published.bound).load()
    return [summary(loaded), summary(loaded)]


@contract
def a_group_goes_on_where_it_saved(job: Job) -> Any:
    """The second run of a group reads only messages that were published after the first."""
    topic, group = f"read-on-{job.name}", f"nightly-{job.name}"
    counts = []
    for numbers in (range(300), range(300, 450), range(0)):
        publish_numbers(job, topic, numbers)
        bound = bind(job.url, topic, group=group)
        row = bound.load(job.spark).selectExpr("count(*)", "min(int(string(body)))").first()
        counts.append(list(row or ()))
        bound.save()
    return counts


@contract
def trimmed_rows_fail_the_job(job: Job) -> Any:
    """An error names trimmed messages; they are skipped only without failOnDataLoss."""
    frame = job.spark.read.format("holdfast").options(**job.published.lost)
    return [
        refusal(lambda: frame.load().count()),
        frame.option("failOnDataLoss", "false").load().agg({"offset": "min"}).collect()[0][0],
    ]


@contract
def a_wrong_option_is_named(job: Job) -> Any:
    """An unknown option is refused with the most similar name."""
    return refusal(lambda: job.load(startingOfsets="earliest").count())


@contract
def a_join_of_two_topics(job: Job) -> Any:
    """Two reads are joined in one query, with a shuffle."""
    left = job.load().selectExpr("key", "offset").where("offset < 100")
    right = job.load(TRIMMED, columns="key,offset").groupBy("key").count()
    return left.join(right, "key").count()


@contract
def what_is_written_twice_is_stored_once(job: Job) -> Any:
    """Rows go to the queues of their keys; the same run of a named write stores them once."""
    topic = f"written-{job.name}"
    with holdfast.Client(job.url) as client:
        client.create_topic(topic, queues=3)
    rows = job.spark.range(0, 5000, 1, 3).selectExpr(
        "string(id) as value", "string(id % 11) as key"
    )
    writer = rows.write.format("holdfast").mode("append").options(url=job.url, topic=topic)
    for version in (1, 1, 2):
        writer.option("txnAppId", topic).option("txnVersion", version).save()
    columns = ("count(*)", "count(distinct body)", "count(distinct queue, key)", "sum(crc32(body))")
    return list(job.load(topic).selectExpr(*columns).first() or ())


@contract
def a_batch_that_a_stream_repeats_is_stored_once(job: Job) -> Any:
    """The commit of the last batch is deleted between two runs, as if the driver had died."""
    topic, folder = f"streamed-{job.name}", job.folder / "stream"
    with holdfast.Client(job.url) as client:
        client.create_topic(topic, queues=2)
    (folder / "in").mkdir(parents=True)
    for run in range(2):
        for file in range(2):
            lines = "\n".join(str(number) for number in range(run * 200 + file, run * 200 + 200, 2))
            (folder / "in" / f"{run}-{file}.txt").write_text(lines)
        reader = job.spark.readStream.schema("value string").option("maxFilesPerTrigger", 1)
        rows = reader.text(str(folder / "in")).selectExpr("value", "value as key")
        writer = rows.writeStream.format("holdfast").options(url=job.url, topic=topic)
        run_to_end(writer, folder / "checkpoint")
        if run == 0:
            for name in ("1", ".1.crc"):
                (folder / "checkpoint" / "commits" / name).unlink()
    counts = job.load(topic).selectExpr("count(*)", "count(distinct body)")
    return list(counts.first() or ())


@contract
def a_stream_goes_on_where_it_ended(job: Job) -> Any:
    """A restarted stream reads new messages within its limit, and each message once."""
    topic, out = f"followed-{job.name}", job.folder / "followed"
    found = []
    for numbers in (range(300), range(300, 450)):
        publish_numbers(job, topic, numbers)
        lines = stream(job, topic, maxOffsetsPerTrigger=100)
        writer = lines.selectExpr("int(string(body)) as number").writeStream.format("parquet")
        run_to_end(writer.option("path", str(out)), job.folder / "followed-checkpoint")
        row = job.spark.read.parquet(str(out)).selectExpr(
            "count(*)", "count(distinct number)", "sum(number)"
        )
        found.append(list(row.first() or ()))
    return found


@contract
def a_stream_writes_what_it_read_once(job: Job) -> Any:
    """A stream copies a topic in two runs from one checkpoint: each row once, unchanged."""
    topic, to = f"piped-{job.name}", f"piped-on-{job.name}"
    for numbers in (range(300), range(300, 450)):
        publish_numbers(job, topic, numbers)
        lines = stream(job, topic).selectExpr("key", "body", "'piped' as tag")
        writer = lines.writeStream.format("holdfast").options(url=job.url, topic=to)
        run_to_end(writer.option("createTopic", True), job.folder / "piped-checkpoint")
    return [summary(job.load(to)), job.load(to).select("body").distinct().count()]


def stream(job: Job, topic: str, **options: object) -> "DataFrame":
    """Return a stream of a topic from its beginning."""
    given = {name: str(value) for name, value in options.items()}
    reader = job.spark.readStream.format("holdfast").options(url=job.url, topic=topic, **given)
    return reader.option("startingOffsets", "earliest").load()


def run_to_end(writer: "DataStreamWriter", checkpoint: Path) -> None:
    """Run a stream until it has read all existing messages."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(_STREAM_TIMEOUT_S), "the stream did not end"


_STREAM_TIMEOUT_S = 300
