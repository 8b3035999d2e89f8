"""The plan and the rows of a data directory, for Spark: they are read by `holdfast.log_files`. Does
not need pyspark."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import pyarrow as pa

from holdfast.arrow.decoder import cut_portions, decode, select_rows, select_tagged
from holdfast.commitlog.errors import CorruptBatch
from holdfast.log_files import errors, file_catalog
from holdfast.log_files.file_reading import MissingRange, read_files
from holdfast.spark.broker.catalog import OutOfRange
from holdfast.spark.errors import FilesUnreadable, TopicRecreated, UnknownTopic
from holdfast.spark.options.offsets import QueueRange
from holdfast.spark.options.read import ReadOptions

P = ParamSpec("P")
R = TypeVar("R")


def read_rows_of_files(
    path: str, part: QueueRange, options: ReadOptions
) -> Iterator[pa.RecordBatch | MissingRange]:
    """Yield the rows of `part` in order of their offsets, with a MissingRange for missing rows.
    Raises UnknownFormatVersion."""
    for found in read_files(path, part):
        if isinstance(found, MissingRange):
            yield found
            continue
        blocks, offset = found.blocks, found.start
        rows = select_tagged(blocks, select_rows(blocks, offset, part.end), options.tags)
        try:
            for portion in cut_portions(blocks, rows):
                offset = int(blocks.base_offsets[portion.block[0]] + portion.start[0])
                yield decode(blocks, portion, part, options.columns, tags=options.tags)
        except CorruptBatch as error:
            yield MissingRange(offset, min(int(blocks.end_offsets[-1]), part.end), str(error))


@contextmanager
def _spark_errors() -> Iterator[None]:
    """Raise the errors of `log_files` as those of Spark's source, which say how to fix them."""
    try:
        yield
    except errors.FilesUnreadable as error:
        raise FilesUnreadable(error.path, error.reason) from error
    except errors.TopicMissing as error:
        raise UnknownTopic(error.topic, error.path) from error
    except errors.TopicReplaced as error:
        raise TopicRecreated(error.topic, error.expected_id, error.found_id) from error
    except errors.RangeMissing as error:
        raise OutOfRange(error.topic, error.queue, error.start, error.end) from error


def _with_spark_errors(method: Callable[P, R]) -> Callable[P, R]:
    @wraps(method)
    def translated(*args: P.args, **kwargs: P.kwargs) -> R:
        with _spark_errors():
            return method(*args, **kwargs)

    return translated


class FileCatalog(file_catalog.FileCatalog):
    """The Catalog of a data directory: that of `log_files`, with the errors of Spark's source."""

    topic_names = _with_spark_errors(file_catalog.FileCatalog.topic_names)
    describe = _with_spark_errors(file_catalog.FileCatalog.describe)
    offset_at = _with_spark_errors(file_catalog.FileCatalog.offset_at)
    stored_offsets = _with_spark_errors(file_catalog.FileCatalog.stored_offsets)
    splits = _with_spark_errors(file_catalog.FileCatalog.splits)
