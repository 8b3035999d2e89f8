"""The parts of HTTP/1.1 that the client needs: encode request heads, parse replies. Pure.

The parser is strict about the length of a reply (RFC 9112). If it accepted two lengths or an
invalid length, it could mistake a part of one reply for the reply to another request. It does not
check other header fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

from holdfast.commitlog.lazy_import import import_at_first_use

if TYPE_CHECKING:
    import numpy as np
else:
    import_at_first_use(globals(), np="numpy")

#: A broker never sends a head as large as this.
MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 2**32

_HEAD_END = b"\r\n\r\n"


class MalformedReply(ValueError):
    """The bytes are not an HTTP/1.1 reply, or it is unclear where the reply ends."""


class ConnectionLost(Exception):
    """The connection ended before the reply was complete. `has_begun` is True if a part of the
    reply had arrived."""

    def __init__(self, reason: str, *, has_begun: bool) -> None:
        super().__init__(reason)
        self.has_begun = has_begun


def request_head(
    method: str,
    target: str,
    fixed: str,
    headers: Mapping[str, str] | None,
    body_bytes: int | None,
) -> bytes:
    """Return a request's head, including the empty line. `fixed` holds further header lines, each
    of which ends in CRLF.

    Raises ValueError if the target or a header value is not printable ASCII.
    """
    if " " in target or not target.isascii() or not target.isprintable():
        raise ValueError(f"no request can have the target {target!r}")
    lines = ""
    if headers is not None:
        for name, value in headers.items():
            if not value.isascii() or not value.isprintable():
                raise ValueError(f"the header {name} cannot have the value {value!r}")
            lines += f"{name}: {value}\r\n"
    if body_bytes is not None:
        lines += f"Content-Length: {body_bytes}\r\n"
    return f"{method} {target} HTTP/1.1\r\n{fixed}{lines}\r\n".encode("ascii")


def query_string(params: Mapping[str, str | int]) -> str:
    """Return parameters as a query string that begins with "?". Without parameters it is empty."""
    pairs = [
        f"{name}={value if isinstance(value, int) else quote_plus(value, safe=':,')}"
        for name, value in params.items()
    ]
    return "?" + "&".join(pairs) if pairs else ""


@dataclass(slots=True, eq=False)
class ReplyParser:
    """Parses one reply from a connection's bytes as they arrive. Header names are lower case.

    While `buffer()` returns None, pass the received bytes to `feed`. When it returns a buffer,
    receive bytes directly into that buffer and report their number to `advance`. `feed` and
    `advance` return whether the reply is complete; they raise MalformedReply.

    `has_begun` is True once a part of the reply has arrived. When the reply is complete,
    `keeps_alive` is True if the connection can be used again. `body` is bytes if the body was
    short, otherwise a memoryview of a separate buffer.

    With `leaves_body`, the caller receives the body of a successful reply itself, if the head gives
    its length. Then the reply counts as complete after the head: `body` holds the bytes that
    arrived together with the head, and `unread_bytes` is the number of bytes that follow.
    """

    leaves_body: bool = False
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | memoryview = b""
    has_begun: bool = False
    keeps_alive: bool = False
    unread_bytes: int | None = None
    _unparsed: bytes = b""
    _buffer: memoryview | None = None
    _filled_bytes: int = 0
    _chunks: "_ChunkedParser | None" = None
    _body_ends_at_close: bool = False

    def buffer(self) -> memoryview | None:
        """Return the buffer for the next bytes of a long body. Return None if the next bytes must
        be passed to `feed`."""
        return None if self._buffer is None else self._buffer[self._filled_bytes :]

    def advance(self, count: int) -> bool:
        """Record that `count` bytes were received into the buffer of `buffer()`. Return whether the
        reply is complete."""
        assert self._buffer is not None
        self._filled_bytes += count
        if self._filled_bytes < len(self._buffer):
            return False
        self.body = self._buffer
        self._buffer = None
        return True

    def feed(self, data: bytes) -> bool:
        """Parse the next bytes. Return whether the reply is complete."""
        self.has_begun = True
        if self._chunks is not None:
            return self._feed_chunks(data)
        if self._body_ends_at_close:
            self.body = bytes(self.body) + data
            return False
        data = self._unparsed + data if self._unparsed else data
        while (end := data.find(_HEAD_END)) >= 0:
            self._read_head(data[:end])
            data = data[end + 4 :]
            if self.status >= 200:
                return self._begin_body(data)
        if len(data) > MAX_HEAD_BYTES:
            raise MalformedReply(f"a head of more than {MAX_HEAD_BYTES} bytes")
        self._unparsed = data
        return False

    def feed_eof(self) -> bool:
        """Return whether the reply is complete now that the connection has ended. It is complete
        if its head was received and gives no length for the body."""
        return self._body_ends_at_close

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if version not in ("HTTP/1.1", "HTTP/1.0") or not _is_number(rest[:3]):
            raise MalformedReply(f"a reply that begins {first[:40]!r}")
        self.status = int(rest[:3])
        headers = self.headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            name = name.lower()
            if not colon or not name or name[-1].isspace() or name[0].isspace():
                raise MalformedReply(f"a header line {line[:40]!r}")
            value = value.strip(" \t")
            if name in headers:
                value = f"{headers[name]}, {value}"
            headers[name] = value
        connection = headers.get("connection", "").lower()
        self.keeps_alive = version == "HTTP/1.1" and "close" not in connection

    def _begin_body(self, data: bytes) -> bool:
        coding = self.headers.get("transfer-encoding")
        length = self.headers.get("content-length")
        if self.status in (204, 304):
            coding, length = None, "0"
        if coding is not None:
            if coding.lower() != "chunked" or length is not None:
                raise MalformedReply(f"a body in {coding!r} of length {length}")
            self._chunks = _ChunkedParser()
            return self._feed_chunks(data)
        if length is None:
            self._body_ends_at_close = True
            self.keeps_alive = False
            self.body = data
            return False
        if not _is_number(length) or int(length) > MAX_BODY_BYTES:
            raise MalformedReply(f"a body of length {length[:40]!r}")
        size = int(length)
        is_left = self.leaves_body and self.status < 300
        if is_left or len(data) >= size:
            # Bytes after the reply belong to no request: do not use the connection again.
            self.keeps_alive &= len(data) <= size
            self.body = data[:size]
            if is_left:
                self.unread_bytes = size - len(self.body)
            return True
        # The buffer need not be zeroed, because every byte will be overwritten.
        self._buffer = np.empty(size, np.uint8).data
        self._buffer[: len(data)] = data
        self._filled_bytes = len(data)
        return False

    def _feed_chunks(self, data: bytes) -> bool:
        assert self._chunks is not None
        rest = self._chunks.feed(data)
        if rest is None:
            return False
        self.keeps_alive &= not rest
        self.body = b"".join(self._chunks.parts)
        return True


@dataclass(slots=True, eq=False)
class _ChunkedParser:
    """Parses the chunked transfer coding. Ignores chunk extensions and trailers."""

    parts: list[bytes] = field(default_factory=list)
    _unparsed: bytes = b""
    _size: int = 0
    _is_in_trailer: bool = False

    def feed(self, data: bytes) -> bytes | None:
        """Parse the next bytes. Return None until the body is complete, then the bytes after it."""
        data = self._unparsed + data
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            line = data[at:end]
            if self._is_in_trailer:
                at = end + 2
                if not line:
                    return data[at:]
                continue
            size = _chunk_size(line)
            self._size += size
            if self._size > MAX_BODY_BYTES:
                raise MalformedReply(f"a body of more than {MAX_BODY_BYTES} bytes")
            if size == 0:
                self._is_in_trailer = True
                at = end + 2
                continue
            after = end + 2 + size
            if len(data) < after + 2:
                self._size -= size
                break
            if data[after : after + 2] != b"\r\n":
                raise MalformedReply("a chunk that is longer than its size")
            self.parts.append(data[end + 2 : after])
            at = after + 2
        self._unparsed = data[at:]
        if end < 0 and len(self._unparsed) > MAX_HEAD_BYTES:
            raise MalformedReply("a chunk size of too many digits")
        return None


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip(b" \t")
    if not digits or digits.strip(b"0123456789abcdefABCDEF"):
        raise MalformedReply(f"a chunk of size {line[:40]!r}")
    return int(digits, 16)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
