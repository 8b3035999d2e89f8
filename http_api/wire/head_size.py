"""The size of a request's head (request line and headers): as sent, and in memory. Pure."""

from collections.abc import Mapping, Sequence
from sys import getsizeof
from typing import Protocol


class ParsedHead(Protocol):
    """A head after aiohttp's parser has parsed it."""

    @property
    def method(self) -> str:
        """The method, such as GET or POST."""

    @property
    def path(self) -> str:
        """The target in the request line, as it was sent."""

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]:
        """The names and values, as they were sent."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The names and values as texts."""


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


def head_bytes(message: ParsedHead) -> int:
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


def head_memory(message: ParsedHead) -> int:
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
