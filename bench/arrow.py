"""How fast a topic becomes an Arrow table without Spark, compared with a mapped Arrow file.

    python -m bench.arrow [--json] [--rounds 5]            every workload below
    python -m bench.arrow --messages 2000000 --body-bytes 100 --batch 1000    one of them

One broker process on loopback and this process share the machine's cores. Each round reads all
messages in each of these ways, from the page cache, into a table with the columns queue, offset,
store_timestamp and body. A figure is the median of the rounds:

    url           client.read_arrow from the broker
    path          client.read_arrow(path=...) from the segment files
    arrow file    the same table from a mapped Arrow IPC file, which is neither checked nor decoded
    floor         the blocks of the segment files read, verified and decoded by the functions of
                  Spark's source, in its portions: what `path` adds is the table
    verified      the blocks of the segment files only read, and their checksums verified

A mapped file costs nothing until its bytes are used. So each way also reads every byte of the table
once (`touch`); its time is measured alone as `touch`, and is a part of the others. `verified` has
no table to touch. `text` and `json` are `path` with other forms of bodies, if the bodies are JSON
(--json-bodies).
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from bench.bulk import REQUEST_BYTES, BulkConnection
from bench.harness import plain_loop_s
from holdfast.client import Client
from holdfast.log_files.file_catalog import FileCatalog
from holdfast.log_files.file_reading import MissingRange, read_files
from holdfast.log_files.ranges import OffsetRange
from holdfast.running_broker import RunningBroker
from holdfast.spark import Bound, bind
from holdfast.spark.options.offsets import QueueRange
from holdfast.spark.options.read import parse_options
from holdfast.spark.read.plan import plan_partitions
from holdfast.spark.read.reading import open_catalog, read_rows

TOPIC = "tables"
QUEUES = 4
#: At most this many batches per publish request; the broker allows 2,000.
_BATCHES = 1000
COLUMNS = ("queue", "offset", "store_timestamp", "body")
_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.float64())])


@dataclass(frozen=True)
class Workload:
    """A topic with `messages` messages of `body_bytes` bytes, in batches of `batch` messages."""

    messages: int
    body_bytes: int
    batch: int
    json_bodies: bool = False


WORKLOADS = (
    Workload(5_000_000, 100, 1000),
    Workload(1_000_000, 1024, 1000),
    Workload(1_000_000, 1024, 4000),
    Workload(500_000, 100, 1),
    Workload(1_000_000, 64, 1000, json_bodies=True),
)


@dataclass
class Figure:
    """The seconds that one way took in each round."""

    name: str
    seconds: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        return median(self.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast a topic becomes an Arrow table.")
    parser.add_argument("--messages", type=int)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--json-bodies", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object a workload")
    options = parser.parse_args()
    workloads: tuple[Workload, ...] = WORKLOADS
    if options.messages is not None:
        given = (options.messages, options.body_bytes, options.batch, options.json_bodies)
        workloads = (Workload(*given),)
    for workload in workloads:
        figures = run(workload, options.rounds)
        (print_json if options.json else print_table)(workload, figures)


def run(workload: Workload, rounds: int) -> list[Figure]:
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        RunningBroker(Path(folder) / "data") as broker,
        broker.client() as client,
    ):
        publish(broker, client, workload)
        return measure(broker, client, Path(folder), workload, rounds)


def publish(broker: RunningBroker, client: Client, workload: Workload) -> None:
    """Create the topic, and publish the batches to all queues in turn."""
    if workload.json_bodies:
        client.create_topic(TOPIC, queues=QUEUES, durability="written")
        with client.producer(TOPIC, batch_bytes=workload.batch * (workload.body_bytes + 32)) as to:
            for number in range(workload.messages):
                to.send(b'{"id": %d, "name": "name %d", "price": %d.5}' % ((number,) * 3))
        return
    connection = BulkConnection(broker.url)
    connection.create(TOPIC, queues=QUEUES)
    connection.publish(
        TOPIC,
        messages=workload.messages,
        body_bytes=workload.body_bytes,
        batch=workload.batch,
        queues=QUEUES,
        request_bytes=min(REQUEST_BYTES, _BATCHES * workload.batch * workload.body_bytes),
    )
    connection.close()


def measure(
    broker: RunningBroker, client: Client, folder: Path, workload: Workload, rounds: int
) -> list[Figure]:
    path, file = broker.data_dir, folder / "rows.arrow"

    def read(**given: Any) -> pa.Table:
        return client.read_arrow(TOPIC, columns=COLUMNS, **given)

    of_files = bind(path=str(path), topic=TOPIC, columns=",".join(COLUMNS))
    table = read(path=path)
    assert len(table) == workload.messages
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    ways: dict[str, Callable[[], object]] = {
        "url": lambda: touch(read()),
        "path": lambda: touch(read(path=path)),
        "arrow file": lambda: touch(pa.ipc.open_file(pa.memory_map(str(file))).read_all()),
        "floor": lambda: touch(pa.Table.from_batches(decode_all(of_files))),
        "verified": lambda: verify_all(path),
        "touch": lambda: touch(table),
    }
    if workload.json_bodies:
        ways["text"] = lambda: touch(read(path=path, body="text"))
        ways["json"] = lambda: touch(read(path=path, body=_SCHEMA))
    figures = {name: Figure(name) for name in ways}
    for way in ways.values():  # warms up the page cache and the imports
        way()
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            figures[name].seconds.append(time.perf_counter() - started)
    return list(figures.values())


def touch(table: pa.Table) -> int:
    """Read every byte of the table once."""
    total = 0
    for column in table.columns:
        for chunk in column.chunks:
            for buffer in chunk.buffers():
                if buffer is not None:
                    words = np.frombuffer(buffer, np.uint64, buffer.size // 8)
                    total += int(np.bitwise_xor.reduce(words)) if len(words) else 0
    return total


def decode_all(bound: Bound) -> Iterator[pa.RecordBatch]:
    """Yield all rows as the tasks of Spark's source yield them, without Spark."""
    options = parse_options(bound.options)
    with open_catalog(options) as catalog:
        plan = plan_partitions(catalog, options, bound.topics)
    for task in plan:
        yield from read_rows(task, options)


