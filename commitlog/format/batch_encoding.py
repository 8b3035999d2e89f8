"""Encode messages as batches, in the form that producers send and the broker stores. Pure.

To encode, write, index and read a batch of a few messages costs as much as a batch of a few
hundred. Publishes of a few messages therefore reach the appender as Rows, and the waiting Rows of
one queue become one batch. The messages stay in the order of the publishes. Each publish keeps its
born timestamp, and its producer id, epoch and sequence for retries.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from holdfast.commitlog.format.batch_header import (
    ALIGNMENT,
    ANY_QUEUE,
    BORN,
    ENVELOPES,
    EXPIRES,
    HEADER_SIZE,
    KEYS,
    PRODUCERS,
    PROPERTIES,
    REQUEST_SEQUENCE,
    TAGS,
    BatchHeader,
    Buffer,
    align,
)
from holdfast.commitlog.format.checksum import crc32c, crc32c_each, crc32c_extended
from holdfast.commitlog.format.hashes import tag_summary
from holdfast.commitlog.lazy_import import import_at_first_use

if TYPE_CHECKING:
    import numpy as np

    from holdfast.commitlog.format import batch as batch_module
    from holdfast.commitlog.format.batch import Batch
else:
    # A client that publishes a few messages at a time needs neither.
    import_at_first_use(globals(), np="numpy", batch_module="holdfast.commitlog.format.batch")

_PADDING = [bytes(n) for n in range(ALIGNMENT)]
#: For at most this many values, plain Python is faster than numpy.
_FEW = 64
#: The dtypes of the struct codes of columns.
_NUMPY_CODES = {"I": "<u4", "q": "<i8", "Q": "<u8"}
_MAX_SECTION_BYTES = 2**31 - 1  # because offsets are int32

#: A message needs at most this many additional bytes in a shared batch, because other publishes may
#: have more columns: hashes and offsets of keys and tags, the property list, born and expires
#: timestamps, producer, the offset of the envelope.
_MOST_SHARED_BYTES = 64
#: The most bytes that the alignment of all columns adds to a shared batch.
_MOST_PADDING = 256

T = TypeVar("T")

_producer_id = attrgetter("producer_id")


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
    envelopes: Sequence[bytes] | None = None
    """b"" for a message without an envelope."""
    message_count: int = field(init=False)
    total_size: int = field(init=False)
    """The size in bytes of a batch that contains only these messages."""

    def __post_init__(self) -> None:
        self.message_count = len(self.bodies)
        self.total_size = _total_size(self)

    def __len__(self) -> int:
        return self.message_count

    @property
    def flags(self) -> int:
        """The flag REQUEST_SEQUENCE: the sequence counts requests over the whole topic."""
        return REQUEST_SEQUENCE


class Requests(NamedTuple):
    """The producer fields of each message's publish, in a batch that several publishes share. Each
    column has one value per message."""

    producer_ids: Sequence[int]
    """0 if the publish has no producer."""
    sequences: Sequence[int]
    epochs: Sequence[int]


class Sections:
    """A payload under construction: sections, each padded to the alignment."""

    def __init__(self) -> None:
        self._parts: list[Buffer] = []

    def add(self, section: Buffer) -> None:
        """Add a section, as bytes."""
        self._parts.append(section)
        self._parts.append(_PADDING[-len(section) % ALIGNMENT])

    @property
    def size(self) -> int:
        """The payload's size in bytes."""
        return sum(map(len, self._parts))

    def crc(self) -> int:
        """Return the payload's CRC, without joining the sections."""
        crc = 0
        for part in self._parts:
            crc = crc32c_extended(crc, part)
        return crc

    def join(self, head: bytes = b"") -> bytes:
        """Return `head` and the payload: all sections with their padding."""
        return b"".join([head, *self._parts])


