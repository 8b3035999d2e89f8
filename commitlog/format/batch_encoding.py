"""Encode messages as a batch, in the form that producers send and the broker stores. Pure."""

import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np

from holdfast.commitlog.format.batch import tag_summary
from holdfast.commitlog.format.batch_header import (
    ALIGNMENT,
    ANY_QUEUE,
    HEADER_SIZE,
    BatchFlag,
    BatchHeader,
    Buffer,
)
from holdfast.commitlog.format.batch_layout import BORN, EXPIRES, KEYS, PRODUCERS, PROPERTIES, TAGS
from holdfast.commitlog.format.checksum import crc32c, crc32c_each

_PADDING = [bytes(n) for n in range(ALIGNMENT)]
#: A plain int, because each test of an IntFlag costs a microsecond.
_REQUEST_SEQUENCE = int(BatchFlag.REQUEST_SEQUENCE)
#: For at most this many values, plain Python is faster than numpy.
_FEW = 64
_MAX_SECTION_BYTES = 2**31 - 1  # because offsets are int32


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

    def join(self) -> bytes:
        """Return the payload: all sections with their padding."""
        return b"".join(self._parts)


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
    return bytes(header.encode()) + payload


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
) -> tuple[BatchHeader, bytes]:
    """Do what `encode_batch` does, but return the header and the payload separately. `requests`
    has one value per message; only the broker may pass it."""
    n = len(bodies)
    if n == 0:
        raise ValueError("a batch holds at least one message")
    for column in (keys, tags, properties, born_timestamps_us, expires_timestamps_us):
        if column is not None and len(column) != n:
            raise ValueError(f"{n} bodies, but a column of {len(column)}")
    columns = _Columns()
    body_bytes = columns.texts(bodies)
    flags = 0
    key_bytes = tag_bytes = summary = 0
    if keys is not None and any(key is not None for key in keys):
        flags |= KEYS
        key_bytes, _ = columns.hashed("key", keys)
    if tags is not None and any(tag is not None for tag in tags):
        flags |= TAGS
        tag_bytes, codes = columns.hashed("tag", tags)
        summary = tag_summary({code for code, tag in zip(codes, tags, strict=True) if tag})
    property_count = name_bytes = value_bytes = 0
    if properties is not None and any(properties):
        flags |= PROPERTIES
        property_count, name_bytes, value_bytes = columns.maps(properties)
    if born_timestamps_us is not None:
        flags |= BORN
        columns.add(np.asarray(born_timestamps_us, "<i8").tobytes())
    if expires_timestamps_us is not None and any(expires_timestamps_us):
        flags |= EXPIRES
        columns.add(np.asarray(expires_timestamps_us, "<i8").tobytes())
    if requests is not None:
        flags |= PRODUCERS
        columns.add(np.array(requests.producer_ids, "<u8").tobytes())
        columns.add(np.array(requests.sequences, "<i8").tobytes())
        columns.add(np.array(requests.epochs, "<u4").tobytes())
    if request_sequence:
        flags |= _REQUEST_SEQUENCE
    payload = columns.join()
    header = BatchHeader(
        flags=flags,
        total_size=HEADER_SIZE + len(payload),
        payload_crc=crc32c(payload),
        message_count=n,
        body_bytes=body_bytes,
        queue_id=queue_id,
        born_timestamp_us=born_timestamp_us,
        producer_id=producer_id,
        sequence=sequence,
        producer_epoch=producer_epoch,
        tag_summary=summary,
        key_bytes=key_bytes,
        tag_bytes=tag_bytes,
        property_count=property_count,
        property_name_bytes=name_bytes,
        property_value_bytes=value_bytes,
    )
    return header, payload


def _offsets(values: Sequence[bytes]) -> bytes:
    """Return the start of each value and the end of the last value, as int32[n+1]."""
    n = len(values)
    if n <= _FEW:
        return struct.pack(f"<{n + 1}i", 0, *accumulate(map(len, values)))
    offsets = np.zeros(n + 1, "<i4")
    np.cumsum(np.fromiter(map(len, values), "<i4", n), out=offsets[1:])
    return offsets.tobytes()


class _Columns(Sections):
    """Sections written from lists of values."""

    def texts(self, values: Sequence[bytes]) -> int:
        """Add an offsets section and a data section; return the size of the data in bytes."""
        data = b"".join(values)
        if len(data) > _MAX_SECTION_BYTES:
            raise ValueError(f"a column of {len(data)} bytes; at most {_MAX_SECTION_BYTES}")
        self.add(_offsets(values))
        self.add(data)
        return len(data)

    def hashed(self, what: str, values: Sequence[str | None]) -> tuple[int, list[int]]:
        """Add hashes, offsets and texts; return the texts' size in bytes and the hashes."""
        if "" in values:
            raise ValueError(f"an empty {what}: leave it out instead")
        texts = [value.encode() if value is not None else b"" for value in values]
        hashes = crc32c_each(texts)  # 0 for an empty text
        self.add(np.array(hashes, "<u4").tobytes())
        return self.texts(texts), hashes

    def maps(self, values: Sequence[Mapping[str, str] | None]) -> tuple[int, int, int]:
        """Add the columns of properties; return the number of properties, the bytes of all names,
        and the bytes of all values."""
        listed = np.zeros(len(values) + 1, "<i4")
        np.cumsum([len(value) if value else 0 for value in values], out=listed[1:])
        self.add(listed.tobytes())
        names = list(chain.from_iterable(value for value in values if value))
        if "" in names:
            raise ValueError("an empty property name")
        name_bytes = self.texts([name.encode() for name in names])
        texts = chain.from_iterable(value.values() for value in values if value)
        value_bytes = self.texts([text.encode() for text in texts])
        return len(names), name_bytes, value_bytes
