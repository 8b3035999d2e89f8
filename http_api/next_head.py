"""Whether behind whole requests the next one's head has begun, which is to come to its end in time.
Pure.

The parser knows, and does not tell. In doubt the answer is no: then the connection is idle, which
has a deadline too, only a longer one.
"""

_LINE_END = b"\r\n"
_EMPTY_LINE = b"\r\n\r\n"


def head_begins(data: bytes, known_bytes: int = 0) -> bool:
    """Return whether bytes in which a request ended, or that came behind one, go on with a head
    that has not ended. `known_bytes`: what of them is a body by its length, not by chunks.

    Empty lines are no head. A head ends with one, and so do chunks. A body that ends with an
    empty line, or repeats the end of its head, may hide a head that begins behind it.
    """
    if data.endswith(_EMPTY_LINE) or not data.strip(_LINE_END):
        return False
    if not known_bytes:
        return True
    # Some clients send a line end behind a body, which is no part of it.
    if len(data) - known_bytes < len(_EMPTY_LINE) + len(_LINE_END):
        return False  # the head that the body belongs to ended before
    return not any(
        each.endswith(_EMPTY_LINE, 0, len(each) - known_bytes)
        for each in (data, data.removesuffix(_LINE_END))
    )
