"""HTTP/1.1 as the client needs it: the head of a request out, one reply in. Pure.

What frames a reply is read strictly (RFC 9112): whoever reads two lengths in one reply, or a
length that is no number, could be shown the end of another request's answer. Everything else in
a head is taken as it is.
"""

from collections.abc import Mapping
from urllib.parse import quote_plus

import numpy as np

#: More than any broker's head; a longer one is no reply of a broker.
MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 2**32

_HEAD_END = b"\r\n\r\n"


class NotHttp(ValueError):
    """Bytes that are no reply in HTTP/1.1, or none whose end could be told for certain."""


def request_head(
    method: str,
    target: str,
    fixed: str,
    headers: Mapping[str, str] | None,
    body_bytes: int | None,
) -> bytes:
    """Return a request's head, empty line included. `fixed` is header lines that end in CRLF.

    Raises ValueError for a target or a header's value that would end its line, or is not ASCII.
    """
    if " " in target or not target.isascii() or not target.isprintable():
        raise ValueError(f"no request can go to {target!r}")
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
    """Return parameters as they follow a path, with their question mark; empty for none."""
    pairs = [
        f"{name}={value if isinstance(value, int) else quote_plus(value, safe=':,')}"
        for name, value in params.items()
    ]
    return "?" + "&".join(pairs) if pairs else ""


class ReplyParser:
    """One reply, from the bytes of a connection as they come. Names of headers are lower case.

    While `space()` is None, bytes go in by `feed`; else they are received straight into that
    space and counted by `filled`. Both return whether the reply is whole, and raise NotHttp.
    `has_begun` tells whether any of it has come, `keeps_alive` (of a whole reply) whether the
    connection may be used again. A body is bytes when it was short, else a view of its own.
    """

    __slots__ = (
        "_at",
        "_chunks",
        "_held",
        "_rest_is_body",
        "_space",
        "body",
        "has_begun",
        "headers",
        "keeps_alive",
        "status",
    )

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body: bytes | memoryview = b""
        self.has_begun = False
        self.keeps_alive = False
        self._held = b""
        self._space: memoryview | None = None
        self._at = 0
        self._chunks: _Chunks | None = None
        self._rest_is_body = False

    def space(self) -> memoryview | None:
        """Return where the next bytes of a long body belong, None while bytes are to be fed."""
        return None if self._space is None else self._space[self._at :]

    def filled(self, count: int) -> bool:
        """Take note of bytes that were received into the space."""
        assert self._space is not None
        self._at += count
        if self._at < len(self._space):
            return False
        self.body = self._space
        self._space = None
        return True

    def feed(self, data: bytes) -> bool:
        """Take bytes."""
        self.has_begun = True
        if self._chunks is not None:
            return self._feed_chunks(data)
        if self._rest_is_body:
            self.body = bytes(self.body) + data
            return False
        data = self._held + data if self._held else data
        while (end := data.find(_HEAD_END)) >= 0:
            self._read_head(data[:end])
            data = data[end + 4 :]
            if self.status >= 200:
                return self._begin_body(data)
        if len(data) > MAX_HEAD_BYTES:
            raise NotHttp(f"a head of more than {MAX_HEAD_BYTES} bytes")
        self._held = data
        return False

    def end(self) -> bool:
        """Take note of the connection's end; return whether the reply is whole by that."""
        return self._rest_is_body

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if version not in ("HTTP/1.1", "HTTP/1.0") or not _is_number(rest[:3]):
            raise NotHttp(f"a reply that begins {first[:40]!r}")
        self.status = int(rest[:3])
        headers = self.headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            name = name.lower()
            if not colon or not name or name[-1].isspace() or name[0].isspace():
                raise NotHttp(f"a header line {line[:40]!r}")
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
                raise NotHttp(f"a body in {coding!r} of length {length}")
            self._chunks = _Chunks()
            return self._feed_chunks(data)
        if length is None:
            self._rest_is_body = True
            self.keeps_alive = False
            self.body = data
            return False
        if not _is_number(length) or int(length) > MAX_BODY_BYTES:
            raise NotHttp(f"a body of length {length[:40]!r}")
        size = int(length)
        if len(data) >= size:
            self._check_end(data[size:])
            self.body = data[:size]
            return True
        # Not zeroed first: all of it is received into.
        self._space = np.empty(size, np.uint8).data
        self._space[: len(data)] = data
        self._at = len(data)
        return False

    def _feed_chunks(self, data: bytes) -> bool:
        assert self._chunks is not None
        rest = self._chunks.feed(data)
        if rest is None:
            return False
        self._check_end(rest)
        self.body = b"".join(self._chunks.parts)
        return True

    def _check_end(self, rest: bytes) -> None:
        """Nothing was asked that the rest could answer: the connection is out of step."""
        if rest:
            self.keeps_alive = False


class _Chunks:
    """The chunked coding, without its extensions and trailers, which nobody looks at."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._held = b""
        self._size = 0
        self._is_in_trailer = False

    def feed(self, data: bytes) -> bytes | None:
        """Take bytes; return what follows the last chunk, None while there is more to come."""
        data = self._held + data
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
                raise NotHttp("a body without end")
            if size == 0:
                self._is_in_trailer = True
                at = end + 2
                continue
            after = end + 2 + size
            if len(data) < after + 2:
                self._size -= size
                break
            if data[after : after + 2] != b"\r\n":
                raise NotHttp("a chunk longer than it says")
            self.parts.append(data[end + 2 : after])
            at = after + 2
        self._held = data[at:]
        if end < 0 and len(self._held) > MAX_HEAD_BYTES:
            raise NotHttp("a chunk's size without end")
        return None


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip(b" \t")
    if not digits or digits.strip(b"0123456789abcdefABCDEF"):
        raise NotHttp(f"a chunk of size {line[:40]!r}")
    return int(digits, 16)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
