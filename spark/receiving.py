"""The body of a reply of whole blocks, received to where it is used: nothing large is copied again.

Where blocks are large, their bodies go next to each other, as the column that they become. No
sockets: what fills a buffer is given.
"""

from collections.abc import Callable, Sequence

import numpy as np

from holdfast.commitlog.batch_header import HEADER_SIZE, BatchHeader, Buffer
from holdfast.commitlog.batch_layout import layout_of
from holdfast.commitlog.bodies_apart import BodiesApart, unwritten
from holdfast.commitlog.errors import CorruptBatch, UnknownFormatVersion

#: A reply's body, as BatchRun takes it.
Received = Buffer | BodiesApart
#: Fills a buffer with what comes next; raises what the connection raises.
Fill = Callable[[memoryview], None]

#: A block received by itself takes some 20 us. Copying so many bytes of bodies takes longer.
LARGE_BLOCK_BYTES = 64 * 1024


def receive_blocks(fill: Fill, size: int) -> Received:
    """Receive a body of `size` bytes, with bodies apart if its first block is large.

    What is no block, or is cut off, comes as it is, for BatchRun to refuse. After an error of
    `fill` the rest of the body is unread.
    """
    pieces: list[memoryview] = []
    headers: list[BatchHeader] = []
    room = unwritten(size)
    bodies_end = taken = 0
    while size - taken >= HEADER_SIZE:
        start = _received(fill, HEADER_SIZE)
        pieces.append(start)
        taken += HEADER_SIZE
        header = _header(start, size - taken)
        if header is None or (not headers and header.total_size < LARGE_BLOCK_BYTES):
            break
        places = layout_of(header)
        bodies = room[bodies_end : bodies_end + header.body_bytes]
        pieces.append(_received(fill, places.bodies.start - HEADER_SIZE))
        fill(bodies)
        pieces += bodies, _received(fill, header.total_size - places.bodies.end)
        headers.append(header)
        bodies_end += header.body_bytes
        taken += header.total_size - HEADER_SIZE
    if taken == size and 0 < len(pieces) == 4 * len(headers):
        return _apart(pieces, headers, room[:bodies_end])
    return _as_they_came(pieces, fill, size)


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


def _apart(
    pieces: Sequence[memoryview], headers: Sequence[BatchHeader], bodies: memoryview
) -> BodiesApart:
    """Return blocks of four pieces each, the third of which is in `bodies` already."""
    sizes, counts, of_bodies = (
        np.array([getattr(header, name) for header in headers], np.int64)
        for name in ("total_size", "message_count", "body_bytes")
    )
    apart = BodiesApart.room_for(sizes, counts, of_bodies, bodies)
    for at, (head, _, rest) in enumerate(apart.places()):
        start, offsets, _, behind = pieces[4 * at : 4 * at + 4]
        head[:HEADER_SIZE], head[HEADER_SIZE:], rest[:] = start, offsets, behind
    return apart
