"""The request parser: the only file that imports aiohttp, and that uses more than its public API.

aiohttp's `__init__` imports its client. The broker does not use the client, and its import is a
twelfth of a start. So only the modules of the parser are imported.

`pyproject.toml` therefore allows only the versions of aiohttp that were tested. If a newer version
changes something that this package needs, a test in tests/http_api/wire/test_aiohttp_parser.py
fails and names the change.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import partial
from typing import Protocol

from holdfast.http_api.wire.lazy_package import import_without_init

import_without_init("aiohttp")
# ruff: noqa: E402 - the line above must come first
import aiohttp.hdrs as hdrs
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError, LineTooLong
from aiohttp.http_parser import HttpRequestParser, HttpRequestParserPy, RawRequestMessage
from aiohttp.http_writer import HttpVersion, HttpVersion10, HttpVersion11
from aiohttp.streams import EMPTY_PAYLOAD

__all__ = [
    "EMPTY_PAYLOAD",
    "BadHttpMessage",
    "HttpProcessingError",
    "HttpRequestParser",
    "HttpVersion",
    "HttpVersion10",
    "HttpVersion11",
    "LineTooLong",
    "ParserMissing",
    "RawRequestMessage",
    "RequestPayloadError",
    "check_parser",
    "hdrs",
    "new_parser",
]

#: The maximum length of the request line. It must have room for a poll over 1,024 queues, or for a
#: percent-encoded filter of 4 KiB.
MAX_LINE_BYTES = 64 * 1024
#: The maximum length of one header line.
MAX_FIELD_BYTES = 8190
MAX_HEADERS = 128
#: The buffer of a chunked body: reading pauses when twice this many unread bytes are in it.
_CHUNKED_BYTES = 4 * 1024


class ParserOwner(Protocol):
    """What a chunked body (aiohttp's StreamReader) uses of the connection that receives it."""

    @property
    def connected(self) -> bool:
        """Whether the client is connected."""

    def pause_reading(self) -> None:
        """Called when the buffer of the body is full."""

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Called when the buffer has room again, or when the body is complete."""


class ParserMissing(Exception):
    """aiohttp's C parser is not installed. Its Python parser had most of the smuggling bugs."""

    def __str__(self) -> str:
        return (
            "aiohttp's HTTP parser in C is not installed, and its parser in Python is not safe "
            "behind a proxy; install aiohttp's wheel (or a C compiler, then aiohttp again), and "
            "unset AIOHTTP_NO_EXTENSIONS"
        )


class RequestPayloadError(Exception):
    """The body of a request is malformed, or ended early. The parser raises it to the reader of the
    body. (Importing aiohttp's own class would import its whole web server.)"""


def check_parser(parser: object = HttpRequestParser) -> None:
    """Raise ParserMissing if requests would be parsed by aiohttp's Python parser."""
    if parser is HttpRequestParserPy:
        raise ParserMissing


#: Makes a parser for the next bytes of a connection, from a `ParserOwner` and the event loop. The
#: parser pauses after each request, because an error in later bytes would drop the request.
new_parser: Callable[[ParserOwner, AbstractEventLoop], HttpRequestParser] = partial(
    HttpRequestParser,
    limit=_CHUNKED_BYTES,
    max_line_size=MAX_LINE_BYTES,
    max_field_size=MAX_FIELD_BYTES,
    max_headers=MAX_HEADERS,
    payload_exception=RequestPayloadError,
    auto_decompress=False,
    max_msg_queue_size=1,
)
