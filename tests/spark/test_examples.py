"""The programs in examples/.

Their functions run on the shared session; the fault tier runs whole programs.
"""

import importlib.util
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.running_broker import RunningBroker
from tests.support.storage import access_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LINE = '{} - - [17/May/2015:{}:05:03 +0200] "GET / HTTP/1.1" {} 7 "-" "-"'


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def publish(broker: RunningBroker, topic: str, lines: list[bytes]) -> None:
    with broker.client() as client, client.producer(topic) as producer:
        for line in lines:
            key, tag = access_log.key_and_tag(line)
            producer.send(line, key=key, tag=tag)


def few_lines(hour: int, count: int) -> list[bytes]:
    """Lines of one hour, UTC, from ten visitors; every fifth request was answered 404."""
    return [
        LINE.format(f"10.0.0.{n % 10}", hour + 2, 404 if n % 5 == 0 else 200).encode()
        for n in range(count)
    ]


def hourly(frame: "DataFrame") -> dict[tuple[str, str], int]:
    rows = frame.selectExpr("date_format(hour, 'd HH') as hour", "status", "count").collect()
    return {(row["hour"], row["status"]): row["count"] for row in rows}


def test_the_second_hourly_run_reads_only_new_messages(
    spark: "SparkSession", running: RunningBroker, tmp_path: Path
) -> None:
    module = example("spark_hourly_status")
    out = tmp_path / "hourly"
    given: tuple[Any, ...] = (spark, running.url, "hourly", "nightly", out)
    publish(running, "hourly", few_lines(8, 50))
    assert module.count_new_lines(*given) == 50
    assert hourly(module.totals(spark, out)) == {("17 08", "200"): 40, ("17 08", "404"): 10}
    publish(running, "hourly", few_lines(8, 5) + few_lines(9, 10))
    assert module.count_new_lines(*given) == 15
    expected = {
        ("17 08", "200"): 44, ("17 08", "404"): 11, ("17 09", "200"): 8, ("17 09", "404"): 2,
    }  # fmt: skip
    assert hourly(module.totals(spark, out)) == expected
    assert module.count_new_lines(*given) == 0
    assert hourly(module.totals(spark, out)) == expected
    with running.client() as client:
        client.delete_topic("hourly")
    publish(running, "hourly", few_lines(9, 5))
    assert module.count_new_lines(*given) == 5
    expected |= {("17 09", "200"): 12, ("17 09", "404"): 3}
    assert hourly(module.totals(spark, out)) == expected, "nothing of the old topic is replaced"


