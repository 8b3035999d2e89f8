"""A whole response, written to its connection in one go.

aiohttp builds a response's head from a case-insensitive multidict and sends it by way of a
stream writer. Here every response is known in full before its first byte, and a thousand of
them may fall due in the same moment; so the head is formatted at once and leaves together with
the body. Blocks of the log leave as they lie.
"""

from collections.abc import Mapping, Sequence
from email.utils import formatdate
from functools import lru_cache
from time import time
from typing import TYPE_CHECKING, cast

from aiohttp import hdrs, web
from aiohttp.http import HttpVersion11

from holdfast.http_api.framing import ends_connection
from holdfast.http_api.problems import Problem

if TYPE_CHECKING:
    from holdfast.http_api.connection import Connection

Bytes = bytes | bytearray | memoryview
Headers = Sequence[tuple[str, str]]

PROBLEM_JSON = "application/problem+json"

#: After these problems nothing that follows on the connection is read.
_ENDS_CONNECTION = {"draining", "malformed-request"}

#: Copying this much into one write costs less than handing over two buffers.
_JOIN_BELOW = 64 * 1024


class Reply(web.StreamResponse):
    """Status, headers and a body of one or more buffers that follow each other.

    Header values are the broker's own words: they are not searched for line ends. With
    `closes` the connection ends with it.
    """

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
        super().__init__(status=status)
        self._media_type = media_type
        self._parts = parts
        self._more_headers = headers
        self._request: web.BaseRequest | None = None
        self._keeps_alive = False
        self._closes = closes
        self.held_s = held_s
        """How much of the time that answering took was waiting for a message."""
        self.note: Mapping[str, object] = {}
        """What the audit log is to say of an administrative act beside its outcome."""

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return sum(map(len, self._parts))

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may be used again; False until the reply is prepared."""
        return self._keeps_alive

    def force_close(self) -> None:
        """Nothing to do: a reply that is not prepared yet does not keep its connection."""

    async def prepare(self, request: web.BaseRequest) -> None:
        """Take the request that this answers. Nothing is written yet."""
        self._request = request
        # What remains of a body that was refused is not read for long.
        is_read = request.content.is_eof()
        closes = self._closes or ends_connection(request)
        self._keeps_alive = request.keep_alive and is_read and not closes

    async def write_eof(self, data: bytes = b"") -> None:
        """Write everything, then wait until the client has taken it.

        Raises ConnectionResetError when the client is gone.
        """
        request, self._request = self._request, None
        if request is None:
            return
        connection = cast("Connection", request.protocol)
        parts, self._parts = self._parts, ()
        size = sum(map(len, parts))
        head = self._head(request, size)
        if size == 0 or request.method == hdrs.METH_HEAD:
            await connection.send((head,), len(head))
        elif size < _JOIN_BELOW:
            await connection.send((b"".join((head, *parts)),), size)
        else:
            await connection.send((head, *parts), size)

    def _head(self, request: web.BaseRequest, size: int) -> bytes:
        lines = [
            f"HTTP/1.1 {self.status} {self.reason}",
            f"Content-Type: {self._media_type}",
            f"Content-Length: {size}",
            f"Date: {_http_date(int(time()))}",
            *(f"{name}: {value}" for name, value in self._more_headers),
        ]
        if not self._keeps_alive:
            lines.append("Connection: close")
        elif request.version < HttpVersion11:
            lines.append("Connection: keep-alive")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def problem_reply(problem: Problem, *, closes: bool = False) -> Reply:
    """Return the reply that carries a problem; `closes`: the connection ends with it."""
    return Reply(
        problem.kind.status,
        PROBLEM_JSON,
        (problem.encode(),),
        problem.all_headers(),
        closes=closes or problem.slug in _ENDS_CONNECTION,
    )


@lru_cache(maxsize=1)
def _http_date(second: int) -> str:
    return formatdate(second, usegmt=True)
