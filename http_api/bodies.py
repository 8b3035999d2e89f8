"""Reading a request's body: whole, within its size and its time, and decompressed.

A body that says it is too large is refused before any of it is read, one that turns out to be
too large as soon as it is; what it decompresses to counts as well. All bodies share a limit from
when they begin to arrive until they are answered, decompressed ones by what they say they are, so
that neither slow senders nor many small bombs can fill the memory. When it is full, the client
whose bodies that still arrive take the most gives way to one that asks for less.
"""

import asyncio
import zlib

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.headers import listed
from holdfast.http_api.pace import Pace
from holdfast.http_api.problems import Problem
from holdfast.http_api.request import Request


class BodyReader:
    """Reads the bodies of one server's requests. Belongs to one event loop."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._limit = config.max_request_bytes
        self._arriving_bytes = 0
        self._sizes: dict[int, int] = {}
        """By the request's identity: what it has of the bytes that all share."""
        self._arrivals: dict[int, _Arrival] = {}
        """By the request's identity, the oldest first: those whose body has not come whole."""

    async def read(self, request: Request) -> bytes | memoryview:
        """Return the body, decompressed; empty when there is none. It counts until `done`.

        Raises Problem: unsupported-encoding, request-too-large, request-timeout, overloaded,
        malformed-encoding, malformed-request.
        """
        is_gzip = _is_gzip(request)
        length = request.content_length
        if length is not None and length > self._limit:
            raise self._too_large()
        content = request.content
        try:
            if content.is_eof():
                body = content.read_nowait()
            else:
                body = await self._arrive(request)
        except (web.RequestPayloadError, HttpProcessingError) as error:
            raise Problem(
                "malformed-request", f"the body's framing is broken ({error}); send it again"
            ) from error
        if len(body) > self._limit:
            raise self._too_large()
        if is_gzip:
            size = min(_claimed_size(body), self._limit)
            self._take(request, len(body) + size)
            # Rare, and slow enough to be kept off the loop.
            body = await asyncio.to_thread(self._gunzip, body, size)
        self._take(request, len(body))
        return body

    def done(self, request: Request) -> None:
        """Let go of a request's body: it is answered. Nothing happens if it had none."""
        self._arriving_bytes -= self._sizes.pop(id(request), 0)

    async def _arrive(self, request: Request) -> bytes | memoryview:
        """Return the body once it is whole, or a little more of it than is allowed."""
        content, length = request.content, request.content_length
        self._take(request, self._limit if length is None else length)
        # A reader stops its connection when it holds twice this much: not while this waits.
        content.set_read_chunk_size(self._limit if length is None else length)
        _invite(request)
        arrival = self._arrivals[id(request)] = _Arrival(request, self._config)
        try:
            if length is not None:
                begun = content.read_nowait()  # goes on reading, if that has stopped already
                await content.wait_eof()
                rest = content.read_nowait()
                return b"".join((begun, rest)) if begun else rest
            chunks, size = [], 0
            while size <= self._limit and (chunk := await content.readany()):
                chunks.append(chunk)
                size += len(chunk)
            return b"".join(chunks)
        finally:
            arrival.end()
            del self._arrivals[id(request)]

    def _take(self, request: Request, size: int) -> None:
        """Count so many bytes for a request, in place of what it had. Raises Problem."""
        limit = self._config.max_arriving_bytes
        own = self._sizes.get(id(request), 0)
        while self._arriving_bytes > own and self._arriving_bytes - own + size > limit:
            slowest = self._one_to_give_way(request.connection.client, size)
            if slowest is None:
                raise self._overloaded()
            slowest.give_way(self._overloaded())
            self.done(slowest.request)
        self._sizes[id(request)] = size
        self._arriving_bytes += size - own

    def _one_to_give_way(self, client: str, size: int) -> "_Arrival | None":
        """Return the oldest body of the client whose arriving bodies take the most; None when
        nobody's take more than this client's would with `size` bytes more."""
        taken: dict[str, int] = {}
        for key, arrival in self._arrivals.items():
            taken[arrival.client] = taken.get(arrival.client, 0) + self._sizes.get(key, 0)
        greediest = max(taken, key=taken.__getitem__, default=client)
        if greediest == client or taken[greediest] <= taken.get(client, 0) + size:
            return None
        return next(
            arrival
            for key, arrival in self._arrivals.items()
            if arrival.client == greediest and self._sizes.get(key, 0)
        )

    def _overloaded(self) -> Problem:
        limit = self._config.max_arriving_bytes
        return Problem(
            "overloaded",
            f"bodies of more than max_arriving_bytes ({limit}) are arriving or at work; wait "
            "a moment and send the request again",
            limit=limit,
            limit_name="max_arriving_bytes",
        )

    def _too_large(self) -> Problem:
        return Problem(
            "request-too-large",
            f"the body is larger than max_request_bytes ({self._limit}); send fewer messages in "
            "a request",
            limit=self._limit,
            limit_name="max_request_bytes",
        )

    def _gunzip(self, body: bytes | memoryview, size: int) -> bytes:
        """Return one gzip member decompressed; never makes more than one byte more than it says
        to be, or than is allowed, which `size` is the less of."""
        inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            plain = inflater.decompress(body, size + 1)
        except zlib.error as error:
            raise _not_gzip(str(error)) from error
        if len(plain) > self._limit:
            raise self._too_large()
        if inflater.eof and inflater.unused_data:
            raise _not_gzip("something follows after its end")
        if len(plain) > size:
            raise _not_gzip("it is longer than it says at its end")
        if not inflater.eof:
            raise _not_gzip("it ends too early")
        return plain


class _Arrival:
    """A body that is coming: in its time, and at the least pace."""

    __slots__ = ("_config", "_deadline", "_loop", "_pace", "_timer", "client", "request")

    def __init__(self, request: Request, config: HttpConfig) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._deadline = now + config.body_timeout_ms / 1000
        self._pace = Pace(config.min_transfer_bytes_per_s, now)
        self.request = request
        self.client = request.connection.client
        self._await_progress(now)

    def give_way(self, problem: Problem) -> None:
        """End it with this problem."""
        self.request.content.set_exception(problem)

    def end(self) -> None:
        """Look at its progress no more."""
        self._timer.cancel()

    def _await_progress(self, now: float) -> None:
        due = min(now + self._config.transfer_grace_ms / 1000, self._deadline)
        self._timer = self._loop.call_at(due, self._check_progress)

    def _check_progress(self) -> None:
        now = self._loop.time()
        if now >= self._deadline:
            self.give_way(_incomplete(self._config))
        elif self._pace.is_too_slow(now, self.request.content.total_bytes):
            self.give_way(_too_slow(self._config))
        else:
            self._await_progress(now)


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
    """Return the size that a gzip stream says, at its very end, to have been."""
    return int.from_bytes(body[-4:], "little")


def _invite(request: Request) -> None:
    """Tell a client that asks before it sends its body to go on."""
    expects = request.headers.get(hdrs.EXPECT, "").lower() == "100-continue"
    transport = request.connection.transport
    if expects and transport is not None:
        transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _is_gzip(request: Request) -> bool:
    if hdrs.CONTENT_ENCODING not in request.headers:
        return False
    encoding = listed(request.headers, hdrs.CONTENT_ENCODING).strip().lower()
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
