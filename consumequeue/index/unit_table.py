"""Thousands of index entries as a table, and as keys and values for LMDB. Pure.

`index.py` documents the bytes: a key of 16 bytes (big-endian), a value of 40 bytes (little-endian)
and the CRC of both.
"""

import numpy as np
import numpy.typing as npt

from holdfast.commitlog.format.checksum import crc32c_each
from holdfast.consumequeue.index.consume_queue import CqUnit

UNIT_DTYPE = np.dtype(
    [
        ("topic_id", ">u4"),
        ("queue_id", ">u4"),
        ("base_offset", ">i8"),
        ("physical_offset", "<u8"),
        ("queue_bytes", "<u8"),
        ("store_timestamp_us", "<i8"),
        ("tag_summary", "<u8"),
        ("size", "<u4"),
        ("message_count", "<u4"),
    ]
)
#: An entry as LMDB stores it: key, value and CRC joined.
ITEM_DTYPE = np.dtype([*UNIT_DTYPE.descr, ("crc", "<u4")])
_KEY_BYTES = 16

Units = npt.NDArray[np.void]


def encode_units(units: Units) -> list[tuple[bytes, bytes]]:
    """Return each entry's key and value."""
    size = UNIT_DTYPE.itemsize
    raw = units.tobytes()
    entries = [raw[at : at + size] for at in range(0, len(raw), size)]
    crcs = np.array(crc32c_each(entries), "<u4").tobytes()
    return [
        (entry[:_KEY_BYTES], entry[_KEY_BYTES:] + crcs[at : at + 4])
        for entry, at in zip(entries, range(0, len(crcs), 4), strict=True)
    ]


def unit_at(row: np.void) -> CqUnit:
    """Return one row as a CqUnit."""
    return CqUnit(
        base_offset=int(row["base_offset"]),
        physical_offset=int(row["physical_offset"]),
        size=int(row["size"]),
        message_count=int(row["message_count"]),
        store_timestamp_us=int(row["store_timestamp_us"]),
        tag_summary=int(row["tag_summary"]),
        queue_bytes=int(row["queue_bytes"]),
    )
