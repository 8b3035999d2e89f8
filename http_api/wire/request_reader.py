"""The receiving half of a connection: it splits the received bytes into requests and queues them.

Only aiohttp's parser parses requests. When the received bytes end exactly at the end of a request,
the parser is dropped, and the next request gets a new parser. So connections that are idle, or
whose request is held, keep no parser. A request whose head is stored in `HeadCache` gets no parser.
If a body of known length does not arrive together with its
head, the rest of the body bypasses the parser (`body_buffer`).

This file limits the time and the size of a head (request line and headers), the number of waiting
requests, and the memory of heads. `body_reader` limits the time and the memory of bodies.
"""

import asyncio
from collections.abc import Sequence
from enum import IntFlag, auto
from typing import cast

from multidict import CIMultiDict, CIMultiDictProxy

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.wire.aiohttp_parser import (
    EMPTY_PAYLOAD,
    MAX_HEADERS,
    BadHttpMessage,
    HttpProcessingError,
    HttpRequestParser,
    RawRequestMessage,
    RequestPayloadError,
    hdrs,
    new_parser,
)
from holdfast.http_api.wire.body_buffer import ArrivingBody, WholeBody
from holdfast.http_api.wire.body_reader import LIMIT
from holdfast.http_api.wire.chunk_walk import UnclearEnd
from holdfast.http_api.wire.connection_registry import (
    RECEIVE_BUFFER_BYTES,
    Closable,
    Connections,
)
from holdfast.http_api.wire.head_cache import SEQUENCE, Match
from holdfast.http_api.wire.heads import (
    begins_with_bare_line_end,
    head_begins,
    head_begins_at,
    head_bytes,
    head_memory,
    unfinished_head_memory,
)
from holdfast.http_api.wire.request import Content, Peer, Request, is_last
from holdfast.http_api.wire.request_ends import RequestEnds

#: At most this many requests wait while the current one is answered. If as many wait, nothing more
#: is parsed or read. The limit is low because each small head costs a millisecond, even if its
#: request is never answered.
MAX_WAITING = 4
#: If the requests of a connection use at most this much memory, `ArrivingBytes` does not count it.
#: This memory is part of the fixed cost of a connection in docs/limits.md.
UNCOUNTED_BYTES = 8 * 1024
#: If a request is small, its memory is not calculated, because it is less than UNCOUNTED_BYTES. A
#: request is small if its size plus _QUICK_PER_HEADER for each header is at most _QUICK_BYTES.
_QUICK_PER_HEADER, _QUICK_BYTES = 100, 2048

_Message = tuple[RawRequestMessage, Content]
"""A request's head and its body."""

_BARE_LINE_END = "a line feed or carriage return alone precedes the request line"
_UNCLEAR_END = "something follows the last chunk of a body; send what is in trailers as headers"


class HeadTooLarge(HttpProcessingError):
    """A complete head is larger than `max_head_bytes`."""


class NoRoom(HttpProcessingError):
    """A request is rejected because all arriving bytes reach the limit `limit_name`."""

    def __init__(self, limit_name: str) -> None:
        super().__init__(message=limit_name)
        self.limit_name = limit_name


class PauseReason(IntFlag):
    """Why reading from the client is paused."""

    NONE = 0
    PIPELINE = auto()
    """Too many requests wait."""
    BODY_TURN = auto()
    """The body of a waiting request has begun; its rest bypasses the parser."""
    BODY_READER = auto()
    """The body of the current request has begun, and its reader is not ready yet."""
    BODY_BUFFER = auto()
    """Too many unread bytes of a chunked body are buffered."""


