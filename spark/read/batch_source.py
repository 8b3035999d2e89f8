"""The reader of a batch: the methods that Spark calls after the offsets are fixed, and when.

driver     partitions()    for each plan: cuts the ranges into one partition per task
executor   read()          for each attempt at a task: yields the same rows
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from holdfast.spark.broker.catalog import Catalog
from holdfast.spark.options.read import ReadOptions
from holdfast.spark.read.plan import BoundTopic, plan_partitions
from holdfast.spark.read.pushdown import FilterBounds, choose_tags, find_bounds, narrow_topics
from holdfast.spark.read.reading import open_catalog
from holdfast.spark.read.task import RangesPartition, read_partition


class HoldfastReader(DataSourceReader):
    """Reads ranges of fixed offsets. Spark pickles it into every task. This class must not define
    pushFilters: by default, Spark refuses a reader with that method."""

    def __init__(self, options: ReadOptions, topics: tuple[BoundTopic, ...]) -> None:
        self._options = options
        self._topics = topics

    def partitions(self) -> list[InputPartition]:
        """Return one partition per task. If there is nothing to read, return one empty partition,
        because Spark would turn an empty list into a partition of None."""
        with open_catalog(self._options) as catalog:
            plan = plan_partitions(catalog, self._options, self._topics_to_plan(catalog))
        return [RangesPartition(ranges) for ranges in plan or [()]]

    def _topics_to_plan(self, catalog: Catalog) -> tuple[BoundTopic, ...]:
        """Return the topics and ranges to plan. A subclass may leave some out."""
        return self._topics

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options)


class PushdownReader(HoldfastReader):
    """A reader that receives Spark's filters, for the option pushdown. Spark refuses this reader
    unless spark.sql.python.filterPushdown.enabled is true. The default is false."""

    def __init__(self, options: ReadOptions, topics: tuple[BoundTopic, ...]) -> None:
        super().__init__(options, topics)
        self._wanted = FilterBounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        """Record which rows the filters keep, so that other rows need not be read. Return all
        filters, so that Spark applies them as well."""
        self._wanted = find_bounds(filters)
        tags = choose_tags(self._options.tags, self._wanted.tags)
        if tags is None:
            self._topics = ()
        else:
            self._options = replace(self._options, tags=tags)
        return filters

    def _topics_to_plan(self, catalog: Catalog) -> tuple[BoundTopic, ...]:
        return narrow_topics(catalog, self._topics, self._wanted)
