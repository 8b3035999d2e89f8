"""Finds the frames in the bytes of a WebSocket client (RFC 6455 section 5.2). Pure.

    byte 0       byte 1        if length is 126 or 127   4 bytes
    FIN, opcode  MASK, length  length in 2 or 8 bytes    masking key   payload

The library `websockets` reads all kinds of frames. For a small frame it takes about seven times as
long as this file. So this file unmasks the frames that carry a whole binary message, and the
library reads all other frames.
"""

try:
    from websockets.speedups import apply_mask
except ImportError:  # the library was installed without its C code
    from websockets.utils import apply_mask

#: The first byte of a frame that is a whole binary message.
_WHOLE_BINARY = 0x82
#: The bit of the second byte that says that the frame is masked.
_MASKED = 0x80


def take_payloads(data: bytes, at: int, max_bytes: int) -> tuple[list[bytes], int]:
    """Return the unmasked payloads of the whole binary messages that begin at index `at` of `data`,
    one after another, and the index after them.

    Stop at any other frame, at an incomplete frame, and at a payload of more than `max_bytes`.
    """
    payloads = []
    size = len(data)
    while size - at >= 6 and data[at] == _WHOLE_BINARY:
        length = data[at + 1] - _MASKED
        key = at + 2
        if length == 126:
            length = data[at + 2] << 8 | data[at + 3]
            key = at + 4
        elif length == 127:
            length = int.from_bytes(data[at + 2 : at + 10])
            key = at + 10
        end = key + 4 + length
        if end > size or not 0 <= length <= max_bytes:
            break
        payloads.append(apply_mask(data[key + 4 : end], data[key : key + 4]))
        at = end
    return payloads, at


def frame_end(data: bytes, at: int) -> int:
    """Return the index after the frame that begins at index `at` of `data`.

    The index may be greater than the length of `data`. If the header is incomplete, return the
    index up to which the header is needed first. If the frame is not masked, which only a server
    may send, return the index after its first two bytes: they show the error.
    """
    if len(data) - at < 2:
        return at + 2
    length = data[at + 1] - _MASKED
    if length < 0:
        return at + 2
    if length < 126:
        return at + 6 + length
    start = at + 2
    end = start + (2 if length == 126 else 8)
    if len(data) < end:
        return end
    return end + 4 + int.from_bytes(data[start:end])