class RequestReader:
    """Receives and queues the requests of one client. `next_request` hands them out in order."""

    __slots__ = ("_arriving", "_config", "_connections", "_content", "_ends", "_has_more_input",
                 "_head_bytes", "_is_body_counted", "_loop", "_owner", "_parser_pauses", "_peer",
                 "_request_memory", "_transport", "counted_bytes", "discards_input",
                 "is_answering", "is_head_incomplete", "is_paused", "parser", "pause_reasons",
                 "received_at", "waiting", "waiting_memory")  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: HttpConfig,
        connections: Connections,
        owner: Closable,
    ) -> None:
        self._loop = loop
        self._config = config
        self._connections = connections
        self._owner: Closable | None = owner
        """The connection; None after it is lost."""
        self._transport: asyncio.Transport | None = None
        self._peer = Peer()
        self._init_input()
        self._init_current_request()

    def _init_input(self) -> None:
        self.received_at = 0.0
        """When bytes last arrived, by the loop's clock."""
        self.parser: HttpRequestParser | None = None
        """The parser; None if the received bytes end exactly at the end of a request."""
        self._ends: RequestEnds | None = None
        """The ends of requests in the bytes that `parser` gets."""
        self._parser_pauses = 0
        """How often `pause_reading` of the parser was called.

        The parser pauses only when it reaches the next piece of a body. That piece may come much
        later and belong to another body. The bytes after that piece then stay unparsed.
        """
        self.waiting: list[tuple[Request | HttpProcessingError, int]] = []
        """The requests that wait to be answered, each with the bytes of memory that it uses.

        The last entry may be the error that ended parsing.
        """
        self.waiting_memory = 0
        """The memory of all requests in `waiting`, in bytes."""
        self._head_bytes = 0
        """An upper bound of the received bytes of an incomplete head."""
        self.is_head_incomplete = False
        """Whether a further head has begun after complete requests, as far as can be detected."""
        self.discards_input = False
        """Whether received bytes are discarded."""
        self._has_more_input = False
        """Whether bytes came after the last request that will be answered."""
        self.counted_bytes = 0
        """The bytes that `Connections.arriving` counts for this connection."""
        self.pause_reasons = PauseReason.NONE
        """Why reading is paused. If received bytes are discarded, the reasons have no effect."""
        self.is_paused = False
        """Whether reading from the transport is paused."""

    def _init_current_request(self) -> None:
        self.is_answering = False
        """Whether a request is being answered."""
        self._content: Content = EMPTY_PAYLOAD
        """The body of the request that is being answered."""
        self._arriving: ArrivingBody | None = None
        """The body of the current request while it bypasses the parser; otherwise None."""
        self._is_body_counted = False
        """Whether the current request's body is counted by its `BodyReader`, not by this class."""
        self._request_memory = 0
        """The memory of the request that is being answered, in bytes; 0 if the request is small."""

    def attach(self, transport: asyncio.Transport, peer: Peer) -> None:
        """Receive from this transport from now on."""
        self._transport, self._peer = transport, peer

    def detach(self) -> None:
        """Drop the parser, the waiting requests and the body, because the connection is lost."""
        self._transport = self._owner = None
        self.discards_input = True
        self.parser = self._ends = self._arriving = None
        self.waiting = []
        self._content = EMPTY_PAYLOAD
        self.waiting_memory = self._request_memory = self._head_bytes = 0
        self._recount()

    @property
    def has_more_input(self) -> bool:
        """Whether bytes came after the request that is being answered."""
        return self._has_more_input or self.is_head_incomplete or bool(self.waiting)

    @property
    def is_chunked_body_open(self) -> bool:
        return self._ends is not None and self._ends.chunks is not None

    @property
    def connected(self) -> bool:
        """Whether the client is connected. aiohttp's chunked bodies read this attribute."""
        return self._transport is not None

    # -- received bytes --------------------------------------------------------------------------

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes.

        Return the own buffer of the body that is arriving, or the buffer that all connections
        share. `receive` must process the bytes before the shared buffer is used again.
        """
        arriving = self._arriving
        shared = self._connections.receive_buffer
        return shared if arriving is None else arriving.room(shared)

    def receive(self, count: int) -> bool:
        """Process `count` bytes in the buffer.

        Return True if they complete a body that bypasses the parser, or the rest of a body that is
        discarded.
        """
        arriving = self._arriving
        if arriving is None:
            self.feed(bytes(self._connections.receive_buffer[:count]))
            return False
        self.received_at = self._loop.time()
        if not arriving.received(count):
            return False
        self._arriving = None
        return True

    def feed(self, data: bytes) -> None:
        """Parse `data` and queue the requests in it."""
        # The loop's time is the time when the iteration began. So if a thousand requests arrive in
        # one iteration, the waiting time of the last request includes the processing of the
        # requests before it.
        self.received_at = self._loop.time()
        self._parse(data)
        if self.is_answering:
            self._hold_back()
        elif not self.waiting and not self.discards_input and data:
            assert self._owner is not None, "bytes arrive after the connection is lost"
            self._connections.header_timeouts.add(self._owner)

    def _hold_back(self) -> None:
        """Pause reading if a waiting request has an incomplete body of known length.

        When this request is the current one, the rest of its body bypasses the parser.
        """
        if self.waiting and not self.pause_reasons & PauseReason.BODY_TURN:
            newest, _ = self.waiting[-1]
            if (
                isinstance(newest, Request)
                and not newest.content.is_eof()
                and hdrs.CONTENT_LENGTH in newest.headers
            ):
                self._pause(PauseReason.BODY_TURN)

    def _parse(self, data: bytes) -> None:
        if self.discards_input:
            self._has_more_input = self._has_more_input or _is_more(data)
            return
        parser, ends = self.parser, self._ends
        if parser is None or ends is None:
            self._parse_first(data)
            return
        try:
            body_end, memory = ends.pass_body(data)
        except UnclearEnd:
            self._stop_parsing(BadHttpMessage(_UNCLEAR_END))
            return
        if memory:
            self._add_to_body(memory)
        messages, _, error = self._feed_parser(parser, data, is_new=False)
        self._take(messages, error, data, body_end, ends)

    def _parse_first(self, data: bytes) -> None:
        """Parse bytes that begin a request: the bytes before them ended exactly at a request."""
        match = self._connections.heads.find(self._peer.client, data)
        if match is not None:
            self._queue_known(match, data)
            return
        if data[:1] in (b"\r", b"\n") and begins_with_bare_line_end(data):
            self._stop_parsing(BadHttpMessage(_BARE_LINE_END))
            return
        self._parser_pauses = 0
        parser = self.parser = new_parser(self, self._loop)
        messages, is_whole, error = self._feed_parser(parser, data, is_new=True)
        if not is_whole:
            ends = self._ends = RequestEnds(data)
            self._take(messages, error, data, 0, ends)
            return
        # The most common case: the bytes are exactly one request.
        self.parser = None
        self._stop_header_timeout()
        request = self._queue(messages, [messages[0][1].total_bytes], len(data))
        if request is not None:
            request.known = self._connections.heads.consider(
                self._peer.client, data, messages[0][0]
            )
            self.discards_input = not request.is_kept_alive
            if self.waiting_memory:  # the request is not small
                self._count_waiting()

    def _queue_known(self, match: Match, data: bytes) -> None:
        """Queue the request that `data` is, without parsing its head."""
        self._stop_header_timeout()
        known, sequence = match.head, match.sequence
        message = known.message
        content: Content = WholeBody(data[match.end :]) if known.body_bytes else EMPTY_PAYLOAD
        memory = 0
        if self.is_answering or not _is_small(message, len(data)):
            memory = head_memory(message) + known.body_bytes
        self.waiting_memory += memory
        headers = None
        if sequence is not None:
            own = CIMultiDict(message.headers)
            own[SEQUENCE] = sequence
            headers = CIMultiDictProxy(own)
        offset, target = match.offset, match.target
        request = Request(message, content, self._peer, self, known, offset, target, headers)
        self.waiting.append((request, memory))
        if memory:
            self._count_waiting()

    def _take(
        self,
        messages: list[_Message],
        error: HttpProcessingError | None,
        data: bytes,
        body_end: int,
        ends: RequestEnds,
    ) -> None:
        """Queue the requests that the parser has found in `data`, or in `data` and earlier bytes.

        `error` is the error in the bytes after them. The body that was arriving ends at the index
        `body_end` of `data`.
        """
        if not messages:
            if error is not None:
                self._stop_parsing(error)
            else:
                self._take_part(data[body_end:], ends)
            return
        self._stop_header_timeout()
        bodies = ends.follow(messages)
        if (clear := len(bodies)) < len(messages):
            if not clear or self._queue(messages[:clear], bodies, len(data)) is not None:
                self._stop_parsing(BadHttpMessage(_UNCLEAR_END))
            return
        request = self._queue(messages, bodies, len(data))
        if request is None:
            return
        is_complete = request.content.is_eof()
        self.is_head_incomplete = False
        if is_complete and not request.is_kept_alive:
            self.discards_input = True
            self._has_more_input = _is_more(ends.text)
            self.parser = self._ends = None
        elif error is not None:
            self._stop_parsing(error)
        elif is_complete:
            known_bytes = 0 if messages[-1][0].chunked else request.content.total_bytes
            self.is_head_incomplete = head_begins(data, known_bytes)
        self._head_bytes = len(data) - head_begins_at(data) if self.is_head_incomplete else 0
        self._count_waiting()

    def _take_part(self, rest: bytes, ends: RequestEnds) -> None:
        """Count bytes that complete no head. `rest` are the bytes after the body that arrived."""
        ends.keep_end_of_head()
        self._count()
        if self._newest_content().is_eof() and not self.pause_reasons & PauseReason.BODY_TURN:
            if head_begins(rest):
                self.is_head_incomplete = True
            if self.is_head_incomplete or not self.is_answering:
                self._count_unfinished_head(len(rest))

    def _newest_content(self) -> Content:
        """Return the body of the request that was received last. It may be incomplete."""
        if not self.waiting:
            return self._content
        newest, _ = self.waiting[-1]
        return newest.content if isinstance(newest, Request) else EMPTY_PAYLOAD

    def _feed_parser(
        self, parser: HttpRequestParser, data: bytes, *, is_new: bool
    ) -> tuple[list[_Message], bool, HttpProcessingError | None]:
        """Feed `data` to the parser. Call the parser again while it may have unparsed bytes.

        Return three values: the parsed requests (the body of the last one may be incomplete);
        whether `data` was exactly one complete request; and the error in the bytes after these
        requests, or None. Bytes after a request that ends the connection are not parsed.
        """
        # The parser pauses after each request. It may also pause one time for an earlier call of
        # its `pause_reading`, and one time for each such call during this loop.
        self._parser_pauses = min(self._parser_pauses, 1)
        fed_again = 0
        content = EMPTY_PAYLOAD if is_new else self._newest_content()
        messages: list[_Message] = []
        while True:
            is_body_open = not content.is_eof()
            try:
                found, is_upgraded, _ = parser.feed_data(data)
            except HttpProcessingError as error:
                if messages and is_body_open:
                    messages.pop()  # the error is in the body of the last request
                return messages, False, error.with_traceback(None)  # drops this frame
            if found:
                messages += found
                content, is_body_open = messages[-1][1], True
                # The first empty line ends the head, or comes before the head. If it comes before
                # the head, `end == len(data)` may wrongly be False, but never wrongly True.
                end = data.find(b"\r\n\r\n") + 4 + content.total_bytes
                if is_new and end == len(data) and content.is_eof():
                    return messages, True, None
            self.discards_input = is_upgraded
            if is_body_open and content.is_eof():  # a request has ended
                goes_on = len(self.waiting) + len(messages) < MAX_WAITING and not (
                    messages and is_last(messages[-1][0])
                )
            else:
                goes_on = fed_again < self._parser_pauses
                fed_again += 1
            if not goes_on or self.discards_input or self.pause_reasons & PauseReason.BODY_BUFFER:
                return messages, False, None
            data, is_new = b"", False

    def _queue(
        self, messages: Sequence[_Message], bodies: Sequence[int], size: int
    ) -> Request | None:
        """Queue requests whose heads were completed by `size` received bytes.

        `bodies` has the memory of each body. Return the last of the requests, or None if a head is
        too large; the bytes after this head are then discarded.
        """
        request = None
        size += self._head_bytes
        is_single = len(messages) == 1 and not self.is_answering
        for (message, content), body_memory in zip(messages, bodies, strict=True):
            if size > self._config.max_head_bytes < head_bytes(message):
                self._refuse_head()
                return None
            is_small = is_single and _is_small(message, size)
            memory = 0 if is_small else head_memory(message) + body_memory
            self.waiting_memory += memory
            request = Request(message, content, self._peer, self)
            self.waiting.append((request, memory))
        return request

    def _count_unfinished_head(self, size: int) -> None:
        """Count `size` more bytes of an incomplete head. Refuse the head if it is too large.

        The bytes may include the end of a chunked body. So the limit is higher by the size of one
        read, RECEIVE_BUFFER_BYTES.
        """
        self._head_bytes += size
        if self._head_bytes > self._config.max_head_bytes + RECEIVE_BUFFER_BYTES:
            self._refuse_head()
        self._count()

    def _refuse_head(self) -> None:
        self._head_bytes = 0
        self._stop_parsing(HeadTooLarge())

    # -- memory of heads -----------------------------------------------------------------------

    def _count(self) -> None:
        """Update the memory that is counted for this connection.

        If a limit refuses the new size, reject the connection's arriving request.
        """
        refused = self._recount()
        if refused is not None:
            self._give_way(refused)

    def _count_waiting(self) -> None:
        """Count the waiting requests. Pause reading if too many requests wait."""
        self._count()
        if self.waiting and (
            len(self.waiting) >= MAX_WAITING
            or self.waiting_memory >= self._config.max_waiting_head_bytes
        ):
            self._pause(PauseReason.PIPELINE)

    def _add_to_body(self, size: int) -> None:
        """Add `size` bytes to the memory of the arriving chunked body.

        If its `BodyReader` counts the body, do nothing.
        """
        if self.waiting:
            newest, memory = self.waiting[-1]
            self.waiting[-1] = newest, memory + size
            self.waiting_memory += size
        elif not self._is_body_counted:
            self._request_memory += size

    def _recount(self) -> str | None:
        """Calculate the memory of this connection, and count it in `Connections.arriving`.

        Return None, or the name of the limit that refuses the new size.
        """
        size = self.waiting_memory + self._request_memory
        if self._head_bytes:
            size += unfinished_head_memory(self._head_bytes, MAX_HEADERS)
        if size <= UNCOUNTED_BYTES:
            size = 0
        if size == self.counted_bytes:
            return None
        arriving = self._connections.arriving
        if size == 0:
            arriving.release(self)
        elif refused := arriving.take(self, self._peer.client, size, self._give_way):
            return refused
        self.counted_bytes = size
        return None

    def _give_way(self, limit_name: str = LIMIT) -> None:
        """Reject the arriving request to free its memory.

        If no request waits or is being answered, the client gets an error reply. Otherwise the
        connection is closed immediately.
        """
        self._connections.arriving.release(self)
        self.counted_bytes = 0
        if self._owner is None:
            return
        if self.is_answering or self.waiting or self.discards_input:
            self._owner.cut_off("arriving-limit")
            return
        self._head_bytes = 0
        self._stop_parsing(NoRoom(limit_name))
        self._owner.serve_next()

    def count_more(self, size: int) -> str | None:
        """Count `size` more bytes for the current request until it is answered.

        Return None, or the name of the limit that refuses the bytes.
        """
        self._request_memory += size
        refused = self._recount()
        if refused is not None:
            self._request_memory -= size
        return refused

    def expect_body(self, *, sends_continue: bool) -> None:
        """Note that a `BodyReader` now waits for the current body and counts its bytes.

        With `sends_continue`, send "100 Continue" to the client.
        """
        self._is_body_counted = True
        if sends_continue and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _stop_parsing(self, error: HttpProcessingError) -> None:
        """Stop parsing, because the received bytes are not valid requests.

        If a body is incomplete, its reader gets the error. Otherwise `error` is queued, and the
        client gets it as the reply.
        """
        self.discards_input = True
        self.parser = self._ends = None
        content = self._newest_content()
        if not content.is_eof():
            content.set_exception(RequestPayloadError(str(error)))
            return
        self._stop_header_timeout()
        self.waiting.append((error, 0))

    # A chunked body pauses its connection when too many unread bytes are buffered.

    def pause_reading(self) -> None:
        """Pause the parser and reading. A chunked body calls this when its buffer is full."""
        if self.parser is not None:
            self.parser.pause_reading()
            self._parser_pauses += 1
        self._pause(PauseReason.BODY_BUFFER)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Continue reading. A chunked body calls this when it has room again or is complete."""
        # aiohttp calls this at the end of each body. The first test is much faster.
        if self.pause_reasons and self.pause_reasons & PauseReason.BODY_BUFFER:
            self.pause_reasons &= ~PauseReason.BODY_BUFFER
            if resume_parser:
                self.parse_held_back()
            self._apply_pause()

    def _pause(self, reason: PauseReason) -> None:
        self.pause_reasons |= reason
        self._apply_pause()

    def _resume(self, reason: PauseReason) -> None:
        if self.pause_reasons & reason:
            self.pause_reasons &= ~reason
            self._apply_pause()

    def _apply_pause(self) -> None:
        is_paused = bool(self.pause_reasons) and not self.discards_input
        if is_paused != self.is_paused and self._transport is not None:
            self.is_paused = is_paused
            if is_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # -- the current request -----------------------------------------------------------------------

    def next_request(self) -> Request | HttpProcessingError:
        """Remove and return the oldest waiting request, or the error that ended parsing.

        Callers must check `waiting` first, and call `end_request` after the reply.
        """
        self.is_answering = True
        request, memory = self.waiting.pop(0)
        self.waiting_memory -= memory
        self._request_memory = memory
        if self.pause_reasons:
            self._resume_pipeline()
        if isinstance(request, HttpProcessingError):
            return request
        self._is_body_counted = False
        if not request.content.is_eof() and not self.waiting:
            self._bypass_parser(request)
        self._content = request.content
        if self.pause_reasons:
            self._resume(PauseReason.BODY_TURN)
        return request

    def _resume_pipeline(self) -> None:
        """Parse and read again if few requests wait."""
        if (
            len(self.waiting) <= MAX_WAITING // 2
            and self.waiting_memory <= self._config.max_waiting_head_bytes // 2
            and self.pause_reasons & PauseReason.PIPELINE
        ):
            self.pause_reasons &= ~PauseReason.PIPELINE
            self.parse_held_back()
            self._apply_pause()

    def _bypass_parser(self, request: Request) -> None:
        """Receive the rest of a body of known length directly into the body's buffer.

        A chunked body continues through the parser. So does a body that has arrived, and a body of
        which the parser holds back bytes: then the parser must continue.
        """
        length, missing = request.content_length, self._ends.missing_bytes if self._ends else 0
        if length is None or not missing or request.content.total_bytes + missing != length:
            return
        self.parser = self._ends = None
        self._pause(PauseReason.BODY_READER)
        # If the bytes that came with the head have filled the buffer of the parser's body, reading
        # is paused. Taking them ends that pause.
        first = cast(bytes, request.content.read_nowait())
        self._arriving = ArrivingBody(length, first, lambda: self._resume(PauseReason.BODY_READER))
        request.content = self._arriving

    def end_request(self) -> Content:
        """Note that the current request was answered. Return its body, which may be incomplete."""
        self.is_answering = False
        content, self._content = self._content, EMPTY_PAYLOAD
        if self._request_memory:
            self._request_memory = 0
            self._recount()
        return content

    def parse_held_back(self) -> None:
        """Parse the bytes that the parser holds back, if there are any."""
        if self.parser is not None:
            self._parse(b"")

    def discard_input(self) -> None:
        """Discard further input and the waiting requests, because the last reply was sent.

        The connection still reads, so that the client can finish sending.
        """
        self.waiting = []
        self.waiting_memory = self._head_bytes = 0
        self._recount()
        if self._arriving is not None:
            self._arriving.drop()
            self.pause_reasons &= ~PauseReason.BODY_READER
        else:
            self.discards_input = True
        self._apply_pause()

    def _stop_header_timeout(self) -> None:
        if self._owner is not None:
            self._connections.header_timeouts.remove(self._owner)


def _is_small(message: RawRequestMessage, size: int) -> bool:
    """Return whether a request of `size` bytes uses less memory than UNCOUNTED_BYTES."""
    size += _QUICK_PER_HEADER * len(message.raw_headers)
    return size <= _QUICK_BYTES and not message.chunked


def _is_more(data: bytes) -> bool:
    """Return whether `data`, received after a request, has more than line ends.

    Some clients send a line end after a body.
    """
    return data.strip(b"\r\n") != b""