def verify_all(path: Path) -> int:
    """Read the blocks and verify their checksums; return the number of messages."""
    count = 0
    with FileCatalog(str(path)) as catalog:
        topic = catalog.describe(TOPIC)
        ranges = {queue: OffsetRange(*bounds) for queue, bounds in topic.queues.items()}
        splits = catalog.splits(TOPIC, topic.topic_id, ranges, max_bytes=2**30, min_splits=1)
    for each in splits:
        part = QueueRange(
            TOPIC, topic.topic_id, each.queue, each.start, each.end, None, each.segments
        )
        for found in read_files(str(path), part):
            assert not isinstance(found, MissingRange)
            count += int(found.blocks.message_counts.sum())
    return count


def print_table(workload: Workload, figures: list[Figure]) -> None:
    kind = "JSON of about " if workload.json_bodies else ""
    print(
        f"\n{workload.messages:,} messages x {kind}{workload.body_bytes:,} B in {QUEUES} queues, "
        f"in batches of {workload.batch:,}; {', '.join(COLUMNS)}\n"
    )
    by_name = {figure.name: figure.median_s for figure in figures}
    print(f"{'':12} {'s':>8} {'rows/s':>12} {'MB/s':>8} {'of file':>8} {'of floor':>9}   rounds, s")
    for figure in figures:
        rows_per_s = workload.messages / figure.median_s
        print(
            f"{figure.name:12} {figure.median_s:8.3f} {rows_per_s:12,.0f} "
            f"{rows_per_s * workload.body_bytes / 1e6:8.0f} "
            f"{by_name['arrow file'] / figure.median_s:8.2f} "
            f"{by_name['floor'] / figure.median_s:9.2f}   "
            + " ".join(f"{seconds:.3f}" for seconds in figure.seconds)
        )
    print(f"\n10 million additions in a plain Python loop take {plain_loop_s():.2f} s")


def print_json(workload: Workload, figures: list[Figure]) -> None:
    seconds = {figure.name: [round(each, 4) for each in figure.seconds] for figure in figures}
    print(json.dumps({**asdict(workload), "seconds": seconds, "plain_loop_s": plain_loop_s()}))


if __name__ == "__main__":
    main()
