"""A request as everything above its connection sees it: its head, and a body that may be coming."""

from typing import TYPE_CHECKING, Protocol

from aiohttp import hdrs
from aiohttp.http import HttpVersion, RawRequestMessage
from multidict import CIMultiDictProxy
from yarl import URL

if TYPE_CHECKING:
    from holdfast.http_api.connection import Connection


class Content(Protocol):
    """A request's body while it comes: aiohttp's StreamReader, or an ArrivingBody."""

    total_bytes: int
    """How much of it has come."""

    def is_eof(self) -> bool:
        """Whether it is there as a whole."""

    def read_nowait(self, n: int = -1) -> bytes | memoryview:
        """Return what is there and was not read yet. Raises what `set_exception` was told."""

    async def readany(self) -> bytes | memoryview:
        """Wait for something to read, and return it; empty at the end. Raises as above."""

    async def wait_eof(self) -> None:
        """Wait until it is there as a whole. Raises as above."""

    def set_read_chunk_size(self, n: int) -> None:
        """Be ready to take so many bytes."""

    def set_exception(self, exc: BaseException) -> None:
        """End it with this."""


class Request:
    """One request. Its headers are found by names in any case."""

    __slots__ = ("connection", "content", "headers", "is_kept_alive", "method", "url", "version")

    def __init__(
        self, message: RawRequestMessage, content: Content, connection: "Connection"
    ) -> None:
        self.method: str = message.method
        self.url: URL = message.url
        """As it was sent: percent-encoded."""
        self.version: HttpVersion = message.version
        self.headers: CIMultiDictProxy[str] = message.headers
        self.is_kept_alive: bool = not message.should_close
        """Whether its client means to use the connection again."""
        self.content = content
        self.connection = connection

    @property
    def content_length(self) -> int | None:
        """How long its body is, None where it does not say."""
        length = self.headers.get(hdrs.CONTENT_LENGTH)
        return None if length is None else int(length)

    @property
    def remote(self) -> str:
        """The address that it came from, for logs; empty when its client is gone."""
        return self.connection.remote
