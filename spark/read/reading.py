"""Choose the catalog that plans a read, and the source of each part's rows: broker or files.

Modules that only the broker or only the files need are imported inside functions, because every
process that Spark starts to plan or to read must import its modules. A session's first query waits
for three such processes.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from holdfast.spark.broker.catalog import Catalog
from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.broker.lease_renewer import PlanLeaseRenewer
from holdfast.spark.errors import FilesUnreadable
from holdfast.spark.options.offsets import QueueRange
from holdfast.spark.options.read import ReadOptions

_log = logging.getLogger("holdfast.spark")


def open_catalog(options: ReadOptions) -> AbstractContextManager[Catalog]:
    """Return the catalog of the broker if there is an address, otherwise of the data directory. It
    is a context manager, which closes the catalog on exit."""
    location = options.location
    if location.address is not None:
        return BrokerClient.open(location.address)
    assert location.path is not None
    from holdfast.spark.read.file_rows import FileCatalog

    return FileCatalog(location.path)


def read_rows(parts: Sequence[QueueRange], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each part in turn, in order of their offsets. Runs inside a task.

    If rows are no longer stored, raises DataLost; without failOnDataLoss, skips these rows and logs
    their number. If a file is missing, damaged, or not the file in the plan, the rest of the part
    is read from the broker; with transport=files, raises FilesUnreadable instead. If there is no
    broker and the directory cannot be listed, raises FilesUnreadable. Leases on the parts are
    extended meanwhile.
    """
    from holdfast.spark.read.fetch import read_range

    address = options.location.address
    with ExitStack() as closing:
        client = None
        if address is not None:
            client = closing.enter_context(BrokerClient.open(address))
        closing.enter_context(PlanLeaseRenewer(parts, address))
        for part in parts:
            if client is not None and not _may_use_files(part, options):
                yield from read_range(client, part, options)
            else:
                yield from _read_part_from_files(client, part, options)


def _may_use_files(part: QueueRange, options: ReadOptions) -> bool:
    """Return True if a part is first read from files, and not over HTTP. Raises FilesUnreadable if
    only files may be used, but the plan lacks the part's location in the files."""
    location = options.location
    if location.path is None or location.transport == "http" or options.filter is not None:
        return False
    if location.transport == "files" and not part.segments:
        raise FilesUnreadable(location.path, "the broker's plan has no locations in its files")
    return bool(part.segments)


def _read_part_from_files(
    client: BrokerClient | None, part: QueueRange, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    from holdfast.log_files.file_reading import MissingRange
    from holdfast.spark.read.fetch import read_range, skip_lost
    from holdfast.spark.read.file_rows import read_rows_of_files

    location = options.location
    assert location.path is not None
    if client is None or location.transport == "files":
        _check_directory(location.path)
    for found in read_rows_of_files(location.path, part, options):
        if not isinstance(found, MissingRange):
            yield found
        elif client is None:
            skip_lost(part, found.start, found.end, found.reason, options)
        elif location.transport == "files":
            where = f"offsets {found.start} to {found.end} of queue {part.queue} of {part.topic!r}"
            raise FilesUnreadable(location.path, f"{where}: {found.reason}")
        else:
            _log.info(
                "queue %d of %r is read over HTTP from offset %d on: %s",
                part.queue, part.topic, found.start, found.reason,
            )  # fmt: skip
            yield from read_range(client, replace(part, start=found.start), options)
            return


def _check_directory(path: str) -> None:
    """Raise FilesUnreadable if the directory cannot be listed. This must not count as lost data."""
    from holdfast.log_files.segment_file import LOG_DIRECTORY

    directory = Path(path) / LOG_DIRECTORY
    try:
        next(directory.iterdir(), None)
    except OSError as error:
        reason = f"{LOG_DIRECTORY}: {error.strerror or error}"
        raise FilesUnreadable(path, reason) from error
