"""The fixed header of every batch: 128 bytes, little-endian. Pure.

The producer leaves the fields marked * zero; the broker fills them in. The header CRC covers
all 128 bytes, with its own field as zero. So a header can be checked without other data: the CRC
shows damage, and the physical offset shows a wrong place. FORMAT.md draws the same bytes.

     off  size  field
       0     4  magic "HFBT"
       4     2  format version (1)
       6     2  flags (BatchFlag)
       8     4  total size: header, columns and their padding; a multiple of 8
      12     4  header CRC32C
      16     4  payload CRC32C: every byte after the header
      20     4  message count (>= 1)
      24     8  * physical offset of byte 0 of this header
      32     8  * durable offset known when the batch was appended
      40     8  * base queue offset: that of the first message
      48     4  * topic id
      52     4  queue id (0xFFFFFFFF from a producer: the broker chooses the queue)
      56     8  * store timestamp, microseconds since 1970
      64     8  born timestamp, microseconds: for all messages if there is no column BORN
      72     8  producer id (0: not idempotent)
      80     8  sequence
      88     4  producer epoch
      92     4  body bytes
      96     8  tag summary: bit (code mod 64) of each tag in the batch
     104     4  key bytes
     108     4  tag bytes
     112     4  property count
     116     4  property name bytes
     120     4  property value bytes
     124     4  reserved, zero
"""

import struct
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Self

from holdfast.commitlog.errors import CorruptBatch, UnknownFormatVersion
from holdfast.commitlog.format.checksum import crc32c

MAGIC = b"HFBT"
FORMAT_VERSION = 1
HEADER_SIZE = 128
ANY_QUEUE = 0xFFFF_FFFF
ALIGNMENT = 8

_HEADER = struct.Struct("<4sHHIIIIQQqIIqqQqIIQIIIIII")
_CRC_AT = 12
assert _HEADER.size == HEADER_SIZE

Buffer = bytes | bytearray | memoryview


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


_REQUEST_SEQUENCE = int(BatchFlag.REQUEST_SEQUENCE)
# A plain int, because the complement of an IntFlag contains only its named bits.
KNOWN_FLAGS = int(
    BatchFlag.KEYS
    | BatchFlag.TAGS
    | BatchFlag.PROPERTIES
    | BatchFlag.BORN
    | BatchFlag.EXPIRES
    | BatchFlag.REQUEST_SEQUENCE
    | BatchFlag.PRODUCERS
)


#: Byte of the header where the physical offset starts, in this version and all later versions.
_PLACE_AT = 24


