"""One batch over its bytes: its columns as they lie (batch_layout), its messages one by one. Pure.

A batch read from anywhere is not to be trusted before `commitlog.batch_check` has passed it or its
payload CRC was compared.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.commitlog.batch_header import HEADER_SIZE, BatchHeader, Buffer
from holdfast.commitlog.batch_layout import Layout, Section, layout_of
from holdfast.commitlog.checksum import crc32c
from holdfast.commitlog.errors import CorruptBatch

Int32s = npt.NDArray[np.int32]
UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]


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


class RequestColumns(NamedTuple):
    """Whose publish each message of a batch came with: one of each a message, as
    `batch_encoding.Requests` has them."""

    producer_ids: UInt64s
    sequences: Int64s
    epochs: UInt32s


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
