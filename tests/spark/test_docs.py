"""docs/spark.md is correct: its options are those of the code, and its Python runs unchanged."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.running_broker import RunningBroker
from holdfast.spark.options.read import (
    DEFAULT_FETCH_BYTES,
    DEFAULT_LEASE_MS,
    DEFAULT_PARTITION_BYTES,
    MAX_FETCH_BYTES,
    OPTIONS,
)
from holdfast.spark.options.stream import (
    DEFAULT_IDLE_WAIT_MS,
    DEFAULT_MAX_TRIGGER_DELAY_MS,
    STREAM_OPTIONS,
)
from holdfast.spark.options.write import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_BATCH_ROWS,
    MAX_BATCH_BYTES,
    MAX_BATCH_ROWS,
    WRITE_OPTIONS,
)
from tests.support.tree.page_session import Session, shown_outputs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
TUTORIAL = "docs/tutorials/spark.md"
PAGE = (ROOT / "docs" / "spark.md").read_text()
INDEX = "docs/index.md"
READING, _, BEHIND = PAGE.partition("\n## Streaming\n")
STREAMING, _, WRITING = BEHIND.partition("\n## Writing\n")
#: Tables of options, found by their header row.
_TABLE = re.compile(r"^\| option \|[^\n]*\n\|[-|]+\n((?:\|[^\n]*\n)+)", re.MULTILINE)
_BROKER, _CLUSTER = "http://broker:8711", "spark://master"


def rows(text: str) -> dict[str, str]:
    """Return the option tables in a part of the page: option name -> rest of the row."""
    said: dict[str, str] = {}
    for table in _TABLE.findall(text):
        for row in table.splitlines():
            names, _, rest = row.removeprefix("| ").partition(" | ")
            said |= dict.fromkeys(re.findall(r"`([^`]+)`", names), rest)
    return said


def mib(size: int) -> str:
    return f"`{size >> 20}m`"


def test_the_tables_have_every_option_and_no_other() -> None:
    on_files = rows(WRITING.partition("\n## Files instead of HTTP\n")[2])
    assert rows(READING).keys() | on_files.keys() == OPTIONS.keys()
    own = STREAM_OPTIONS.keys() - OPTIONS.keys()
    assert own <= rows(STREAMING).keys() <= STREAM_OPTIONS.keys()
    assert rows(WRITING.partition("\n## Files instead of HTTP\n")[0]).keys() == WRITE_OPTIONS.keys()


def test_the_tables_have_the_codes_defaults_and_bounds() -> None:
    reading, streaming, writing = rows(READING), rows(STREAMING), rows(WRITING)
    assert reading["maxBytesPerPartition"].startswith(mib(DEFAULT_PARTITION_BYTES))
    assert reading["fetchMaxBytes"].startswith(mib(DEFAULT_FETCH_BYTES))
    assert f"at most {mib(MAX_FETCH_BYTES)}" in reading["fetchMaxBytes"]
    assert reading["leaseMs"].startswith(f"`{DEFAULT_LEASE_MS}`")
    assert streaming["idleWaitMs"].startswith(f"`{DEFAULT_IDLE_WAIT_MS}`")
    assert streaming["maxTriggerDelay"].startswith(f"`{DEFAULT_MAX_TRIGGER_DELAY_MS // 60_000}m`")
    assert writing["maxBatchBytes"].startswith(mib(DEFAULT_BATCH_BYTES))
    assert f"at most {mib(MAX_BATCH_BYTES)}" in writing["maxBatchBytes"]
    assert writing["maxBatchRows"].startswith(f"`{DEFAULT_BATCH_ROWS}`")
    assert f"at most {MAX_BATCH_ROWS}" in writing["maxBatchRows"]
    for option in ("includeBody", "failOnDataLoss"):
        assert reading[option].startswith("`true`")
    for option in ("pushdown", "includeHeaders"):
        assert reading[option].startswith("`false`")


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_every_example_runs(spark: "SparkSession", running: RunningBroker, tmp_path: Path) -> None:
    with running.client() as client:
        client.create_topic("orders", queues=2)
        for n in range(40):
            client.publish("orders", b"%d" % n, tag=f"t{n % 3}", queue=n % 2)
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) >= 7
    names: dict[str, Any] = {"spark": spark}
    try:
        for example in examples:
            if _CLUSTER in example:
                continue  # tests/cluster tests `ship` on clusters
            code = (
                example.replace(_BROKER, running.url)
                .replace("broker:8711", running.url.removeprefix("http://"))
                .replace('"/data/', f'"{tmp_path}/')
                .replace("/var/lib/holdfast", str(running.data_dir))
                .replace("spark = local_session()", "")
            )
            exec(compile(code, "docs/spark.md", "exec"), names)
            for query in spark.streams.active:
                query.processAllAvailable()
                query.stop()
        assert spark.read.parquet(f"{tmp_path}/nightly").count() == 40
        with running.client() as client:
            written = list(client.pull("orders", start="earliest", follow=False))
            loud = list(client.pull("loud", start="earliest", follow=False))
            counted = list(client.pull("counts", start="earliest", follow=False))
        assert {each.key for each in written} == {None, "7", "8"}
        assert {each.key for each in loud} == {None, "7", "8"}
        assert {each.key for each in counted} == {None, "t0", "t1", "t2"}
    finally:
        for query in spark.streams.active:
            query.stop()


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_the_tutorial_prints_what_it_shows(
    spark: "SparkSession",
    running: RunningBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.spark.local_session", lambda: spark)
    session = Session(running, tmp_path, {"spark": spark})
    session.run(TUTORIAL)
    assert not session.failures, "\n\n".join(session.failures)
    shown = shown_outputs(TUTORIAL)
    assert len(shown) == 4
    for block, output in shown.items():
        assert session.printed[block] == output, block.place


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_the_example_of_the_index_runs(
    spark: "SparkSession", running: RunningBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    with running.client() as client:
        client.create_topic("customers", queues=1)
        client.publish("customers", b"one", key="customer-7")
    (example,) = re.findall(
        r"^From Spark.*?:\n\n```python\n(.*?)```",
        (ROOT / INDEX).read_text(),
        re.DOTALL | re.MULTILINE,
    )
    assert "http://127.0.0.1:8711" in example
    code = (
        example.replace("http://127.0.0.1:8711", running.url)
        .replace('"orders"', '"customers"')  # the other pages' examples fill the topic "orders"
        .replace("spark = local_session()", "")
    )
    exec(compile(code, INDEX, "exec"), {"spark": spark})
    assert re.search(r"\|customer-7\| +1\|", capsys.readouterr().out)
