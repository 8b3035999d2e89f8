"""Many blocks of the log as one table: one row per block, one column per header field. Pure.

A block may hold a hundred thousand messages, or a single one. To be fast for small blocks, numpy
decodes the headers and computes the positions of columns for all blocks of a buffer at once. The
authority on the format is `commitlog.format.batch`: that module reports what is wrong with a block,
and tests compare the results of both modules.
"""

import struct
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_header import ALIGNMENT, HEADER_SIZE, Buffer, align
from holdfast.commitlog.format.chained_check import SMALL_BYTES, have_valid_checksums
from holdfast.commitlog.format.checksum import crc32c_of_ranges
from holdfast.commitlog.format.header_table import (
    Bools,
    Headers,
    Int64s,
    are_well_formed,
    find_small_blocks,
    gather_headers,
    header_crcs,
    section_sizes,
)
from holdfast.commitlog.format.split_bodies import SplitBodies

_TOTAL_SIZE = struct.Struct("<8xI")
#: The positions of blocks are found by a search for magics (time per byte), or by a walk from
#: block to block (time per block). If the first block has at most this many bytes, the search is
#: faster.
_SMALL_BYTES = 1024


class BatchRun:
    """Complete, intact blocks, one after another. Columns are not copied.

    Every array has one row per block, in order. Positions count from the start of the buffer.
    """

    def __init__(
        self,
        blocks: Buffer | SplitBodies,
        *,
        rebuilt: bool = False,
        positions: Int64s | None = None,
        verified: Bools | None = None,
        headers: Headers | None = None,
    ) -> None:
        """`blocks` is one buffer, or blocks with their bodies in a separate buffer. With `rebuilt`
        they may have the flag REBUILT. If the caller knows where the blocks of a buffer start,
        `positions` saves searching for them: each block must have the magic and the size that
        agrees with the next position. `headers` are the unverified headers at these positions, if
        the caller has them. `verified` tells for each block whether the caller has verified its
        payload; only the others are verified here. Raise what `Batch.decode` raises for the first
        block that is not intact."""
        self.buffer: Buffer
        self.bodies: Buffer
        """The buffer to which the starts of section "bodies" refer."""
        self._apart: SplitBodies | None = None
        if isinstance(blocks, SplitBodies):
            self._apart = blocks
            self.buffer, self.bodies = blocks.buffer.toreadonly(), blocks.bodies.toreadonly()
            self.positions = blocks.positions
            """Start of each block in `buffer`."""
        else:
            self.buffer = self.bodies = blocks
            if positions is None:
                positions = _positions(blocks, rebuilt=rebuilt)
            self.positions = positions
        if headers is None:
            headers = gather_headers(self.buffer, self.positions)
        self._headers = headers
        self._fields: dict[str, Int64s] = {}
        self._check(
            np.zeros(len(self), np.bool_) if verified is None else verified, rebuilt=rebuilt
        )

    def __len__(self) -> int:
        return len(self.positions)

    def field(self, name: str) -> Int64s:
        """Return one header field of every block, by its name in BatchHeader. Treat as immutable:
        the array is cached."""
        found = self._fields.get(name)
        if found is None:
            found = self._fields[name] = self._headers[name].astype(np.int64)
        return found

    def has(self, flag: int) -> Bools:
        """Return which blocks have the column of `flag`."""
        present: Bools = self.field("flags") & flag != 0
        return present

    @cached_property
    def total_sizes(self) -> Int64s:
        """The size of each block in bytes."""
        return self.field("total_size")

    @cached_property
    def message_counts(self) -> Int64s:
        """The number of messages of each block."""
        return self.field("message_count")

    @cached_property
    def base_offsets(self) -> Int64s:
        """The queue offset of each block's first message."""
        return self.field("base_offset")

    @cached_property
    def end_offsets(self) -> Int64s:
        """The queue offset after each block's last message."""
        return self.base_offsets + self.message_counts

    @cached_property
    def sizes(self) -> dict[str, Int64s]:
        """For each section name, the section's size in each block; 0 if a block does not have the
        section."""
        return section_sizes(self._headers)

    @cached_property
    def starts(self) -> dict[str, Int64s]:
        """For each section name, where the section starts in each block. A section that a block
        does not have starts where the next section starts."""
        starts: dict[str, Int64s] = {}
        at = self.positions + HEADER_SIZE
        for name, size in self.sizes.items():
            starts[name] = at
            if size.any():
                at = at + align(size)
            if name == "bodies" and self._apart is not None:
                starts[name] = self._apart.body_starts
                at = align(self._apart.rest_starts)
        return starts

    def numbers(self, section: str, dtype: str, absent: Int64s) -> npt.NDArray[Any]:
        """Return one number per message, for all messages in order, from a section of numbers.

        `dtype` is the section's numpy type. The messages of a block that does not have the section
        get the block's number in `absent`.
        """
        counts = self.message_counts
        numbers = absent.astype(dtype)
        if bool((counts != 1).any()):
            numbers = np.repeat(numbers, counts)
        present = self.sizes[section] > 0
        if present.any():
            words = np.frombuffer(self.buffer, dtype)
            at = np.repeat(
                self.starts[section] // words.itemsize - (np.cumsum(counts) - counts), counts
            )
            rows = np.flatnonzero(np.repeat(present, counts))
            numbers[rows] = words[at[rows] + rows]
        return numbers

    @cached_property
    def store_timestamps_us(self) -> Int64s:
        """When each message was stored, for all messages in order."""
        return self.numbers("stored", "<i8", self.field("store_timestamp_us"))

    def text_ranges(self, offsets: str, texts: str) -> tuple[Int64s, Int64s]:
        """Return the start and the end of each message's text in a column, for all messages in
        order.

        `offsets` and `texts` are the names of the column's sections. A block without them has
        empty texts. Raise CorruptBatch if a column's offsets do not fit its bytes.
        """
        sizes = self.sizes[texts]
        present = self.sizes[offsets] > 0
        counts = self.message_counts
        before = np.cumsum(counts) - counts
        rows = np.arange(int(counts.sum())) - np.repeat(before, counts)
        at = np.repeat(np.where(present, self.starts[offsets] // 4, 0), counts) + rows
        words = np.frombuffer(self.buffer, "<i4")
        has = np.repeat(present, counts)
        within = np.where(has, words[np.where(has, at, 0)], 0)
        until = np.where(has, words[np.where(has, at + 1, 0)], 0)
        if bool(np.any((within < 0) | (until < within) | (until > np.repeat(sizes, counts)))):
            raise CorruptBatch(f"{texts}-offsets", "they lie outside their column, or decrease")
        bases = np.repeat(self.starts[texts], counts)
        return bases + within, bases + until

    def _check(self, verified: Bools, *, rebuilt: bool) -> None:
        headers = self._headers
        well_formed = are_well_formed(headers, self.sizes, rebuilt=rebuilt)
        # Both checksums together also prove the sizes that were used to compute them.
        if (
            self._apart is None
            and 0 < len(self.buffer) <= SMALL_BYTES * len(headers)
            and bool(well_formed.all())
            and have_valid_checksums(
                self.buffer, self.positions, headers["header_crc"], headers["payload_crc"]
            )
        ):
            return
        fits = (
            well_formed
            & (header_crcs(headers) == headers["header_crc"])
            & self._have_valid_payloads(verified)
        )
        if not bool(fits.all()):
            position = int(self.positions[int(np.argmin(fits))])
            if self._apart is not None:
                raise CorruptBatch("unreadable", f"the block whose header is at byte {position}")
            Batch.decode(self.buffer, position, rebuilt=rebuilt)
            raise CorruptBatch("unreadable", f"the block at byte {position} of the reply")

    def _have_valid_payloads(self, verified: Bools) -> Bools:
        """Return for each block whether its payload was verified before, or has its CRC."""
        stored = self._headers["payload_crc"]
        if self._apart is not None:
            valid: Bools = self._apart.payload_crcs() == stored
            return valid
        rows = np.flatnonzero(~verified)
        starts = self.positions[rows] + HEADER_SIZE
        ends = self.positions[rows] + self.total_sizes[rows]
        crcs = crc32c_of_ranges(self.buffer, starts.tolist(), ends.tolist())
        valid = verified.copy()
        valid[rows] = np.array(crcs, np.uint32) == stored[rows]
        return valid


def _positions(buffer: Buffer, *, rebuilt: bool) -> Int64s:
    """Return where each block starts. Raise what `_walk` raises.

    Small blocks are found all at once, by a search for the magic. The result is complete if the
    last block ends at the end of the buffer. Otherwise, for example if a message contains the
    magic, walk from block to block.
    """
    size = len(buffer)
    if (
        size >= HEADER_SIZE
        and size % ALIGNMENT == 0
        and _TOTAL_SIZE.unpack_from(buffer)[0] <= _SMALL_BYTES
    ):
        starts = find_small_blocks(buffer)
        if len(starts) and starts[-1] + _TOTAL_SIZE.unpack_from(buffer, starts[-1])[0] == size:
            return starts
    return np.array(_walk(buffer, rebuilt=rebuilt), np.int64)


def _walk(buffer: Buffer, *, rebuilt: bool) -> list[int]:
    """Return where each block starts, found block by block. Raise what `Batch.decode` raises for a
    truncated block."""
    positions = []
    position, end = 0, len(buffer)
    last = end - HEADER_SIZE
    total_size_at = _TOTAL_SIZE.unpack_from
    while position < end:
        total_size = total_size_at(buffer, position)[0] if position <= last else 0
        next_position = position + total_size
        if total_size < HEADER_SIZE or total_size % ALIGNMENT or next_position > end:
            Batch.decode(buffer, position, rebuilt=rebuilt)
            raise CorruptBatch("bad-size", f"total size {total_size}")
        positions.append(position)
        position = next_position
    return positions
