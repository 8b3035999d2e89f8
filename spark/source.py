"""The data source, and its batch reads: what Spark calls, and when.

    driver     schema()        once, at load(): the options are checked and the offsets bound
               reader()        for each plan, on a copy of the source with the offsets in it
               partitions()    for each plan: the ranges shared out among tasks
    executor   read()          for each task, and again for each retry of it: the same rows

Spark pickles the source after schema() and hands copies of it to the planners of all actions
on the DataFrame: this is what makes two actions see the same rows.
"""

import gc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from holdfast.spark.catalog import Catalog
from holdfast.spark.columns import ddl_of
from holdfast.spark.errors import InvalidOption
from holdfast.spark.offsets import QueueRange
from holdfast.spark.options import ReadOptions, parse_options
from holdfast.spark.plan import BoundTopic, bind_topics, plan_partitions
from holdfast.spark.pushdown import Narrowing, narrow, narrowing, pushed_tags
from holdfast.spark.reading import open_catalog, read_rows
from holdfast.spark.sink import batch_sink, stream_sink


class HoldfastDataSource(DataSource):
    """`spark.read.format("holdfast")`; docs/spark.md lists its options."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._read: tuple[ReadOptions, tuple[BoundTopic, ...]] | None = None

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "holdfast"

    def schema(self) -> str:
        """Check the options, bind the offsets, and return the columns."""
        options = parse_options(self.options)
        with open_catalog(options) as catalog:
            self._read = options, bind_topics(catalog, options)
        return ddl_of(options.columns)

    def reader(self, schema: StructType) -> "HoldfastReader":
        """Return a reader of what was bound. Raises InvalidOption for a schema of the user's."""
        if self._read is None:
            raise InvalidOption(
                "schema", "load without .schema(...): the option columns chooses the columns"
            )
        options, topics = self._read
        return (PushdownReader if options.pushdown else HoldfastReader)(options, topics)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of a batch with these columns."""
        return batch_sink(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return a writer of a stream with these columns."""
        return stream_sink(self.options, schema, overwrite)


class RangesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: tuple[QueueRange, ...]) -> None:
        super().__init__(ranges)


class HoldfastReader(DataSourceReader):
    """Reads bound ranges. Pickled into every task.

    It has no pushFilters: with Spark's defaults a reader that defines it is refused.
    """

    def __init__(self, options: ReadOptions, topics: tuple[BoundTopic, ...]) -> None:
        self._options = options
        self._topics = topics

    def partitions(self) -> list[InputPartition]:
        """Return one partition a task; a single empty one when there is nothing to read.

        (Spark turns an empty list into one partition of None.)
        """
        with open_catalog(self._options) as catalog:
            plan = plan_partitions(catalog, self._options, self._narrowed(catalog))
        return [RangesPartition(ranges) for ranges in plan or [()]]

    def _narrowed(self, catalog: Catalog) -> tuple[BoundTopic, ...]:
        """Return what is to be planned of what was bound."""
        return self._topics

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition as Arrow record batches."""
        if TaskContext.get() is not None:
            _settle_worker()
        ranges: Any = partition.value
        yield from read_rows(ranges or (), self._options)


class PushdownReader(HoldfastReader):
    """A reader that Spark tells its filters, for the option pushdown.

    Spark refuses it while spark.sql.python.filterPushdown.enabled is false, which it is by default.
    """

    def __init__(self, options: ReadOptions, topics: tuple[BoundTopic, ...]) -> None:
        super().__init__(options, topics)
        self._wanted = Narrowing()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        """Take note of what need not be read; every filter stays with Spark, too."""
        self._wanted = narrowing(filters)
        tags = pushed_tags(self._options.tags, self._wanted.tags)
        if tags is None:
            self._topics = ()
        else:
            self._options = replace(self._options, tags=tags)
        return filters

    def _narrowed(self, catalog: Catalog) -> tuple[BoundTopic, ...]:
        return narrow(catalog, self._topics, self._wanted)


@cache
def _settle_worker() -> None:
    """Leave what this worker has loaded out of later garbage collections. Once a process.

    Spark's worker collects all garbage after each task, and what it then looks through is modules:
    40 ms of processor time a task, as much as it takes to hand 30 MB of rows to the JVM.
    """
    gc.collect()
    gc.freeze()
