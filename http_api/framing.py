"""What a proxy in front of the broker might read otherwise than the broker does.

aiohttp's parser, which is written in C, refuses most of it: two lengths, a length beside chunks,
folded and bare line ends, chunk extensions that hide a line end. Refused here is the rest, that
the parser lets pass. In doubt the connection ends with the answer: what follows on it could be
taken for another's request.
"""

from typing import Protocol

from aiohttp import hdrs
from aiohttp.http import HttpVersion11
from aiohttp.http_parser import HttpRequestParser, HttpRequestParserPy
from multidict import MultiMapping
from yarl import URL

from holdfast.http_api.problems import Problem


class _Head(Protocol):
    """What is looked at of a request."""

    @property
    def method(self) -> str: ...
    @property
    def version(self) -> tuple[int, int]: ...
    @property
    def url(self) -> URL: ...
    @property
    def headers(self) -> MultiMapping[str]: ...


class ParserMissing(Exception):
    """aiohttp came without its parser in C; most request smuggling was found in the other one."""

    def __str__(self) -> str:
        return (
            "aiohttp has no HTTP parser written in C here, and the one in Python is not safe "
            "behind a proxy; install aiohttp's wheel (or a C compiler, then aiohttp again), and "
            "unset AIOHTTP_NO_EXTENSIONS"
        )


def check_parser(parser: object = HttpRequestParser) -> None:
    """Pass when requests are parsed by the parser written in C. Raises ParserMissing."""
    if parser is HttpRequestParserPy:
        raise ParserMissing


def check_framing(request: _Head) -> None:
    """Pass a request whose end no server could see elsewhere. Raises Problem."""
    coding = request.headers.get(hdrs.TRANSFER_ENCODING)
    if coding is not None:
        if coding.strip().lower() != "chunked":
            raise _malformed(
                f"the transfer encoding {coding[:40]!r} is not understood; send the body in "
                "chunks or with its length, and compress it by Content-Encoding: gzip"
            )
        if request.version < HttpVersion11:
            raise _malformed("HTTP/1.0 knows no chunks; send the body with its length")
    if request.url.raw_fragment:
        raise _malformed("a request names no fragment; leave out what begins with #")


def ends_connection(request: _Head) -> bool:
    """Return whether nothing that follows on the connection is to be taken for a request: the
    client means to go on in another protocol."""
    return request.method == hdrs.METH_CONNECT or hdrs.UPGRADE in request.headers


def _malformed(detail: str) -> Problem:
    return Problem("malformed-request", detail)
