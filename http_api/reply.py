"""A whole response, and how its head is written.

Every response is known in full before its first byte, and a thousand of them may fall due in the
same moment; so the head is formatted at once and leaves together with the body. Blocks of the log
leave as they lie.
"""

from collections.abc import Callable, Mapping, Sequence
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from time import time
from typing import TYPE_CHECKING

from aiohttp import hdrs
from aiohttp.http import HttpVersion11

from holdfast.http_api.problems import Problem

if TYPE_CHECKING:
    from holdfast.http_api.request import Request

Bytes = bytes | bytearray | memoryview
Headers = Sequence[tuple[str, str]]

PROBLEM_JSON = "application/problem+json"

#: After these problems nothing that follows on the connection is read.
_ENDS_CONNECTION = {"draining", "malformed-request"}

#: Copying this much into one write costs less than handing over two buffers.
_JOIN_BELOW = 64 * 1024


class Reply:
    """Status, headers and a body of one or more buffers that follow each other.

    Header values are the broker's own words: they are not searched for line ends. With
    `closes` the connection ends with it.
    """

    __slots__ = ("closes", "headers", "held_s", "media_type", "note", "parts", "status", "unsent")

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
        """How much of the time that answering took was waiting for a message."""
        self.note: Mapping[str, object] = {}
        """What the audit log is to say of an administrative act beside its outcome."""
        self.unsent: Callable[[], object] = nothing
        """Called, once, when it does not reach the client: it is not sent after all, the system did
        not take all of it, or the client had closed before it came."""

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return sum(map(len, self.parts))

    def encoded(
        self, request: "Request | None", *, keeps_alive: bool
    ) -> tuple[Sequence[Bytes], int]:
        """Return the response's buffers and the size that it counts with. `request` is None for
        what was none."""
        size = self.size
        fields = b""
        if self.headers:
            fields = "".join([f"{name}: {value}\r\n" for name, value in self.headers]).encode(
                "latin-1"
            )
        if not keeps_alive:
            fields += b"Connection: close\r\n"
        elif request is not None and request.version < HttpVersion11:
            fields += b"Connection: keep-alive\r\n"
        head = b"%b%d%b%b\r\n" % (
            _first_lines(self.status, self.media_type),
            size,
            _date_line(int(time())),
            fields,
        )
        if size == 0 or (request is not None and request.method == hdrs.METH_HEAD):
            return (head,), len(head)
        if size < _JOIN_BELOW:
            return (b"".join((head, *self.parts)),), size
        return (head, *self.parts), size


def nothing() -> None:
    """What most replies leave behind when they are not sent."""


def problem_reply(problem: Problem, *, closes: bool = False) -> Reply:
    """Return the reply that carries a problem; `closes`: the connection ends with it."""
    return Reply(
        problem.kind.status,
        PROBLEM_JSON,
        (problem.encode(),),
        problem.all_headers(),
        closes=closes or problem.slug in _ENDS_CONNECTION,
    )


@lru_cache(maxsize=256)
def _first_lines(status: int, media_type: str) -> bytes:
    """Return the beginning of a head, up to the body's length."""
    reason = HTTPStatus(status).phrase
    lines = f"HTTP/1.1 {status} {reason}\r\nContent-Type: {media_type}\r\nContent-Length: "
    return lines.encode("latin-1")


@lru_cache(maxsize=1)
def _date_line(second: int) -> bytes:
    """Return the end of the line before, and the line of the date."""
    return f"\r\nDate: {formatdate(second, usegmt=True)}\r\n".encode()