def test_an_hourly_run_that_failed_before_it_saved_counts_nothing_twice(
    spark: "SparkSession", running: RunningBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = example("spark_hourly_status")
    out = tmp_path / "hourly"
    given: tuple[Any, ...] = (spark, running.url, "failing", "nightly", out)
    publish(running, "failing", few_lines(8, 50))
    with monkeypatch.context() as patched:
        patched.setattr("holdfast.spark.bound.Bound.save", failing)
        with pytest.raises(RuntimeError, match="before it was saved"):
            module.count_new_lines(*given)
    publish(running, "failing", few_lines(8, 5))
    assert module.count_new_lines(*given) == 55
    assert hourly(module.totals(spark, out)) == {("17 08", "200"): 44, ("17 08", "404"): 11}


def failing(_: object) -> None:
    raise RuntimeError("the machine went down before it was saved")


def test_the_whole_access_log_by_hour(
    spark: "SparkSession", running: RunningBroker, tmp_path: Path
) -> None:
    module = example("spark_hourly_status")
    publish(running, "weblog", access_log.read_lines())
    assert module.count_new_lines(spark, running.url, "weblog", "g", tmp_path / "out") == 10_000
    counts = hourly(module.totals(spark, tmp_path / "out"))
    assert len({hour for hour, _ in counts}) == 84
    by_status: dict[str, int] = {}
    for (_, status), count in counts.items():
        by_status[status] = by_status.get(status, 0) + count
    assert by_status == access_log.STATUSES


def test_a_backfill_copies_its_range_and_the_same_rows_again(
    spark: "SparkSession", running: RunningBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = example("spark_backfill")
    publish(running, "copied", few_lines(8, 50))
    out = tmp_path / "copied"
    given: tuple[Any, ...] = (spark, running.url, "copied", module.utc("2020-01-01"))
    until = module.utc("2100-01-01T12:00")
    write = Path.write_text

    def cut_off(path: Path, text: str) -> None:
        write(path, text[:10])
        raise RuntimeError("the machine went down while it wrote")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", cut_off)
        with pytest.raises(RuntimeError, match="while it wrote"):
            module.backfill(*given, until, out)
    assert module.backfill(*given, until, out) == 50
    publish(running, "copied", few_lines(8, 10))
    assert module.backfill(*given, until, out) == 50
    assert spark.read.parquet(str(out)).where("tag = '404' and day is not null").count() == 10
    kept = json.loads(Path(f"{out}.offsets.json").read_text())
    assert sum(json.loads(kept["endingOffsets"])["copied"].values()) == 50
    nothing = module.backfill(*given, module.utc("2020-01-02"), tmp_path / "empty")
    assert nothing == 0


def in_order_of_tasks(broker: RunningBroker, topic: str) -> bool:
    """Return whether the keys in a queue ascend within each of the two tasks."""
    with broker.client() as client:
        keys = [str(message.key) for message in client.pull(topic, 0, 0, follow=False)]
    return sum(after < before for before, after in pairwise(keys)) <= 1


def test_sessions_are_published_once_over_a_restart(
    spark: "SparkSession", running: RunningBroker, tmp_path: Path
) -> None:
    module = example("spark_sessions")

    def run() -> list[tuple[str, str, int]]:
        """Run the stream to its end; return visitor, hour and line count of each session."""
        query = module.publish_sessions(
            spark, running.url, "visits", "sessions", tmp_path / "checkpoint"
        )
        assert query.awaitTermination(120)
        with running.client() as client:
            queues = client.describe_topic("sessions")["queue_count"]
            found = [
                (message.key, json.loads(message.body))
                for queue in range(queues)
                for message in client.pull("sessions", queue=queue, offset=0, follow=False)
            ]
        return sorted((str(key), told["start"][11:13], told["lines"]) for key, told in found)

    with running.client() as client:
        client.create_topic("sessions", queues=1)
    publish(running, "visits", few_lines(8, 50) + few_lines(9, 20))
    first = run()
    assert in_order_of_tasks(running, "sessions"), "a repeated batch would be taken for another"
    assert first == [(f"10.0.0.{n}", "08", 5) for n in range(10)], "those of nine o'clock go on"
    publish(running, "visits", few_lines(9, 10) + few_lines(12, 1))
    assert run() == sorted(first + [(f"10.0.0.{n}", "09", 3) for n in range(10)])


def test_times_without_a_zone_are_utc() -> None:
    utc = example("spark_backfill").utc
    assert utc("2026-11-01") == datetime(2026, 11, 1, tzinfo=UTC)
    assert utc("2026-11-01T12:00+02:00") == datetime(2026, 11, 1, 10, tzinfo=UTC)


def test_tags_are_counted(spark: "SparkSession", running: RunningBroker) -> None:
    publish(running, "tags", few_lines(8, 50))
    counts = example("spark_count_by_tag").count_by_tag(spark, running.url, "tags").collect()
    assert [tuple(row) for row in counts] == [("200", 40), ("404", 10)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_documents_its_command(path: Path) -> None:
    module = example(path.stem)
    assert f"python examples/{path.name} --url " in (module.__doc__ or "")
    assert path.name in (ROOT / "examples" / "README.md").read_text()


@pytest.mark.fault
@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("spark_count_by_tag", "", "|404|"),
        ("spark_hourly_status", "--out hourly", "50 new lines"),
        ("spark_sessions", "--to visits --checkpoint kept", ""),
        ("spark_backfill", "--since 2020-01-01 --until 2100-01-01 --out new", "50 rows in new"),
    ],
)
def test_an_example_runs_with_its_documented_command(
    running: RunningBroker, tmp_path: Path, name: str, arguments: str, said: str
) -> None:
    publish(running, name, few_lines(8, 50))
    program = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(
        [*program, "--url", running.url, "--topic", name, *arguments.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert said in done.stdout
