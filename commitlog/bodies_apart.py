"""Blocks whose bodies follow one another in a buffer of their own, as the column that they become.
Pure.

Whoever reads or receives blocks puts them there, so that nobody copies them again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from holdfast.commitlog.batch_header import ALIGNMENT, HEADER_SIZE
from holdfast.commitlog.batch_layout import aligned
from holdfast.commitlog.checksum import crc32c, crc32c_extended
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.header_table import Int64s, UInt32s


@dataclass(frozen=True, slots=True)
class BodiesApart:
    """Where blocks are whose bodies are apart. What is not bodies is in the other buffer: of each
    block header and body offsets, then what follows its bodies, which begins so that the sections
    after the gap lie as they should."""

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
    ) -> "BodiesApart":
        """Return room for blocks of these sizes, which nobody has written to yet; `bodies` has
        theirs already. Raises CorruptBatch for a block whose bodies are larger than it."""
        heads = HEADER_SIZE + aligned(4 * (message_counts + 1))
        rests = total_sizes - heads - body_bytes
        if len(rests) and int(rests.min()) < 0:
            raise CorruptBatch("bad-size", "a block whose bodies are larger than it")
        gaps_before_sections = aligned(body_bytes) - body_bytes
        spans = heads + ALIGNMENT + aligned(rests)
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
            unwritten(int(spans.sum())),
            unwritten(int(body_bytes.sum())) if bodies is None else bodies,
        )

    def places(self) -> Iterator[tuple[memoryview, memoryview, memoryview]]:
        """Yield the three places of each block, in the order in which they lie in the log."""
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
        """Return the CRC of each block's payload, put together."""
        crcs = [
            crc32c_extended(crc32c_extended(crc32c(head[HEADER_SIZE:]), bodies), rest)
            for head, bodies, rest in self.places()
        ]
        return np.array(crcs, np.uint32)


def unwritten(size: int) -> memoryview:
    """Return memory that nobody has written to yet."""
    return np.empty(size, np.uint8).data
