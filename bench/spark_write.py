"""How fast Spark writes to a topic, compared with a sink that drops the rows, in one run.

    python -m bench.spark_write [--json] [--rounds 3]
    python -m bench.spark_write --rows 1000000 --body-bytes 100    one workload

One broker process on loopback and Spark at local[2] share this machine's cores. Spark generates
rows with a key and a body, and writes them in each round to each of these targets. A figure is the
median of the rounds:

    nothing          a sink in Python that gets the same Arrow batches (bench/counting_sink.py)
    fsync            a topic; each batch is acknowledged once it is on the disk
    written          a topic; each batch is acknowledged once the operating system has it
    parquet          uncompressed Parquet files, with Spark's own writer, not synced
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from pyspark import cloudpickle

from bench import counting_sink
from bench.harness import plain_loop_s
from holdfast.running_broker import RunningBroker
from holdfast.spark import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "written"
QUEUES = 4
TASKS = 4
CORES = 2


@dataclass(frozen=True)
class Workload:
    """`rows` rows with bodies of `body_bytes` bytes."""

    rows: int
    body_bytes: int


WORKLOADS = (Workload(1_000_000, 100), Workload(300_000, 1024))


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast Spark writes to a topic.")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object a workload")
    options = parser.parse_args()
    workloads: tuple[Workload, ...] = WORKLOADS
    if options.rows is not None:
        workloads = (Workload(options.rows, options.body_bytes),)
    spark = local_session(CORES, settings={"spark.driver.memory": "4g"})
    # The class is pickled by value, because the workers cannot import its module by name.
    cloudpickle.register_pickle_by_value(sys.modules[counting_sink.__name__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(counting_sink.CountingSink)
    for workload in workloads:
        seconds = run(spark, workload, options.rounds)
        (print_json if options.json else print_table)(workload, seconds)
    spark.stop()


def run(spark: "SparkSession", workload: Workload, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each target in each round. The first round only warms up, and is left
    out."""
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        RunningBroker(Path(folder) / "data") as broker,
    ):
        with broker.client() as client:
            client.create_topic(TOPIC, queues=QUEUES)
        rows = spark.range(0, workload.rows, 1, TASKS).selectExpr(
            "cast(id as string) as key",
            f"cast(repeat('x', {workload.body_bytes}) as binary) as body",
        )
        ways: dict[str, Callable[[], None]] = {
            "nothing": lambda: into_nothing(rows),
            "fsync": lambda: into_topic(rows, broker.url, "fsync"),
            "written": lambda: into_topic(rows, broker.url, "written"),
            "parquet": lambda: into_parquet(rows, Path(folder) / "parquet"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name, write in ways.items():
                started = time.perf_counter()
                write()
                if number:
                    seconds[name].append(time.perf_counter() - started)
    return seconds


def into_nothing(rows: "DataFrame") -> None:
    rows.write.format("counting_sink").mode("append").save()


def into_topic(rows: "DataFrame", url: str, durability: str) -> None:
    options = {"url": url, "topic": TOPIC, "durability": durability}
    rows.write.format("holdfast").options(**options).mode("append").save()


def into_parquet(rows: "DataFrame", path: Path) -> None:
    rows.write.mode("overwrite").option("compression", "none").parquet(str(path))


def print_table(workload: Workload, seconds: dict[str, list[float]]) -> None:
    print(f"\n{workload.rows:,} rows x {workload.body_bytes:,} B, local[{CORES}], {TASKS} tasks\n")
    print(f"{'':10} {'rows/s':>12} {'MB/s':>8} {'of nothing':>11}   rounds, s")
    for name, each in seconds.items():
        rate = workload.rows / median(each)
        share = median(seconds["nothing"]) / median(each)
        rounds = " ".join(f"{one:.2f}" for one in each)
        megabytes = rate * workload.body_bytes / 1e6
        print(f"{name:10} {rate:12,.0f} {megabytes:8.1f} {share:11.2f}   {rounds}")
    print(f"\n10 million additions in a plain Python loop take {plain_loop_s():.2f} s")


def print_json(workload: Workload, seconds: dict[str, list[float]]) -> None:
    rounded = {name: [round(each, 3) for each in rounds] for name, rounds in seconds.items()}
    print(json.dumps({**asdict(workload), "seconds": rounded, "plain_loop_s": plain_loop_s()}))


if __name__ == "__main__":
    main()
