"""A whole response, and the encoding of its head.

Every response except an event stream is complete before its first byte is sent. One new message may
cause a thousand responses together, so the head is formatted quickly and sent together with the
body. Blocks of the log (batches as they are stored) are sent without copying.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from time import time
from typing import NamedTuple

from holdfast.http_api.wire.aiohttp_parser import HttpVersion, HttpVersion11, hdrs
from holdfast.http_api.wire.problems import Problem

Bytes = bytes | bytearray | memoryview
Headers = Sequence[tuple[str, str]]

PROBLEM_JSON = "application/problem+json"

#: After a reply with one of these problems, the connection ends and serves no further request.
_ENDS_CONNECTION = {"draining", "malformed-request"}

#: Below this body size, copying head and body into one buffer costs less than writing two buffers.
_JOIN_BELOW = 64 * 1024


Upgrade = Callable[[asyncio.Transport | None], asyncio.Protocol]
"""Returns the protocol that takes over a connection.

It gets the TCP transport under TLS; None without TLS. `connection_made` follows.
"""


class StreamPiece(NamedTuple):
    """A part of a streamed body.

    `kept_bytes` is the memory, in bytes, that the stream keeps for later parts. If `is_whole` is
    False, this part ends inside an event, and the next part continues the same event.
    """

    data: bytes
    kept_bytes: int = 0
    is_whole: bool = True


class Reply:
    """Status, headers and a body of one or more consecutive buffers.

    Header values must come from the broker: they are not checked for line ends. If `closes` is set,
    the connection ends after the reply.
    """

    __slots__ = ("closes", "headers", "held_s", "media_type", "note", "on_undelivered", "parts",
                 "status", "stream", "upgrade")  # fmt: skip

    def __init__(
        self,
        status: int,
        media_type: str,
        parts: Sequence[Bytes] = (),
        headers: Headers = (),
        *,
        held_s: float = 0.0,
        closes: bool = False,
    ) -> None:
        self.status = status
        self.media_type = media_type
        self.parts = parts
        self.headers = headers
        self.closes = closes
        self.held_s = held_s
        """How long the request was held until a message arrived, in seconds."""
        self.note: Mapping[str, object] = {}
        """JSON fields that the audit log adds to its record of the request."""
        self.stream: AsyncGenerator[StreamPiece, None] | None = None
        """A stream that is sent instead of `parts`. After the stream, the connection ends."""
        self.upgrade: Upgrade | None = None
        """Makes another protocol, which takes over the connection and itself sends this reply."""
        self.on_undelivered: Callable[[], object] = nothing
        """Called at most once, if the reply does not reach the client.

        The reply was not sent, or the operating system did not accept all of it, or the client
        closed the connection before all of it arrived. If the reply is a stream, the function is
        always called at the end of the stream.
        """

    @property
    def size(self) -> int:
        """The size of the body in bytes."""
        return sum(map(len, self.parts))

    def encode(
        self, method: str = "", version: HttpVersion = HttpVersion11, *, keeps_alive: bool
    ) -> tuple[Sequence[Bytes], int]:
        """Return the buffers of the response, and the number of bytes that limits count for it.

        `method` and `version` are those of the request. Omit them if the client's bytes were not a
        valid request.
        """
        size = self.size
        fields = b""
        if self.headers:
            fields = "".join([f"{name}: {value}\r\n" for name, value in self.headers]).encode(
                "latin-1"
            )
        if not keeps_alive:
            fields += b"Connection: close\r\n"
        elif version < HttpVersion11:
            fields += b"Connection: keep-alive\r\n"
        head = b"%b%d%b%b\r\n" % (
            _first_lines(self.status, self.media_type),
            size,
            _date_line(int(time())),
            fields,
        )
        if size == 0 or method == hdrs.METH_HEAD:
            return (head,), len(head)
        if size < _JOIN_BELOW:
            return (b"".join((head, *self.parts)),), size
        return (head, *self.parts), size

    def head_of_stream(self, *, is_chunked: bool) -> bytes:
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            f"Content-Type: {self.media_type}",
            f"Date: {formatdate(time(), usegmt=True)}",
            *(f"{name}: {value}" for name, value in self.headers),
            *(("Transfer-Encoding: chunked",) if is_chunked else ()),
            "Connection: close",
        ]
        return "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1")


def nothing() -> None:
    """Do nothing: the default `on_undelivered` of a reply."""


def problem_reply(problem: Problem) -> Reply:
    return Reply(
        problem.kind.status,
        PROBLEM_JSON,
        (problem.encode(),),
        problem.all_headers(),
        closes=problem.slug in _ENDS_CONNECTION,
    )


@lru_cache(maxsize=256)
def _first_lines(status: int, media_type: str) -> bytes:
    """Return the beginning of a head, up to the value of Content-Length."""
    reason = HTTPStatus(status).phrase
    lines = f"HTTP/1.1 {status} {reason}\r\nContent-Type: {media_type}\r\nContent-Length: "
    return lines.encode("latin-1")


@lru_cache(maxsize=1)
def _date_line(second: int) -> bytes:
    """Return the line end of the Content-Length line, followed by the Date line."""
    return f"\r\nDate: {formatdate(second, usegmt=True)}\r\n".encode()
