"""The sink: what Spark calls to write, and when.

    driver     DataSource.writer() or streamWriter()   once a write: options and columns checked
    executor   write()                                 for each task, and each attempt at it
    driver     commit() or abort()                     when all tasks are done, or one has failed

Rows can be read as soon as they are stored: commit has nothing left to do, and abort takes nothing
back. What makes a repeated attempt harmless is who it writes as (identity.py).
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

from holdfast.spark.broker_client import BrokerClient
from holdfast.spark.errors import InvalidOption
from holdfast.spark.identity import Producer, Writer, stream_writer
from holdfast.spark.publisher import Tally
from holdfast.spark.travelling import Travelling
from holdfast.spark.write_columns import Column, choose_columns, sorting_columns
from holdfast.spark.write_options import WriteOptions, parse_write_options
from holdfast.spark.writing import Targets, write_partition

_log = logging.getLogger("holdfast.spark")


@dataclass
class Written(WriterCommitMessage):
    """What one task stored."""

    partition: int
    tally: Tally


@dataclass(frozen=True)
class Rows:
    """What is to be written, and how."""

    options: WriteOptions
    columns: Mapping[str, Column]
    sort_by: tuple[Column, ...]

    def write(self, batches: Iterator[pa.RecordBatch], producer: Producer) -> Written:
        """Store one partition."""
        tally = write_partition(batches, self.options, self.columns, producer, sort_by=self.sort_by)
        return Written(producer.partition, tally)


def batch_sink(given: Mapping[str, str], schema: StructType, overwrite: bool) -> "HoldfastWriter":
    """Return the writer of a batch. Raises InvalidOption, UnwritableColumn, and what keeps the
    topic from being found."""
    if overwrite:
        raise InvalidOption("mode", "overwrite: a log is only appended to; use append")
    rows = _checked(given, schema, streaming=False)
    options, writer = rows.options, None
    if options.transaction is not None:
        writer = Writer(f"transaction\n{options.transaction.app_id}", options.transaction.version)
    elif options.is_idempotent:
        writer = Writer(f"job\n{uuid.uuid4().hex}", 0)
    return HoldfastWriter(rows, writer)


def stream_sink(
    given: Mapping[str, str], schema: StructType, overwrite: bool
) -> "HoldfastStreamWriter":
    """Return the writer of a stream. Raises as batch_sink does."""
    if overwrite:
        raise InvalidOption(
            "outputMode", "complete: a log is only appended to; use append, or foreachBatch"
        )
    return HoldfastStreamWriter(_checked(given, schema, streaming=True))


def _checked(given: Mapping[str, str], schema: StructType, *, streaming: bool) -> Rows:
    options = parse_write_options(given, streaming=streaming)
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    columns = choose_columns(fields, topic_given=options.topic is not None)
    sort_by = sorting_columns(fields, options.sort_by)
    if options.topic is not None:  # fail now rather than in every task
        with BrokerClient.open(options.address) as client:
            Targets(client, options).get(options.topic)
    return Rows(options, columns, sort_by)


class HoldfastWriter(DataSourceArrowWriter):
    """Writes a batch. Pickled into every task."""

    def __init__(self, rows: Rows, writer: Writer | None) -> None:
        self._rows = rows
        self._writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store one partition."""
        return self._rows.write(iterator, Producer(self._writer, _task().partitionId()))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Say in the log what was written."""
        _log.info("%s", _summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Say in the log that what was stored stays."""
        _log.warning("the write failed; what it stored stays: at least %s", _summary(messages))


class HoldfastStreamWriter(DataSourceStreamArrowWriter, metaclass=Travelling):
    """Writes micro-batches. Pickled into every task, which Spark Connect does not give what the
    session was sent: it brings that along."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store one partition of a micro-batch. Raises IdentityMissing, too."""
        task = _task()
        idempotent = self._rows.options.is_idempotent
        writer = stream_writer(task.getLocalProperty) if idempotent else None
        return self._rows.write(iterator, Producer(writer, task.partitionId()))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Say in the log what was written."""
        _log.info("batch %d: %s", batchId, _summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Say in the log that what was stored stays; the batch will come again."""
        _log.warning(
            "batch %d failed; what it stored stays: at least %s", batchId, _summary(messages)
        )


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None  # Spark writes in tasks alone
    return task


def _summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    tallies = [message.tally for message in messages if isinstance(message, Written)]
    rows, batches, size_bytes = (
        sum(getattr(tally, name) for tally in tallies) for name in ("rows", "batches", "size_bytes")
    )
    again = sum(tally.duplicates for tally in tallies)
    return f"{rows} rows in {batches} batches ({again} of them stored before), {size_bytes} bytes"