@dataclass(slots=True)
class BatchHeader:
    """The decoded header of one batch. Sizes are in bytes, timestamps in microseconds.

    Treat as immutable: `stamped` and `dataclasses.replace` return a new header. Not
    `frozen=True`: that makes construction three times slower, and a message that is published
    alone needs three headers.
    """

    flags: int
    total_size: int
    payload_crc: int
    message_count: int
    body_bytes: int
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
    tag_summary: int = 0
    key_bytes: int = 0
    tag_bytes: int = 0
    property_count: int = 0
    property_name_bytes: int = 0
    property_value_bytes: int = 0
    requests: "tuple[BatchHeader, ...]" = field(default=(), compare=False, repr=False)
    """One header for each idempotent publish that shares the batch. Not part of the header's
    bytes: set when a batch is written, or read with its payload
    (`message_rows.with_requests`)."""

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

    def encode(self) -> bytearray:
        """Return the 128 bytes, with the header CRC in place."""
        out = bytearray(
            _HEADER.pack(
                MAGIC,
                FORMAT_VERSION,
                self.flags,
                self.total_size,
                0,
                self.payload_crc,
                self.message_count,
                self.physical_offset,
                self.durable_offset,
                self.base_offset,
                self.topic_id,
                self.queue_id,
                self.store_timestamp_us,
                self.born_timestamp_us,
                self.producer_id,
                self.sequence,
                self.producer_epoch,
                self.body_bytes,
                self.tag_summary,
                self.key_bytes,
                self.tag_bytes,
                self.property_count,
                self.property_name_bytes,
                self.property_value_bytes,
                0,
            )
        )
        struct.pack_into("<I", out, _CRC_AT, crc32c(out))
        return out

    @classmethod
    def decode(cls, buffer: Buffer, position: int = 0) -> Self:
        """Decode the header at `position`.

        Raise CorruptBatch if the bytes are not a complete, intact header, and
        UnknownFormatVersion if a newer Holdfast wrote the header.
        """
        if len(buffer) - position < HEADER_SIZE:
            raise CorruptBatch("header-truncated", f"{len(buffer) - position} bytes of 128")
        raw = bytearray(buffer[position : position + HEADER_SIZE])
        (
            magic,
            version,
            flags,
            total_size,
            header_crc,
            payload_crc,
            message_count,
            physical_offset,
            durable_offset,
            base_offset,
            topic_id,
            queue_id,
            store_timestamp_us,
            born_timestamp_us,
            producer_id,
            sequence,
            producer_epoch,
            body_bytes,
            tag_summary,
            key_bytes,
            tag_bytes,
            property_count,
            property_name_bytes,
            property_value_bytes,
            reserved,
        ) = _HEADER.unpack(raw)
        if magic != MAGIC:
            raise CorruptBatch("bad-magic", f"{bytes(magic)!r}")
        struct.pack_into("<I", raw, _CRC_AT, 0)
        if crc32c(raw) != header_crc:
            raise CorruptBatch("header-crc", "the header's checksum does not match its bytes")
        if version != FORMAT_VERSION:
            raise UnknownFormatVersion("batch", version, FORMAT_VERSION)
        if flags & ~KNOWN_FLAGS:
            found = f"{version} with flags {flags:#06x}"
            raise UnknownFormatVersion("batch", found, FORMAT_VERSION)
        if reserved:
            raise CorruptBatch("reserved-not-zero", f"{reserved:#x}")
        if message_count < 1 or base_offset < 0:
            raise CorruptBatch("bad-count", f"{message_count} messages at {base_offset}")
        if total_size < HEADER_SIZE or total_size % ALIGNMENT:
            raise CorruptBatch("bad-size", f"total size {total_size}")
        return cls(
            flags,
            total_size,
            payload_crc,
            message_count,
            body_bytes,
            physical_offset,
            durable_offset,
            base_offset,
            topic_id,
            queue_id,
            store_timestamp_us,
            born_timestamp_us,
            producer_id,
            sequence,
            producer_epoch,
            tag_summary,
            key_bytes,
            tag_bytes,
            property_count,
            property_name_bytes,
            property_value_bytes,
        )

    def of_publish(
        self, base_offset: int, message_count: int, producer_id: int, sequence: int, epoch: int
    ) -> Self:
        """Return the header of one publish that shares this stamped batch. It has the place where
        the publish is stored, and the other fields that ProducerSequences needs."""
        return type(self)(
            _REQUEST_SEQUENCE,
            self.total_size,
            self.payload_crc,
            message_count,
            self.body_bytes,
            self.physical_offset,
            self.durable_offset,
            base_offset,
            self.topic_id,
            self.queue_id,
            self.store_timestamp_us,
            self.born_timestamp_us,
            producer_id,
            sequence,
            epoch,
        )

    def stamped(
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
        """Return this header with the fields that the broker fills in."""
        # Positional arguments: `dataclasses.replace` is four times slower.
        return type(self)(
            self.flags,
            self.total_size,
            self.payload_crc,
            self.message_count,
            self.body_bytes,
            physical_offset,
            durable_offset,
            base_offset,
            topic_id,
            queue_id,
            store_timestamp_us,
            self.born_timestamp_us,
            self.producer_id,
            self.sequence,
            self.producer_epoch,
            tag_summary,
            self.key_bytes,
            self.tag_bytes,
            self.property_count,
            self.property_name_bytes,
            self.property_value_bytes,
        )


def place_of(raw: Buffer) -> int:
    """Return the physical offset that a header contains. Valid for every format version."""
    return int.from_bytes(raw[_PLACE_AT : _PLACE_AT + 8], "little")
