"""Reads a request's whole body within limits of size and time, and decompresses it.

A body whose declared size is too large is refused before any of it is read. A body without a
declared size is refused as soon as it becomes too large, also during decompression. `ArrivingBytes`
counts every body from its first byte until its request is answered. For a compressed body it also
counts the declared decompressed size. So neither slow senders nor many small decompression bombs
can fill the memory.
"""

import asyncio
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple

from holdfast.consumequeue.thread_calls import call_in_thread
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.wire.aiohttp_parser import (
    HttpProcessingError,
    RequestPayloadError,
    hdrs,
)
from holdfast.http_api.wire.problems import Problem, request_too_large
from holdfast.http_api.wire.request import Request, list_header
from holdfast.http_api.wire.transfer_watch import TransferWatch

#: The settings that limit the memory of requests: of all clients together, and of one client.
LIMIT, SHARE = "max_arriving_bytes", "max_client_arriving_bytes"

GiveWay = Callable[[], None]
"""Ends a request to free its memory. `ArrivingBytes` has already released its bytes then."""


class BodyLimit(NamedTuple):
    """The maximum size of a body, and the name of the setting that limits it."""

    name: str
    size: int


class BodyReader:
    """Reads the bodies of one server's requests. Belongs to one event loop."""

    def __init__(self, config: HttpConfig, arriving: "ArrivingBytes") -> None:
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
        limit = self._smaller(limit)
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
        except (RequestPayloadError, HttpProcessingError) as error:
            raise _broken(error) from error
        if len(body) > limit.size:
            raise _too_large(limit)
        if is_gzip:
            size = min(_claimed_size(body), limit.size)
            self._take(request, len(body) + size)
            # Decompression is rare, and slow enough to need a thread.
            body = await call_in_thread(_gunzip, body, size, limit)
        self._take(request, len(body))
        return body

    def read_arrived(self, request: Request, limit: BodyLimit | None = None) -> bytes | memoryview:
        """Return the body as `read` does, without waiting. The whole body must have arrived, and
        the request must not have the header Content-Encoding."""
        limit = self._smaller(limit)
        try:
            body = request.content.read_nowait()
        except (RequestPayloadError, HttpProcessingError) as error:
            raise _broken(error) from error
        if len(body) > limit.size:
            raise _too_large(limit)
        self._take(request, len(body))
        return body

    def _smaller(self, limit: BodyLimit | None) -> BodyLimit:
        """Return the smaller one of this limit and the limit of all requests."""
        return self._limit if limit is None or limit.size > self._limit.size else limit

    def done(self, request: Request) -> None:
        """Stop counting a request's body, because the request is answered.

        Safe to call without a body.
        """
        self._arriving.release(request)

    async def _arrive(self, request: Request, limit: int) -> bytes | memoryview:
        """Wait for the body and return it. If it exceeds `limit`, return the received bytes.

        In this case the caller refuses the body because of its size.
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
                _too_late(self._config) if is_late else _too_slow(self._config)
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
            self._arriving.mark_arrived(request)

    def _take(self, request: Request, size: int, give_way: GiveWay | None = None) -> None:
        """Set the counted bytes of a request. Raises Problem (overloaded) if a limit refuses."""
        refused = self._arriving.take(request, request.peer.client, size, give_way)
        if refused is not None:
            raise overloaded(refused, self._config)


class ArrivingBytes:
    """The memory of requests that clients have sent. Pure.

    `limit_bytes` limits it in total, `share_bytes` per client. Both cover unfinished and waiting
    heads (request line and headers), arriving bodies, and bodies that are being processed. A holder
    is a request or a connection; it has at most one entry.

    When the total limit is reached, the client with the most arriving bytes loses its oldest
    arriving request, if a client with fewer bytes needs the memory. The limit per client applies
    even if memory is free. If there is only one holder, it may exceed the total limit, and the only
    holder of a client may exceed the client's limit: waiting would not help, because there is no
    other memory that could be freed.
    """

    def __init__(self, limit_bytes: int, share_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._share_bytes = share_bytes
        self._held: dict[Hashable, tuple[str, int]] = {}
        self._arriving_bytes_of: dict[str, int] = {}
        self.arriving: dict[str, OrderedDict[Hashable, GiveWay]] = {}
        """The holders that can give way, by client. The oldest is first."""
        self.bytes_of: dict[str, int] = {}
        """The bytes of each client that has a holder."""
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def take(
        self, holder: Hashable, client: str, size: int, give_way: GiveWay | None = None
    ) -> str | None:
        """Set the bytes of a holder to `size`, in place of its former bytes.

        Return None on success. If a limit refuses the new size, return the name of the limit; the
        holder then keeps its former bytes. With `give_way`, the holder is arriving, and `give_way`
        is called if another client needs the memory. Without `give_way`, the holder is being
        processed and keeps its memory until it is released.
        """
        own = self._held[holder][1] if holder in self._held else 0
        of_client = self.bytes_of.get(client, 0)
        if of_client > own and of_client - own + size > self._share_bytes:
            return SHARE
        while self.total_bytes > own and self.total_bytes - own + size > self._limit_bytes:
            greediest = self._greediest(client, size)
            if greediest is None:
                return LIMIT
            oldest, its_give_way = next(iter(self.arriving[greediest].items()))
            self.release(oldest)
            its_give_way()
        self.release(holder)
        self._held[holder] = client, size
        self.bytes_of[client] = self.bytes_of.get(client, 0) + size
        self.total_bytes += size
        if give_way is not None:
            self.arriving.setdefault(client, OrderedDict())[holder] = give_way
            self._arriving_bytes_of[client] = self._arriving_bytes_of.get(client, 0) + size
        return None

    def mark_arrived(self, holder: Hashable) -> None:
        """Let a holder keep its memory until it is released, because its request has arrived."""
        if holder in self._held:
            self._end_arriving(holder, *self._held[holder])

    def release(self, holder: Hashable) -> None:
        """Remove the bytes of a holder, if it has any."""
        if holder not in self._held:
            return
        client, size = self._held.pop(holder)
        if client in self.arriving:
            self._end_arriving(holder, client, size)
        self.total_bytes -= size
        left = self.bytes_of.get(client, 0) - size
        if left:
            self.bytes_of[client] = left
        else:
            self.bytes_of.pop(client, None)

    def _end_arriving(self, holder: Hashable, client: str, size: int) -> None:
        holders = self.arriving.get(client)
        if holders is None or holders.pop(holder, None) is None:
            return
        self._arriving_bytes_of[client] -= size
        if not holders:
            del self.arriving[client], self._arriving_bytes_of[client]

    def _greediest(self, client: str, size: int) -> str | None:
        """Return the client with the most arriving bytes, which has to give way to `client`.

        Return None if `client` itself has the most arriving bytes, or would have at least as many
        with `size` more bytes.
        """
        arriving = self._arriving_bytes_of
        greediest = max(arriving, key=arriving.__getitem__, default=client)
        if greediest == client or arriving[greediest] <= arriving.get(client, 0) + size:
            return None
        return greediest


def overloaded(limit_name: str, config: HttpConfig) -> Problem:
    """Return the problem of a request that a limit of `ArrivingBytes` refuses."""
    limit = getattr(config, limit_name)
    whose = "of this client " if limit_name == SHARE else ""
    return Problem(
        "overloaded",
        f"requests {whose}of more than {limit_name} ({limit}) are arriving or being processed; "
        "wait a moment and send the request again",
        limit=limit,
        limit_name=limit_name,
    )


def _broken(error: Exception) -> Problem:
    return Problem("malformed-request", f"the body's framing is broken ({error}); send it again")


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
        raise _not_gzip("more bytes follow its end")
    if len(plain) > size:
        raise _not_gzip("it is longer than the size that it declares at its end")
    if not inflater.eof:
        raise _not_gzip("it ends too early")
    return plain


def _too_late(config: HttpConfig) -> Problem:
    return _timed_out(
        "the body was not complete after {}; send a smaller body, or use a faster connection",
        "body_timeout_ms",
        config.body_timeout_ms,
    )


def _too_slow(config: HttpConfig) -> Problem:
    return _timed_out(
        "the body arrived slower than {}; send it over a faster connection",
        "min_transfer_bytes_per_s",
        config.min_transfer_bytes_per_s,
    )


def _timed_out(detail: str, name: str, limit: int) -> Problem:
    shown = detail.format(f"{name} ({limit})")
    return Problem("request-timeout", shown, limit=limit, limit_name=name)


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
            f"the content encoding {encoding[:100]!r} is not supported; send the body "
            "uncompressed, or with gzip",
            found=encoding[:100],
            allowed=["gzip", "identity"],
        )
    return encoding in ("gzip", "x-gzip")


def _not_gzip(reason: str) -> Problem:
    return Problem(
        "malformed-encoding", f"the body is not one gzip stream: {reason}; compress it again"
    )
