"""Many blocks of the log as one table: a row a block, a column a header field. Pure.

Holdfast's blocks may hold a hundred thousand messages or one. To be quick for the small ones,
headers and the places of columns are worked out for all blocks of a reply at once, by numpy.
`commitlog.batch` stays the authority on the format: it words every refusal, and the tests
hold the two against each other.
"""

import struct

import numpy as np
import numpy.typing as npt

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.batch_header import (
    ALIGNMENT,
    FORMAT_VERSION,
    HEADER_SIZE,
    KNOWN_FLAGS,
    MAGIC,
    BatchFlag,
)
from holdfast.commitlog.checksum import crc32c
from holdfast.commitlog.errors import CorruptBatch

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: The header of commitlog/batch_header.py, as numpy reads it.
HEADER = np.dtype(
    [
        ("magic", "S4"),
        ("version", "<u2"),
        ("flags", "<u2"),
        ("total_size", "<u4"),
        ("header_crc", "<u4"),
        ("payload_crc", "<u4"),
        ("message_count", "<u4"),
        ("physical_offset", "<u8"),
        ("durable_offset", "<u8"),
        ("base_offset", "<i8"),
        ("topic_id", "<u4"),
        ("queue_id", "<u4"),
        ("store_timestamp_us", "<i8"),
        ("born_timestamp_us", "<i8"),
        ("producer_id", "<u8"),
        ("sequence", "<u8"),
        ("producer_epoch", "<u4"),
        ("body_bytes", "<u4"),
        ("tag_summary", "<u8"),
        ("key_bytes", "<u4"),
        ("tag_bytes", "<u4"),
        ("property_count", "<u4"),
        ("property_name_bytes", "<u4"),
        ("property_value_bytes", "<u4"),
        ("reserved", "<u4"),
    ]
)
assert HEADER.itemsize == HEADER_SIZE

_TOTAL_SIZE = struct.Struct("<8xI")


class Blocks:
    """The whole, intact blocks that lie one after another in `buffer`. Nothing is copied.

    Raises what Batch.decode raises for the first block that is not intact.
    """

    def __init__(self, buffer: bytes) -> None:
        self.buffer = buffer
        self.positions = np.array(_walk(buffer), np.int64)
        octets = np.frombuffer(buffer, np.uint8)
        raw = octets[self.positions[:, None] + np.arange(HEADER_SIZE)]
        self._headers: npt.NDArray[np.void] = raw.view(HEADER).reshape(-1)
        self.message_counts = self.field("message_count")
        self.base_offsets = self.field("base_offset")
        #: Section -> where it starts in each block, counted from the start of the buffer.
        self.starts: dict[str, Int64s] = {}
        #: Section -> its size in each block, 0 where a block has it not.
        self.sizes: dict[str, Int64s] = {}
        self._check(raw, self._lay_out())

    def __len__(self) -> int:
        return len(self.positions)

    def field(self, name: str) -> Int64s:
        """Return one header field of every block."""
        return self._headers[name].astype(np.int64)

    def has(self, flag: BatchFlag) -> Bools:
        """Return which blocks have the column of `flag`."""
        present: Bools = (self.field("flags") & flag) != 0
        return present

    def _lay_out(self) -> Int64s:
        """Fill `starts` and `sizes`; return where each block's last section ends.

        A section that a block has not starts where the next one does.
        """
        at = self.positions + HEADER_SIZE

        def section(name: str, sizes: Int64s, present: Bools | bool = True) -> None:
            nonlocal at
            self.starts[name] = at
            self.sizes[name] = np.where(present, sizes, 0)
            at = at + ((self.sizes[name] + ALIGNMENT - 1) & -ALIGNMENT)

        count = self.message_counts
        keys, tags = self.has(BatchFlag.KEYS), self.has(BatchFlag.TAGS)
        properties = self.has(BatchFlag.PROPERTIES)
        offsets, hashes, times = 4 * (count + 1), 4 * count, 8 * count
        entries = 4 * (self.field("property_count") + 1)
        section("body_offsets", offsets)
        section("bodies", self.field("body_bytes"))
        section("key_hashes", hashes, keys)
        section("key_offsets", offsets, keys)
        section("keys", self.field("key_bytes"), keys)
        section("tag_codes", hashes, tags)
        section("tag_offsets", offsets, tags)
        section("tags", self.field("tag_bytes"), tags)
        section("property_list", offsets, properties)
        section("name_offsets", entries, properties)
        section("names", self.field("property_name_bytes"), properties)
        section("value_offsets", entries, properties)
        section("values", self.field("property_value_bytes"), properties)
        section("born", times, self.has(BatchFlag.BORN))
        section("expires", times, self.has(BatchFlag.EXPIRES))
        return at

    def _check(self, raw: npt.NDArray[np.uint8], ends: Int64s) -> None:
        headers = self._headers
        fits = (
            (headers["magic"] == MAGIC)
            & (headers["version"] == FORMAT_VERSION)
            & ((self.field("flags") & ~int(KNOWN_FLAGS)) == 0)
            & (headers["reserved"] == 0)
            & (self.message_counts >= 1)
            & (self.base_offsets >= 0)
            & (self.positions + self.field("total_size") == ends)
            & (_header_crcs(raw) == headers["header_crc"])
            & (self._payload_crcs() == headers["payload_crc"])
        )
        if not bool(fits.all()):
            position = int(self.positions[int(np.argmin(fits))])
            Batch.decode(self.buffer, position)
            raise CorruptBatch("unreadable", f"the block at byte {position} of the reply")

    def _payload_crcs(self) -> Int64s:
        view = memoryview(self.buffer)
        starts = (self.positions + HEADER_SIZE).tolist()
        ends = (self.positions + self.field("total_size")).tolist()
        return np.array([crc32c(view[a:b]) for a, b in zip(starts, ends, strict=True)], np.int64)


def _walk(buffer: bytes) -> list[int]:
    """Return where each block starts. Raises what Batch.decode raises where one is cut short."""
    positions = []
    position = 0
    while position < len(buffer):
        if len(buffer) - position < HEADER_SIZE:
            Batch.decode(buffer, position)
        (total_size,) = _TOTAL_SIZE.unpack_from(buffer, position)
        if (
            total_size < HEADER_SIZE
            or total_size % ALIGNMENT
            or len(buffer) < position + total_size
        ):
            Batch.decode(buffer, position)
            raise CorruptBatch("bad-size", f"total size {total_size}")
        positions.append(position)
        position += total_size
    return positions


def _header_crcs(raw: npt.NDArray[np.uint8]) -> Int64s:
    """Return the CRC of each header with its own field as zero."""
    without = raw.copy().view(HEADER)
    without["header_crc"] = 0
    data = without.tobytes()
    return np.array(
        [crc32c(data[at : at + HEADER_SIZE]) for at in range(0, len(data), HEADER_SIZE)], np.int64
    )
