"""A batch's columns: how they lie after the header, how to write and how to read them. Pure.

Every section starts at a multiple of 8 bytes from the start of the batch, the gap before it
zeroed; a section that is absent takes no room. Offsets are n+1 little-endian int32 starting
at 0, as in Arrow, so every section is an Arrow buffer as it lies. n messages, m properties:

    body offsets  int32[n+1]     bodies
    key hashes    uint32[n]      key offsets   int32[n+1]   keys       (flag KEYS)
    tag codes     uint32[n]      tag offsets   int32[n+1]   tags       (flag TAGS)
    property list int32[n+1]     name offsets  int32[m+1]   names
                                 value offsets int32[m+1]   values     (flag PROPERTIES)
    born          int64[n]  microseconds                               (flag BORN)
    expires       int64[n]  microseconds, 0: never                     (flag EXPIRES)
    producer ids  uint64[n] 0: none
    sequences     int64[n]                   epochs        uint32[n]  (flag PRODUCERS)

An empty key or tag means none (hash and code 0). A batch read from anywhere is not to be
trusted before `commitlog.batch_check` has passed it or its payload CRC was compared.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.commitlog.batch_header import (
    ALIGNMENT,
    ANY_QUEUE,
    HEADER_SIZE,
    BatchFlag,
    BatchHeader,
    Buffer,
)
from holdfast.commitlog.checksum import crc32c, crc32c_each
from holdfast.commitlog.errors import CorruptBatch

Int32s = npt.NDArray[np.int32]
UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]

_PADDING = [bytes(n) for n in range(ALIGNMENT)]
# As plain ints: an IntFlag costs a microsecond each time it is looked at or combined.
_KEYS = int(BatchFlag.KEYS)
_TAGS = int(BatchFlag.TAGS)
_PROPERTIES = int(BatchFlag.PROPERTIES)
_BORN = int(BatchFlag.BORN)
_EXPIRES = int(BatchFlag.EXPIRES)
_REQUEST_SEQUENCE = int(BatchFlag.REQUEST_SEQUENCE)
_PRODUCERS = int(BatchFlag.PRODUCERS)
#: Every flag that stands for a section beside the bodies.
_COLUMNS = _KEYS | _TAGS | _PROPERTIES | _BORN | _EXPIRES | _PRODUCERS
#: Up to so many values numpy's calls cost more than their work does without it.
_FEW = 64
_MAX_SECTION_BYTES = 2**31 - 1  # int32 offsets


def key_hash(key: str) -> int:
    """Return the crc32c of the key's UTF-8: its 32-bit hash, and what routes it to a queue."""
    return crc32c(key.encode())


def tags_code(tag: str) -> int:
    """Return the crc32c of the tag's UTF-8. Equal codes do not prove equal tags."""
    return crc32c(tag.encode())


def queue_for_key(key: str, queue_count: int) -> int:
    """Return the queue that messages with this key go to, in the broker and in every client."""
    return key_hash(key) % queue_count


def tag_summary(codes: Iterable[int]) -> int:
    """Return the 64-bit summary of tag codes: bit (code mod 64) of each."""
    summary = 0
    for code in codes:
        summary |= 1 << (code & 63)
    return summary


class Requests(NamedTuple):
    """Whose publish each message of a batch came with: one of each a message."""

    producer_ids: Sequence[int]
    """0: the publish named none."""
    sequences: Sequence[int]
    epochs: Sequence[int]


class RequestColumns(NamedTuple):
    """As Requests, read from a batch."""

    producer_ids: UInt64s
    sequences: Int64s
    epochs: UInt32s


class Section(NamedTuple):
    """Where one section lies, in bytes from the start of the batch."""

    start: int
    end: int


@dataclass(slots=True)
class Layout:
    """Where every section of a batch lies; absent ones are None. Nobody changes it. (Frozen, it
    would take several times as long to make, and each read of a batch makes one.)"""

    total_size: int
    body_offsets: Section
    bodies: Section
    key_hashes: Section | None = None
    key_offsets: Section | None = None
    keys: Section | None = None
    tag_codes: Section | None = None
    tag_offsets: Section | None = None
    tags: Section | None = None
    property_list: Section | None = None
    name_offsets: Section | None = None
    names: Section | None = None
    value_offsets: Section | None = None
    values: Section | None = None
    born: Section | None = None
    expires: Section | None = None
    producer_ids: Section | None = None
    sequences: Section | None = None
    epochs: Section | None = None


