"""The streaming data source: what Spark calls, and when.

    driver     initialOffset()   for a stream without a checkpoint, twice
               latestOffset()    before each micro-batch, again and again while there is none
               partitions()      for each micro-batch, and again when it is replayed
               commit()          for a micro-batch when the next one is planned
    executor   read()            for each task, on another copy of the reader, never seen by the
                                 driver: all that it knows are the options and its partition

One process of the driver lives as long as the query and has one reader for all of its calls. When
the query stops or fails, Spark ends it at once, whatever it is doing, be that stop() itself.
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

from holdfast.spark.broker_client import BrokerClient
from holdfast.spark.mirror import GroupMirror
from holdfast.spark.reading import open_catalog
from holdfast.spark.stream_driver import StreamDriver
from holdfast.spark.stream_offsets import decode_offsets, encode_offsets
from holdfast.spark.stream_options import NO_LIMITS, StreamOptions
from holdfast.spark.task import RangesPartition, read_partition
from holdfast.spark.termination import before_termination
from holdfast.spark.travelling import Travelling

#: A copy of the progress is not worth a longer wait: the stream itself goes on meanwhile.
_MIRROR_RETRY_FOR_S = 5.0
#: What the process still waits for when Spark has told it to end.
_LAST_WORDS_TIMEOUT_S = 5.0


class HoldfastStreamReader(
    DataSourceStreamReader, SupportsTriggerAvailableNow, metaclass=Travelling
):
    """Reads a stream. A copy of it is pickled into every task."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._opened: StreamDriver | None = None
        self._open = ExitStack()

    @property
    def _driver(self) -> StreamDriver:
        """The driver's side of the stream, opened when it is first asked for."""
        if self._opened is None:
            with ExitStack() as opening:
                catalog = opening.enter_context(open_catalog(self._options.read))
                mirror = self._open_mirror(opening)
                driver = StreamDriver(catalog, self._options, mirror)
                self._opened = opening.enter_context(closing(driver))
                self._open = opening.pop_all()
            before_termination(self._let_go)
        return self._opened

    def _open_mirror(self, opening: ExitStack) -> GroupMirror | None:
        if self._options.group is None:
            return None
        client = BrokerClient.open(
            self._options.read.address,
            retry_for_s=_MIRROR_RETRY_FOR_S,
            timeout_s=_MIRROR_RETRY_FOR_S,
        )
        mirror = GroupMirror(opening.enter_context(client), self._options.group)
        mirror.check()
        return mirror

    def _let_go(self) -> None:
        """End the leases of a micro-batch that Spark breaks off. In the midst of anything, perhaps
        of a request of the driver's: so by a connection of its own."""
        leases = [] if self._opened is None else self._opened.leases
        if leases:
            with BrokerClient.open(
                self._options.read.address, retry_for_s=0, timeout_s=_LAST_WORDS_TIMEOUT_S
            ) as client:
                client.release_leases(leases)

    def __reduce__(self) -> tuple[type["HoldfastStreamReader"], tuple[StreamOptions]]:
        return type(self), (self._options,)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name, as those below
        """Return where a stream without a checkpoint begins."""
        return encode_offsets(self._driver.initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the options' limit, as far as Spark has a word for it."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return how far the next micro-batch goes; `start` when there is nothing new.

        Spark hands back the default limit, which stands for all limits of the options, or says
        that a trigger takes everything.
        """
        limits = NO_LIMITS if isinstance(limit, ReadAllAvailable) else self._options.limits
        begin = decode_offsets(start)
        end = self._driver.latest(begin, limits)
        return start if end == begin else encode_offsets(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of all queues when they were last looked at, for the query's progress."""
        newest = self._driver.newest()
        return None if newest is None else encode_offsets(newest)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take what there is now as the end of the stream."""
        self._driver.pin()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one partition a task; none when there is nothing to read."""
        plan = self._driver.plan(decode_offsets(start), decode_offsets(end))
        return [RangesPartition(ranges) for ranges in plan]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition as Arrow record batches."""
        return read_partition(partition, self._options.read)

    def commit(self, end: dict[str, Any]) -> None:
        """Take note that a micro-batch is processed."""
        self._driver.commit(decode_offsets(end))

    def stop(self) -> None:
        """Close what is open."""
        self._open.close()
        self._opened = None  # only now: Spark may end the process while leases are let go of
