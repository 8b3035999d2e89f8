"""Where a batch's columns lie after the header. Pure.

Every section starts at a multiple of 8 bytes from the start of the batch; the gap before it is
zero. An absent section takes no room. Offsets are n+1 little-endian int32 that start at 0, as in
Arrow, so every section is an Arrow buffer without conversion. For n messages and m properties:

    body offsets  int32[n+1]     bodies
    key hashes    uint32[n]      key offsets   int32[n+1]   keys       (flag KEYS)
    tag codes     uint32[n]      tag offsets   int32[n+1]   tags       (flag TAGS)
    property list int32[n+1]     name offsets  int32[m+1]   names
                                 value offsets int32[m+1]   values     (flag PROPERTIES)
    born          int64[n]  microseconds                               (flag BORN)
    expires       int64[n]  microseconds, 0: never                     (flag EXPIRES)
    producer ids  uint64[n] 0: none
    sequences     int64[n]                   epochs        uint32[n]  (flag PRODUCERS)

If a message has no key or tag, its text is empty, and its hash or code is 0.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from holdfast.commitlog.format.batch_header import ALIGNMENT, HEADER_SIZE, BatchFlag, BatchHeader

# Plain ints: each test or combination of an IntFlag costs a microsecond.
KEYS = int(BatchFlag.KEYS)
TAGS = int(BatchFlag.TAGS)
PROPERTIES = int(BatchFlag.PROPERTIES)
BORN = int(BatchFlag.BORN)
EXPIRES = int(BatchFlag.EXPIRES)
PRODUCERS = int(BatchFlag.PRODUCERS)
#: All flags that add sections to the bodies.
_COLUMNS = KEYS | TAGS | PROPERTIES | BORN | EXPIRES | PRODUCERS


Size = TypeVar("Size", int, npt.NDArray[np.int64])


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


def layout_of(header: BatchHeader) -> Layout:
    """Return where the sections lie, computed from the header without its total size."""
    n = header.message_count
    flags = header.flags
    offsets = 4 * (n + 1)
    end = HEADER_SIZE + offsets
    body_offsets = Section(HEADER_SIZE, end)
    at = aligned(end)
    end = at + header.body_bytes
    layout = Layout(aligned(end), body_offsets, Section(at, end))
    if not flags & _COLUMNS:
        return layout  # Bodies only: the usual case for messages that are published one by one.
    at = layout.total_size

    def section(size: int) -> Section:
        nonlocal at
        start, end = at, at + size
        at = aligned(end)
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
    layout.total_size = at
    return layout


def aligned(size: Size) -> Size:
    """Return a size, or an array of sizes, rounded up to a multiple of 8: the next section's
    start."""
    return (size + (ALIGNMENT - 1)) & -ALIGNMENT
