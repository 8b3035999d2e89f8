"""Messages that are not encoded as a batch yet, so that several publishes to one queue can share
a batch. Pure.

To encode, write, index and read a batch of a few messages costs as much as a batch of a few
hundred. Publishes therefore reach the appender as Rows, and the waiting Rows of one queue become
one batch. The messages stay in the order of the publishes. Each publish keeps its born timestamp,
and its producer id, epoch and sequence for retries.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TypeVar

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import Requests, encode_columns
from holdfast.commitlog.format.batch_header import HEADER_SIZE, BatchFlag, BatchHeader
from holdfast.commitlog.format.batch_layout import aligned

_REQUEST_SEQUENCE = int(BatchFlag.REQUEST_SEQUENCE)

#: A message needs at most this many additional bytes in a shared batch, because other publishes may
#: have more columns: hashes and offsets of keys and tags, the property list, born and expires
#: timestamps, producer.
_MOST_SHARED_BYTES = 64
#: The most bytes that the alignment of all columns adds to a shared batch.
_MOST_PADDING = 256

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Rows:
    """The messages of one publish to one queue. Every column is as long as `bodies`. Treat as
    immutable.

    The creator has checked that no key, tag or property name is empty. A `producer_id` above 0
    makes the publish idempotent; `sequence` then counts the producer's requests to the topic.
    """

    queue_id: int
    bodies: Sequence[bytes]
    born_timestamp_us: int
    keys: Sequence[str | None] | None = None
    tags: Sequence[str | None] | None = None
    properties: Sequence[Mapping[str, str] | None] | None = None
    expires_timestamps_us: Sequence[int] | None = None
    producer_id: int = 0
    producer_epoch: int = 0
    sequence: int = 0
    total_size: int = field(init=False)
    """The size in bytes of a batch that contains only these messages."""

    def __post_init__(self) -> None:
        self.total_size = _total_size(self)

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def flags(self) -> int:
        """The flag REQUEST_SEQUENCE: the sequence counts requests over the whole topic."""
        return _REQUEST_SEQUENCE


def encode_rows(run: Sequence[Rows]) -> tuple[BatchHeader, bytes]:
    """Encode the messages of `run`, in order, as one batch. Return its payload, and its header
    without the fields that the broker fills in later. All rows must belong to one queue."""
    first = run[0]
    if len(run) == 1:
        return encode_columns(
            first.bodies,
            keys=first.keys,
            tags=first.tags,
            properties=first.properties,
            born_timestamp_us=first.born_timestamp_us,
            expires_timestamps_us=first.expires_timestamps_us,
            queue_id=first.queue_id,
            producer_id=first.producer_id,
            producer_epoch=first.producer_epoch,
            sequence=first.sequence,
            request_sequence=first.producer_id > 0,
        )
    born = [rows.born_timestamp_us for rows in run for _ in rows.bodies]
    return encode_columns(
        [body for rows in run for body in rows.bodies],
        keys=_column(run, [rows.keys for rows in run], None),
        tags=_column(run, [rows.tags for rows in run], None),
        properties=_column(run, [rows.properties for rows in run], None),
        born_timestamp_us=born[0],
        born_timestamps_us=born if min(born) != max(born) else None,
        expires_timestamps_us=_column(run, [rows.expires_timestamps_us for rows in run], 0),
        queue_id=first.queue_id,
        requests=_requests(run),
    )


def most_shared_bytes(rows: Rows) -> int:
    """Return the most bytes that these rows may need in a shared batch in addition to
    `total_size`. A shared batch has every column that at least one of its publishes has, and
    padding after each column."""
    return _MOST_SHARED_BYTES * len(rows) + _MOST_PADDING


def as_batch(rows: Rows) -> Batch:
    """Return a batch that contains only these messages."""
    header, payload = encode_rows([rows])
    return Batch.decode(bytes(header.encode()) + payload, verify_payload=False)


def with_requests(batch: Batch) -> BatchHeader:
    """Return a batch's header. If several publishes share the batch, `requests` of the header
    lists those of idempotent producers."""
    columns = batch.requests
    if columns is None:
        return batch.header
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return _with_publishes(batch.header, ((key, len(list(same))) for key, same in groupby(rows)))


def with_run(header: BatchHeader, run: Sequence[Rows]) -> BatchHeader:
    """Return what `with_requests` would return for the batch of `run`. `header` is the header of
    this batch as it will be stored."""
    if len(run) == 1:
        return header
    return _with_publishes(
        header,
        (((rows.producer_id, rows.sequence, rows.producer_epoch), len(rows)) for rows in run),
    )


def _with_publishes(
    header: BatchHeader, publishes: Iterable[tuple[tuple[int, int, int], int]]
) -> BatchHeader:
    """Return the header with `requests`: one header for each publish of an idempotent producer.
    `publishes` are ((producer, sequence, epoch), number of messages), in batch order."""
    requests = []
    base_offset = header.base_offset
    for (producer_id, sequence, epoch), count in publishes:
        if producer_id:
            requests.append(header.of_publish(base_offset, count, producer_id, sequence, epoch))
        base_offset += count
    return replace(header, requests=tuple(requests)) if requests else header


def _requests(run: Sequence[Rows]) -> Requests | None:
    """Return the producers' columns, None if no publish has a producer."""
    if not any(rows.producer_id for rows in run):
        return None
    return Requests(
        [rows.producer_id for rows in run for _ in rows.bodies],
        [rows.sequence for rows in run for _ in rows.bodies],
        [rows.producer_epoch for rows in run for _ in rows.bodies],
    )


def _column(run: Sequence[Rows], parts: Sequence[Sequence[T] | None], absent: T) -> list[T] | None:
    """Return a column over all rows, None if no publish has the column. Publishes without it get
    `absent` for each message."""
    if all(part is None for part in parts):
        return None
    column: list[T] = []
    for rows, part in zip(run, parts, strict=True):
        column += part if part is not None else [absent] * len(rows)
    return column


def _total_size(rows: Rows) -> int:
    count = len(rows.bodies)
    offsets, hashes = aligned(4 * (count + 1)), aligned(4 * count)
    size = HEADER_SIZE + offsets + aligned(sum(map(len, rows.bodies)))
    for texts in (rows.keys, rows.tags):
        if texts is not None and any(text is not None for text in texts):
            size += hashes + offsets
            size += aligned(sum(len(text.encode()) for text in texts if text))
    if rows.properties is not None and any(rows.properties):
        maps = [each for each in rows.properties if each]
        entries = aligned(4 * (sum(map(len, maps)) + 1))
        names = sum(len(name.encode()) for each in maps for name in each)
        values = sum(len(value.encode()) for each in maps for value in each.values())
        size += offsets + 2 * entries + aligned(names) + aligned(values)
    if rows.expires_timestamps_us is not None and any(rows.expires_timestamps_us):
        size += 8 * count
    return size
