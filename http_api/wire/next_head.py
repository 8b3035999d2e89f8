"""Detects whether the head of a further request has begun after complete requests. Pure.

The connection needs this to set the head's deadline; aiohttp's parser does not report it. If the
bytes do not show it clearly, the answer is no: the connection then counts as idle, and an idle
connection has a longer deadline.
"""

_LINE_END = b"\r\n"
_EMPTY_LINE = b"\r\n\r\n"


def head_begins(data: bytes, known_bytes: int = 0) -> bool:
    """Return whether `data` ends with an incomplete head.

    `data` contains the end of a request, or begins after the end of a request. `known_bytes` of
    these bytes are a body of known length.

    Empty lines alone are not the beginning of a head. A complete head ends with an empty line, and
    so does a chunked body. A head may stay undetected if the body before it contains an empty line.
    """
    if data.endswith(_EMPTY_LINE) or not data.strip(_LINE_END):
        return False
    if not known_bytes:
        return True
    # Some clients send a line end after the body. This line end is not a part of the body.
    if len(data) - known_bytes < len(_EMPTY_LINE) + len(_LINE_END):
        return False  # the head of this body ended in earlier data
    return not any(
        each.endswith(_EMPTY_LINE, 0, len(each) - known_bytes)
        for each in (data, data.removesuffix(_LINE_END))
    )


def head_begins_at(data: bytes) -> int:
    """Return the index at which the incomplete head in `data` begins, or a smaller index.

    Callers must first check that `head_begins` is true.
    """
    return data.rfind(_EMPTY_LINE) + len(_EMPTY_LINE) if _EMPTY_LINE in data else 0


def begins_with_bare_line_end(data: bytes) -> bool:
    """Return whether, after leading CR LF pairs, `data` continues with a single LF or CR."""
    at = 0
    while data.startswith(_LINE_END, at):
        at += 2
    return data[at : at + 1] == b"\n" or (data[at : at + 1] == b"\r" and at + 1 < len(data))