def layout_of(header: BatchHeader) -> Layout:
    """Return where the sections lie, from the header alone (its total size is not used)."""
    n = header.message_count
    flags = header.flags
    offsets = 4 * (n + 1)
    end = HEADER_SIZE + offsets
    body_offsets = Section(HEADER_SIZE, end)
    at = _aligned(end)
    end = at + header.body_bytes
    layout = Layout(_aligned(end), body_offsets, Section(at, end))
    if not flags & _COLUMNS:
        return layout  # Bodies alone: most of what is published one by one.
    at = layout.total_size

    def section(size: int) -> Section:
        nonlocal at
        start, end = at, at + size
        at = _aligned(end)
        return Section(start, end)

    if flags & _KEYS:
        layout.key_hashes = section(4 * n)
        layout.key_offsets = section(offsets)
        layout.keys = section(header.key_bytes)
    if flags & _TAGS:
        layout.tag_codes = section(4 * n)
        layout.tag_offsets = section(offsets)
        layout.tags = section(header.tag_bytes)
    if flags & _PROPERTIES:
        m = header.property_count
        layout.property_list = section(offsets)
        layout.name_offsets = section(4 * (m + 1))
        layout.names = section(header.property_name_bytes)
        layout.value_offsets = section(4 * (m + 1))
        layout.values = section(header.property_value_bytes)
    if flags & _BORN:
        layout.born = section(8 * n)
    if flags & _EXPIRES:
        layout.expires = section(8 * n)
    if flags & _PRODUCERS:
        layout.producer_ids = section(8 * n)
        layout.sequences = section(8 * n)
        layout.epochs = section(4 * n)
    layout.total_size = at
    return layout


def _aligned(size: int) -> int:
    return (size + ALIGNMENT - 1) & -ALIGNMENT


