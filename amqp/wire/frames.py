"""Frames (part 2.3 of the specification): cut received bytes into frames, and make frames. Pure.

    0        4      5      6          8               4 * doff        size
    | size   | doff | type | channel  | extended header | body          |

`size` counts the whole frame. The extended header is ignored. An empty body keeps a connection
alive.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.amqp.wire.conditions import FRAMING_ERROR, DecodeError
from holdfast.amqp.wire.types import Buffer

#: The protocol headers: "AMQP", the protocol's number, version 1.0.0.
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
TLS_HEADER = b"AMQP\x02\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
HEADER_BYTES = 8

AMQP_FRAME = 0
SASL_FRAME = 1
#: The largest frame before `open` and during SASL. No peer may set a lower maximum frame size.
MIN_MAX_FRAME_BYTES = 512

_HEAD = struct.Struct(">IBBH")


class Frame(NamedTuple):
    """One frame: its body lies in the reader's buffer from `start` to `end`."""

    type: int
    channel: int
    start: int
    end: int


def cut(buffer: Buffer, offset: int, end: int, max_frame_bytes: int) -> Iterator[Frame]:
    """Yield the complete frames of `buffer` from `offset` on. Stop at an incomplete frame, which
    begins where the last complete frame ends.

    Raises DecodeError (framing-error) for a frame larger than `max_frame_bytes` as soon as its size
    is known, and for a header that is not valid.
    """
    unpack = _HEAD.unpack_from
    while end - offset >= 8:
        size, data_offset, kind, channel = unpack(buffer, offset)
        if size > max_frame_bytes:
            raise DecodeError(
                f"a frame of {size} bytes is larger than {max_frame_bytes}", FRAMING_ERROR
            )
        start = 4 * data_offset
        if start < 8 or start > size:
            raise DecodeError("a frame's header is not valid", FRAMING_ERROR)
        if offset + size > end:
            return
        yield Frame(kind, channel, offset + start, offset + size)
        offset += size


def frame(channel: int, body: bytes, kind: int = AMQP_FRAME) -> bytes:
    """Return a frame with `body`."""
    return _HEAD.pack(8 + len(body), 2, kind, channel) + body


EMPTY_FRAME = frame(0, b"")
