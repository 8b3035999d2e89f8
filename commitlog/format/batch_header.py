"""The header of every batch (128 bytes, little-endian), and where the batch's columns lie. Pure.

The header CRC covers all 128 bytes, with its own field as zero. So a header can be checked without
other data: the CRC shows damage, and the physical offset shows a wrong place. FORMAT.md has a
diagram of the same bytes.

After the header, every section starts at a multiple of 8 bytes from the start of the batch; the gap
before it is zero. An absent section takes no room. Offsets are n+1 little-endian int32 that start
at 0, as in Arrow, so every section is an Arrow buffer without conversion. For n messages and m
properties:

    body offsets  int32[n+1]     bodies
    key hashes    uint32[n]      key offsets   int32[n+1]   keys       (flag KEYS)
    tag codes     uint32[n]      tag offsets   int32[n+1]   tags       (flag TAGS)
    property list int32[n+1]     name offsets  int32[m+1]   names
                                 value offsets int32[m+1]   values     (flag PROPERTIES)
    born          int64[n]  microseconds                               (flag BORN)
    expires       int64[n]  microseconds, 0: never                     (flag EXPIRES)
    producer ids  uint64[n] 0: none
    sequences     int64[n]                   epochs        uint32[n]  (flag PRODUCERS)
    envelope offsets int32[n+1]   envelopes                            (flag ENVELOPES)
    stored        int64[n]  microseconds                               (flag REBUILT)

If a message has no key or tag, its text is empty, and its hash or code is 0.
"""

import struct
from dataclasses import dataclass, field
from enum import IntFlag
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from holdfast.commitlog.errors import CorruptBatch, UnknownFormatVersion
from holdfast.commitlog.format.checksum import crc32c

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAGIC = b"HFBT"
FORMAT_VERSION = 1
HEADER_SIZE = 128
ANY_QUEUE = 0xFFFF_FFFF
ALIGNMENT = 8
_PADDING = ALIGNMENT - 1

Buffer = bytes | bytearray | memoryview
Size = TypeVar("Size", int, "npt.NDArray[np.int64]")

#: The header's fields in the order of their bytes, each with its struct code. The comments have the
#: position of the field, and * for a field that the producer leaves zero and the broker fills in.
HEADER_FIELDS = {
    "magic": "4s",  # 0: "HFBT"
    "version": "H",  # 4: 1
    "flags": "H",  # 6: BatchFlag
    "total_size": "I",  # 8: header, columns and their padding; a multiple of 8
    "header_crc": "I",  # 12: CRC32C
    "payload_crc": "I",  # 16: CRC32C of every byte after the header
    "message_count": "I",  # 20: at least 1
    "physical_offset": "Q",  # 24 *: of byte 0 of this header
    "durable_offset": "Q",  # 32 *: known when the batch was appended
    "base_offset": "q",  # 40 *: queue offset of the first message
    "topic_id": "I",  # 48 *
    "queue_id": "I",  # 52: from a producer, 0xFFFFFFFF lets the broker choose the queue
    "store_timestamp_us": "q",  # 56 *: microseconds since 1970
    "born_timestamp_us": "q",  # 64: of all messages, if there is no column BORN
    "producer_id": "Q",  # 72: 0 if the batch is not idempotent
    "sequence": "q",  # 80
    "producer_epoch": "I",  # 88
    "body_bytes": "I",  # 92
    "tag_summary": "Q",  # 96: bit (code mod 64) of each tag in the batch
    "key_bytes": "I",  # 104
    "tag_bytes": "I",  # 108
    "property_count": "I",  # 112
    "property_name_bytes": "I",  # 116
    "property_value_bytes": "I",  # 120
    "envelope_bytes": "I",  # 124: zero without the flag ENVELOPES
}
_HEADER = struct.Struct("<" + "".join(HEADER_FIELDS.values()))
assert _HEADER.size == HEADER_SIZE
#: Byte of the header where its own CRC starts.
HEADER_CRC_AT = 12
_CRC = slice(HEADER_CRC_AT, HEADER_CRC_AT + 4)
_NO_CRC = bytes(4)
#: Byte of the header where the physical offset starts, in this version and all later versions.
_PLACE_AT = 24


class BatchFlag(IntFlag):
    """Which columns a batch has, and how to read the batch. An intact header with an unknown bit
    was written by a newer Holdfast. Such a header is refused like a header of a newer version.
    It is never treated as damage, because recovery may overwrite damage with zeros."""

    KEYS = 1 << 0
    TAGS = 1 << 1
    PROPERTIES = 1 << 2
    BORN = 1 << 3
    EXPIRES = 1 << 4
    #: The sequence counts the producer's requests to the whole topic, not its batches to this
    #: queue (one publish with idempotence headers may go to several queues).
    REQUEST_SEQUENCE = 1 << 5
    #: Reserved by the format; version 1 refuses it. It also refuses bits 8-11, which are reserved
    #: for a body codec.
    NULL_BODIES = 1 << 6
    #: Several publishes share the batch: columns give each message the producer, epoch and
    #: sequence of its publish. The sequences count requests. Only the broker sets this flag.
    PRODUCERS = 1 << 7
    #: Each message has an envelope: what the protocol of its publisher needs to deliver it
    #: unchanged, and other protocols ignore. Only the broker sets this flag.
    ENVELOPES = 1 << 12
    #: The broker made the block for a reply, from several stored blocks: a column has the store
    #: timestamp of each message. Such a block is never stored, and never accepted from a client.
    REBUILT = 1 << 13


