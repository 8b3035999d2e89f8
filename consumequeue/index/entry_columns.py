"""A range of a queue's index as arrays, one element per entry. Pure.

The arrays serve to read thousands of small batches at once: one object per entry would cost more
than the reading itself.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Self

import numpy as np
import numpy.typing as npt

from holdfast.commitlog.format.checksum import crc32c_each
from holdfast.commitlog.format.header_table import count_leading_true
from holdfast.consumequeue.index.consume_queue import CqUnit
from holdfast.consumequeue.topics import QueueKey

Int64s = npt.NDArray[np.int64]


class EntryColumns:
    """Consecutive entries of a queue: queue offset, physical offset, size and message count. The
    values are not verified: the reader must verify each block that it reads with them."""

    __slots__ = ("_rows", "base_offsets", "message_counts", "physical_offsets", "sizes")

    def __init__(self, rows: Int64s) -> None:
        """`rows` has one row per column, in the order of the docstring."""
        self._rows = rows
        self.base_offsets, self.physical_offsets, self.sizes, self.message_counts = rows

    def __len__(self) -> int:
        return len(self.base_offsets)

    @property
    def end_offsets(self) -> Int64s:
        """The queue offset after each entry's last message."""
        ends: Int64s = self.base_offsets + self.message_counts
        return ends

    def lacking(self, max_messages: int, max_bytes: int) -> int:
        """Return about how many more entries are needed to reach one of the limits, if they are as
        large as these entries on average."""
        messages, size = int(self.message_counts.sum()), int(self.sizes.sum())
        return min(
            -(-max(max_messages - messages, 0) * len(self) // messages),
            -(-max(max_bytes - size, 0) * len(self) // size),
        )

    @classmethod
    def of_units(cls, units: Sequence[CqUnit]) -> Self:
        rows = [(unit[0], unit[1], unit[2], unit[3]) for unit in units]
        return cls(np.array(rows, np.int64).reshape(-1, 4).T)

    @classmethod
    def of_items(cls, key: QueueKey, items: Iterable[tuple[bytes, bytes]]) -> Self:
        """Return columns of items of the index on disk. Stop before the first item of a queue other
        than `key`. Checksums are not verified."""
        rows = np.frombuffer(b"".join(chain.from_iterable(items)), ITEM_DTYPE)
        topic_id, queue_id = key
        is_own = (rows["topic_id"] == topic_id) & (rows["queue_id"] == queue_id)
        rows = rows[: count_leading_true(is_own)]
        names = ("base_offset", "physical_offset", "size", "message_count")
        return cls(np.array([rows[name] for name in names], np.int64))

    def joined(self, following: Self) -> Self:
        return type(self)(np.concatenate((self._rows, following._rows), axis=1))

    def within(self, offset: int, end_offset: int, max_messages: int, max_bytes: int) -> Self:
        """Return the entries, starting with the one that holds `offset`, up to the first gap. They
        end at or before `end_offset`. They hold at most `max_messages` messages from `offset` on,
        and at most `max_bytes` bytes."""
        ends = self.end_offsets
        first = int(np.searchsorted(ends, offset, side="right"))
        cut = self.cut(first, len(self))
        if not len(cut) or cut.base_offsets[0] > offset:
            return self.cut(0, 0)
        ends = ends[first:]
        fits = (ends <= min(end_offset, offset + max_messages)) & (
            np.cumsum(cut.sizes) <= max_bytes
        )
        fits[1:] &= cut.base_offsets[1:] == ends[:-1]
        return cut.cut(0, count_leading_true(fits))

    def cut(self, start: int, end: int) -> Self:
        """Return the entries from index `start` to before index `end`."""
        return type(self)(self._rows[:, start:end])


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
    return CqUnit(
        base_offset=int(row["base_offset"]),
        physical_offset=int(row["physical_offset"]),
        size=int(row["size"]),
        message_count=int(row["message_count"]),
        store_timestamp_us=int(row["store_timestamp_us"]),
        tag_summary=int(row["tag_summary"]),
        queue_bytes=int(row["queue_bytes"]),
    )
