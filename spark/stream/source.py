"""The streaming data source: the methods that Spark calls, and when.

    driver     initialOffset()   for a stream without a checkpoint, twice
               latestOffset()    before each micro-batch, repeatedly while there is none
               partitions()      for each micro-batch, and again when it is replayed
               commit()          for a micro-batch, when Spark plans the next one
    executor   read()            for each task, on another copy of the reader, which knows only the
                                 options and its partition

Spark starts a Python process on the driver, which lives as long as the query and uses one reader
for all calls. When the query stops or fails, Spark ends this process immediately, even inside
stop().
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.options.stream import NO_LIMITS, StreamOptions
from holdfast.spark.read.reading import open_catalog
from holdfast.spark.read.task import RangesPartition, read_partition
from holdfast.spark.shipping import SelfUnpackingMeta
from holdfast.spark.stream.driver import StreamDriver
from holdfast.spark.stream.group_progress import ProgressReporter
from holdfast.spark.stream.offsets import decode_offsets, encode_offsets
from holdfast.spark.stream.termination import run_before_termination

#: The timeout and the maximum retry time of the requests that store the progress in a group. They
#: are short, because the stream waits for these requests, and the group has only a copy.
_REPORT_RETRY_FOR_S = 5.0
#: Timeout of the requests that release leases after Spark has told the process to end.
_RELEASE_TIMEOUT_S = 5.0


class HoldfastStreamReader(
    DataSourceStreamReader, SupportsTriggerAvailableNow, metaclass=SelfUnpackingMeta
):
    """Reads a stream. Spark pickles a copy of it into every task."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._opened: StreamDriver | None = None
        self._open = ExitStack()

    @property
    def _driver(self) -> StreamDriver:
        """The driver's side of the stream, opened on first use."""
        if self._opened is None:
            with ExitStack() as opening:
                catalog = opening.enter_context(open_catalog(self._options.read))
                reporter = self._open_reporter(opening)
                driver = StreamDriver(catalog, self._options, reporter)
                self._opened = opening.enter_context(closing(driver))
                self._open = opening.pop_all()
            run_before_termination(self._release_at_termination)
        return self._opened

    def _open_reporter(self, opening: ExitStack) -> ProgressReporter | None:
        if self._options.group is None:
            return None
        client = BrokerClient.open(
            self._options.read.address,
            retry_for_s=_REPORT_RETRY_FOR_S,
            timeout_s=_REPORT_RETRY_FOR_S,
        )
        reporter = ProgressReporter(opening.enter_context(client), self._options.group)
        reporter.check()
        return reporter

    def _release_at_termination(self) -> None:
        """Release the leases of a micro-batch that Spark interrupts. A signal handler calls this,
        maybe in the middle of a request of the driver, so it uses its own connection."""
        leases = [] if self._opened is None else self._opened.leases
        if leases:
            with BrokerClient.open(
                self._options.read.address, retry_for_s=0, timeout_s=_RELEASE_TIMEOUT_S
            ) as client:
                client.release_leases(leases)

    def __reduce__(self) -> tuple[type["HoldfastStreamReader"], tuple[StreamOptions]]:
        return type(self), (self._options,)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name, as below
        return encode_offsets(self._driver.initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the first limit in the options for which Spark has a class."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch, or `start` if there is nothing new. If Spark
        passes the default limit, all limits of the options apply. For a trigger that reads
        everything, Spark passes ReadAllAvailable, and no limit applies."""
        limits = NO_LIMITS if isinstance(limit, ReadAllAvailable) else self._options.limits
        begin = decode_offsets(start)
        end = self._driver.latest(begin, limits)
        return start if end == begin else encode_offsets(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of all queues as `latestOffset` last found them, for the query's progress
        report. Return None before the first call."""
        newest = self._driver.newest()
        return None if newest is None else encode_offsets(newest)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._driver.pin()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one partition per task. If there is nothing to read, return an empty list."""
        plan = self._driver.plan(decode_offsets(start), decode_offsets(end))
        return [RangesPartition(ranges) for ranges in plan]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options.read)

    def commit(self, end: dict[str, Any]) -> None:
        """Store the progress after a micro-batch in the group, if there is one."""
        self._driver.commit(decode_offsets(end))

    def stop(self) -> None:
        self._open.close()
        # After the release: Spark may end the process during the release, and then
        # `_release_at_termination` needs `_opened`.
        self._opened = None
