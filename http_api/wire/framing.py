"""Refuses requests that a proxy in front of the broker might interpret differently.

aiohttp's C parser refuses most of them: two lengths, a length together with chunks, folded headers,
single CR or LF, chunk extensions that hide a line end. This file refuses the rest. After such a
refusal the connection ends, because the next bytes could be taken for the request of another
client.
"""

from typing import Protocol

from aiohttp import HttpVersion10, HttpVersion11, hdrs
from multidict import MultiMapping
from yarl import URL

from holdfast.http_api.wire.headers import ORIGIN, SEC_FETCH_SITE
from holdfast.http_api.wire.problems import Problem

#: Headers that may occur only once. They show whether a page of another site sent the request. The
#: parser refuses a second Host, Content-Length or Transfer-Encoding; `access` refuses a second
#: Authorization.
_LONE = (ORIGIN, SEC_FETCH_SITE)


class _Head(Protocol):
    """The parts of a request that this file reads."""

    @property
    def method(self) -> str: ...
    @property
    def version(self) -> tuple[int, int]: ...
    @property
    def url(self) -> URL: ...
    @property
    def headers(self) -> MultiMapping[str]: ...


def check_framing(request: _Head) -> None:
    """Raise Problem if another server might find a different end of this request."""
    coding = request.headers.get(hdrs.TRANSFER_ENCODING)
    if coding is not None:
        if coding.strip().lower() != "chunked":
            raise _malformed(
                f"the transfer encoding {coding[:40]!r} is not understood; send the body in "
                "chunks or with its length, and compress it by Content-Encoding: gzip"
            )
        if request.version < HttpVersion11:
            raise _malformed("HTTP/1.0 knows no chunks; send the body with its length")
    if request.version < HttpVersion10:
        raise _malformed("HTTP/0.9 is not understood; send a version and headers")
    if request.version > HttpVersion11:
        raise _malformed("only HTTP/1.1 and HTTP/1.0 are understood; send one of them")
    if request.url.scheme:
        _check_absolute(request)
    for name in _LONE:
        if name in request.headers and len(request.headers.getall(name)) > 1:
            raise _malformed(f"{name} is given more than once; a browser gives it once")
    if request.url.raw_fragment:
        raise _malformed("a request names no fragment; leave out what begins with #")


def _check_absolute(request: _Head) -> None:
    """Raise Problem if a target with scheme and host does not match the Host header."""
    scheme = request.url.scheme.lower()
    port = {"http": ":80", "https": ":443"}.get(scheme)
    if port is None:
        raise _malformed("the target's scheme is not http or https; send the path alone")
    host = request.headers.get(hdrs.HOST)
    named = request.url.raw_authority.lower().removesuffix(port)
    if host is not None and host.strip().lower().removesuffix(port) != named:
        raise _malformed("the target names another host than the header Host; send the path alone")


def ends_connection(request: _Head) -> bool:
    """Return whether the client intends to switch to another protocol after this request.

    The bytes after such a request must not be parsed as HTTP.
    """
    return request.method == hdrs.METH_CONNECT or hdrs.UPGRADE in request.headers


def _malformed(detail: str) -> Problem:
    return Problem("malformed-request", detail)
