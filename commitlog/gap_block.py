"""Blocks that stand where a repair let go of damage. Pure.

A gap block is an intact block of no topic: the log can be walked over it, and nobody reads what
it has, which is zeros. So that a walk need not hold much at once, a wide gap is several blocks.
"""

from collections.abc import Iterator
from dataclasses import replace

from holdfast.commitlog.batch_encoding import encode_batch
from holdfast.commitlog.batch_header import ALIGNMENT, HEADER_SIZE, BatchHeader

#: The topic id of gap blocks; no topic ever gets it.
GAP_TOPIC_ID = 2**32 - 1

#: The smallest block: a header, and the two offsets of one empty body.
SMALLEST_GAP = HEADER_SIZE + ALIGNMENT
#: Wider than nearly every batch, so that a gap has no more blocks than what it stands for.
_WIDEST_BLOCK = 64 * 1024 * 1024


def gap_blocks(start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (physical offset, block) from `start` to `end`, both multiples of 8 and at least
    SMALLEST_GAP apart."""
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
    return bytes(header.encode()) + raw[HEADER_SIZE:]