# Plain ints: each test or combination of an IntFlag costs a microsecond.
KEYS = int(BatchFlag.KEYS)
TAGS = int(BatchFlag.TAGS)
PROPERTIES = int(BatchFlag.PROPERTIES)
BORN = int(BatchFlag.BORN)
EXPIRES = int(BatchFlag.EXPIRES)
REQUEST_SEQUENCE = int(BatchFlag.REQUEST_SEQUENCE)
PRODUCERS = int(BatchFlag.PRODUCERS)
ENVELOPES = int(BatchFlag.ENVELOPES)
REBUILT = int(BatchFlag.REBUILT)
#: All flags that add sections to the bodies.
_COLUMNS = KEYS | TAGS | PROPERTIES | BORN | EXPIRES | PRODUCERS | ENVELOPES | REBUILT
#: The flags of batches that may be published and stored.
KNOWN_FLAGS = (_COLUMNS | REQUEST_SEQUENCE) & ~REBUILT


@dataclass(slots=True)
class BatchHeader:
    """The decoded header of one batch. Sizes are in bytes, timestamps in microseconds.

    Treat as immutable, except a header that you made yourself and that no other part has: the
    appender completes such a header (`stamp`). Not `frozen=True`: that makes construction three
    times slower.
    """

    flags: int
    total_size: int
    payload_crc: int
    message_count: int
    physical_offset: int = 0
    durable_offset: int = 0
    base_offset: int = 0
    topic_id: int = 0
    queue_id: int = ANY_QUEUE
    store_timestamp_us: int = 0
    born_timestamp_us: int = 0
    producer_id: int = 0
    sequence: int = 0
    producer_epoch: int = 0
    body_bytes: int = 0
    tag_summary: int = 0
    key_bytes: int = 0
    tag_bytes: int = 0
    property_count: int = 0
    property_name_bytes: int = 0
    property_value_bytes: int = 0
    envelope_bytes: int = 0
    requests: "tuple[BatchHeader, ...]" = field(default=(), compare=False, repr=False)
    """One header for each idempotent publish that shares the batch. Not part of the header's
    bytes: set when a batch is written, or read with its payload
    (`batch_encoding.with_requests`)."""

    @property
    def idempotent(self) -> "tuple[BatchHeader, ...]":
        """The headers of the publishes that a producer may retry: this header, or `requests`."""
        if self.producer_id:
            return (self,)
        return self.requests

    @property
    def end_offset(self) -> int:
        """The queue offset after the last message."""
        return self.base_offset + self.message_count

    @property
    def end_physical_offset(self) -> int:
        """Physical offset where the next block of the log starts."""
        return self.physical_offset + self.total_size

    def encode(self) -> bytes:
        """Return the 128 bytes, with the header CRC in place."""
        raw = _HEADER.pack(
            MAGIC, FORMAT_VERSION, self.flags, self.total_size, 0, *_fields_after_crc(self)
        )
        return raw[: _CRC.start] + crc32c(raw).to_bytes(4, "little") + raw[_CRC.stop :]

    @classmethod
    def decode(cls, buffer: Buffer, position: int = 0, *, rebuilt: bool = False) -> Self:
        """Decode the header at `position`. With `rebuilt` it may have the flag REBUILT.

        Raise CorruptBatch if the bytes are not a complete, intact header, and
        UnknownFormatVersion if a newer Holdfast wrote the header.
        """
        raw = bytes(buffer[position : position + HEADER_SIZE])
        if len(raw) < HEADER_SIZE:
            raise CorruptBatch("header-truncated", f"{len(raw)} bytes of 128")
        magic, version, flags, total_size, header_crc, *fields = _HEADER.unpack(raw)
        if magic != MAGIC:
            raise CorruptBatch("bad-magic", f"{magic!r}")
        if crc32c(raw[: _CRC.start] + _NO_CRC + raw[_CRC.stop :]) != header_crc:
            raise CorruptBatch("header-crc", "the header's checksum does not match its bytes")
        if version != FORMAT_VERSION:
            raise UnknownFormatVersion("batch", version, FORMAT_VERSION)
        if flags & ~known_flags(rebuilt=rebuilt):
            found = f"{version} with flags {flags:#06x}"
            raise UnknownFormatVersion("batch", found, FORMAT_VERSION)
        header = cls(flags, total_size, *fields)
        if header.envelope_bytes and not flags & ENVELOPES:
            raise CorruptBatch("envelopes", "counted in the header, but there is no such column")
        if header.message_count < 1 or header.base_offset < 0:
            count, base_offset = header.message_count, header.base_offset
            raise CorruptBatch("bad-count", f"{count} messages at {base_offset}")
        if total_size < HEADER_SIZE or total_size % ALIGNMENT:
            raise CorruptBatch("bad-size", f"total size {total_size}")
        return header

    def of_publish(
        self, base_offset: int, message_count: int, producer_id: int, sequence: int, epoch: int
    ) -> Self:
        """Return the header of one publish that shares this stamped batch. The returned header
        has the offsets of the publish, and the other fields that ProducerSequences needs."""
        header = self.copy()
        header.flags = REQUEST_SEQUENCE
        header.base_offset = base_offset
        header.message_count = message_count
        header.producer_id = producer_id
        header.sequence = sequence
        header.producer_epoch = epoch
        return header

    def stamp(
        self,
        *,
        physical_offset: int,
        durable_offset: int,
        base_offset: int,
        topic_id: int,
        queue_id: int,
        store_timestamp_us: int,
        tag_summary: int,
    ) -> Self:
        """Set the fields that the broker fills in, and return this header. Callers must own the
        header: for the header of a batch, call `copy` first."""
        self.physical_offset = physical_offset
        self.durable_offset = durable_offset
        self.base_offset = base_offset
        self.topic_id = topic_id
        self.queue_id = queue_id
        self.store_timestamp_us = store_timestamp_us
        self.tag_summary = tag_summary
        return self

    def copy(self) -> Self:
        # `dataclasses.replace` is four times slower.
        return type(self)(*_fields(self))


