"""Reading a request's body: whole, within its size and its time, and decompressed.

A body that says it is too large is refused before any of it is read, one that turns out to be
too large as soon as it is; what it decompresses to counts as well. All the bodies that are
still arriving share a limit, so that slow senders cannot fill the memory.
"""

import asyncio
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.problems import Problem


class BodyReader:
    """Reads the bodies of one server's requests. Belongs to one event loop."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._limit = config.max_request_bytes
        self._arriving_bytes = 0

    async def read(self, request: web.BaseRequest) -> bytes:
        """Return the body, decompressed; empty when there is none.

        Raises Problem: unsupported-encoding, request-too-large, request-timeout, overloaded,
        malformed-encoding, malformed-request.
        """
        is_gzip = _is_gzip(request)
        if (request.content_length or 0) > self._limit:
            raise self._too_large()
        content = request.content
        try:
            if not content.is_eof():
                body = await self._arrive(request)
            else:
                body = content.read_nowait()
        except TimeoutError:
            timeout_ms = self._config.body_timeout_ms
            raise Problem(
                "request-timeout",
                f"the body was not complete after body_timeout_ms ({timeout_ms}); send less at "
                "a time, or over a faster connection",
                limit=timeout_ms,
            ) from None
        except (web.RequestPayloadError, HttpProcessingError) as error:
            raise Problem(
                "malformed-request", f"the body's framing is broken ({error}); send it again"
            ) from error
        if len(body) > self._limit:
            raise self._too_large()
        if is_gzip:
            # Rare, and slow enough to be kept off the loop.
            body = await asyncio.to_thread(self._gunzip, body)
        return body

    async def _arrive(self, request: web.BaseRequest) -> bytes:
        """Return the body once it is whole, or a little more of it than is allowed."""
        content, length = request.content, request.content_length
        # A reader stops its connection when it holds twice this much: not while this waits.
        content.set_read_chunk_size(self._limit if length is None else length)
        with self._room_for(self._limit if length is None else length):
            _invite(request)
            async with asyncio.timeout(self._config.body_timeout_ms / 1000):
                if length is not None:
                    begun = content.read_nowait()  # goes on reading, if that has stopped already
                    await content.wait_eof()
                    return begun + content.read_nowait()
                chunks, size = [], 0
                while size <= self._limit and (chunk := await content.readany()):
                    chunks.append(chunk)
                    size += len(chunk)
                return b"".join(chunks)

    @contextmanager
    def _room_for(self, size: int) -> Iterator[None]:
        limit = self._config.max_arriving_bytes
        if self._arriving_bytes and self._arriving_bytes + size > limit:
            raise Problem(
                "overloaded",
                f"bodies of more than max_arriving_bytes ({limit}) are arriving; wait a moment "
                "and send the request again",
                limit=limit,
                limit_name="max_arriving_bytes",
            )
        self._arriving_bytes += size
        try:
            yield
        finally:
            self._arriving_bytes -= size

    def _too_large(self) -> Problem:
        return Problem(
            "request-too-large",
            f"the body is larger than max_request_bytes ({self._limit}); send fewer messages in "
            "a request",
            limit=self._limit,
            limit_name="max_request_bytes",
        )

    def _gunzip(self, body: bytes) -> bytes:
        """Return one gzip member decompressed; never makes more than one byte too many."""
        inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            plain = inflater.decompress(body, self._limit + 1)
        except zlib.error as error:
            raise _not_gzip(str(error)) from error
        if len(plain) > self._limit:
            raise self._too_large()
        if not inflater.eof:
            raise _not_gzip("it ends too early")
        if inflater.unused_data:
            raise _not_gzip("something follows after its end")
        return plain


def _invite(request: web.BaseRequest) -> None:
    """Tell a client that asks before it sends its body to go on."""
    expects = request.headers.get(hdrs.EXPECT, "").lower() == "100-continue"
    if expects and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _is_gzip(request: web.BaseRequest) -> bool:
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()
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
