"""The receiving half of a connection: it splits the received bytes into requests and queues them.

Only aiohttp's parser parses requests. When the received bytes end exactly at the end of a request,
the parser is dropped, and the next request gets a new parser. So connections that are idle, or
whose request is held, keep no parser. If a body of known length does not arrive together with its
head, the rest of the body bypasses the parser (`body_buffer`).

This file limits the time and the size of a head (request line and headers), the number of waiting
requests, and the memory of heads. `body_reader` limits the time and the memory of bodies.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from enum import IntFlag, auto
from typing import Protocol, cast

from aiohttp import EMPTY_PAYLOAD, hdrs, web

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.wire.aiohttp_parser import (
    MAX_HEADERS,
    BadHttpMessage,
    HttpProcessingError,
    HttpRequestParser,
    RawRequestMessage,
    new_parser,
)
from holdfast.http_api.wire.body_buffer import ArrivingBody
from holdfast.http_api.wire.body_reader import LIMIT
from holdfast.http_api.wire.chunk_walk import ChunkWalk, UnclearEnd
from holdfast.http_api.wire.connection_registry import (
    RECEIVE_BUFFER_BYTES,
    Closable,
    Connections,
)
from holdfast.http_api.wire.heads import (
    begins_with_bare_line_end,
    head_begins,
    head_begins_at,
    head_bytes,
    head_memory,
    unfinished_head_memory,
)
from holdfast.http_api.wire.request import Content, Peer, Request, is_last

#: At most this many requests wait while the current one is answered. If as many wait, nothing more
#: is parsed or read. The limit is low because each small head costs a millisecond, even if its
#: request is never answered.
MAX_WAITING = 4
#: If the requests of a connection use at most this much memory, `arriving_bytes` does not count it.
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


class Owner(Closable, Protocol):
    """The connection, as its reader sees it."""

    def serve_next(self) -> None:
        """Begin to answer the oldest waiting request."""

    def cut_off(self, reason: str) -> None:
        """Close at once. `reason` is for the log and the metrics."""


class RequestReader:
    """Receives and queues the requests of one client. `next_request` hands them out in order."""

    __slots__ = (
        "_arriving",
        "_chunks",
        "_config",
        "_connections",
        "_content",
        "_counted_bytes",
        "_discards_input",
        "_has_more_input",
        "_head_bytes",
        "_is_answering",
        "_is_body_counted",
        "_is_head_incomplete",
        "_is_paused",
        "_loop",
        "_owner",
        "_parser",
        "_parser_pauses",
        "_pause_reasons",
        "_peer",
        "_request_memory",
        "_skip_bytes",
        "_text",
        "_transport",
        "_waiting",
        "_waiting_memory",
        "received_at",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: HttpConfig,
        connections: Connections,
        owner: Owner,
    ) -> None:
        self._loop = loop
        self._config = config
        self._connections = connections
        self._owner: Owner | None = owner
        """The connection; None after it is lost."""
        self._transport: asyncio.Transport | None = None
        self._peer = Peer()
        self._parser: HttpRequestParser | None = None
        self._waiting: (
            deque[tuple[RawRequestMessage | HttpProcessingError, Content, int]] | None
        ) = None
        """The waiting requests, each with its body and the bytes of memory that it uses.

        The last entry may be the error that ended parsing. `_waiting` is None if nothing waits.
        """
        self._waiting_memory = 0
        """The memory of all requests in `_waiting`, in bytes."""
        self._request_memory = 0
        """The memory of the request that is being answered, in bytes; 0 if the request is small."""
        self._head_bytes = 0
        """An upper bound of the received bytes of an incomplete head."""
        self._counted_bytes = 0
        """The bytes that `Connections.arriving` counts for this connection."""
        self._text = b""
        """The bytes that the parser got after the last parsed request and its body.

        If they are an incomplete head, only its last bytes are kept.
        """
        self._skip_bytes = 0
        """How many bytes are missing of a body of known length that goes through the parser."""
        self._chunks: ChunkWalk | None = None
        """The position in the chunked body that is arriving; None if no chunked body is arriving.
        """
        self._is_head_incomplete = False
        """Whether a further head has begun after complete requests, as far as can be detected."""
        self._content: Content = EMPTY_PAYLOAD
        """The body of the request that is being answered."""
        self._arriving: ArrivingBody | None = None
        """The body of the current request while it is received without the parser, else None."""
        self._is_body_counted = False
        """Whether the current request's body is counted by its `BodyReader`, not by this class."""
        self._is_answering = False
        """Whether a request is being answered."""
        self._discards_input = False
        """Whether received bytes are discarded."""
        self._has_more_input = False
        """Whether bytes came after the last request that will be answered."""
        self._pause_reasons = PauseReason.NONE
        self._is_paused = False
        """Whether reading from the transport is paused."""
        self._parser_pauses = 0
        """How often `pause_reading` of the parser was called.

        The parser pauses only when it reaches the next piece of a body. That piece may come much
        later and belong to another body. The parser then keeps the bytes after it unparsed.
        """
        self.received_at = 0.0
        """When bytes last arrived, by the loop's clock."""

    def attach(self, transport: asyncio.Transport, peer: Peer) -> None:
        """Receive from this transport from now on."""
        self._transport, self._peer = transport, peer

    def detach(self) -> None:
        """Drop the parser, the waiting requests and the body, because the connection is lost."""
        self._transport = self._owner = None
        self._discards_input = True
        self._parser = self._waiting = self._arriving = None
        self._content = EMPTY_PAYLOAD
        self._waiting_memory = self._request_memory = self._head_bytes = 0
        self._recount()

    # -- what the connection may ask -----------------------------------------------------------

    @property
    def has_waiting(self) -> bool:
        """Whether a request, or the error that ended parsing, waits to be answered."""
        return self._waiting is not None

    @property
    def waiting_count(self) -> int:
        """How many requests wait to be answered."""
        return len(self._waiting or ())

    @property
    def waiting_memory(self) -> int:
        """The memory of all waiting requests, in bytes."""
        return self._waiting_memory

    @property
    def counted_bytes(self) -> int:
        """The bytes that `Connections.arriving` counts for this connection."""
        return self._counted_bytes

    @property
    def is_answering(self) -> bool:
        """Whether a request is being answered."""
        return self._is_answering

    @property
    def has_parser(self) -> bool:
        """Whether a parser exists: the bytes received do not end exactly at a request."""
        return self._parser is not None

    @property
    def is_chunked_body_open(self) -> bool:
        """Whether a chunked body is arriving."""
        return self._chunks is not None

    @property
    def is_head_incomplete(self) -> bool:
        """Whether a further head has begun after complete requests, as far as can be detected."""
        return self._is_head_incomplete

    @property
    def discards_input(self) -> bool:
        """Whether received bytes are discarded."""
        return self._discards_input

    @property
    def has_more_input(self) -> bool:
        """Whether bytes came after the request that is being answered."""
        return self._has_more_input or self._is_head_incomplete or self._waiting is not None

    @property
    def pause_reasons(self) -> PauseReason:
        """Why reading is paused. If received bytes are discarded, the reasons have no effect."""
        return self._pause_reasons

    @property
    def is_paused(self) -> bool:
        """Whether reading from the transport is paused."""
        return self._is_paused

    # -- received bytes --------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether the client is connected. aiohttp's chunked bodies read this attribute."""
        return self._transport is not None

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
        if self._is_answering:
            self._hold_back()
        elif self._waiting is None and not self._discards_input and data:
            assert self._owner is not None, "bytes arrive after the connection is lost"
            self._connections.header_timeouts.add(self._owner)

    def _hold_back(self) -> None:
        """Pause reading if a waiting request has an incomplete body of known length.

        When this request is the current one, the rest of its body bypasses the parser.
        """
        if self._waiting is not None and not self._pause_reasons & PauseReason.BODY_TURN:
            message, content, _ = self._waiting[-1]
            if isinstance(message, HttpProcessingError) or content.is_eof():
                return
            if hdrs.CONTENT_LENGTH in message.headers:
                self._pause(PauseReason.BODY_TURN)

    def _parse(self, data: bytes) -> None:
        if self._discards_input:
            self._has_more_input = self._has_more_input or _is_more(data)
            return
        parser = self._parser
        if is_new := parser is None:
            if data[:1] in (b"\r", b"\n") and begins_with_bare_line_end(data):
                self._stop_parsing(BadHttpMessage(_BARE_LINE_END))
                return
            self._skip_bytes, self._chunks, self._parser_pauses = 0, None, 0
            parser = self._parser = new_parser(self, self._loop)
        body_ends = 0
        if is_new:
            self._text = data
        else:
            try:
                body_ends = self._pass_body(data)
            except UnclearEnd:
                self._stop_parsing(BadHttpMessage(_UNCLEAR_END))
                return
            self._text += data[body_ends:]
        messages, is_one, error = self._fed(parser, data, is_new=is_new)
        if error is not None and not messages:
            self._stop_parsing(error)
            return
        if not messages:  # `data` is a part of a head, or of a body, maybe with bytes after it
            content = self._waiting[-1][1] if self._waiting else self._content
            self._keep_end_of_text()
            self._count()
            if content.is_eof() and not self._pause_reasons & PauseReason.BODY_TURN:
                behind = data[body_ends:]
                if head_begins(behind):
                    self._is_head_incomplete = True
                if self._is_head_incomplete or not self._is_answering:
                    self._count_unfinished_head(len(behind))
            return
        self._stop_header_timeout()
        message, content = messages[-1]
        bodies = [content.total_bytes] if is_one else self._follow(messages)
        if (clear := len(bodies)) < len(messages):
            if not clear or self._queue(messages[:clear], bodies, len(data)):
                self._stop_parsing(BadHttpMessage(_UNCLEAR_END))
            return
        if not self._queue(messages, bodies, len(data)):
            return
        if ends_here := content.is_eof() and is_last(message):
            self._discards_input = True
            self._has_more_input = not is_one and _is_more(self._text)
        if is_one or ends_here:
            # The next bytes begin with a head, or are discarded.
            self._parser = None
            self._text = b""
            self._is_head_incomplete = False
        elif error is not None:
            self._is_head_incomplete = False
            self._stop_parsing(error)
        else:
            known_bytes = 0 if message.chunked else content.total_bytes
            self._is_head_incomplete = content.is_eof() and head_begins(data, known_bytes)
        self._head_bytes = len(data) - head_begins_at(data) if self._is_head_incomplete else 0
        self._count()
        if self._is_pipeline_full():
            self._pause(PauseReason.PIPELINE)

    def _fed(
        self, parser: HttpRequestParser, data: bytes, *, is_new: bool
    ) -> tuple[list[_Message], bool, HttpProcessingError | None]:
        """Feed `data` to the parser. Call the parser again while it may have unparsed bytes.

        Return three values: the parsed requests (the body of the last one may be incomplete);
        whether `data` was exactly one complete request; and the error in the bytes after these
        requests, or None. Bytes after a request that ends the connection are not parsed.
        """
        # The parser pauses after each request. It may also pause once for an earlier call of its
        # `pause_reading`, and once for each such call during this loop.
        self._parser_pauses = min(self._parser_pauses, 1)
        fed_again = 0
        waiting = self._waiting or ()
        content = waiting[-1][1] if waiting else self._content
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
                if is_new and _is_all_of(data, content):
                    return messages, True, None
            self._discards_input = is_upgraded
            if is_body_open and content.is_eof():  # a request has ended
                goes_on = len(waiting) + len(messages) < MAX_WAITING and not (
                    messages and is_last(messages[-1][0])
                )
            else:
                goes_on = fed_again < self._parser_pauses
                fed_again += 1
            paused = self._pause_reasons
            if not goes_on or self._discards_input or (paused and paused & PauseReason.BODY_BUFFER):
                return messages, False, None
            data, is_new = b"", False

    # The next methods find the ends of requests in the received bytes. The parser does not report
    # these ends, and it accepts trailers.

    def _pass_body(self, data: bytes) -> int:
        """Return the index in `data` after the body that is arriving.

        Return 0 if no body is arriving, and the length of `data` if the body does not end in
        `data`. Raises UnclearEnd.
        """
        if self._skip_bytes:
            step = min(self._skip_bytes, len(data))
            self._skip_bytes -= step
            return step
        walk = self._chunks
        if walk is None:
            return 0
        before = walk.chunk_memory
        end = walk.feed(data, 0)
        if end < 0:
            end = len(data)
        else:
            self._chunks = None
        self._add_to_body(end + walk.chunk_memory - before)
        return end

    def _follow(self, messages: Sequence[_Message]) -> list[int]:
        """Find the ends of these requests in `_text`, and return the memory of each body in bytes.

        If the end of a request is unclear (it has trailers, or its head is not found), the result
        has only the bodies of the requests before it.
        """
        text, at = self._text, 0
        bodies: list[int] = []
        for message, content in messages:
            while text.startswith(b"\r\n", at):
                at += 2
            if text[at : at + 1] in (b"\r", b"\n"):
                return bodies  # a single CR or LF, which the parser skips
            at = text.find(b"\r\n\r\n", at) + 4
            if at < 4:
                return bodies
            if message.chunked:
                walk, start = ChunkWalk(), at
                try:
                    at = walk.feed(text, at)
                except UnclearEnd:
                    return bodies
                if at < 0:
                    self._chunks, at = walk, len(text)
                bodies.append(at - start + walk.chunk_memory)
            else:
                at += int(message.headers.get(hdrs.CONTENT_LENGTH, "0"))
                self._skip_bytes = max(at - len(text), 0)
                bodies.append(content.total_bytes)
        self._text = text[at:]
        self._keep_end_of_text()
        return bodies

    def _keep_end_of_text(self) -> None:
        """If `_text` is an incomplete head, keep only its last three bytes, after a ".".

        `_follow` skips line ends at the beginning of a head. The kept bytes may be line ends that
        are the first part of the head's end. Because of the ".", `_follow` does not skip them.
        """
        if len(self._text) > 4 and b"\r\n\r\n" not in self._text:
            self._text = b"." + self._text[-3:]

    def _is_pipeline_full(self) -> bool:
        return self._waiting is not None and (
            len(self._waiting) >= MAX_WAITING
            or self._waiting_memory >= self._config.max_waiting_head_bytes
        )

    def _queue(
        self,
        messages: Sequence[_Message],
        bodies: Sequence[int],
        size: int,
    ) -> bool:
        """Queue requests whose heads were completed by `size` received bytes.

        `bodies` has the memory of each body. Return False if a head is too large; the bytes after
        this head are then discarded.
        """
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = deque()
        may_be_large = self._head_bytes + size > self._config.max_head_bytes
        message, content = messages[0]
        if (
            len(messages) == 1
            and not self._is_answering
            and not message.chunked
            and not may_be_large
            and self._head_bytes + size + _QUICK_PER_HEADER * len(message.raw_headers)
            <= _QUICK_BYTES
        ):
            waiting.append((message, content, 0))
            return True
        for (message, content), body_memory in zip(messages, bodies, strict=True):
            if may_be_large and head_bytes(message) > self._config.max_head_bytes:
                self._refuse_head()
                return False
            memory = head_memory(message) + body_memory
            self._waiting_memory += memory
            waiting.append((message, content, memory))
        return True

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

    def _add_to_body(self, size: int) -> None:
        """Add `size` bytes to the memory of the arriving chunked body.

        If its `BodyReader` counts the body, do nothing.
        """
        if self._waiting:
            message, content, memory = self._waiting[-1]
            self._waiting[-1] = message, content, memory + size
            self._waiting_memory += size
        elif not self._is_body_counted:
            self._request_memory += size

    def _recount(self) -> str | None:
        """Calculate the memory of this connection, and count it in `Connections.arriving`.

        Return None, or the name of the limit that refuses the new size.
        """
        size = self._waiting_memory + self._request_memory
        if self._head_bytes:
            size += unfinished_head_memory(self._head_bytes, MAX_HEADERS)
        if size <= UNCOUNTED_BYTES:
            size = 0
        if size == self._counted_bytes:
            return None
        arriving = self._connections.arriving
        if size == 0:
            arriving.release(self)
        elif refused := arriving.take(self, self._peer.client, size, self._give_way):
            return refused
        self._counted_bytes = size
        return None

    def _give_way(self, limit_name: str = LIMIT) -> None:
        """Reject the arriving request to free its memory.

        If no request waits or is being answered, the client gets an error reply. Otherwise the
        connection is closed at once.
        """
        self._connections.arriving.release(self)
        self._counted_bytes = 0
        if self._owner is None:
            return
        if self._is_answering or self._waiting is not None or self._discards_input:
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
        self._discards_input = True
        self._parser = None
        content = self._waiting[-1][1] if self._waiting else self._content
        if not content.is_eof():
            content.set_exception(web.RequestPayloadError(str(error)))
            return
        self._stop_header_timeout()
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append((error, EMPTY_PAYLOAD, 0))

    # A chunked body pauses its connection when too many unread bytes are buffered.

    def pause_reading(self) -> None:
        """Pause the parser and reading. A chunked body calls this when its buffer is full."""
        if self._parser is not None:
            self._parser.pause_reading()
            self._parser_pauses += 1
        self._pause(PauseReason.BODY_BUFFER)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Continue reading. A chunked body calls this when it has room again or is complete."""
        if not self._pause_reasons & PauseReason.BODY_BUFFER:
            return
        self._pause_reasons &= ~PauseReason.BODY_BUFFER
        if resume_parser:
            self.parse_held_back()
        self._apply_pause()

    def _pause(self, reason: PauseReason) -> None:
        self._pause_reasons |= reason
        self._apply_pause()

    def _resume(self, reason: PauseReason) -> None:
        if self._pause_reasons & reason:
            self._pause_reasons &= ~reason
            self._apply_pause()

    def _apply_pause(self) -> None:
        """Pause or resume reading from the transport."""
        is_paused = bool(self._pause_reasons) and not self._discards_input
        if is_paused != self._is_paused and self._transport is not None:
            self._is_paused = is_paused
            if is_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # -- the current request -----------------------------------------------------------------------

    def next_request(self) -> Request | HttpProcessingError:
        """Remove and return the oldest waiting request, or the error that ended parsing.

        Callers must check `has_waiting` first, and call `end_request` after the reply.
        """
        self._is_answering = True
        waiting = self._waiting
        assert waiting is not None
        message, content, memory = waiting.popleft()
        self._waiting_memory -= memory
        self._request_memory = memory
        if (
            self._pause_reasons
            and len(waiting) <= MAX_WAITING // 2
            and self._waiting_memory <= self._config.max_waiting_head_bytes // 2
            and self._pause_reasons & PauseReason.PIPELINE
        ):
            self._pause_reasons &= ~PauseReason.PIPELINE
            self.parse_held_back()
            self._apply_pause()
        if not waiting:
            self._waiting = None
        if isinstance(message, HttpProcessingError):
            return message
        self._is_body_counted = False
        if not content.is_eof() and self._waiting is None:
            content = self._bypass_parser(message, content)
        self._content = content
        if self._pause_reasons:
            self._resume(PauseReason.BODY_TURN)
        return Request(message, content, self._peer, self)

    def _bypass_parser(self, message: RawRequestMessage, content: Content) -> Content:
        """Receive the rest of a body of known length directly into the body's buffer.

        Return the body. A chunked body continues through the parser.
        """
        length = message.headers.get(hdrs.CONTENT_LENGTH)
        if length is None or self._pause_reasons & PauseReason.BODY_BUFFER:
            return content
        # The parser has no unparsed bytes.
        self._parser = None
        first = cast(bytes, content.read_nowait())
        arriving = ArrivingBody(int(length), first, lambda: self._resume(PauseReason.BODY_READER))
        self._pause(PauseReason.BODY_READER)
        self._arriving = arriving
        return arriving

    def end_request(self) -> bool:
        """Note that the current request was answered. Return whether its whole body has arrived."""
        self._is_answering = False
        content, self._content = self._content, EMPTY_PAYLOAD
        if self._request_memory:
            self._request_memory = 0
            self._recount()
        return content.is_eof()

    def parse_held_back(self) -> None:
        """Parse the bytes that the parser holds back, if there are any."""
        if self._parser is not None:
            self._parse(b"")

    def discard_input(self) -> None:
        """Discard further input and the waiting requests, because the last reply was sent.

        The connection still reads, so that the client can finish sending.
        """
        self._waiting = None
        self._waiting_memory = self._head_bytes = 0
        self._recount()
        if self._arriving is not None:
            self._arriving.drop()
            self._pause_reasons &= ~PauseReason.BODY_READER
        else:
            self._discards_input = True
        self._apply_pause()

    def _stop_header_timeout(self) -> None:
        if self._owner is not None:
            self._connections.header_timeouts.remove(self._owner)


def _is_all_of(data: bytes, content: Content) -> bool:
    """Return whether `data`, which begins with a head, is exactly that head and its complete body.

    The first empty line in `data` is the end of the head, or comes before the head. In the second
    case the result may be wrong: it is then False, never True.
    """
    return content.is_eof() and data.find(b"\r\n\r\n") + 4 + content.total_bytes == len(data)


def _is_more(data: bytes) -> bool:
    """Return whether `data`, received after a request, has more than line ends.

    Some clients send a line end after a body.
    """
    return data.strip(b"\r\n") != b""
