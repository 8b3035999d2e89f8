"""Blocks whose bodies are in a separate buffer, one after another, as one column. Pure.

The code that reads or receives blocks writes the bodies directly into that buffer, so that they
are not copied again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch_header import ALIGNMENT, HEADER_SIZE, align
from holdfast.commitlog.format.checksum import crc32c_extended, crc32c_of_buffer
from holdfast.commitlog.format.header_table import Int64s, UInt32s


@dataclass(frozen=True, slots=True)
class SplitBodies:
    """The positions of blocks whose bodies are in `bodies`. The other parts of the blocks are in
    `buffer`: for each block its head (header and body offsets), then its rest (all bytes after the
    bodies). A rest begins with the padding after the bodies; it is placed so that the sections
    after this padding are aligned."""

    positions: Int64s
    head_ends: Int64s
    body_starts: Int64s
    body_ends: Int64s
    rest_starts: Int64s
    rest_ends: Int64s
    buffer: memoryview
    bodies: memoryview

    @classmethod
    def room_for(
        cls,
        total_sizes: Int64s,
        message_counts: Int64s,
        body_bytes: Int64s,
        bodies: memoryview | None = None,
    ) -> "SplitBodies":
        """Return uninitialized room for blocks of these sizes. `bodies` may be a buffer that
        contains the bodies already. Raise CorruptBatch if a block's bodies are larger than the
        block."""
        heads = HEADER_SIZE + align(4 * (message_counts + 1))
        rests = total_sizes - heads - body_bytes
        if len(rests) and int(rests.min()) < 0:
            raise CorruptBatch("bad-size", "a block whose bodies are larger than it")
        gaps_before_sections = align(body_bytes) - body_bytes
        spans = heads + ALIGNMENT + align(rests)
        positions = np.cumsum(spans) - spans
        rest_starts = positions + heads + (-gaps_before_sections) % ALIGNMENT
        body_ends = np.cumsum(body_bytes)
        return cls(
            positions,
            positions + heads,
            body_ends - body_bytes,
            body_ends,
            rest_starts,
            rest_starts + rests,
            allocate(int(spans.sum())),
            allocate(int(body_bytes.sum())) if bodies is None else bodies,
        )

    def places(self) -> Iterator[tuple[memoryview, memoryview, memoryview]]:
        """Yield the three parts of each block (head, bodies, rest), in their order in the log."""
        borders = (
            (self.positions, self.head_ends),
            (self.body_starts, self.body_ends),
            (self.rest_starts, self.rest_ends),
        )
        columns = (column.tolist() for pair in borders for column in pair)
        for head, head_end, body, body_end, rest, rest_end in zip(*columns, strict=True):
            yield (
                self.buffer[head:head_end],
                self.bodies[body:body_end],
                self.buffer[rest:rest_end],
            )

    def payload_crcs(self) -> UInt32s:
        """Return the CRC of each block's payload, computed over its three parts."""
        crcs = [
            crc32c_extended(crc32c_extended(crc32c_of_buffer(head[HEADER_SIZE:]), bodies), rest)
            for head, bodies, rest in self.places()
        ]
        return np.array(crcs, np.uint32)


def allocate(size: int) -> memoryview:
    """Return uninitialized memory of this size."""
    return np.empty(size, np.uint8).data
