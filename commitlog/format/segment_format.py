"""The bytes of a segment file that are not blocks: header page, end mark, footer. Pure. FORMAT.md
has a diagram of the same bytes.

    0                    header page, 4096 bytes
    4096                 blocks (batches), one after another
    ...                  end mark, 32 bytes: the log continues in the next segment
    ...                  zeros
    size - footer size   footer: block table, key table
    size - 64            footer trailer

The file name is the physical offset of the first byte, in 20 digits. Header and footer only save
work: every block can be verified alone, so a damaged header or footer loses no message.
"""

import re
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.commitlog.errors import CorruptBatch, UnknownFormatVersion
from holdfast.commitlog.format.batch_header import Buffer
from holdfast.commitlog.format.checksum import crc32c, crc32c_of_buffer

SEGMENT_VERSION = 1
SEGMENT_HEADER_SIZE = 4096
END_MARK_SIZE = 32
TRAILER_SIZE = 64

# magic, version, reserved, start offset, size, created (us), CRC of the preceding 32 bytes
_SEGMENT = struct.Struct("<4sHHQQqI")
_SEGMENT_MAGIC = b"HFSG"
# magic, reserved, physical offset of the mark, CRC of the preceding 16 bytes, 12 zeros
_END = struct.Struct("<4sIQI12x")
END_MARK_MAGIC = b"HFND"
# magic, version, reserved, segment start, block count, key count, CRC of the tables, CRC of
# the preceding 36 bytes, 24 zeros
_TRAILER = struct.Struct("<4sHHQQQII24x")
_TRAILER_MAGIC = b"HFFT"
assert _END.size == END_MARK_SIZE
assert _TRAILER.size == TRAILER_SIZE

#: One row of a footer's block table, 56 bytes. There is one row for each block. The rows are sorted
#: by topic, queue and base offset.
BLOCK_DTYPE = np.dtype(
    [
        ("topic_id", "<u4"),
        ("queue_id", "<u4"),
        ("base_offset", "<i8"),
        ("physical_offset", "<u8"),
        ("size", "<u4"),
        ("message_count", "<u4"),
        ("store_timestamp_us", "<i8"),
        ("tag_summary", "<u8"),
        ("body_bytes", "<u4"),
        ("flags", "<u4"),
    ]
)
#: One row of a footer's key table, 8 bytes: the hash of a message's key, and the index of the
#: message's block in the block table. The rows are sorted by hash and block.
KEY_DTYPE = np.dtype([("key_hash", "<u4"), ("block", "<u4")])

#: The sizes of a row, as plain ints.
BLOCK_ROW_SIZE = BLOCK_DTYPE.itemsize
KEY_ROW_SIZE = KEY_DTYPE.itemsize

Blocks = npt.NDArray[np.void]
Keys = npt.NDArray[np.void]

_SEGMENT_NAME = re.compile(r"[0-9]{20}")


def segment_name(start_offset: int) -> str:
    """Return the file name of the segment that starts at this physical offset."""
    return f"{start_offset:020d}"


def parse_segment_name(name: str) -> int | None:
    """Return the start offset in a file name, None if it is not the name of a segment."""
    return int(name) if _SEGMENT_NAME.fullmatch(name) else None


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The fields of a segment's header page."""

    start_offset: int
    size: int
    created_timestamp_us: int

    def encode(self) -> bytes:
        """Return the whole header page."""
        values = (self.start_offset, self.size, self.created_timestamp_us)
        fields = struct.pack("<4sHHQQq", _SEGMENT_MAGIC, SEGMENT_VERSION, 0, *values)
        return _with_crc(fields, SEGMENT_HEADER_SIZE)

    @classmethod
    def decode(cls, page: Buffer) -> "SegmentHeader":
        """Decode a header page. Raise CorruptBatch, or UnknownFormatVersion for a version that
        this code does not know."""
        if len(page) < _SEGMENT.size:
            raise CorruptBatch("segment-header", "truncated")
        magic, version, _, start, size, created, crc = _SEGMENT.unpack_from(page)
        if magic != _SEGMENT_MAGIC:
            raise CorruptBatch("segment-header", f"magic {bytes(magic)!r}")
        if crc32c(bytes(page[: _SEGMENT.size - 4])) != crc:
            raise CorruptBatch("segment-header", "checksum")
        if version != SEGMENT_VERSION:
            raise UnknownFormatVersion("segment", version, SEGMENT_VERSION)
        return cls(start, size, created)


