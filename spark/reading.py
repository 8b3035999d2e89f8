"""The ways to a read: where its plan is made, and where the rows of a part of it come from.

What only one of them needs is imported there: each of the processes that Spark starts to plan and
to read pays for all that it imports, and a session's first query waits for three of them.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from holdfast.spark.broker_client import BrokerClient
from holdfast.spark.catalog import Catalog
from holdfast.spark.errors import FilesUnreadable
from holdfast.spark.lease import LeaseKeeper
from holdfast.spark.offsets import QueueRange
from holdfast.spark.options import ReadOptions

_log = logging.getLogger("holdfast.spark")


def open_catalog(options: ReadOptions) -> AbstractContextManager[Catalog]:
    """Return the catalog that the options name: the broker's where there is one. Leaving its
    context closes it."""
    place = options.place
    if place.address is not None:
        return BrokerClient.open(place.address)
    assert place.path is not None
    from holdfast.spark.files.file_catalog import FileCatalog

    return FileCatalog(place.path)


def read_rows(parts: Sequence[QueueRange], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each part in turn, in order of their offsets; runs inside a task.

    Raises DataLost when some are gone, or (without failOnDataLoss) leaves them out and says how
    many in the log. Of files that are not those that were planned with, or not here, or damaged,
    the broker is asked for the rest of the part, if the options name one and let it be asked;
    else files that are not here at all are FilesUnreadable. Meanwhile the leases that keep the
    parts from retention are extended.
    """
    from holdfast.spark.fetch import read_range

    address = options.place.address
    with ExitStack() as closing:
        client = None
        if address is not None:
            client = closing.enter_context(BrokerClient.open(address))
        closing.enter_context(LeaseKeeper(parts, address))
        for part in parts:
            if client is not None and not _may_use_files(part, options):
                yield from read_range(client, part, options)
            else:
                yield from _read_part(client, part, options)


def _may_use_files(part: QueueRange, options: ReadOptions) -> bool:
    """Return whether a part is looked for in files first. Raises FilesUnreadable where only they
    may be used, and the broker did not tell where in them the part is."""
    place = options.place
    if place.path is None or place.transport == "http" or options.filter is not None:
        return False
    if place.transport == "files" and not part.segments:
        raise FilesUnreadable(place.path, "the broker does not tell where in its files rows are")
    return bool(part.segments)


def _read_part(
    client: BrokerClient | None, part: QueueRange, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    from holdfast.spark.fetch import read_range, skip
    from holdfast.spark.files.file_reading import Lost, read_files

    place = options.place
    assert place.path is not None
    if client is None or place.transport == "files":
        _check_directory(place.path)
    for found in read_files(place.path, part, options):
        if not isinstance(found, Lost):
            yield found
        elif client is None:
            skip(part, found.start, found.end, found.reason, options)
        elif place.transport == "files":
            where = f"offsets {found.start} to {found.end} of queue {part.queue} of {part.topic!r}"
            raise FilesUnreadable(place.path, f"{where}: {found.reason}")
        else:
            _log.info(
                "queue %d of %r goes on over HTTP at offset %d: %s",
                part.queue, part.topic, found.start, found.reason,
            )  # fmt: skip
            yield from read_range(client, replace(part, start=found.start), options)
            return


def _check_directory(path: str) -> None:
    """Raise FilesUnreadable where the directory is not to be seen: that is no loss of data."""
    from holdfast.spark.files.segment_file import LOG_DIRECTORY

    directory = Path(path) / LOG_DIRECTORY
    try:
        next(directory.iterdir(), None)
    except OSError as error:
        reason = f"{LOG_DIRECTORY}: {error.strerror or error}"
        raise FilesUnreadable(path, reason) from error