def encode_batch(
    bodies: Sequence[bytes],
    *,
    keys: Sequence[str | None] | None = None,
    tags: Sequence[str | None] | None = None,
    properties: Sequence[Mapping[str, str] | None] | None = None,
    born_timestamp_us: int = 0,
    born_timestamps_us: Sequence[int] | None = None,
    expires_timestamps_us: Sequence[int] | None = None,
    queue_id: int = ANY_QUEUE,
    producer_id: int = 0,
    producer_epoch: int = 0,
    sequence: int = 0,
    request_sequence: bool = False,
) -> bytes:
    """Encode one or more messages as a batch. The fields that the broker fills in are zero.

    Every column is as long as `bodies`. A column in which no message has a value is left out.
    Raise ValueError for no messages, columns of unequal length, an empty key, tag or property
    name, or 2 GiB or more in a column.
    """
    header, payload = encode_columns(
        bodies,
        keys=keys,
        tags=tags,
        properties=properties,
        born_timestamp_us=born_timestamp_us,
        born_timestamps_us=born_timestamps_us,
        expires_timestamps_us=expires_timestamps_us,
        queue_id=queue_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        sequence=sequence,
        request_sequence=request_sequence,
    )
    return header.encode() + payload


def encode_columns(
    bodies: Sequence[bytes],
    *,
    keys: Sequence[str | None] | None = None,
    tags: Sequence[str | None] | None = None,
    properties: Sequence[Mapping[str, str] | None] | None = None,
    born_timestamp_us: int = 0,
    born_timestamps_us: Sequence[int] | None = None,
    expires_timestamps_us: Sequence[int] | None = None,
    queue_id: int = ANY_QUEUE,
    producer_id: int = 0,
    producer_epoch: int = 0,
    sequence: int = 0,
    request_sequence: bool = False,
    requests: Requests | None = None,
    envelopes: Sequence[bytes] | None = None,
) -> tuple[BatchHeader, bytes]:
    """Do what `encode_batch` does, but return header and payload. Only the broker passes
    `requests` and `envelopes`."""
    _check_lengths(
        bodies, keys, tags, properties, born_timestamps_us, expires_timestamps_us, envelopes
    )
    header = BatchHeader(
        flags=REQUEST_SEQUENCE if request_sequence else 0,
        total_size=0,
        payload_crc=0,
        message_count=len(bodies),
        queue_id=queue_id,
        born_timestamp_us=born_timestamp_us,
        producer_id=producer_id,
        sequence=sequence,
        producer_epoch=producer_epoch,
    )
    columns = _Columns()
    header.body_bytes = columns.add_texts(bodies)
    if keys is not None and any(key is not None for key in keys):
        header.flags |= KEYS
        header.key_bytes, _ = columns.add_hashed("key", keys)
    if tags is not None and any(tag is not None for tag in tags):
        columns.add_tags(header, tags)
    if properties is not None and any(properties):
        columns.add_properties(header, properties)
    if born_timestamps_us is not None:
        header.flags |= BORN
        columns.add_numbers("q", born_timestamps_us)
    if expires_timestamps_us is not None and any(expires_timestamps_us):
        header.flags |= EXPIRES
        columns.add_numbers("q", expires_timestamps_us)
    if requests is not None:
        columns.add_requests(header, requests)
    if envelopes is not None and any(envelopes):
        header.flags |= ENVELOPES
        header.envelope_bytes = columns.add_texts(envelopes)
    payload = columns.join()
    header.total_size = HEADER_SIZE + len(payload)
    header.payload_crc = crc32c(payload)
    return header, payload


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
            envelopes=first.envelopes,
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
        envelopes=_column(run, [rows.envelopes for rows in run], b""),
    )


def most_shared_bytes(rows: Rows) -> int:
    """Return the most bytes that these rows may need in a shared batch in addition to
    `total_size`. A shared batch has every column that at least one of its publishes has, and
    padding after each column."""
    return _MOST_SHARED_BYTES * rows.message_count + _MOST_PADDING


def as_batch(rows: Rows) -> "Batch":
    """Return a batch that contains only these messages."""
    header, payload = encode_rows([rows])
    return batch_module.Batch.decode(header.encode() + payload, verify_payload=False)


def with_requests(batch: "Batch") -> BatchHeader:
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
    if len(run) == 1 or not any(map(_producer_id, run)):
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
    if not any(map(_producer_id, run)):
        return None
    return Requests(
        [rows.producer_id for rows in run for _ in rows.bodies],
        [rows.sequence for rows in run for _ in rows.bodies],
        [rows.producer_epoch for rows in run for _ in rows.bodies],
    )


def _column(run: Sequence[Rows], parts: Sequence[Sequence[T] | None], absent: T) -> list[T] | None:
    """Return a column over all rows, None if no publish has the column. Publishes without it get
    `absent` for each message."""
    if parts.count(None) == len(parts):
        return None
    column: list[T] = []
    for rows, part in zip(run, parts, strict=True):
        column += part if part is not None else [absent] * len(rows)
    return column


