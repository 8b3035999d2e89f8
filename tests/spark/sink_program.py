"""A Spark driver that is killed, or whose tasks fail, for tests of the rows that the sink stores.

python -m tests.spark.sink_program stream URL TOPIC FOLDER [dies]
python -m tests.spark.sink_program tasks URL TOPIC FOLDER
python -m tests.spark.sink_program speculation URL TOPIC FOLDER MASTER
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.spark.session import local_session
from holdfast.spark.source import HoldfastDataSource
from holdfast.spark.write.sink import HoldfastStreamWriter, HoldfastWriter, TaskResult

ROWS = 20_000
PARTITIONS = 2


# -- a driver that dies after storing a batch, before the checkpoint records it -----------------


class DyingWriter(HoldfastStreamWriter):
    """Kills the driver, Python and Java, when the second batch is committed."""

    driver: tuple[int, ...] = ()

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        """Kill the driver processes at the second batch."""
        if batchId == 1:
            for pid in self.driver:
                os.kill(pid, signal.SIGKILL)


class DyingSource(HoldfastDataSource):
    """Writes streams with a DyingWriter; an option holds the ids of the processes to kill."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DyingWriter:  # noqa: N802
        """Return a writer that kills the driver."""
        given = dict(self.options)
        driver = tuple(map(int, given.pop("driver").split()))
        writer = HoldfastDataSource(given).streamWriter(schema, overwrite)
        writer.__class__ = DyingWriter
        assert isinstance(writer, DyingWriter)
        writer.driver = driver
        return writer


def stream(url: str, topic: str, folder: Path, dies: bool) -> None:
    """Write all files of FOLDER/in, one batch per file."""
    spark = local_session(2, settings={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
    spark.dataSource.register(DyingSource)
    reader = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1)
    rows = reader.text(str(folder / "in")).selectExpr("value as body", "value as key")
    writer = rows.repartition(PARTITIONS, "body").writeStream
    writer = writer.format("dying" if dies else "holdfast").option("maxBatchRows", 500)
    writer = writer.option("sortBy", "body")
    if dies:
        machine: Any = spark._jvm
        java = machine.java.lang.ProcessHandle.current().pid()
        # Python first: if Java ended first, Python would notice and exit with another status.
        writer = writer.option("driver", f"{os.getpid()} {java}")
    writer = writer.options(url=url, topic=topic, checkpointLocation=str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


# -- tasks that fail before or after the sink, with separate executors --------------------------


class FailingWriter(HoldfastWriter):
    """Fails the first attempt at each task after all rows are stored."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Store the rows, and fail in the first attempt."""
        written = super().write(iterator)
        if attempt() == 0:
            raise RuntimeError("planned: after the write")
        return written


class FailingSource(HoldfastDataSource):
    """Writes with a FailingWriter."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "failing"

    def writer(self, schema: StructType, overwrite: bool) -> FailingWriter:
        """Return a writer that fails."""
        writer = HoldfastDataSource(dict(self.options)).writer(schema, overwrite)
        writer.__class__ = FailingWriter
        assert isinstance(writer, FailingWriter)
        return writer


def attempt() -> int:
    """Return the number of earlier attempts at this task."""
    task = TaskContext.get()
    assert task is not None
    return task.attemptNumber()


def fail_before(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fail in the middle of the rows, at a different row in each of three attempts."""
    for number, batch in enumerate(batches):
        if attempt() < 3 and number == (3, 5, 4)[attempt()]:
            raise RuntimeError("planned: before the write")
        yield batch


def kill_executor(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Kill the whole executor in the middle of the first partition, in the first attempt."""
    task = TaskContext.get()
    assert task is not None
    for number, batch in enumerate(batches):
        if number == 4 and attempt() == 0 and task.partitionId() == 0:
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2]
            os.kill(int(daemon.split()[1]), signal.SIGKILL)
            time.sleep(60)
        yield batch


def meet(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that stops the first partition until a second attempt has got as far. It
    stops in the middle of the rows; from there on both attempts write at once."""

    def together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        for number, batch in enumerate(batches):
            if number == 4 and task.partitionId() == 0:
                (folder / f"attempt-{attempt()}").touch()
                deadline = time.monotonic() + 100
                while not all((folder / f"attempt-{each}").exists() for each in (0, 1)):
                    if time.monotonic() > deadline:
                        raise RuntimeError("no second attempt was begun")
                    time.sleep(0.01)
            yield batch

    return together


def tasks(url: str, topic: str) -> None:
    """Write the same rows to TOPIC.before, TOPIC.behind and TOPIC.executor."""
    spark = session("local-cluster[2,1,1024]", {"spark.task.maxFailures": "5"})
    spark.dataSource.register(FailingSource)
    rows = numbered(spark)
    for name, change, kind in (
        ("before", fail_before, "holdfast"),
        ("behind", None, "failing"),
        ("executor", kill_executor, "holdfast"),
    ):
        frame = rows if change is None else rows.mapInArrow(change, rows.schema)
        frame.write.format(kind).mode("append").options(
            url=url, topic=f"{topic}.{name}", maxBatchRows="300"
        ).save()
        print(name, flush=True)


def speculation(url: str, topic: str, folder: Path, master: str) -> None:
    """Write the rows to TOPIC, with two simultaneous attempts at the first partition."""
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
    }
    rows = numbered(session(master, settings))
    rows.mapInArrow(meet(folder), rows.schema).write.format("holdfast").mode("append").options(
        url=url, topic=topic, maxBatchRows="300"
    ).save()


def session(master: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session with separate executor processes."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master)
    for name, value in {
        "spark.executor.memory": "800m",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        **settings,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(HoldfastDataSource)
    return spark


def numbered(spark: SparkSession) -> DataFrame:
    """Return ROWS rows in PARTITIONS partitions."""
    return spark.range(0, ROWS, 1, PARTITIONS).selectExpr(
        "string(id) as body", "string(id % 11) as key"
    )


if __name__ == "__main__":
    kind, url, topic, folder, *rest = sys.argv[1:]
    if kind == "stream":
        stream(url, topic, Path(folder), dies=bool(rest))
    elif kind == "speculation":
        speculation(url, topic, Path(folder), *rest)
    else:
        tasks(url, topic)
