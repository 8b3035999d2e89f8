"""How fast Spark reads a topic: a noop scan, beside its limits measured in the same run.

    python -m bench.spark_scan [--json] [--messages 5000000] [--body-bytes 100]

One broker process on loopback and Spark at local[2], which share this machine's cores. The topic
is published in written mode, in batches of 1,000; reading does not depend on the mode. Prints
rows a second (the best of the runs, and all of them), for the default columns and for bodies
alone, and beside them: the same rows from Parquet (Spark's own reader), the same blocks pulled
over HTTP and checked, and decoded as well, in one process without Spark; and a plain loop of
Python as the machine's measure.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from bench.bulk import REQUEST_BYTES, BulkConnection
from holdfast.commitlog.batch_run import BatchRun
from holdfast.spark import bind, local_session
from holdfast.spark.broker_client import BrokerClient
from holdfast.spark.fetch import read_range
from holdfast.spark.offsets import QueueRange
from holdfast.spark.options import parse_options
from holdfast.testing import RunningBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC = "scan"
BATCH_MESSAGES = 1000
LOOP_ADDITIONS = 10_000_000


@dataclass
class Figure:
    """Seconds that each run took, for so many rows."""

    name: str
    rows: int
    seconds: list[float]

    @property
    def rows_per_s(self) -> float:
        return self.rows / min(self.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast Spark reads a topic.")
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object, no table")
    options = parser.parse_args()

    loop_s = timed(plain_loop)
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        RunningBroker(Path(folder) / "data") as broker,
    ):
        rows = publish(broker.url, options)
        figures = measure(broker.url, Path(folder), rows, options)
    if options.json:
        print(json.dumps({"loop_s": loop_s, **{f.name: f.rows_per_s for f in figures}}))
        return
    print(f"{rows:,} messages x {options.body_bytes} B in {options.queues} queues, published in")
    print(f"written mode in batches of {BATCH_MESSAGES:,}; local[{options.cores}]\n")
    print(f"{'':44} {'rows/s':>12} {'MB/s':>8}   runs, s")
    for figure in figures:
        megabytes = figure.rows_per_s * options.body_bytes / 1e6
        runs = " ".join(f"{seconds:.2f}" for seconds in figure.seconds)
        print(f"{figure.name:44} {figure.rows_per_s:12,.0f} {megabytes:8.1f}   {runs}")
    per_s = LOOP_ADDITIONS / loop_s
    print(f"\nplain loop of 10 million additions: {loop_s:.2f} s; a scanned row costs")
    print(f"{per_s / figures[0].rows_per_s:.1f} additions of it")


def timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def plain_loop() -> int:
    total = 0
    for n in range(LOOP_ADDITIONS):
        total += n
    return total


def publish(url: str, options: argparse.Namespace) -> int:
    """Publish to all queues in turn; return how many messages."""
    count = options.messages // BATCH_MESSAGES * BATCH_MESSAGES
    connection = BulkConnection(url)
    connection.create(TOPIC, queues=options.queues)
    connection.publish(
        TOPIC,
        messages=count,
        body_bytes=options.body_bytes,
        batch=BATCH_MESSAGES,
        queues=options.queues,
    )
    connection.close()
    return int(count)


def measure(url: str, folder: Path, rows: int, options: argparse.Namespace) -> list[Figure]:
    figures = []

    def run(name: str, action: Callable[[], object]) -> None:
        figures.append(Figure(name, rows, [timed(action) for _ in range(options.runs)]))

    spark = local_session(options.cores, settings={"spark.driver.memory": "4g"})
    bound = bind(url, TOPIC)
    bodies = bind(url, TOPIC, columns="body")
    scan(bodies.load(spark))  # warm up: the JVM, the workers, the page cache
    run("Spark noop scan, default columns", lambda: scan(bound.load(spark)))
    run("Spark noop scan, body alone", lambda: scan(bodies.load(spark)))

    parts = [
        QueueRange(topic.name, topic.topic_id, queue, part.start, part.end)
        for topic in bound.topics
        for queue, part in topic.ranges.items()
    ]
    run("pulled over HTTP and checked, one process", lambda: pull_all(url, parts))
    run("the same, decoded to Arrow", lambda: list(map(len, decode_all(url, parts))))

    file = folder / "rows.parquet"
    batches = decode_all(url, parts)
    first = next(batches)
    with pq.ParquetWriter(file, first.schema, compression="none") as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
    parquet = spark.read.parquet(str(file))
    run("Spark noop scan of the rows in Parquet", lambda: scan(parquet))
    spark.stop()
    return figures


def scan(frame: "DataFrame") -> None:
    frame.write.format("noop").mode("overwrite").save()


def pull_all(url: str, parts: list[QueueRange]) -> None:
    """Pull every block and check it, and do nothing with it."""
    with BrokerClient.open(url) as client:
        for part in parts:
            offset = part.start
            while offset < part.end:
                pulled = client.pull(
                    part.topic, part.topic_id, part.queue, offset, max_bytes=REQUEST_BYTES
                )
                blocks = BatchRun(pulled.body)
                offset = int(blocks.base_offsets[-1] + blocks.message_counts[-1])


def decode_all(url: str, parts: list[QueueRange]) -> Iterator[pa.RecordBatch]:
    """Yield every row, as a task does."""
    options = parse_options({"url": url, "topic": TOPIC})
    with BrokerClient.open(url) as client:
        for part in parts:
            yield from read_range(client, part, options)


if __name__ == "__main__":
    main()
