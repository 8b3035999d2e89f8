"""The rows of a table, read from the segment files of a data directory, without a broker.

A broker may run on the directory meanwhile. In a topic with durability `fsync`, a table has only
messages that are on the disk. All checksums are verified.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.client.errors import FilesUnreadable, RecordCorrupt, TopicRecreated, UnknownTopic
from holdfast.client.tables.ranges import QueueBounds, QueueSlice, TableRange
from holdfast.client.tables.rows import BlockRows, FetchedRows, SourceQueue
from holdfast.client.transport.requests import Transport
from holdfast.log_files import errors
from holdfast.log_files.descriptions import TopicState
from holdfast.log_files.file_catalog import FileCatalog
from holdfast.log_files.file_reading import MissingRange

_log = logging.getLogger("holdfast.client")


@dataclass(frozen=True, slots=True)
class _Part:
    """The range of a queue, as `FileCatalog.read` takes it."""

    topic_id: int
    queue: int
    start: int
    end: int


class FileRows:
    """Reads the rows of a range, as a Source. `tags` selects messages, if it is not empty. With
    `skip_corrupt`, messages that cannot be read are skipped and logged.

    `fetch` raises the errors of `TableRange`, FilesUnreadable, UnknownTopic, TopicRecreated,
    UnknownFormatVersion, and RecordCorrupt without `skip_corrupt`.
    """

    is_at_end = False

    def __init__(
        self,
        transport: Transport,
        path: str,
        wanted: TableRange,
        *,
        tags: frozenset[str],
        skip_corrupt: bool,
    ) -> None:
        self._transport = transport
        self._path = path
        self._wanted = wanted
        self._tags = tags
        self._skip_corrupt = skip_corrupt
        self._rows = self._read()
        self._is_complete = False

    async def fetch(self) -> FetchedRows | None:
        """Return the next rows; None at the end of the range. After an interrupt, rows may be
        missing; then every further call raises FilesUnreadable."""
        return await self._transport.call_blocking(self._next)

    def _next(self) -> FetchedRows | None:
        rows = next(self._rows, None)
        if rows is None and not self._is_complete:
            raise FilesUnreadable(self._path, "the reading was interrupted; begin it again")
        return rows

    def _read(self) -> Iterator[FetchedRows]:
        if not hasattr(os, "O_PATH"):
            raise FilesUnreadable(self._path, "data directories can only be read on Linux")
        with _client_errors(), FileCatalog(self._path, may_map=True) as catalog:
            topic = catalog.describe(self._wanted.topic)
            for wanted in self._slices(catalog, topic):
                source = SourceQueue(
                    topic.name, topic.topic_id, wanted.queue, topic.priority_levels
                )
                part = _Part(topic.topic_id, wanted.queue, wanted.start, wanted.end)
                for found in catalog.read(topic.name, part):
                    if isinstance(found, MissingRange):
                        self._handle_missing(found, source)
                    else:
                        rows = BlockRows(found.blocks, found.start, part.end, self._tags)
                        yield FetchedRows(source, [rows])
        self._is_complete = True

    def _slices(self, catalog: FileCatalog, topic: TopicState) -> list[QueueSlice]:
        """Return the slices of the range that are not empty."""
        wanted = self._wanted
        bounds = {queue: QueueBounds(*state) for queue, state in topic.queues.items()}

        def find(queue: int, timestamp_ms: int | None) -> int | None:
            if timestamp_ms is None:
                return None
            return catalog.offset_at(topic.name, queue, timestamp_ms)

        found = [
            wanted.slice_of(
                queue,
                bounds[queue],
                find(queue, wanted.start.timestamp_ms),
                find(queue, wanted.end.timestamp_ms),
            )
            for queue in wanted.queues_of(bounds)
        ]
        return [each for each in found if each.start < each.end]

    def _handle_missing(self, missing: MissingRange, source: SourceQueue) -> None:
        sentence = (
            f"offsets {missing.start} to {missing.end} of queue {source.queue} of {source.topic} "
            f"cannot be read: {missing.reason}"
        )
        if not self._skip_corrupt:
            members = {"next_offset": missing.end}
            raise RecordCorrupt(500, "corrupt-record", "Corrupt record", sentence, members)
        _log.warning("skipped: %s", sentence)


@contextmanager
def _client_errors() -> Iterator[None]:
    """Raise the errors of `log_files` as those of the client."""
    try:
        yield
    except errors.TopicMissing as error:
        raise UnknownTopic(404, "unknown-topic", "Unknown topic", str(error)) from error
    except (errors.TopicReplaced, errors.RangeMissing) as error:
        detail = f"{error}: it was deleted and created again, or trimmed, meanwhile"
        raise TopicRecreated(409, "topic-recreated", "Topic recreated", detail) from error
    except errors.LogFilesError as error:
        assert isinstance(error, errors.FilesUnreadable)
        raise FilesUnreadable(error.path, error.reason) from error
