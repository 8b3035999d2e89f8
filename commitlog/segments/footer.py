"""The footer of a sealed segment: make it from the segment's blocks, and read it.

Any thread may read a footer; only the segment thread seals segments.
"""

import logging
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import numpy as np

from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch import Batch, UInt32s
from holdfast.commitlog.format.batch_header import KEYS, BatchHeader
from holdfast.commitlog.format.segment_format import (
    BLOCK_DTYPE,
    KEY_DTYPE,
    TRAILER_SIZE,
    Blocks,
    Keys,
    decode_footer,
    encode_footer,
)
from holdfast.commitlog.segments.log_scan import Damage, scan_headers, scan_segment
from holdfast.commitlog.segments.segment import Segment, read_trailer

_logger = logging.getLogger(__name__)

_ROWS_AT_ONCE = 4096
_NO_HASHES = np.zeros(0, "<u4")


def seal_segment(segment: Segment) -> None:
    """Write an ended segment's footer and sync the file. `Segment.has_room` reserved the room.

    Damaged blocks stay as they are. A segment that cannot be scanned up to its end mark gets
    no footer."""
    if segment.sealed or not segment.ended:
        return
    damage: list[Damage] = []
    # A footer needs only the keys from payloads. The scrub verifies the other payloads.
    blocks, keys = _tables_of(scan_headers(segment, _has_keys), damage.append)
    if any(found.end == segment.end_offset for found in damage):
        _logger.error("%s has no end mark, so it has no footer", segment.path.name)
        return
    footer = encode_footer(segment.start_offset, blocks, keys)
    segment.file.write([footer], segment.size - len(footer))
    segment.sync()
    segment.sealed = True


def read_footer(segment: Segment) -> tuple[Blocks, Keys] | None:
    """Return a sealed segment's tables. Return None if it has no intact footer, or the disk
    fails to read it: blocks can be found without a footer."""
    try:
        trailer = read_trailer(segment)
        if trailer is None:
            return None
        start = segment.end_offset - trailer.footer_size
        if start < segment.first_offset:
            return None
        return decode_footer(trailer, segment.read(start, trailer.footer_size - TRAILER_SIZE))
    except (CorruptBatch, OSError) as error:
        _logger.warning("segment %s: %s", segment.path.name, error)
        return None


def block_tables(
    segment: Segment, damaged: Callable[[Damage], None] = lambda damage: None
) -> tuple[Blocks, Keys]:
    """Scan a segment and return the tables for its footer. Call `damaged` for each damaged range.

    A block with an intact header and a damaged payload is in the block table, without keys, so
    that readers find the damage instead of skipping the block."""
    return _tables_of(scan_segment(segment), damaged)


def _tables_of(
    walk: Iterable[Batch | BatchHeader | Damage], damaged: Callable[[Damage], None]
) -> tuple[Blocks, Keys]:
    # A segment may hold millions of blocks: keep only a few thousand as Python objects at a time.
    parts: list[tuple[Blocks, UInt32s, UInt32s]] = []
    rows: list[tuple[int, ...]] = []
    hashes: list[UInt32s] = []
    for found in walk:
        if isinstance(found, Damage):
            damaged(found)
        header = found if isinstance(found, BatchHeader) else found.header
        if header is not None:
            rows.append(_block_row(header))
            if isinstance(found, BatchHeader | Damage):
                hashes.append(_NO_HASHES)
            else:
                hashes.append(_hashes_of_keys(found))
        if len(rows) == _ROWS_AT_ONCE:
            parts.append(_pack(rows, hashes))
            rows, hashes = [], []
    parts.append(_pack(rows, hashes))
    blocks = np.concatenate([part[0] for part in parts])
    key_counts = np.concatenate([part[1] for part in parts])
    key_hashes = np.concatenate([part[2] for part in parts])
    del parts
    order = np.lexsort((blocks["base_offset"], blocks["queue_id"], blocks["topic_id"]))
    place = np.empty(len(order), "<u4")
    place[order] = np.arange(len(order))
    keys = np.zeros(len(key_hashes), KEY_DTYPE)
    keys["key_hash"] = key_hashes
    keys["block"] = np.repeat(place, key_counts)
    return blocks[order], keys[np.lexsort((keys["block"], keys["key_hash"]))]


def _pack(rows: list[tuple[int, ...]], hashes: list[UInt32s]) -> tuple[Blocks, UInt32s, UInt32s]:
    """Return rows of a block table, the number of keys of each row, and the hashes of all keys."""
    counts = np.array([len(each) for each in hashes], "<u4")
    return np.array(rows, BLOCK_DTYPE), counts, np.concatenate([_NO_HASHES, *hashes])


def _has_keys(header: BatchHeader) -> bool:
    return bool(header.flags & KEYS)


def _hashes_of_keys(batch: Batch) -> UInt32s:
    """Return the key hashes of the messages that have a key. A key may have the hash 0."""
    if batch.key_hashes is None or batch.key_offsets is None:
        return _NO_HASHES
    return batch.key_hashes[np.diff(batch.key_offsets) > 0]


#: The names of the header's fields that are in a row of a block table, in the order of the row.
_ROW_FIELDS = ["total_size" if name == "size" else name for name in BLOCK_DTYPE.names or ()]
#: Return one row of a block table for the header of a block.
_block_row: Callable[[BatchHeader], tuple[int, ...]] = attrgetter(*_ROW_FIELDS)


def block_header(row: np.void) -> BatchHeader:
    """Return a block's header from its row in a footer's block table. Fields that the table does
    not have are 0."""
    values: dict[str, Any] = dict(zip(_ROW_FIELDS, map(int, row.item()), strict=True))
    return BatchHeader(payload_crc=0, **values)
