"""The data source: the methods that Spark calls on the driver for a read or write, and when.

    schema()        once, at load(): checks the options and fixes the offsets of a batch
    reader()        for each plan of a batch, on a copy of the source that holds these offsets
    streamReader()  twice for each start of a stream
    writer(), streamWriter()  for each write

Spark pickles the source after schema() and gives copies of it to the planners of all actions on the
DataFrame. So all actions see the same rows.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from holdfast.spark.errors import (
    BrokerRefused,
    BrokerUnavailable,
    CertificateNotTrusted,
    FilesUnreadable,
    InvalidOption,
    SparkError,
    means_no_topic,
)
from holdfast.spark.options.columns import format_ddl
from holdfast.spark.options.read import STREAM_ONLY, ReadOptions, parse_options
from holdfast.spark.options.stream import StreamOptions, parse_stream_options
from holdfast.spark.read.batch_source import HoldfastReader, PushdownReader
from holdfast.spark.read.plan import BoundTopic, bind_topics
from holdfast.spark.read.reading import open_catalog
from holdfast.spark.shipping import SelfUnpackingMeta

if TYPE_CHECKING:
    from holdfast.spark.stream.source import HoldfastStreamReader

Value = TypeVar("Value")


class HoldfastDataSource(DataSource, metaclass=SelfUnpackingMeta):
    """`spark.read.format("holdfast")`; docs/spark.md lists its options."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        no_schema = InvalidOption("schema", "omit .schema(...); choose columns with option columns")
        self._batch: tuple[ReadOptions, tuple[BoundTopic, ...]] | SparkError = no_schema
        self._stream: StreamOptions | SparkError = no_schema

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> str:
        """Check the options, fix the offsets of a batch, and return the columns.

        Spark does not tell the source whether the load is for a batch or a stream. If the options
        are valid for only one of them, the load is for that one. If they are valid for both, an
        error that concerns only a batch is kept, and `reader` raises it.
        """
        batch = _catch_error(lambda: parse_options(self.options))
        self._stream = stream = _catch_error(lambda: parse_stream_options(self.options))
        if isinstance(batch, ReadOptions):
            self._batch = _catch_error(lambda: self._bind(batch))
            if isinstance(self._batch, SparkError) and (
                isinstance(stream, SparkError) or _is_wrong_for_both(self._batch, batch)
            ):
                raise self._batch
            return format_ddl(batch.columns)
        self._batch = batch
        if isinstance(stream, StreamOptions):
            return format_ddl(stream.read.columns)
        is_stream = {name.lower() for name in STREAM_ONLY} & {name.lower() for name in self.options}
        raise stream if is_stream else batch

    def _bind(self, options: ReadOptions) -> tuple[ReadOptions, tuple[BoundTopic, ...]]:
        with open_catalog(options) as catalog:
            return options, bind_topics(catalog, options)

    def reader(self, schema: StructType) -> HoldfastReader:
        """Return a reader of the fixed ranges. Raises the error that schema() kept for a batch, or
        InvalidOption if the user gave a schema."""
        if isinstance(self._batch, SparkError):
            raise self._batch
        options, topics = self._batch
        return (PushdownReader if options.pushdown else HoldfastReader)(options, topics)

    # The methods below import modules only when they are called; read/reading.py explains why.

    def streamReader(self, schema: StructType) -> "HoldfastStreamReader":  # noqa: N802  Spark's name
        """Return a reader of the stream. Raises the error that schema() kept for a stream, or
        InvalidOption if the user gave a schema."""
        from holdfast.spark.stream.source import HoldfastStreamReader

        if isinstance(self._stream, SparkError):
            raise self._stream
        return HoldfastStreamReader(self._stream)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from holdfast.spark.write.sink import make_batch_writer

        return make_batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from holdfast.spark.write.sink import make_stream_writer

        return make_stream_writer(self.options, schema, overwrite)


def _catch_error(make: Callable[[], Value]) -> Value | SparkError:
    """Return the result of `make`, or the SparkError that it raises."""
    try:
        return make()
    except SparkError as error:
        return error


def _is_wrong_for_both(error: SparkError, options: ReadOptions) -> bool:
    """Return True if `error`, raised while a batch's offsets were fixed, would also stop a stream
    with any checkpoint. A missing topic stops a stream only with failOnDataLoss."""
    if means_no_topic(error):
        return options.fail_on_data_loss
    return isinstance(
        error, BrokerRefused | BrokerUnavailable | CertificateNotTrusted | FilesUnreadable
    )
