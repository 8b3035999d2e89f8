"""The head of a request (request line and headers): its size, memory and beginning. Pure."""

from sys import getsizeof
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.http_api.wire.aiohttp_parser import RawRequestMessage

_LINE_END = b"\r\n"
_EMPTY_LINE = b"\r\n\r\n"
#: The size of the request line without method and path, and of the empty line after the headers.
_LINE_BYTES = len("  HTTP/1.1\r\n") + len("\r\n")
#: The size of the ": " and the line end of a header.
_PER_HEADER_BYTES = 4
#: Bytes of memory of a header in addition to its characters: two strs and two byte strings, two
#: tuples, and the entries in a list and in the multidict.
_PER_HEADER_MEMORY = 400
#: Bytes of memory of the message object, the request, the URL and the multidict.
_REQUEST_MEMORY = 1024
#: The size of the shortest header. A head of n bytes has at most n / 4 headers.
_SHORTEST_HEADER_BYTES = 4
#: Memory per byte of a head that is pure ASCII: 1 for the byte, and 1 for its character in a str.
_NARROW_FACTOR = 2
#: Memory per byte of any other head, or of an incomplete head: 1 for the byte, and at most 4 for
#: its character in a str.
_UNFINISHED_FACTOR = 5


def head_bytes(message: "RawRequestMessage") -> int:
    """Return the size of a head in bytes.

    The size counts one space after each colon and none at the end of a line, because the parser has
    removed all spaces there.
    """
    path = message.path
    size = len(path) if path.isascii() else len(path.encode("utf-8", "surrogateescape"))
    size += len(message.method) + _LINE_BYTES
    for name, value in message.raw_headers:
        size += len(name) + len(value) + _PER_HEADER_BYTES
    return size


def head_memory(message: "RawRequestMessage") -> int:
    """Return how many bytes of memory a parsed head uses while its request exists."""
    written = sum([len(name) + len(value) for name, value in message.raw_headers])
    is_narrow = message.path.isascii() and all(map(str.isascii, message.headers.values()))
    return (
        _REQUEST_MEMORY
        + len(message.raw_headers) * _PER_HEADER_MEMORY
        + 2 * getsizeof(message.path)
        + written * (_NARROW_FACTOR if is_narrow else _UNFINISHED_FACTOR)
    )


def unfinished_head_memory(size: int, max_headers: int) -> int:
    """Return how many bytes of memory an unfinished head of `size` bytes uses at most."""
    headers = min(size // _SHORTEST_HEADER_BYTES, max_headers)
    return _UNFINISHED_FACTOR * size + headers * _PER_HEADER_MEMORY


def head_begins(data: bytes, known_bytes: int = 0) -> bool:
    """Return whether `data` ends with an incomplete head. aiohttp's parser does not report this.

    `data` contains the end of a request, or begins after the end of a request. `known_bytes` of
    these bytes are a body of known length.

    Empty lines alone are not the beginning of a head. A complete head ends with an empty line, and
    so does a chunked body. If the bytes do not show the head clearly, the result is False, for
    example if the body before it contains an empty line. The connection then counts as idle, and an
    idle connection has a longer deadline.
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
