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
from holdfast.spark.deploy.pickling import Travelling
from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.write import WriteOptions, parse_write_options
from holdfast.spark.write.columns import Column, choose_columns, sorting_columns
from holdfast.spark.write.producer_identity import Producer, Writer, stream_writer
from holdfast.spark.write.publisher import Tally
from holdfast.spark.write.task import Targets, write_partition

_log = logging.getLogger("holdfast.spark")


@dataclass
class Written(WriterCommitMessage):
    """The result of one task."""

    partition: int
    tally: Tally


@dataclass(frozen=True)
class Rows:
    """The options, columns and sort order of a write."""

    options: WriteOptions
    columns: Mapping[str, Column]
    sort_by: tuple[Column, ...]

    def write(self, batches: Iterator[pa.RecordBatch], producer: Producer) -> Written:
        """Store one partition and return the result."""
        tally = write_partition(batches, self.options, self.columns, producer, sort_by=self.sort_by)
        return Written(producer.partition, tally)


def batch_sink(given: Mapping[str, str], schema: StructType, overwrite: bool) -> "HoldfastWriter":
    """Return the writer of a batch. Raises InvalidOption, UnwritableColumn, and the broker's errors
    for the topic that the options name."""
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
    """Return the writer of a stream. Raises the same errors as batch_sink."""
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
    if options.topic is not None:  # if the topic is unusable, fail now and not in every task
        with BrokerClient.open(options.address) as client:
            Targets(client, options).get(options.topic)
    return Rows(options, columns, sort_by)


class HoldfastWriter(DataSourceArrowWriter):
    """Writes a batch. Spark pickles it into every task."""

    def __init__(self, rows: Rows, writer: Writer | None) -> None:
        self._rows = rows
        self._writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store one partition."""
        return self._rows.write(iterator, Producer(self._writer, _task().partitionId()))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what was written."""
        _log.info("%s", _summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log that the write failed, and that stored rows remain stored."""
        _log.warning("the write failed; what it stored stays: at least %s", _summary(messages))


class HoldfastStreamWriter(DataSourceStreamArrowWriter, metaclass=Travelling):
    """Writes micro-batches. Spark pickles it into every task.

    Its metaclass adds the package's archive to the pickle, because over Spark Connect these tasks
    do not get the archives that were sent to the session.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store one partition of a micro-batch. Raises the errors of `write_partition`, and
        IdentityMissing."""
        task = _task()
        idempotent = self._rows.options.is_idempotent
        writer = stream_writer(task.getLocalProperty) if idempotent else None
        return self._rows.write(iterator, Producer(writer, task.partitionId()))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log what was written."""
        _log.info("batch %d: %s", batchId, _summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log that the batch failed, and that stored rows remain stored. Spark repeats the
        batch."""
        _log.warning(
            "batch %d failed; what it stored stays: at least %s", batchId, _summary(messages)
        )


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None  # Spark calls write only in tasks
    return task


def _summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    tallies = [message.tally for message in messages if isinstance(message, Written)]
    rows, batches, size_bytes = (
        sum(getattr(tally, name) for tally in tallies) for name in ("rows", "batches", "size_bytes")
    )
    again = sum(tally.duplicates for tally in tallies)
    return f"{rows} rows in {batches} batches ({again} of them stored before), {size_bytes} bytes"