def encode_end_mark(physical_offset: int) -> bytes:
    """Return the end mark for a segment whose blocks end at this physical offset."""
    return _with_crc(struct.pack("<4sIQ", END_MARK_MAGIC, 0, physical_offset), END_MARK_SIZE)


def is_end_mark(buffer: Buffer, physical_offset: int) -> bool:
    """Return whether `buffer` starts with the intact end mark for this physical offset."""
    return bytes(buffer[:END_MARK_SIZE]) == encode_end_mark(physical_offset)


def footer_size(block_count: int, key_count: int) -> int:
    """Return the size of a footer in bytes, with its trailer."""
    return block_count * BLOCK_ROW_SIZE + key_count * KEY_ROW_SIZE + TRAILER_SIZE


def encode_footer(start_offset: int, blocks: Blocks, keys: Keys) -> bytes:
    """Return block table, key table and trailer as bytes. The tables must be sorted already, as
    BLOCK_DTYPE and KEY_DTYPE define."""
    tables = blocks.tobytes() + keys.tobytes()
    values = (start_offset, len(blocks), len(keys), crc32c(tables))
    fields = struct.pack("<4sHHQQQI", _TRAILER_MAGIC, SEGMENT_VERSION, 0, *values)
    return tables + _with_crc(fields, TRAILER_SIZE)


def _with_crc(fields: bytes, size: int) -> bytes:
    """Return the fields, their CRC, and zeros up to `size`."""
    return (fields + struct.pack("<I", crc32c(fields))).ljust(size, b"\0")


@dataclass(frozen=True, slots=True)
class FooterTrailer:
    """The last bytes of a sealed segment: the size and the CRC of its tables."""

    start_offset: int
    block_count: int
    key_count: int
    tables_crc: int

    @property
    def footer_size(self) -> int:
        """Bytes from the block table to the end of the file."""
        return footer_size(self.block_count, self.key_count)

    @classmethod
    def decode(cls, buffer: Buffer) -> "FooterTrailer | None":
        """Decode the last 64 bytes of a segment; return None if no footer was written yet.

        Raise CorruptBatch for a damaged trailer, UnknownFormatVersion for an unknown version.
        """
        if len(buffer) < TRAILER_SIZE:
            raise CorruptBatch("footer", "truncated")
        if not any(bytes(buffer[:TRAILER_SIZE])):
            return None
        magic, version, _, start, blocks, keys, tables_crc, crc = _TRAILER.unpack_from(buffer)
        if magic != _TRAILER_MAGIC or crc32c(bytes(buffer[:36])) != crc:
            raise CorruptBatch("footer", "trailer")
        if version != SEGMENT_VERSION:
            raise UnknownFormatVersion("segment footer", version, SEGMENT_VERSION)
        return cls(start, blocks, keys, tables_crc)


def decode_footer(trailer: FooterTrailer, tables: Buffer) -> tuple[Blocks, Keys]:
    """Return the block and key tables from the bytes before the trailer.

    Raise CorruptBatch if they do not match the trailer.
    """
    if len(tables) != trailer.footer_size - TRAILER_SIZE:
        raise CorruptBatch("footer", "tables")
    if crc32c_of_buffer(tables) != trailer.tables_crc:
        raise CorruptBatch("footer", "tables")
    split = trailer.block_count * BLOCK_ROW_SIZE
    return np.frombuffer(tables[:split], BLOCK_DTYPE), np.frombuffer(tables[split:], KEY_DTYPE)


def end_offsets(rows: Blocks) -> npt.NDArray[np.int64]:
    """Return for each row of a block table the queue offset after the block's last message."""
    ends: npt.NDArray[np.int64] = rows["base_offset"] + rows["message_count"]
    return ends


def end_offset(row: np.void) -> int:
    """Return for one row of a block table the queue offset after the block's last message."""
    return int(row["base_offset"]) + int(row["message_count"])


def rows_from(rows: Blocks, topic_id: int, queue_id: int, offset: int) -> Blocks:
    """Return the rows of a block table for one queue's blocks that have messages at or after the
    queue offset `offset`."""
    is_own = (rows["topic_id"] == topic_id) & (rows["queue_id"] == queue_id)
    found: Blocks = rows[is_own & (end_offsets(rows) > offset)]
    return found
