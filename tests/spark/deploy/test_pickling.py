import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from holdfast.spark.deploy import pickling
from holdfast.spark.deploy.archive import EXECUTORS_NEED, build_archive
from holdfast.spark.options.write import parse_write_options
from holdfast.spark.source import HoldfastDataSource
from holdfast.spark.stream.source import HoldfastStreamReader
from holdfast.spark.write.sink import HoldfastStreamWriter, RowWriter
from tests.cluster.clusters import python_with

#: Program: unpickle the input, check it, and write it pickled again.
SEND_ON = (
    "import sys, pickle\n"
    "from pyspark import cloudpickle\n"
    "source = pickle.load(sys.stdin.buffer)\n"
    "assert source.options == {'url': 'http://here'}, source.options\n"
    "assert source.name() == 'holdfast'\n"
    "sys.stdout.buffer.write(cloudpickle.dumps(source))"
)


def dumped(thing: Any) -> bytes:
    return bytes(cloudpickle.dumps(thing))  # type: ignore[no-untyped-call]


def test_a_source_is_pickled_by_name_where_nothing_was_sent() -> None:
    assert len(dumped(HoldfastDataSource)) < 200
    assert cloudpickle.loads(dumped(HoldfastDataSource)) is HoldfastDataSource


def test_a_source_brings_its_package_from_process_to_process(tmp_path: Path) -> None:
    pickling.ship_archive(build_archive())
    python = python_with((*EXECUTORS_NEED, "pyspark", "py4j"), tmp_path / "python")
    (tmp_path / "local").mkdir()
    sent = dumped(HoldfastDataSource({"url": "http://here"}))
    for _ in range(2):
        done = subprocess.run(
            [python, "-c", SEND_ON],
            input=sent,
            env={"SPARK_LOCAL_DIRS": f"{tmp_path / 'local'},{tmp_path / 'other'}"},
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        sent = done.stdout
    assert len(list((tmp_path / "local").iterdir())) == 2, "one a process, in Spark's own folder"


def test_a_streams_writer_brings_its_package_into_tasks(tmp_path: Path) -> None:
    pickling.ship_archive(build_archive())
    options = parse_write_options({"url": "http://here", "topic": "orders"}, streaming=True)
    writer = HoldfastStreamWriter(RowWriter(options, {}, ()))
    done = subprocess.run(
        [
            python_with((*EXECUTORS_NEED, "pyspark", "py4j"), tmp_path / "python"),
            "-c",
            "import sys, pickle; print(pickle.load(sys.stdin.buffer)._rows.options.topic)",
        ],
        input=dumped(writer),
        env={"SPARK_LOCAL_DIRS": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.stdout == b"orders\n", done.stderr.decode()


def test_what_a_streams_tasks_read_with_brings_its_package_too() -> None:
    assert len(dumped(HoldfastStreamReader)) < 200
    pickling.ship_archive(b"the archive")
    assert b"the archive" in dumped(HoldfastStreamReader)


def test_a_process_that_has_the_package_unpacks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    pickling.ship_archive(build_archive())
    assert cloudpickle.loads(dumped(HoldfastDataSource)) is HoldfastDataSource
    assert not list(tmp_path.iterdir())
