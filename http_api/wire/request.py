"""A request as routing and endpoints see it: the parsed head, and a body that may be incomplete."""

from typing import TYPE_CHECKING, Protocol

from aiohttp import HttpVersion, hdrs
from multidict import CIMultiDictProxy
from yarl import URL

from holdfast.http_api.wire.aiohttp_parser import RawRequestMessage

if TYPE_CHECKING:
    from holdfast.http_api.wire.connection import Connection


class Content(Protocol):
    """The body of a request while it arrives: aiohttp's StreamReader, or an ArrivingBody."""

    total_bytes: int
    """How many bytes have arrived."""

    def is_eof(self) -> bool:
        """Return whether the whole body has arrived."""

    def read_nowait(self, n: int = -1) -> bytes | memoryview:
        """Return the bytes that have arrived and were not read yet, without waiting.

        Raises the error of `set_exception`.
        """

    async def readany(self) -> bytes | memoryview:
        """Wait for bytes and return them. At the end of the body, return empty bytes.

        Raises the error of `set_exception`.
        """

    async def wait_eof(self) -> None:
        """Wait until the whole body has arrived. Raises the error of `set_exception`."""

    def set_read_chunk_size(self, n: int) -> None:
        """Get ready to receive, and to return pieces of about `n` bytes."""

    def set_exception(self, exc: BaseException) -> None:
        """Make the methods that read the body raise `exc` from now on."""


class Request:
    """One request. Header names are case-insensitive."""

    __slots__ = ("connection", "content", "headers", "is_kept_alive", "method", "url", "version")

    def __init__(
        self, message: RawRequestMessage, content: Content, connection: "Connection"
    ) -> None:
        self.method: str = message.method
        self.url: URL = message.url
        """The target as the client sent it, percent-encoded."""
        self.version: HttpVersion = message.version
        self.headers: CIMultiDictProxy[str] = message.headers
        self.is_kept_alive: bool = not message.should_close
        """Whether the client intends to reuse the connection."""
        self.content = content
        self.connection = connection

    @property
    def content_length(self) -> int | None:
        """The length of the body in bytes; None if the request does not declare a length."""
        length = self.headers.get(hdrs.CONTENT_LENGTH)
        return None if length is None else int(length)

    @property
    def remote(self) -> str:
        """The client's address, for logs; "" if it is unknown."""
        return self.connection.remote
