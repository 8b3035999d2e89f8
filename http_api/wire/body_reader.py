"""Reads a request's whole body within limits of size and time, and decompresses it.

A body whose declared size is too large is refused before any of it is read. A body without a
declared size is refused as soon as it becomes too large, also during decompression. The limits of
`arriving_bytes` count every body from its first byte until its request is answered. For a
compressed body they also count its declared decompressed size. Therefore neither slow senders nor
many small decompression bombs can fill the memory.
"""

import asyncio
import zlib
from typing import NamedTuple

from aiohttp import hdrs, web

from holdfast.consumequeue.thread_calls import call_in_thread
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.wire.aiohttp_parser import HttpProcessingError
from holdfast.http_api.wire.arriving_bytes import LIMIT, SHARE, ArrivingBytes, GiveWay
from holdfast.http_api.wire.headers import list_header
from holdfast.http_api.wire.problems import Problem, request_too_large
from holdfast.http_api.wire.request import Request
from holdfast.http_api.wire.transfer_watch import TransferWatch


class BodyLimit(NamedTuple):
    """The maximum size of a body, and the name of the setting that limits it."""

    name: str
    size: int


class BodyReader:
    """Reads the bodies of one server's requests. Belongs to one event loop."""

    def __init__(self, config: HttpConfig, arriving: ArrivingBytes) -> None:
        self._config = config
        self._limit = BodyLimit("max_request_bytes", config.max_request_bytes)
        self._arriving = arriving

    async def read(self, request: Request, limit: BodyLimit | None = None) -> bytes | memoryview:
        """Return the decompressed body. If the request has no body, return empty bytes.

        The body counts as arriving memory until the caller calls `done`. `limit` lowers the maximum
        size for this request.

        Raises Problem: unsupported-encoding, request-too-large, request-timeout, overloaded,
        malformed-encoding, malformed-request.
        """
        if limit is None or limit.size > self._limit.size:
            limit = self._limit
        is_gzip = _is_gzip(request)
        length = request.content_length
        if length is not None and length > limit.size:
            raise _too_large(limit)
        content = request.content
        try:
            if content.is_eof():
                body = content.read_nowait()
            else:
                body = await self._arrive(request, limit.size)
        except (web.RequestPayloadError, HttpProcessingError) as error:
            raise Problem(
                "malformed-request", f"the body's framing is broken ({error}); send it again"
            ) from error
        if len(body) > limit.size:
            raise _too_large(limit)
        if is_gzip:
            size = min(_claimed_size(body), limit.size)
            self._take(request, len(body) + size)
            # Decompression is rare, and slow enough to need a thread.
            body = await call_in_thread(_gunzip, body, size, limit)
        self._take(request, len(body))
        return body

    def done(self, request: Request) -> None:
        """Stop counting a request's body, because the request is answered.

        Safe to call without a body.
        """
        self._arriving.release(request)

    async def _arrive(self, request: Request, limit: int) -> bytes | memoryview:
        """Wait for the body and return it. If it exceeds `limit`, return what has arrived by then.

        The caller then refuses the body because of its size.
        """
        content, length = request.content, request.content_length
        size = limit if length is None else length
        self._take(request, size, lambda: content.set_exception(overloaded(LIMIT, self._config)))
        expects = request.headers.get(hdrs.EXPECT, "").lower() == "100-continue"
        request.source.expect_body(sends_continue=expects)
        # A StreamReader pauses its connection at twice this size, so it does not pause while this
        # method waits for the body.
        content.set_read_chunk_size(size)
        watch = TransferWatch(
            asyncio.get_running_loop(),
            self._config,
            self._config.body_timeout_ms,
            lambda: content.total_bytes,
            lambda is_late: content.set_exception(
                _incomplete(self._config) if is_late else _too_slow(self._config)
            ),
        )
        try:
            if length is not None:
                begun = content.read_nowait()  # resumes reading if it has paused
                await content.wait_eof()
                rest = content.read_nowait()
                return b"".join((begun, rest)) if begun else rest
            chunks, size = [], 0
            while size <= limit and (chunk := await content.readany()):
                chunks.append(chunk)
                size += len(chunk)
            return b"".join(chunks)
        finally:
            watch.stop()
            self._arriving.settle(request)

    def _take(self, request: Request, size: int, give_way: GiveWay | None = None) -> None:
        """Set the counted bytes of a request. Raises Problem (overloaded) if a limit refuses."""
        refused = self._arriving.take(request, request.peer.client, size, give_way)
        if refused is not None:
            raise overloaded(refused, self._config)


def overloaded(limit_name: str, config: HttpConfig) -> Problem:
    """Return the problem of a request that reaches a limit of `arriving_bytes`."""
    limit = getattr(config, limit_name)
    whose = "of this client " if limit_name == SHARE else ""
    return Problem(
        "overloaded",
        f"requests {whose}of more than {limit_name} ({limit}) are arriving or at work; wait a "
        "moment and send the request again",
        limit=limit,
        limit_name=limit_name,
    )


def _too_large(limit: BodyLimit) -> Problem:
    return request_too_large(
        limit.name, limit.size, "the body is larger than {limit}; send less in a request"
    )


def _gunzip(body: bytes | memoryview, size: int, limit: BodyLimit) -> bytes:
    """Return one gzip member, decompressed. Raises Problem if the body is not exactly one member.

    `size` is the declared decompressed size or the limit, whichever is smaller. At most `size` + 1
    bytes are produced.
    """
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        plain = inflater.decompress(body, size + 1)
    except zlib.error as error:
        raise _not_gzip(str(error)) from error
    if len(plain) > limit.size:
        raise _too_large(limit)
    if inflater.eof and inflater.unused_data:
        raise _not_gzip("something follows after its end")
    if len(plain) > size:
        raise _not_gzip("it is longer than it says at its end")
    if not inflater.eof:
        raise _not_gzip("it ends too early")
    return plain


def _incomplete(config: HttpConfig) -> Problem:
    return Problem(
        "request-timeout",
        f"the body was not complete after body_timeout_ms ({config.body_timeout_ms}); send less "
        "at a time, or over a faster connection",
        limit=config.body_timeout_ms,
        limit_name="body_timeout_ms",
    )


def _too_slow(config: HttpConfig) -> Problem:
    least = config.min_transfer_bytes_per_s
    return Problem(
        "request-timeout",
        f"the body came slower than min_transfer_bytes_per_s ({least}); send it over a faster "
        "connection",
        limit=least,
        limit_name="min_transfer_bytes_per_s",
    )


def _claimed_size(body: bytes | memoryview) -> int:
    """Return the decompressed size that a gzip stream declares in its last bytes."""
    return int.from_bytes(body[-4:], "little")


def _is_gzip(request: Request) -> bool:
    if hdrs.CONTENT_ENCODING not in request.headers:
        return False
    encoding = list_header(request.headers, hdrs.CONTENT_ENCODING).strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        raise Problem(
            "unsupported-encoding",
            f"the content encoding {encoding[:100]!r} is not understood; send the body as it "
            "is, or with gzip",
            found=encoding[:100],
            allowed=["gzip", "identity"],
        )
    return encoding in ("gzip", "x-gzip")


def _not_gzip(reason: str) -> Problem:
    return Problem(
        "malformed-encoding", f"the body is not one gzip stream: {reason}; compress it again"
    )
