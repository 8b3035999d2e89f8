"""Receive replies of whole blocks directly into their final buffers, without further large copies.

The bodies of large blocks are received one after the other into one buffer, which becomes the body
column. Several replies share this buffer, because one pull may return less than a full record
batch. This module does not use sockets; the caller passes a function that fills a buffer.
"""

from collections.abc import Callable, Sequence

import numpy as np

from holdfast.commitlog.errors import CorruptBatch, UnknownFormatVersion
from holdfast.commitlog.format.batch_header import HEADER_SIZE, BatchHeader, Buffer, layout_of
from holdfast.commitlog.format.split_bodies import SplitBodies, allocate

#: Fills a buffer with the next bytes of the reply; raises the connection's errors.
Fill = Callable[[memoryview], None]

#: Blocks of at least this size are received piece by piece. This takes about 20 us per block, less
#: than copying the bytes of such a block.
LARGE_BLOCK_BYTES = 64 * 1024


class BlockGatherer:
    """Collects several replies of large blocks in one buffer. Use it from one thread at a time."""

    def __init__(self, max_bytes: int, max_messages: int) -> None:
        """Set the limits for the total of all replies. The first reply may be larger."""
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self._buffer = allocate(0)
        self._bodies_end = 0
        self._pieces: list[memoryview] = []  # four per block: header, offsets, bodies, rest
        self._headers: list[BatchHeader] = []
        self._bytes = self._messages = 0
        self._most_bytes = self._most_messages = 0  # the largest reply so far

    @property
    def is_empty(self) -> bool:
        return not self._headers

    @property
    def is_full(self) -> bool:
        """True if another reply as large as the largest so far would exceed a limit."""
        return (
            self._bytes + self._most_bytes > self._max_bytes
            or self._messages + self._most_messages > self._max_messages
        )

    @property
    def end_offset(self) -> int:
        """The queue offset after the last message. Do not read it before a reply is gathered."""
        return self._headers[-1].end_offset

    def receive(self, fill: Fill, size: int) -> Buffer | None:
        """Receive a reply's body of `size` bytes. Return None if its blocks were gathered.

        Otherwise return the body unchanged. This happens if the first block is not large, if the
        buffer has no room, or if a block is invalid or truncated (BatchRun will refuse it). After
        an error of `fill`, the rest of the body is unread and nothing of this reply is gathered.
        """
        if not self._headers:
            self._buffer = allocate(max(size, self._max_bytes))
        elif self._bytes + size > len(self._buffer):
            return _receive_whole((), fill, size)
        pieces: list[memoryview] = []
        headers: list[BatchHeader] = []
        bodies_end = self._bodies_end
        received = 0
        while size - received >= HEADER_SIZE:
            start = _receive_piece(fill, HEADER_SIZE)
            pieces.append(start)
            received += HEADER_SIZE
            header = _decode_header(start, size - received)
            if header is None or (not headers and header.total_size < LARGE_BLOCK_BYTES):
                break
            places = layout_of(header)
            bodies = self._buffer[bodies_end : bodies_end + header.body_bytes]
            pieces.append(_receive_piece(fill, places.bodies.start - HEADER_SIZE))
            fill(bodies)
            pieces += bodies, _receive_piece(fill, header.total_size - places.bodies.end)
            headers.append(header)
            bodies_end += header.body_bytes
            received += header.total_size - HEADER_SIZE
        if received < size or not 0 < len(pieces) == 4 * len(headers):
            return _receive_whole(pieces, fill, size)
        messages = sum([header.message_count for header in headers])
        self._pieces += pieces
        self._headers += headers
        self._bodies_end = bodies_end
        self._bytes += size
        self._messages += messages
        self._most_bytes = max(self._most_bytes, size)
        self._most_messages = max(self._most_messages, messages)
        return None

    def blocks(self) -> SplitBodies:
        """Return the blocks of all gathered replies, in the form that BatchRun reads."""
        sizes, counts, body_sizes = (
            np.array([getattr(header, name) for header in self._headers], np.int64)
            for name in ("total_size", "message_count", "body_bytes")
        )
        bodies = self._buffer[: self._bodies_end]
        split = SplitBodies.room_for(sizes, counts, body_sizes, bodies)
        for index, (head, _, tail) in enumerate(split.places()):
            header, offsets, _, rest = self._pieces[4 * index : 4 * index + 4]
            head[:HEADER_SIZE], head[HEADER_SIZE:], tail[:] = header, offsets, rest
        return split


def _receive_piece(fill: Fill, size: int) -> memoryview:
    piece = memoryview(bytearray(size))
    fill(piece)
    return piece


def _decode_header(start: memoryview, left: int) -> BatchHeader | None:
    """Return the decoded header, or None if it is invalid, or if its block needs more than the
    `left` bytes that follow."""
    try:
        header = BatchHeader.decode(start, rebuilt=True)
    except (CorruptBatch, UnknownFormatVersion):
        return None
    fits = layout_of(header).total_size == header.total_size <= HEADER_SIZE + left
    return header if fits else None


def _receive_whole(pieces: Sequence[memoryview], fill: Fill, size: int) -> Buffer:
    """Return the whole body: the pieces received so far and the rest."""
    whole = allocate(size)
    received = 0
    for piece in pieces:
        whole[received : received + len(piece)] = piece
        received += len(piece)
    fill(whole[received:])
    return whole.toreadonly()
