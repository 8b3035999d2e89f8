"""Reading a batch: what Spark calls once the offsets are bound, and when.

driver     partitions()    for each plan: the ranges shared out among tasks
executor   read()          for each task, and again for each retry of it: the same rows
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from holdfast.spark.catalog import Catalog
from holdfast.spark.options import ReadOptions
from holdfast.spark.plan import BoundTopic, plan_partitions
from holdfast.spark.pushdown import Narrowing, narrow, narrowing, pushed_tags
from holdfast.spark.reading import open_catalog
from holdfast.spark.task import RangesPartition, read_partition


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
        return read_partition(partition, self._options)


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
