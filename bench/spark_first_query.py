"""The time of a Spark session's first query, with Holdfast's source and with an empty source.

    python -m bench.spark_first_query [--rounds 5] [--json]

Each round runs a program twice, each time with a new JVM at local[1]: once with a Python data
source with a constant row (bench/empty_source.py), and once with Holdfast's source. The program
measures four steps: the start of the session, `load()`, a first query that reads one row, and a
second query.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from bench.harness import plain_loop_s
from holdfast.running_broker import RunningBroker

TOPIC = "first"
STEPS = ("session", "load", "first query", "second query")
SOURCES = ("empty", "holdfast")

_PROGRAM = """
import json, sys, time
kind, url = sys.argv[1:]
began = time.perf_counter()
marks = []

def mark():
    global began
    marks.append(time.perf_counter() - began)
    began = time.perf_counter()

from holdfast.spark.session import LOCAL_SETTINGS
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]")
spark = builder.config(map=LOCAL_SETTINGS).getOrCreate()
mark()
if kind == "empty":
    from bench.empty_source import EmptySource
    spark.dataSource.register(EmptySource)
    frame = spark.read.format("empty").load()
else:
    from holdfast.spark import register
    register(spark)
    frame = spark.read.format("holdfast").options(url=url, topic="first", columns="body").load()
mark()
for _ in range(2):
    rows = frame.collect()
    mark()
assert len(rows) == 1 and bytes(rows[0]["body"]) == b"hello"
print(json.dumps(marks))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="What a session's first query costs.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        RunningBroker(Path(folder) / "data") as broker,
    ):
        with broker.client() as client:
            client.create_topic(TOPIC, queues=1)
            client.publish(TOPIC, b"hello")
        rounds = [
            {source: run(source, broker.url) for source in SOURCES} for _ in range(options.rounds)
        ]
    taken = {
        source: {
            step: [each[source][number] for each in rounds] for number, step in enumerate(STEPS)
        }
        for source in SOURCES
    }
    (print_json if options.json else print_table)(taken)


def run(source: str, url: str) -> list[float]:
    """Run the program with this source in a process of its own; return the seconds of each
    step."""
    root = str(Path(__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, source, url],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": root,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    )
    if ran.returncode != 0:
        raise SystemExit(ran.stderr[-4000:])
    seconds: list[float] = json.loads(ran.stdout.splitlines()[-1])
    return seconds


def print_table(taken: Mapping[str, Mapping[str, list[float]]]) -> None:
    print(f"{'s, median':14}" + "".join(f"{source:>12}" for source in SOURCES) + "       added")
    for step in STEPS:
        each = [median(taken[source][step]) for source in SOURCES]
        print(f"{step:14}" + "".join(f"{value:12.2f}" for value in each), end="")
        rounds = " ".join(
            f"{ours - empty:+.2f}"
            for empty, ours in zip(taken["empty"][step], taken["holdfast"][step], strict=True)
        )
        print(f"{each[1] - each[0]:+12.2f}   rounds {rounds}")
    print(f"\n10 million additions in a plain Python loop take {plain_loop_s():.2f} s")


def print_json(taken: Mapping[str, Mapping[str, list[float]]]) -> None:
    print(json.dumps({"seconds": taken, "plain_loop_s": plain_loop_s()}))


if __name__ == "__main__":
    main()