#: The fields of BatchHeader that are in its bytes, in the order of these bytes.
FIELD_NAMES = tuple(name for name in BatchHeader.__slots__ if name != "requests")
assert [*FIELD_NAMES] == [
    name for name in HEADER_FIELDS if name not in ("magic", "version", "header_crc")
]
_fields = attrgetter(*FIELD_NAMES)
_fields_after_crc = attrgetter(*FIELD_NAMES[2:])


def known_flags(*, rebuilt: bool) -> int:
    """Return the flags that a reader of the log accepts, with `rebuilt` those that a client accepts
    in a reply."""
    return KNOWN_FLAGS | REBUILT if rebuilt else KNOWN_FLAGS


def place_of(raw: Buffer) -> int:
    """Return the physical offset that a header contains. Valid for every format version."""
    return int.from_bytes(raw[_PLACE_AT : _PLACE_AT + 8], "little")


class Section(NamedTuple):
    """Where one section lies, in bytes from the start of the batch."""

    start: int
    end: int


@dataclass(slots=True)
class Layout:
    """Where every section of a batch lies; absent sections are None. Treat as immutable. Not
    `frozen=True`: that makes construction several times slower, and each read of a batch
    constructs a Layout."""

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
    envelope_offsets: Section | None = None
    envelopes: Section | None = None
    stored: Section | None = None


#: The fields of Layout that are sections, in the order of the sections in a batch.
SECTION_NAMES = Layout.__slots__[1:]


def layout_of(header: BatchHeader) -> Layout:
    """Return where the sections lie, computed from the header without its total size."""
    n = header.message_count
    flags = header.flags
    offsets = 4 * (n + 1)
    end = HEADER_SIZE + offsets
    body_offsets = Section(HEADER_SIZE, end)
    at = (end + _PADDING) & -ALIGNMENT
    end = at + header.body_bytes
    layout = Layout((end + _PADDING) & -ALIGNMENT, body_offsets, Section(at, end))
    if not flags & _COLUMNS:
        return layout  # Bodies only: the usual case for messages that are published one by one.
    at = layout.total_size

    def section(size: int) -> Section:
        nonlocal at
        start, end = at, at + size
        at = (end + _PADDING) & -ALIGNMENT  # as `align`, without a call
        return Section(start, end)

    if flags & KEYS:
        layout.key_hashes = section(4 * n)
        layout.key_offsets = section(offsets)
        layout.keys = section(header.key_bytes)
    if flags & TAGS:
        layout.tag_codes = section(4 * n)
        layout.tag_offsets = section(offsets)
        layout.tags = section(header.tag_bytes)
    if flags & PROPERTIES:
        m = header.property_count
        layout.property_list = section(offsets)
        layout.name_offsets = section(4 * (m + 1))
        layout.names = section(header.property_name_bytes)
        layout.value_offsets = section(4 * (m + 1))
        layout.values = section(header.property_value_bytes)
    if flags & BORN:
        layout.born = section(8 * n)
    if flags & EXPIRES:
        layout.expires = section(8 * n)
    if flags & PRODUCERS:
        layout.producer_ids = section(8 * n)
        layout.sequences = section(8 * n)
        layout.epochs = section(4 * n)
    if flags & ENVELOPES:
        layout.envelope_offsets = section(offsets)
        layout.envelopes = section(header.envelope_bytes)
    if flags & REBUILT:
        layout.stored = section(8 * n)
    layout.total_size = at
    return layout


def align(size: Size) -> Size:
    """Return a size, or an array of sizes, rounded up to a multiple of 8: the next section's
    start."""
    return (size + _PADDING) & -ALIGNMENT