@dataclass(eq=False)
class Batch:
    """One batch over its bytes, nothing copied. Rows count from 0; offsets are queue offsets.
    Nobody changes it.

    `block` holds the whole batch, header included. Column attributes are views that stay
    valid as long as the batch does; an absent column is None.
    """

    header: BatchHeader
    block: memoryview
    layout: Layout = field(repr=False)

    @classmethod
    def decode(cls, buffer: Buffer, position: int = 0, *, verify_payload: bool = True) -> "Batch":
        """Return the batch that starts at `position`.

        Raises CorruptBatch when it is truncated, its header does not describe its size, or
        (with `verify_payload`) its payload CRC does not match; UnknownFormatVersion when a
        newer Holdfast wrote it. The columns' own consistency is `batch_check`'s to prove.
        """
        header = BatchHeader.decode(buffer, position)
        end = position + header.total_size
        if len(buffer) < end:
            raise CorruptBatch(
                "truncated", f"{len(buffer) - position} bytes of {header.total_size}"
            )
        layout = layout_of(header)
        if layout.total_size != header.total_size:
            raise CorruptBatch(
                "bad-size", f"total size {header.total_size}, columns end at {layout.total_size}"
            )
        block = memoryview(buffer)[position:end].toreadonly()
        if verify_payload and payload_crc(block) != header.payload_crc:
            raise CorruptBatch("payload-crc", "the payload's checksum does not match its bytes")
        return cls(header, block, layout)

    def __len__(self) -> int:
        return self.header.message_count

    @property
    def queue_id(self) -> int:
        """The queue that it belongs to, ANY_QUEUE where that is left to the broker."""
        return self.header.queue_id

    @property
    def total_size(self) -> int:
        """Its bytes, header and all."""
        return self.header.total_size

    # -- columns ---------------------------------------------------------------------------

    @cached_property
    def body_offsets(self) -> Int32s:
        """int32[n+1] into `bodies`."""
        return self._int32s(self.layout.body_offsets)

    @cached_property
    def bodies(self) -> memoryview:
        """All bodies, one after another."""
        return self._bytes(self.layout.bodies)

    @cached_property
    def key_hashes(self) -> UInt32s | None:
        """uint32[n], 0 where a message has no key."""
        return self._uint32s(self.layout.key_hashes)

    @cached_property
    def key_offsets(self) -> Int32s | None:
        """int32[n+1] into `keys`."""
        return self._optional_int32s(self.layout.key_offsets)

    @cached_property
    def keys(self) -> memoryview:
        """All keys' UTF-8, one after another; empty without the column."""
        return self._bytes(self.layout.keys)

    @cached_property
    def tag_codes(self) -> UInt32s | None:
        """uint32[n], 0 where a message has no tag."""
        return self._uint32s(self.layout.tag_codes)

    @cached_property
    def tag_offsets(self) -> Int32s | None:
        """int32[n+1] into `tags`."""
        return self._optional_int32s(self.layout.tag_offsets)

    @cached_property
    def tags(self) -> memoryview:
        """All tags' UTF-8, one after another; empty without the column."""
        return self._bytes(self.layout.tags)

    @cached_property
    def property_list(self) -> Int32s | None:
        """int32[n+1]: message i has the properties from list[i] to list[i+1]."""
        return self._optional_int32s(self.layout.property_list)

    @cached_property
    def name_offsets(self) -> Int32s | None:
        """int32[m+1] into `names`."""
        return self._optional_int32s(self.layout.name_offsets)

    @cached_property
    def names(self) -> memoryview:
        """All property names' UTF-8."""
        return self._bytes(self.layout.names)

    @cached_property
    def value_offsets(self) -> Int32s | None:
        """int32[m+1] into `values`."""
        return self._optional_int32s(self.layout.value_offsets)

    @cached_property
    def values(self) -> memoryview:
        """All property values' UTF-8."""
        return self._bytes(self.layout.values)

    @cached_property
    def born_timestamps_us(self) -> Int64s | None:
        """int64[n], or None when every message was born at the header's timestamp."""
        return self._int64s(self.layout.born)

    @cached_property
    def expires_timestamps_us(self) -> Int64s | None:
        """int64[n], 0 for a message that never expires; None when none does."""
        return self._int64s(self.layout.expires)

    @cached_property
    def requests(self) -> RequestColumns | None:
        """Whose publish each message came with, None where the header says it for all."""
        layout = self.layout
        if layout.producer_ids is None or layout.sequences is None or layout.epochs is None:
            return None
        return RequestColumns(
            self._view("<u8", layout.producer_ids),
            self._view("<i8", layout.sequences),
            self._view("<u4", layout.epochs),
        )

    # -- one message -----------------------------------------------------------------------

    def body(self, row: int) -> bytes:
        """Return one body."""
        offsets = self.body_offsets
        return bytes(self.bodies[offsets[row] : offsets[row + 1]])

    def key(self, row: int) -> str | None:
        """Return one key, None when the message has none."""
        offsets = self.key_offsets
        if offsets is None:
            return None
        return str(self.keys[offsets[row] : offsets[row + 1]], "utf-8") or None

    def tag(self, row: int) -> str | None:
        """Return one tag, None when the message has none."""
        offsets = self.tag_offsets
        if offsets is None:
            return None
        return str(self.tags[offsets[row] : offsets[row + 1]], "utf-8") or None

    def properties(self, row: int) -> dict[str, str]:
        """Return one message's properties; empty when it has none."""
        return dict(self._property_items(row))

    def _property_items(self, row: int) -> Iterator[tuple[str, str]]:
        listed, name_offsets, value_offsets = (
            self.property_list,
            self.name_offsets,
            self.value_offsets,
        )
        if listed is None or name_offsets is None or value_offsets is None:
            return
        for i in range(listed[row], listed[row + 1]):
            yield (
                str(self.names[name_offsets[i] : name_offsets[i + 1]], "utf-8"),
                str(self.values[value_offsets[i] : value_offsets[i + 1]], "utf-8"),
            )

    def born_timestamp_us(self, row: int) -> int:
        """Return when one message was made, as its producer says."""
        column = self.born_timestamps_us
        return self.header.born_timestamp_us if column is None else int(column[row])

    def expires_timestamp_us(self, row: int) -> int:
        """Return when one message expires, 0 for never."""
        column = self.expires_timestamps_us
        return 0 if column is None else int(column[row])

    def expires_at_ms(self, row: int) -> int:
        """Return the first millisecond at which one message is too old to be delivered; 0: never.

        Costs next to nothing where no message of the batch expires."""
        column = self.expires_timestamps_us
        return 0 if column is None else -(-int(column[row]) // 1000)

    # -- views -----------------------------------------------------------------------------

    def _view(self, dtype: npt.DTypeLike, section: Section) -> npt.NDArray[Any]:
        return np.frombuffer(self.block[section.start : section.end], dtype)

    def _int32s(self, section: Section) -> Int32s:
        return self._view("<i4", section)

    def _optional_int32s(self, section: Section | None) -> Int32s | None:
        return None if section is None else self._view("<i4", section)

    def _uint32s(self, section: Section | None) -> UInt32s | None:
        return None if section is None else self._view("<u4", section)

    def _int64s(self, section: Section | None) -> Int64s | None:
        return None if section is None else self._view("<i8", section)

    def _bytes(self, section: Section | None) -> memoryview:
        return memoryview(b"") if section is None else self.block[section.start : section.end]


def payload_crc(block: Buffer) -> int:
    """Return the crc32c of everything after the header of a whole batch."""
    return crc32c(memoryview(block)[HEADER_SIZE:])


def iter_batches(buffer: Buffer, *, verify_payload: bool = True) -> Iterator[Batch]:
    """Yield the batches that lie one after another in `buffer`, to its very end.

    Raises what Batch.decode raises, at the first that is not whole and intact.
    """
    position = 0
    while position < len(buffer):
        batch = Batch.decode(buffer, position, verify_payload=verify_payload)
        yield batch
        position += batch.header.total_size


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
    """Encode messages (one or more) as one batch, with what the broker stamps left zero.

    The sequences given are as long as `bodies`; a column in which no message has anything is
    left out. Raises ValueError for no messages, columns of unequal length, an empty key, tag
    or property name, or more than 2 GiB in a column.
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
    """As `encode_batch`, but return the header, which is yet to be stamped, and the payload;
    `requests` is as long as `bodies`, and the broker's alone to give."""
    n = len(bodies)
    if n == 0:
        raise ValueError("a batch holds at least one message")
    for column in (keys, tags, properties, born_timestamps_us, expires_timestamps_us):
        if column is not None and len(column) != n:
            raise ValueError(f"{n} bodies, but a column of {len(column)}")
    parts = _Parts()
    body_bytes = parts.texts(bodies)
    flags = 0
    key_bytes = tag_bytes = summary = 0
    if keys is not None and any(key is not None for key in keys):
        flags |= _KEYS
        key_bytes, _ = parts.hashed("key", keys)
    if tags is not None and any(tag is not None for tag in tags):
        flags |= _TAGS
        tag_bytes, codes = parts.hashed("tag", tags)
        summary = tag_summary({code for code, tag in zip(codes, tags, strict=True) if tag})
    property_count = name_bytes = value_bytes = 0
    if properties is not None and any(properties):
        flags |= _PROPERTIES
        property_count, name_bytes, value_bytes = parts.maps(properties)
    if born_timestamps_us is not None:
        flags |= _BORN
        parts.add(np.asarray(born_timestamps_us, "<i8").tobytes())
    if expires_timestamps_us is not None and any(expires_timestamps_us):
        flags |= _EXPIRES
        parts.add(np.asarray(expires_timestamps_us, "<i8").tobytes())
    if requests is not None:
        flags |= _PRODUCERS
        parts.add(np.array(requests.producer_ids, "<u8").tobytes())
        parts.add(np.array(requests.sequences, "<i8").tobytes())
        parts.add(np.array(requests.epochs, "<u4").tobytes())
    if request_sequence:
        flags |= _REQUEST_SEQUENCE
    payload = parts.join()
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
    """Return where each value begins and the last one ends, as int32[n+1]."""
    n = len(values)
    if n <= _FEW:
        return struct.pack(f"<{n + 1}i", 0, *accumulate(map(len, values)))
    offsets = np.zeros(n + 1, "<i4")
    np.cumsum(np.fromiter(map(len, values), "<i4", n), out=offsets[1:])
    return offsets.tobytes()


class _Parts:
    """The sections of a payload being written, each padded to the alignment."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add(self, section: bytes) -> None:
        self._parts.append(section)
        self._parts.append(_PADDING[-len(section) % ALIGNMENT])

    def join(self) -> bytes:
        return b"".join(self._parts)

    def texts(self, values: Sequence[bytes]) -> int:
        """Add an offsets and a data section; return the data's size."""
        data = b"".join(values)
        if len(data) > _MAX_SECTION_BYTES:
            raise ValueError(f"a column of {len(data)} bytes; at most {_MAX_SECTION_BYTES}")
        self.add(_offsets(values))
        self.add(data)
        return len(data)

    def hashed(self, what: str, values: Sequence[str | None]) -> tuple[int, list[int]]:
        """Add hashes, offsets and texts; return the texts' size and the hashes."""
        if "" in values:
            raise ValueError(f"an empty {what}: leave it out instead")
        texts = [value.encode() if value is not None else b"" for value in values]
        hashes = crc32c_each(texts)  # 0 for an empty one
        self.add(np.array(hashes, "<u4").tobytes())
        return self.texts(texts), hashes

    def maps(self, values: Sequence[Mapping[str, str] | None]) -> tuple[int, int, int]:
        """Add a map column; return the number of entries and the sizes of names and values."""
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
