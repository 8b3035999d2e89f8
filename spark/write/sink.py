"""The sink: the methods that Spark calls to write, and when.

    driver     DataSource.writer() or streamWriter()   once per write: checks options and columns
    executor   write()                                 for each task, and each attempt at it
    driver     commit() or abort()                     when all tasks are done, or one has failed

Rows can be read as soon as they are stored, so commit only logs, and abort removes nothing. A
repeated attempt stores nothing twice, because it writes as the same producer
(producer_identity.py).
"""

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.write import WriteOptions, parse_write_options
from holdfast.spark.shipping import SelfUnpackingMeta
from holdfast.spark.write.columns import Column, choose_columns, choose_sort_columns
from holdfast.spark.write.producer_identity import Producer, WriterRun, identify_stream_run
from holdfast.spark.write.publisher import WriteCounts
from holdfast.spark.write.task import TargetTopics, write_partition

_log = logging.getLogger("holdfast.spark")


@dataclass
class TaskResult(WriterCommitMessage):
    """The result of one task."""

    partition: int
    counts: WriteCounts


@dataclass(frozen=True)
class RowWriter:
    """Stores partitions: the options, columns and sort order of a write."""

    options: WriteOptions
    columns: Mapping[str, Column]
    sort_by: tuple[Column, ...]

    def write(self, batches: Iterator[pa.RecordBatch], producer: Producer) -> TaskResult:
        options, columns = self.options, self.columns
        counts = write_partition(batches, options, columns, producer, sort_by=self.sort_by)
        return TaskResult(producer.partition, counts)


def make_batch_writer(
    given: Mapping[str, str], schema: StructType, overwrite: bool
) -> "HoldfastWriter":
    """Return the writer of a batch. Raises InvalidOption, UnwritableColumn, and the broker's errors
    for the topic that the options name."""
    if overwrite:
        raise InvalidOption("mode", "a log cannot be overwritten; use append")
    rows = _prepare_write(given, schema, streaming=False)
    writer = None
    if (transaction := rows.options.transaction) is not None:
        writer = WriterRun(f"transaction\n{transaction.app_id}", transaction.version)
    elif rows.options.is_idempotent:
        writer = WriterRun(f"job\n{uuid.uuid4().hex}", 0)
    return HoldfastWriter(rows, writer)


def make_stream_writer(
    given: Mapping[str, str], schema: StructType, overwrite: bool
) -> "HoldfastStreamWriter":
    """Return the writer of a stream. Raises the same errors as `make_batch_writer`."""
    if overwrite:
        detail = "a log cannot be overwritten, as complete does; use append, or foreachBatch"
        raise InvalidOption("outputMode", detail)
    return HoldfastStreamWriter(_prepare_write(given, schema, streaming=True))


def _prepare_write(given: Mapping[str, str], schema: StructType, *, streaming: bool) -> RowWriter:
    options = parse_write_options(given, streaming=streaming)
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    columns = choose_columns(fields, topic_given=options.topic is not None)
    sort_by = choose_sort_columns(fields, options.sort_by)
    if options.topic is not None:  # if the topic is unusable, fail now and not in every task
        with BrokerClient.open(options.address) as client:
            TargetTopics(client, options).get(options.topic)
    return RowWriter(options, columns, sort_by)


class HoldfastWriter(DataSourceArrowWriter):
    """Writes a batch. Spark pickles it into every task."""

    def __init__(self, rows: RowWriter, writer: WriterRun | None) -> None:
        self._rows = rows
        self._writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        return self._rows.write(iterator, Producer(self._writer, _current_task().partitionId()))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _log.info("%s", _summarize(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _log.warning("the write failed; stored rows remain: at least %s", _summarize(messages))


class HoldfastStreamWriter(DataSourceStreamArrowWriter, metaclass=SelfUnpackingMeta):
    """Writes micro-batches. Spark pickles it into every task. Its metaclass adds the package's
    archive to the pickle, because over Spark Connect these tasks do not get the archives that were
    sent to the session."""

    def __init__(self, rows: RowWriter) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Store one partition. Raises the errors of `write_partition`, and IdentityMissing."""
        task = _current_task()
        idempotent = self._rows.options.is_idempotent
        writer = identify_stream_run(task.getLocalProperty) if idempotent else None
        return self._rows.write(iterator, Producer(writer, task.partitionId()))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _log.info("batch %d: %s", batchId, _summarize(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log that the batch failed, and that stored rows remain. Spark repeats the batch."""
        summary = _summarize(messages)
        _log.warning("batch %d failed; stored rows remain: at least %s", batchId, summary)


def _current_task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None  # Spark calls write only in tasks
    return task


def _summarize(messages: Sequence[WriterCommitMessage | None]) -> str:
    results = [message.counts for message in messages if isinstance(message, TaskResult)]
    rows, batches, size_bytes, again = (
        sum(getattr(counts, name) for counts in results)
        for name in ("rows", "batches", "size_bytes", "duplicates")
    )
    return f"{rows} rows in {batches} batches ({again} of them already stored), {size_bytes} bytes"