def _total_size(rows: Rows) -> int:
    count = rows.message_count
    offsets = align(4 * (count + 1))
    size = HEADER_SIZE + offsets + align(sum(map(len, rows.bodies)))
    for texts in (rows.keys, rows.tags):
        if texts is not None and any(text is not None for text in texts):
            size += align(4 * count) + offsets
            size += align(sum(len(text.encode()) for text in texts if text))
    if rows.properties is not None and any(rows.properties):
        maps = [each for each in rows.properties if each]
        entries = align(4 * (sum(map(len, maps)) + 1))
        names = sum(len(name.encode()) for each in maps for name in each)
        values = sum(len(value.encode()) for each in maps for value in each.values())
        size += offsets + 2 * entries + align(names) + align(values)
    if rows.expires_timestamps_us is not None and any(rows.expires_timestamps_us):
        size += 8 * count
    if rows.envelopes is not None and any(rows.envelopes):
        size += offsets + align(sum(map(len, rows.envelopes)))
    return size


def _check_lengths(bodies: Sequence[bytes], *columns: Sequence[object] | None) -> None:
    if not bodies:
        raise ValueError("a batch has at least one message")
    for column in columns:
        if column is not None and len(column) != len(bodies):
            raise ValueError(f"{len(bodies)} bodies, but a column of {len(column)}")


def _running_sums(sizes: Iterable[int], count: int) -> bytes:
    """Return 0 and the sum of the first 1, 2, ... sizes, as int32[count+1]."""
    if count <= _FEW:
        return struct.pack(f"<{count + 1}i", 0, *accumulate(sizes))
    sums = np.zeros(count + 1, "<i4")
    np.cumsum(np.fromiter(sizes, "<i4", count), out=sums[1:])
    return sums.tobytes()


class _Columns(Sections):
    """Sections written from lists of values."""

    def add_numbers(self, code: str, values: Sequence[int]) -> None:
        """Add a section of numbers, each in the form of a struct code."""
        if len(values) <= _FEW:
            self.add(struct.pack(f"<{len(values)}{code}", *values))
        else:
            self.add(np.asarray(values, _NUMPY_CODES[code]).tobytes())

    def add_texts(self, values: Sequence[bytes]) -> int:
        """Add an offsets section and a data section; return the size of the data in bytes."""
        data = b"".join(values)
        if len(data) > _MAX_SECTION_BYTES:
            raise ValueError(f"a column of {len(data)} bytes; at most {_MAX_SECTION_BYTES}")
        self.add(_running_sums(map(len, values), len(values)))
        self.add(data)
        return len(data)

    def add_hashed(self, what: str, values: Sequence[str | None]) -> tuple[int, list[int]]:
        """Add hashes, offsets and texts; return the texts' size in bytes and the hashes."""
        if "" in values:
            raise ValueError(f"an empty {what}: leave it out instead")
        texts = [value.encode() if value is not None else b"" for value in values]
        hashes = crc32c_each(texts)  # 0 for an empty text
        self.add_numbers("I", hashes)
        return self.add_texts(texts), hashes

    def add_tags(self, header: BatchHeader, tags: Sequence[str | None]) -> None:
        header.flags |= TAGS
        header.tag_bytes, codes = self.add_hashed("tag", tags)
        header.tag_summary = tag_summary(code for code, tag in zip(codes, tags, strict=True) if tag)

    def add_requests(self, header: BatchHeader, requests: Requests) -> None:
        header.flags |= PRODUCERS
        self.add_numbers("Q", requests.producer_ids)
        self.add_numbers("q", requests.sequences)
        self.add_numbers("I", requests.epochs)

    def add_properties(
        self, header: BatchHeader, values: Sequence[Mapping[str, str] | None]
    ) -> None:
        """Add the columns of properties, and set the fields of `header` that count them."""
        header.flags |= PROPERTIES
        counts = (len(value) if value else 0 for value in values)
        self.add(_running_sums(counts, len(values)))
        names = list(chain.from_iterable(value for value in values if value))
        if "" in names:
            raise ValueError("an empty property name")
        header.property_count = len(names)
        header.property_name_bytes = self.add_texts([name.encode() for name in names])
        texts = chain.from_iterable(value.values() for value in values if value)
        header.property_value_bytes = self.add_texts([text.encode() for text in texts])
