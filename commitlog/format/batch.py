"""One batch as a view of its bytes: access to its columns and its messages. Pure.

Do not trust a batch before its payload CRC was verified; a batch from a client must also pass
`commitlog.format.batch_check`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch_header import (
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    Layout,
    Section,
    layout_of,
)
from holdfast.commitlog.format.checksum import COPY_BELOW, crc32c, crc32c_of_buffer
from holdfast.commitlog.format.hashes import key_hash as key_hash
from holdfast.commitlog.format.hashes import queue_for_key as queue_for_key
from holdfast.commitlog.format.hashes import tag_summary as tag_summary
from holdfast.commitlog.format.hashes import tags_code as tags_code

Int32s = npt.NDArray[np.int32]
UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]


class RequestColumns(NamedTuple):
    """The producer id, sequence and epoch of each message's publish, in a batch that several
    publishes share. Each column has one value per message, as in `batch_encoding.Requests`."""

    producer_ids: UInt64s
    sequences: Int64s
    epochs: UInt32s


def _column(dtype: str, name: str) -> Callable[["Batch"], Any]:
    get_section = attrgetter(f"layout.{name}")

    def view(batch: "Batch") -> Any:
        section = get_section(batch)
        return None if section is None else batch._view(dtype, section)

    return view


def _int32_column(name: str) -> "cached_property[Int32s | None]":
    return cached_property(_column("<i4", name))


def _uint32_column(name: str) -> "cached_property[UInt32s | None]":
    return cached_property(_column("<u4", name))


def _int64_column(name: str) -> "cached_property[Int64s | None]":
    return cached_property(_column("<i8", name))


def _text_column(name: str) -> cached_property[memoryview]:
    get_section = attrgetter(f"layout.{name}")

    def view(batch: "Batch") -> memoryview:
        section = get_section(batch)
        return memoryview(b"") if section is None else batch.block[section.start : section.end]

    return cached_property(view)


@dataclass(eq=False)
class Batch:
    """A view of one batch's bytes; nothing is copied. Treat as immutable. Rows count from 0.

    `block` is the whole batch, with its header. Column attributes are views that keep the bytes
    alive; a column that the batch does not have is None. In the types below, n is the number of
    messages and m is the number of properties. A column of offsets has one element more than the
    column of values: value i lies from offsets[i] to before offsets[i+1].
    """

    header: BatchHeader
    block: memoryview
    layout: Layout = field(repr=False)

    @classmethod
    def decode(
        cls,
        buffer: Buffer,
        position: int = 0,
        *,
        verify_payload: bool = True,
        rebuilt: bool = False,
    ) -> "Batch":
        """Return the batch that starts at `position`. With `rebuilt` it may have the flag REBUILT.

        Raise CorruptBatch if the batch is truncated, if its header is damaged, if its columns do
        not end at its total size, or (with `verify_payload`) if its payload CRC does not match.
        Raise UnknownFormatVersion if a newer Holdfast wrote it. `batch_check` checks the columns.
        """
        header = BatchHeader.decode(buffer, position, rebuilt=rebuilt)
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
        """The queue of the batch, ANY_QUEUE if the broker chooses the queue."""
        return self.header.queue_id

    @property
    def total_size(self) -> int:
        """Size of the batch in bytes, with its header."""
        return self.header.total_size

    # -- columns ---------------------------------------------------------------------------

    @cached_property
    def body_offsets(self) -> Int32s:
        """int32[n+1]: the offsets of the bodies in `bodies`."""
        return self._view("<i4", self.layout.body_offsets)

    #: All bodies, one after another.
    bodies = _text_column("bodies")
    #: uint32[n]: the key hash of each message, 0 for a message without a key.
    key_hashes = _uint32_column("key_hashes")
    #: int32[n+1]: the offsets of the keys in `keys`.
    key_offsets = _int32_column("key_offsets")
    #: The UTF-8 of all keys, one after another; empty without the column.
    keys = _text_column("keys")
    #: uint32[n]: the tag code of each message, 0 for a message without a tag.
    tag_codes = _uint32_column("tag_codes")
    #: int32[n+1]: the offsets of the tags in `tags`.
    tag_offsets = _int32_column("tag_offsets")
    #: The UTF-8 of all tags, one after another; empty without the column.
    tags = _text_column("tags")
    #: int32[n+1]: the properties of message i have the indexes from list[i] to before list[i+1].
    property_list = _int32_column("property_list")
    #: int32[m+1]: the offsets of the property names in `names`.
    name_offsets = _int32_column("name_offsets")
    #: The UTF-8 of all property names, one after another; empty without the column.
    names = _text_column("names")
    #: int32[m+1]: the offsets of the property values in `values`.
    value_offsets = _int32_column("value_offsets")
    #: The UTF-8 of all property values, one after another; empty without the column.
    values = _text_column("values")
    #: int64[n]; None if every message has the born timestamp of the header.
    born_timestamps_us = _int64_column("born")
    #: int64[n], 0 for a message that never expires; None if no message expires.
    expires_timestamps_us = _int64_column("expires")
    #: int64[n]; None if every message has the store timestamp of the header.
    store_timestamps_us = _int64_column("stored")
    #: int32[n+1]: the offsets of the envelopes in `envelopes`.
    envelope_offsets = _int32_column("envelope_offsets")
    #: All envelopes, one after another; empty without the column.
    envelopes = _text_column("envelopes")

    @cached_property
    def requests(self) -> RequestColumns | None:
        """The producer fields of each message; None if the header's producer fields apply to all
        messages."""
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
        offsets = self.body_offsets
        return bytes(self.bodies[offsets[row] : offsets[row + 1]])

    def key(self, row: int) -> str | None:
        """Return the key of one message, None if it has no key."""
        offsets = self.key_offsets
        if offsets is None:
            return None
        return str(self.keys[offsets[row] : offsets[row + 1]], "utf-8") or None

    def tag(self, row: int) -> str | None:
        """Return the tag of one message, None if it has no tag."""
        offsets = self.tag_offsets
        if offsets is None:
            return None
        return str(self.tags[offsets[row] : offsets[row + 1]], "utf-8") or None

    def properties(self, row: int) -> dict[str, str]:
        """Return the properties of one message; an empty dict if it has none."""
        listed, name_offsets, value_offsets = (
            self.property_list,
            self.name_offsets,
            self.value_offsets,
        )
        if listed is None or name_offsets is None or value_offsets is None:
            return {}
        return {
            str(self.names[name_offsets[i] : name_offsets[i + 1]], "utf-8"): str(
                self.values[value_offsets[i] : value_offsets[i + 1]], "utf-8"
            )
            for i in range(listed[row], listed[row + 1])
        }

    def envelope(self, row: int) -> bytes:
        """Return the envelope of one message, as its publisher's protocol encoded it; b"" if it
        has none."""
        offsets = self.envelope_offsets
        if offsets is None:
            return b""
        return bytes(self.envelopes[offsets[row] : offsets[row + 1]])

    def born_timestamp_us(self, row: int) -> int:
        """Return when one message was created, according to its producer, in microseconds."""
        column = self.born_timestamps_us
        return self.header.born_timestamp_us if column is None else int(column[row])

    def store_timestamp_us(self, row: int) -> int:
        """Return when one message was stored, in microseconds."""
        column = self.store_timestamps_us
        return self.header.store_timestamp_us if column is None else int(column[row])

    def expires_timestamp_us(self, row: int) -> int:
        """Return when one message expires, in microseconds; 0 if it never expires."""
        column = self.expires_timestamps_us
        return 0 if column is None else int(column[row])

    def expires_at_ms(self, row: int) -> int:
        """Return the first millisecond at which one message must no longer be delivered; 0 if the
        message never expires. Cheap if no message of the batch expires."""
        column = self.expires_timestamps_us
        return 0 if column is None else -(-int(column[row]) // 1000)

    # -- views -----------------------------------------------------------------------------

    def _view(self, dtype: npt.DTypeLike, section: Section) -> npt.NDArray[Any]:
        return np.frombuffer(self.block[section.start : section.end], dtype)


def payload_crc(block: Buffer) -> int:
    """Return the crc32c of a whole batch's payload: every byte after the header."""
    payload = memoryview(block)[HEADER_SIZE:]
    return crc32c(bytes(payload)) if len(payload) < COPY_BELOW else crc32c_of_buffer(payload)


def iter_batches(
    buffer: Buffer, *, verify_payload: bool = True, rebuilt: bool = False
) -> Iterator[Batch]:
    """Yield the adjacent batches that fill `buffer`. With `rebuilt` they may have the flag REBUILT.

    Raise what Batch.decode raises at the first batch that is incomplete or damaged.
    """
    position = 0
    while position < len(buffer):
        batch = Batch.decode(buffer, position, verify_payload=verify_payload, rebuilt=rebuilt)
        yield batch
        position += batch.header.total_size
