"""Replies of whole blocks, received to where they are used: nothing large is copied again.

Where blocks are large, their bodies go next to each other, as the column that they become: those
of several replies, too, for a pull may bring less than makes a good record batch. No sockets: what
fills a buffer is given.
"""

from collections.abc import Callable, Sequence

import numpy as np

from holdfast.commitlog.batch_header import HEADER_SIZE, BatchHeader, Buffer
from holdfast.commitlog.batch_layout import layout_of
from holdfast.commitlog.bodies_apart import BodiesApart, unwritten
from holdfast.commitlog.errors import CorruptBatch, UnknownFormatVersion

#: Fills a buffer with what comes next; raises what the connection raises.
Fill = Callable[[memoryview], None]

#: A block received by itself takes some 20 us. Copying so many bytes of bodies takes longer.
LARGE_BLOCK_BYTES = 64 * 1024


class Gathering:
    """Replies of large blocks, received as one. For one thread at a time."""

    def __init__(self, max_bytes: int, max_messages: int) -> None:
        """Take in replies of so many bytes and messages in all, and more if the first has more."""
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self._room = unwritten(0)
        self._bodies_end = 0
        self._pieces: list[memoryview] = []  # four of each block
        self._headers: list[BatchHeader] = []
        self._bytes = self._messages = 0
        self._most_bytes = self._most_messages = 0  # of one reply

    @property
    def is_empty(self) -> bool:
        """Whether nothing is gathered."""
        return not self._headers

    @property
    def is_full(self) -> bool:
        """Whether one more reply like the largest so far would be too much."""
        return (
            self._bytes + self._most_bytes > self._max_bytes
            or self._messages + self._most_messages > self._max_messages
        )

    @property
    def end_offset(self) -> int:
        """The queue offset after the last message. For one that is not empty."""
        return self._headers[-1].end_offset

    def receive(self, fill: Fill, size: int) -> Buffer | None:
        """Receive a reply's body of `size` bytes, and return None; or, as it came, a body that is
        not gathered: its first block is not large, or there is no room for it. What is no block,
        or is cut off, comes so, too, for BatchRun to refuse.

        After an error of `fill` the rest of the body is unread, and nothing of it is gathered.
        """
        if not self._headers:
            self._room = unwritten(max(size, self._max_bytes))
        elif self._bytes + size > len(self._room):
            return _as_they_came((), fill, size)
        pieces: list[memoryview] = []
        headers: list[BatchHeader] = []
        bodies_end = self._bodies_end
        taken = 0
        while size - taken >= HEADER_SIZE:
            start = _received(fill, HEADER_SIZE)
            pieces.append(start)
            taken += HEADER_SIZE
            header = _header(start, size - taken)
            if header is None or (not headers and header.total_size < LARGE_BLOCK_BYTES):
                break
            places = layout_of(header)
            bodies = self._room[bodies_end : bodies_end + header.body_bytes]
            pieces.append(_received(fill, places.bodies.start - HEADER_SIZE))
            fill(bodies)
            pieces += bodies, _received(fill, header.total_size - places.bodies.end)
            headers.append(header)
            bodies_end += header.body_bytes
            taken += header.total_size - HEADER_SIZE
        if taken < size or not 0 < len(pieces) == 4 * len(headers):
            return _as_they_came(pieces, fill, size)
        messages = sum([header.message_count for header in headers])
        self._pieces += pieces
        self._headers += headers
        self._bodies_end = bodies_end
        self._bytes += size
        self._messages += messages
        self._most_bytes = max(self._most_bytes, size)
        self._most_messages = max(self._most_messages, messages)
        return None

    def blocks(self) -> BodiesApart:
        """Return the blocks of all replies in it, as BatchRun takes them."""
        sizes, counts, of_bodies = (
            np.array([getattr(header, name) for header in self._headers], np.int64)
            for name in ("total_size", "message_count", "body_bytes")
        )
        bodies = self._room[: self._bodies_end]
        apart = BodiesApart.room_for(sizes, counts, of_bodies, bodies)
        pieces = self._pieces
        for at, (head, _, rest) in enumerate(apart.places()):
            start, offsets, _, behind = pieces[4 * at : 4 * at + 4]
            head[:HEADER_SIZE], head[HEADER_SIZE:], rest[:] = start, offsets, behind
        return apart


def _received(fill: Fill, size: int) -> memoryview:
    piece = memoryview(bytearray(size))
    fill(piece)
    return piece


def _header(start: memoryview, left: int) -> BatchHeader | None:
    """Return the header of a block of which so many bytes may follow; None where none is."""
    try:
        header = BatchHeader.decode(start)
    except (CorruptBatch, UnknownFormatVersion):
        return None
    fits = layout_of(header).total_size == header.total_size <= HEADER_SIZE + left
    return header if fits else None


def _as_they_came(pieces: Sequence[memoryview], fill: Fill, size: int) -> Buffer:
    """Return the whole body: what was received already, and all that follows."""
    whole = unwritten(size)
    at = 0
    for piece in pieces:
        whole[at : at + len(piece)] = piece
        at += len(piece)
    fill(whole[at:])
    return whole.toreadonly()
