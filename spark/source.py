"""The data source: what Spark calls on the driver when a read is made, and when.

    schema()        once, at load(): the options are checked and a batch's offsets bound
    reader()        for each plan of a batch, on a copy of the source with the offsets in it
    streamReader()  for each start of a stream, twice
    writer(), streamWriter()  for each write

Spark pickles the source after schema() and hands copies of it to the planners of all actions
on the DataFrame: this is what makes two actions see the same rows.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from holdfast.spark.batch_source import HoldfastReader, PushdownReader
from holdfast.spark.columns import ddl_of
from holdfast.spark.errors import (
    BrokerRefused,
    BrokerUnavailable,
    CertificateNotTrusted,
    FilesUnreadable,
    InvalidOption,
    SparkError,
    means_no_topic,
)
from holdfast.spark.options import STREAM_ONLY, ReadOptions, parse_options
from holdfast.spark.plan import BoundTopic, bind_topics
from holdfast.spark.reading import open_catalog
from holdfast.spark.stream_options import StreamOptions, parse_stream_options
from holdfast.spark.travelling import Travelling

if TYPE_CHECKING:
    from holdfast.spark.stream_source import HoldfastStreamReader

Value = TypeVar("Value")


class HoldfastDataSource(DataSource, metaclass=Travelling):
    """`spark.read.format("holdfast")`; docs/spark.md lists its options."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        unasked = InvalidOption(
            "schema", "load without .schema(...): the option columns chooses the columns"
        )
        self._batch: tuple[ReadOptions, tuple[BoundTopic, ...]] | SparkError = unasked
        self._stream: StreamOptions | SparkError = unasked

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "holdfast"

    def schema(self) -> str:
        """Check the options, bind a batch's offsets, and return the columns.

        Spark does not say whether it is a batch or a stream that is loaded. Options that fit one
        of them alone tell; else what is wrong with the batch alone is kept for who asks for one.
        """
        batch = _outcome(lambda: parse_options(self.options))
        self._stream = stream = _outcome(lambda: parse_stream_options(self.options))
        if isinstance(batch, ReadOptions):
            self._batch = _outcome(lambda: self._bind(batch))
            if isinstance(self._batch, SparkError) and (
                isinstance(stream, SparkError) or _is_wrong_for_both(self._batch, batch)
            ):
                raise self._batch
            return ddl_of(batch.columns)
        self._batch = batch
        if isinstance(stream, StreamOptions):
            return ddl_of(stream.read.columns)
        is_stream = {name.lower() for name in STREAM_ONLY} & {name.lower() for name in self.options}
        raise stream if is_stream else batch

    def _bind(self, options: ReadOptions) -> tuple[ReadOptions, tuple[BoundTopic, ...]]:
        with open_catalog(options) as catalog:
            return options, bind_topics(catalog, options)

    def reader(self, schema: StructType) -> HoldfastReader:
        """Return a reader of what was bound. Raises InvalidOption for a schema of the user's."""
        if isinstance(self._batch, SparkError):
            raise self._batch
        options, topics = self._batch
        return (PushdownReader if options.pushdown else HoldfastReader)(options, topics)

    # What follows is imported where it is asked for: see reading.py.

    def streamReader(self, schema: StructType) -> "HoldfastStreamReader":  # noqa: N802  Spark's name
        """Return a reader of the stream. Raises InvalidOption for a schema of the user's."""
        from holdfast.spark.stream_source import HoldfastStreamReader

        if isinstance(self._stream, SparkError):
            raise self._stream
        return HoldfastStreamReader(self._stream)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of a batch with these columns."""
        from holdfast.spark.sink import batch_sink

        return batch_sink(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return a writer of a stream with these columns."""
        from holdfast.spark.sink import stream_sink

        return stream_sink(self.options, schema, overwrite)


def _outcome(make: Callable[[], Value]) -> Value | SparkError:
    """Return what `make` returns, or the error that it raises."""
    try:
        return make()
    except SparkError as error:
        return error


def _is_wrong_for_both(error: SparkError, options: ReadOptions) -> bool:
    """Whether a batch's offsets could not be bound for a reason that stops a stream, too.

    That is, whatever its checkpoint holds. A topic that is gone, it may have leave to do without.
    """
    if means_no_topic(error):
        return options.fail_on_data_loss
    return isinstance(
        error, BrokerRefused | BrokerUnavailable | CertificateNotTrusted | FilesUnreadable
    )
