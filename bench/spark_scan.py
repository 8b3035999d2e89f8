"""How fast Spark scans a topic, compared with the same rows in a ready file, in one run.

    python -m bench.spark_scan [--json] [--rounds 3]       every workload below
    python -m bench.spark_scan --messages 5000000 --body-bytes 100 --batch 1000    one of them
    python -m bench.spark_scan --messages 2000000 --queues 1 --partitions 1,2,8    one big queue

One broker process on loopback and Spark at local[2] share this machine's cores. Each round scans
each of these into Spark's noop sink. A figure is the median of the rounds:

    url              the topic, with the columns queue, offset, store_timestamp, body
    path             the same rows from the data directory's segment files
    arrow file       the same rows from a mapped Arrow IPC file, through the same Python
                     Data Source API (bench/arrow_file_source.py): the reference
    parquet          the same rows from uncompressed Parquet, with Spark's own reader

With `--partitions`, url and path are also scanned with each of these numbers of partitions. In
addition, one process without Spark pulls, checks and decodes the same blocks, over HTTP and from
the files. The processor time of each process is printed with the wall time. Topics are published in
written mode; reading does not depend on the mode. `--batch 1` stores the messages as if each was
published by a request of its own. `--batch 8` stores them as if eight such requests at a time were
committed together.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from bench.arrow_file_source import load_arrow_file, write_arrow_file
from bench.bulk import BulkConnection
from bench.harness import plain_loop_s, process_cpu_s
from holdfast.arrow.decoder import MAX_ROWS, TARGET_BYTES
from holdfast.running_broker import RunningBroker
from holdfast.spark import Bound, bind, local_session
from holdfast.spark.options.columns import format_ddl
from holdfast.spark.options.read import parse_options
from holdfast.spark.read.plan import plan_partitions
from holdfast.spark.read.reading import open_catalog, read_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC = "scan"
QUEUES = 4
#: A size limit per task that is never reached, so that only minPartitions sets the number of tasks.
_ANY_BYTES = 1 << 40
CORES = 2
COLUMNS = "queue,offset,store_timestamp,body"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Workload:
    """A topic with `messages` messages of `body_bytes` bytes, in batches of `batch` messages."""

    messages: int
    body_bytes: int
    batch: int
    queues: int = QUEUES
    partitions: tuple[int, ...] = ()


WORKLOADS = (
    Workload(5_000_000, 100, 1000),
    Workload(2_000_000, 1024, 1000),
    Workload(500_000, 100, 1),
    Workload(2_000_000, 100, 8),
)


@dataclass
class Figure:
    """The seconds that `rows` rows took in each round, and the processor time of each kind of
    process."""

    name: str
    rows: int
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[dict[str, float]] = field(default_factory=list)

    @property
    def rows_per_s(self) -> float:
        return self.rows / median(self.seconds)

    def cpu_of(self, process: str) -> float:
        return median(each.get(process, 0.0) for each in self.cpu_s)


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast Spark scans a topic.")
    parser.add_argument("--messages", type=int)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--queues", type=int, default=QUEUES)
    parser.add_argument("--partitions", type=_numbers, default=(), help="such as 1,2,8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object a workload")
    options = parser.parse_args()
    workloads: tuple[Workload, ...] = WORKLOADS
    if options.messages is not None:
        workloads = (
            Workload(
                options.messages,
                options.body_bytes,
                options.batch,
                options.queues,
                options.partitions,
            ),
        )
    for workload in workloads:
        figures = run(workload, options.rounds)
        (print_json if options.json else print_table)(workload, figures)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def run(workload: Workload, rounds: int) -> list[Figure]:
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        RunningBroker(Path(folder) / "data") as broker,
    ):
        publish(broker.url, workload)
        return measure(broker, Path(folder), workload, rounds)


def publish(url: str, workload: Workload) -> None:
    """Create the topic, and publish the batches to all queues in turn."""
    connection = BulkConnection(url)
    connection.create(TOPIC, queues=workload.queues)
    connection.publish(
        TOPIC,
        messages=workload.messages,
        body_bytes=workload.body_bytes,
        batch=workload.batch,
        queues=workload.queues,
    )
    connection.close()


def measure(broker: RunningBroker, folder: Path, workload: Workload, rounds: int) -> list[Figure]:
    spark = local_session(CORES, settings={"spark.driver.memory": "4g"})
    path = str(broker.data_dir)
    bound = bind(broker.url, TOPIC, columns=COLUMNS)
    of_files = bind(path=path, topic=TOPIC, columns=COLUMNS)
    arrow, parquet = write_files(of_files, folder)
    columns = format_ddl(parse_options(bound.options).columns)
    url_frame, path_frame = bound.load(spark), of_files.load(spark)
    arrow_frame = load_arrow_file(spark, arrow, columns)
    parquet_frame = spark.read.parquet(str(parquet))
    ways: dict[str, Callable[[], object]] = {
        "url": lambda: scan(url_frame),
        "path": lambda: scan(path_frame),
        "arrow file": lambda: scan(arrow_frame),
        "parquet": lambda: scan(parquet_frame),
        "url, no Spark": lambda: sum(map(len, decode_all(bound))),
        "path, no Spark": lambda: sum(map(len, decode_all(of_files))),
    }
    for count in workload.partitions:
        for name, place in (("url", {"url": broker.url}), ("path", {"path": path})):
            cut = bind(
                **place,
                topic=TOPIC,
                columns=COLUMNS,
                minPartitions=str(count),
                maxBytesPerPartition=str(_ANY_BYTES),
            )
            frame = cut.load(spark)
            ways[f"{name}, {count} partitions"] = partial(scan, frame)
    figures = {name: Figure(name, workload.messages) for name in ways}
    for name in ways:  # warms up the JVM, the workers and the page cache
        ways[name]()
    for _ in range(rounds):
        for name, way in ways.items():
            before = cpu_by_process(broker.pid)
            started = time.perf_counter()
            way()
            figures[name].seconds.append(time.perf_counter() - started)
            after = cpu_by_process(broker.pid)
            figures[name].cpu_s.append({each: after[each] - before[each] for each in after})
    spark.stop()
    return list(figures.values())


def scan(frame: "DataFrame") -> None:
    frame.write.format("noop").mode("overwrite").save()


def decode_all(bound: Bound) -> Iterator[pa.RecordBatch]:
    """Yield all rows of the read, one task after another, without Spark."""
    options = parse_options(bound.options)
    with open_catalog(options) as catalog:
        plan = plan_partitions(catalog, options, bound.topics)
    for task in plan:
        yield from read_rows(task, options)


def write_files(bound: Bound, folder: Path) -> tuple[Path, Path]:
    """Write the rows as an Arrow file and as Parquet; return both paths."""
    arrow, parquet = folder / "rows.arrow", folder / "rows.parquet"

    def rows() -> Iterator[pa.RecordBatch]:
        return together(decode_all(bound))

    write_arrow_file(arrow, rows())
    schema = next(rows()).schema
    with pq.ParquetWriter(parquet, schema, compression="none", use_dictionary=False) as writer:
        for batch in rows():
            writer.write_batch(batch)
    return arrow, parquet


def together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in record batches of the size at which Spark is fastest."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        rows = sum(map(len, held)) + len(batch)
        if held and (rows > MAX_ROWS or sum(b.nbytes for b in held) >= TARGET_BYTES):
            yield pa.concat_batches(held)
            held = []
        held.append(batch)
    if held:
        yield pa.concat_batches(held)


def cpu_by_process(broker_pid: int) -> dict[str, float]:
    """Return the processor time so far of the broker, this process, its JVM and the Python workers.

    Workers that have ended are included.
    """
    parents, cpu_s, ended_s = _processes()
    used = {"broker": process_cpu_s(broker_pid), "driver": cpu_s[os.getpid()]}
    used |= {"jvm": 0.0, "workers": 0.0}
    for pid in parents:
        above = _ancestors(pid, parents)
        if os.getpid() not in above or pid == broker_pid:
            continue
        is_jvm = Path(f"/proc/{pid}/comm").read_text().startswith("java")
        used["jvm" if is_jvm else "workers"] += cpu_s[pid]
        used["workers"] += ended_s[pid]
    return used


def _processes() -> tuple[dict[int, int], dict[int, float], dict[int, float]]:
    """Return three mappings from process id: to the parent's id, to the processor time, and to the
    processor time of the children that have ended."""
    parents, cpu_s, ended_s = {}, {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        cpu_s[pid] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        ended_s[pid] = (int(fields[13]) + int(fields[14])) / _TICKS_PER_S
    return parents, cpu_s, ended_s


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid := parents.get(pid, 0):
        yield pid


def print_table(workload: Workload, figures: list[Figure]) -> None:
    print(
        f"\n{workload.messages:,} messages x {workload.body_bytes:,} B in {workload.queues} queues",
        end=",",
    )
    print(f" published written in batches of {workload.batch:,}; local[{CORES}]; {COLUMNS}\n")
    used = ("jvm", "workers", "broker", "driver")
    heads = "".join(f"{name + ' cpu s':>14}" for name in used)
    print(f"{'':20} {'rows/s':>12} {'MB/s':>8} {'of file':>8}{heads}   rounds, s")
    yardstick = next(figure for figure in figures if figure.name == "arrow file")
    for figure in figures:
        megabytes = figure.rows_per_s * workload.body_bytes / 1e6
        share = figure.rows_per_s / yardstick.rows_per_s
        cpu = "".join(f"{figure.cpu_of(name):14.2f}" for name in used)
        rounds = " ".join(f"{seconds:.2f}" for seconds in figure.seconds)
        print(
            f"{figure.name:20} {figure.rows_per_s:12,.0f} {megabytes:8.1f} {share:8.2f}{cpu}"
            f"   {rounds}"
        )
    print(f"\n10 million additions in a plain Python loop take {plain_loop_s():.2f} s")


def print_json(workload: Workload, figures: list[Figure]) -> None:
    told = {
        figure.name: {
            "rows_per_s": round(figure.rows_per_s),
            "seconds": [round(seconds, 3) for seconds in figure.seconds],
            "cpu_s": {name: round(figure.cpu_of(name), 2) for name in figure.cpu_s[0]},
        }
        for figure in figures
    }
    print(json.dumps({**asdict(workload), "figures": told, "plain_loop_s": plain_loop_s()}))


if __name__ == "__main__":
    main()
