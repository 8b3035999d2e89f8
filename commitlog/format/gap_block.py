"""Gap blocks: blocks that a repair writes in place of damage. Pure.

A gap block is an intact block that belongs to no topic. A scan of the log can pass over it, and
its content, which is zeros, is never delivered. A wide gap becomes several blocks, so that a scan
needs little memory.
"""

from collections.abc import Iterator
from dataclasses import replace

from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import ALIGNMENT, HEADER_SIZE, BatchHeader

#: The topic id of gap blocks; no topic ever gets it.
GAP_TOPIC_ID = 2**32 - 1

#: Size of the smallest block: a header, and the two offsets of one empty body.
SMALLEST_GAP = HEADER_SIZE + ALIGNMENT
#: The most bytes of one gap block. Nearly every batch is smaller, so a repair does not increase
#: the number of blocks.
_WIDEST_BLOCK = 64 * 1024 * 1024


def gap_blocks(start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (physical offset, block) for blocks that fill the log from `start` to `end`. Both must
    be multiples of 8 and at least SMALLEST_GAP apart."""
    assert start % ALIGNMENT == end % ALIGNMENT == 0
    assert end - start >= SMALLEST_GAP
    while start < end:
        size = min(end - start, _WIDEST_BLOCK)
        if 0 < end - start - size < SMALLEST_GAP:
            size -= SMALLEST_GAP
        yield start, _gap_block(start, size)
        start += size


def _gap_block(physical_offset: int, size: int) -> bytes:
    raw = encode_batch([bytes(size - SMALLEST_GAP)], queue_id=0)
    header = replace(
        BatchHeader.decode(raw), topic_id=GAP_TOPIC_ID, physical_offset=physical_offset
    )
    return header.encode() + raw[HEADER_SIZE:]
