"""A request as routing and endpoints see it: the parsed head, and a body that may be incomplete.

This file also reads headers, and `check_framing` refuses requests that a proxy in front of the
broker might interpret differently. aiohttp's C parser refuses most of them: two lengths, a length
together with chunks, folded headers, single CR or LF, chunk extensions that hide a line end.
"""

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any, Protocol

import msgspec
from multidict import CIMultiDictProxy, MultiMapping, istr
from yarl import URL

from holdfast.http_api.wire.aiohttp_parser import (
    MAX_FIELD_BYTES,
    HttpVersion,
    HttpVersion10,
    HttpVersion11,
    RawRequestMessage,
    hdrs,
)
from holdfast.http_api.wire.head_cache import KnownHead
from holdfast.http_api.wire.problems import Problem

#: The client of a connection whose address is unknown, because it is already closed.
UNKNOWN = ""

# These are istr objects, so that a case-insensitive look-up need not convert them each time.
ORIGIN = istr("Origin")
SEC_FETCH_SITE = istr("Sec-Fetch-Site")
#: Headers that may occur only once: they show whether a page of another site sent the request. The
#: parser refuses a second Host, Content-Length or Transfer-Encoding; `access` refuses a second
#: Authorization.
_SINGLE_HEADERS = (ORIGIN, SEC_FETCH_SITE)


class Peer(msgspec.Struct, frozen=True):
    """The client at the other end of a connection."""

    client: str = UNKNOWN
    """The name of the client (`client_of`), for limits that are counted per client."""
    remote: str = ""
    """The client's address, as the operating system writes it; "" if it is unknown."""
    certificate: Mapping[str, Any] | None = None
    """The client's verified TLS certificate, as `ssl.SSLSocket.getpeercert` returns it."""
    principal: Any = None
    """The caller (a Principal), if another protocol has authenticated it and brings the request."""


@lru_cache(maxsize=4096)
def client_of(host: str) -> str:
    """Return the name of the client that uses an address, such as "192.0.2.1" or "2001:db8::/64".

    Each IPv4 address is one client. An IPv6 host usually owns a whole /64 network, so the /64
    network is one client: otherwise the host could use a new address for every connection. `host`
    is an address as the operating system writes it. Any other text is returned unchanged.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return str(address)
    return str(IPv6Network((address, 64), strict=False))


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


class RequestSource(Protocol):
    """What a request needs of the reader that has received it."""

    received_at: float
    """When bytes last arrived, in seconds on the event loop's clock."""

    def expect_body(self, *, sends_continue: bool) -> None:
        """Note that a `BodyReader` now waits for the body and counts its bytes.

        With `sends_continue`, send "100 Continue" to the client.
        """

    def count_more(self, size: int) -> str | None:
        """Count `size` more bytes for the current request until it is answered.

        Return None, or the name of the limit that refuses the bytes.
        """


class Request:
    """One request. Header names are case-insensitive.

    `known` is the head if it is stored in the cache of heads, or may be stored there. `offset` is
    then the value of the parameter `offset`, and `target` the target of this request, if it has
    another offset than the stored head. `headers` are the headers of this request, if they differ
    from those of the stored head.
    """

    __slots__ = ("_target", "_url", "content", "headers", "is_kept_alive", "known", "method",
                 "offset", "peer", "source", "version")  # fmt: skip

    def __init__(
        self,
        message: RawRequestMessage,
        content: Content,
        peer: Peer,
        source: RequestSource,
        known: KnownHead | None = None,
        offset: int | None = None,
        target: str | None = None,
        headers: CIMultiDictProxy[str] | None = None,
    ) -> None:
        self.method: str = message.method
        self._url: URL | None = message.url if target is None else None
        self._target = target
        self.known = known
        self.offset = offset
        self.version: HttpVersion = message.version
        self.headers: CIMultiDictProxy[str] = message.headers if headers is None else headers
        self.is_kept_alive = known is not None or not is_last(message)
        """Whether further requests may follow on the connection."""
        self.content = content
        self.peer = peer
        self.source = source

    @property
    def url(self) -> URL:
        """The target as the client sent it, percent-encoded."""
        if self._url is None:
            self._url = URL(self._target or "", encoded=True)
        return self._url

    @property
    def content_length(self) -> int | None:
        """The length of the body in bytes; None if the request does not declare a length."""
        length = self.headers.get(hdrs.CONTENT_LENGTH)
        return None if length is None else int(length)


def is_last(message: RawRequestMessage) -> bool:
    """Return whether bytes after this request must not be parsed as a request.

    The client intends to close the connection, or to switch to another protocol.
    """
    return (
        message.should_close
        or message.method == hdrs.METH_CONNECT
        or hdrs.UPGRADE in message.headers
    )


# -- headers ---------------------------------------------------------------------------------


def list_header(headers: MultiMapping[str], name: str) -> str:
    """Return all lines of a list header, joined with commas (RFC 9110 section 5.3).

    If the header is missing, return "". Raises Problem (header-too-large) if the lines together are
    longer than one line may be: several lines must not cause more work than one line can.
    """
    given = ", ".join(headers.getall(name, ()))
    if len(given) > MAX_FIELD_BYTES:
        raise Problem(
            "header-too-large",
            f"the lines of {name} are together longer than {MAX_FIELD_BYTES} bytes; send less",
        )
    return given


def single_header(headers: MultiMapping[str], name: str) -> str | None:
    """Return a header that may occur only once, or None if it is missing.

    Raises Problem (invalid-parameter) if it occurs twice: the intended value is then unknown.
    """
    given = headers.getall(name, ())
    if len(given) > 1:
        raise Problem(
            "invalid-parameter",
            f"{name} is given more than once; allowed: one value",
            parameter=name,
            found=", ".join(given)[:200],
            allowed="one value",
        )
    return given[0] if given else None


def check_framing(request: Request) -> None:
    """Raise Problem (malformed-request) if another server might find another end of this request.

    The connection then ends, because the next bytes could be taken for the request of another
    client.
    """
    headers, url = request.headers, request.url
    coding = headers.get(hdrs.TRANSFER_ENCODING)
    if coding is not None:
        if coding.strip().lower() != "chunked":
            raise _malformed(
                f"the transfer encoding {coding[:40]!r} is not supported; send the body in chunks "
                "or with its length, and compress it by Content-Encoding: gzip"
            )
        if request.version < HttpVersion11:
            raise _malformed("HTTP/1.0 has no chunks; send the body with its length")
    if request.version < HttpVersion10:
        raise _malformed("HTTP/0.9 is not supported; send a version and headers")
    if request.version > HttpVersion11:
        raise _malformed("only HTTP/1.1 and HTTP/1.0 are supported; send one of them")
    if url.scheme:
        _check_absolute(request)
    for name in _SINGLE_HEADERS:
        if name in headers and len(headers.getall(name)) > 1:
            raise _malformed(f"{name} is given more than once; a browser sends it once")
    if url.raw_fragment:
        raise _malformed("the target of a request has no fragment; remove # and the text after it")


def _check_absolute(request: Request) -> None:
    """Raise Problem if a target with scheme and host does not match the Host header."""
    port = {"http": ":80", "https": ":443"}.get(request.url.scheme.lower())
    if port is None:
        raise _malformed("the target's scheme is not http or https; send only the path")
    host = request.headers.get(hdrs.HOST)
    target_host = request.url.raw_authority.lower().removesuffix(port)
    if host is not None and host.strip().lower().removesuffix(port) != target_host:
        raise _malformed("the target's host differs from the header Host; send only the path")


def _malformed(detail: str) -> Problem:
    return Problem("malformed-request", detail)
