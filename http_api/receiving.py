"""The receiving half of a connection: what comes in is cut into requests, which wait in order.

What is a request, aiohttp's parser alone decides. It lives for a head, and for a body in chunks
or one that came together with its head: where the bytes end with a request, the next one gets a
parser of its own, so that whoever waits, idle or held, keeps none. The rest of a body of known
length goes past it (`arriving_body`).

Guarded here: a head that does not come to its end, and requests that are sent faster than they
are answered. A body's own deadline is its reader's (`bodies`).
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

from aiohttp import hdrs, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from aiohttp.streams import EMPTY_PAYLOAD

from holdfast.http_api.arriving_body import ArrivingBody
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.headers import MAX_FIELD_BYTES
from holdfast.http_api.next_head import head_begins
from holdfast.http_api.request import Content, Request
from holdfast.http_api.sending import Sending

if TYPE_CHECKING:
    from holdfast.http_api.connection import Connection
    from holdfast.http_api.connections import Connections

#: A poll over 1,024 queues, or a filter of 4 KiB percent-encoded, must fit the request line.
MAX_LINE_BYTES = 64 * 1024
MAX_HEADERS = 128
#: Requests that may wait for the one before them; then nothing more is read.
MAX_WAITING = 32
#: Of a body in chunks so much, and again as much, is taken in before it is asked for.
_CHUNKED_BYTES = 64 * 1024


class Receiving(Sending):
    """Takes what a client sends. Its other half answers: `_serve_next` when a request is there and
    none is being answered."""

    __slots__ = (
        "_arriving",
        "_content",
        "_head_begins",
        "_is_busy",
        "_is_crowded",
        "_is_deaf",
        "_is_flooded",
        "_is_held_back",
        "_is_stopped",
        "_parser",
        "_waiting",
        "received_at",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, config: HttpConfig, connections: "Connections"
    ) -> None:
        super().__init__(loop, config, connections)
        self._parser: HttpRequestParser | None = None
        self._waiting: deque[tuple[RawRequestMessage | HttpProcessingError, Content]] | None = None
        """Requests, and at the end perhaps why there are no more; None: there are none."""
        self._head_begins = False
        """Whether behind whole requests a head has begun, as far as can be told."""
        self._content: Content = EMPTY_PAYLOAD
        """The body of the request that is being answered."""
        self._arriving: ArrivingBody | None = None
        """That, while it is received past the parser."""
        self._is_busy = False
        """Whether a request is being answered."""
        self._is_deaf = False
        """Whether what comes is not looked at any more."""
        # Why reading may be stopped: too many requests wait, one waits whose body is to be received
        # past the parser, or too much of a body in chunks waits.
        self._is_crowded = self._is_held_back = self._is_flooded = False
        self._is_stopped = False
        self.received_at = 0.0
        """When bytes last came, by the loop's clock."""

    def head_is_late(self) -> None:
        """Close: a head has not come to its end."""
        self._connections.closed_early["slow-head"] += 1
        self.close()

    # -- what the other half does ------------------------------------------------------------------

    def _serve_next(self) -> None:
        """Begin to answer the request that has waited the longest."""
        raise NotImplementedError

    def _body_ended(self) -> None:
        """A body that was received past the parser is whole, or has been read to its end."""
        raise NotImplementedError

    def _threw_away(self, count: int) -> None:
        """So many bytes came that are not looked at."""
        raise NotImplementedError

    # -- what comes ------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether the client is there; asked by a body in chunks."""
        return self.transport is not None

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: a body's own buffer, or one that all share, which is
        emptied in the same turn."""
        arriving = self._arriving
        scratch = self._connections.scratch
        return scratch if arriving is None else arriving.room(scratch)

    def buffer_updated(self, nbytes: int) -> None:
        """Take what came."""
        arriving = self._arriving
        if arriving is None:
            self.data_received(bytes(self._connections.scratch[:nbytes]))
            return
        self.received_at = self._loop.time()
        if arriving.received(nbytes):
            self._arriving = None
            self._body_ended()

    def data_received(self, data: bytes) -> None:
        """Parse what has come, and begin to answer it if nothing else is being answered."""
        # The loop's own idea of now, which is that of the turn's start: of a thousand requests
        # that come in one turn, the last one's wait began with the first one's.
        self.received_at = self._loop.time()
        self._parse(data)
        if self._is_busy:
            self._hold_back()
        elif self._waiting is not None:
            self._serve_next()
        elif self._is_deaf:
            self._threw_away(len(data))
        elif data:
            self._connections.heads.put(self)

    def _hold_back(self) -> None:
        """Stop reading when a body of known length has begun before its turn: then the rest of it
        is received past the parser."""
        if self._waiting is not None and not self._is_held_back:
            message, content = self._waiting[-1]
            if isinstance(message, HttpProcessingError) or content.is_eof():
                return
            if hdrs.CONTENT_LENGTH in message.headers:
                self._is_held_back = True
                self._set_reading()

    def _parse(self, data: bytes) -> None:
        if self._is_deaf:
            return
        parser = self._parser
        if is_new := parser is None:
            parser = self._parser = HttpRequestParser(
                cast(BaseProtocol, self),  # for its body in chunks, to stop reading and go on
                self._loop,
                _CHUNKED_BYTES,
                max_line_size=MAX_LINE_BYTES,
                max_field_size=MAX_FIELD_BYTES,
                max_headers=MAX_HEADERS,
                payload_exception=web.RequestPayloadError,
                auto_decompress=False,
                max_msg_queue_size=MAX_WAITING,
            )
        try:
            messages, is_upgraded, _ = parser.feed_data(data)
        except HttpProcessingError as error:
            self._no_more_requests(error)
            return
        if not messages:  # it is of a head, or of a body and what lies behind it
            content = self._waiting[-1][1] if self._waiting else self._content
            if content.is_eof() and not self._is_held_back and head_begins(data):
                self._head_begins = True
            return
        self._connections.heads.take(self)
        if is_upgraded:
            self._is_deaf = True
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.extend(messages)
        message, content = messages[-1]
        if (
            len(messages) == 1
            and is_new
            and content.is_eof()
            and data.find(b"\r\n\r\n") + 4 + content.total_bytes == len(data)
        ):
            # All of it was one whole request: what follows begins with a head. (The first empty
            # line is the end of its head, or lies before that; so it can only seem too long.)
            self._parser = None
            self._head_begins = False
        else:
            known_bytes = 0 if message.chunked else content.total_bytes
            self._head_begins = content.is_eof() and head_begins(data, known_bytes)
        if len(self._waiting) >= MAX_WAITING:
            self._is_crowded = True
            self._set_reading()

    def _no_more_requests(self, error: HttpProcessingError) -> None:
        """What came cannot be cut into requests: no more is read of it."""
        self._is_deaf = True
        self._parser = None
        content = self._waiting[-1][1] if self._waiting else self._content
        if not content.is_eof():
            content.set_exception(web.RequestPayloadError(str(error)))
            return
        self._connections.heads.take(self)
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append((error, EMPTY_PAYLOAD))

    # A body in chunks stops its connection when too much of it waits to be read.

    def pause_reading(self) -> None:
        """Called by a body in chunks: it holds too much."""
        self._is_flooded = True
        if self._parser is not None:
            self._parser.pause_reading()
        self._set_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Called by a body in chunks: it is read on, or whole."""
        if not self._is_flooded:
            return
        self._is_flooded = False
        if resume_parser and self._parser is not None:
            self._parse(b"")
        self._set_reading()

    def _set_reading(self) -> None:
        """Stop reading, or go on, as is due."""
        arriving = self._arriving
        is_stopped = not self._is_deaf and (
            self._is_crowded
            or self._is_held_back
            or self._is_flooded
            or (arriving is not None and not arriving.is_wanted)
        )
        if is_stopped != self._is_stopped and self.transport is not None:
            self._is_stopped = is_stopped
            if is_stopped:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    # -- what the other half asks for --------------------------------------------------------------

    def _next_request(self) -> Request | HttpProcessingError:
        """Return the request that has waited the longest, or why there are no more; one waits. Its
        body is `_content` from now on."""
        waiting = self._waiting
        assert waiting is not None
        message, content = waiting.popleft()
        if self._parser is not None:
            self._parser.message_consumed()
        if self._is_crowded and len(waiting) <= MAX_WAITING // 2:
            self._is_crowded = False
            if self._parser is not None:
                self._parse(b"")  # what it has kept back
            self._set_reading()
        if not waiting:
            self._waiting = None
        if isinstance(message, HttpProcessingError):
            return message
        return self._request(message, content)

    def _request(self, message: RawRequestMessage, content: Content) -> Request:
        request = Request(message, content, cast("Connection", self))
        self._is_held_back = False
        if not content.is_eof() and self._waiting is None and not self._is_flooded:
            length = request.content_length
            if length is not None:
                # The parser has passed on all it got. The rest goes past it straight to its place.
                self._parser = None
                begun_with = cast(bytes, content.read_nowait())
                self._arriving = ArrivingBody(length, begun_with, self._set_reading)
                request.content = self._arriving
        self._content = request.content
        return request

    def _listen_no_more(self) -> None:
        """Read on, so that the client gets to send it, but let go of what comes."""
        if self._arriving is not None:
            self._arriving.drop()
        else:
            self._is_deaf = True
        self._set_reading()

    def _forget(self) -> None:
        """Let go of everything: nothing comes any more."""
        self._is_deaf = True
        self._parser = self._waiting = self._arriving = None
