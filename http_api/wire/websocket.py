"""A WebSocket (RFC 6455) that carries the bytes of another protocol, such as AMQP.

The bytes are a stream: frames and messages of the WebSocket may begin and end anywhere in it. The
library `websockets` checks the handshake, and reads and writes frames; `websocket_frames` reads the
most frequent kind of frame faster.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, cast

from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request as Handshake
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from holdfast.commitlog.setting import MIB
from holdfast.http_api.wire.aiohttp_parser import HttpVersion11, hdrs
from holdfast.http_api.wire.body_reader import LIMIT
from holdfast.http_api.wire.connection_registry import Connections
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.request import Peer, Request
from holdfast.http_api.wire.websocket_frames import frame_end, take_payloads

#: The largest payload of a frame that the broker accepts. A frame may carry a part of a frame of
#: AMQP, or many of them. A message of several frames has no limit: no message is kept as a whole.
MAX_FRAME_BYTES = MIB
#: The largest payload of a frame that the broker sends. Some clients (Netty) refuse larger ones.
MAX_SENT_BYTES = 65_535
#: If an incomplete frame is at most this large, `ArrivingBytes` does not count it. This memory is
#: part of the fixed cost of a connection.
UNCOUNTED_BYTES = 8 * 1024
#: How long the broker waits for the client's part of the closing handshake.
CLOSING_S = 2.0

_SUBPROTOCOL = Subprotocol("amqp")
#: The library logs the payloads of frames at level DEBUG. They may contain passwords.
_frames_logger = logging.getLogger(f"{__name__}.frames")
_frames_logger.setLevel(logging.INFO)


def accept_handshake(request: Request) -> tuple[ServerProtocol, bytes]:
    """Return the state of a new WebSocket, and the reply that opens it.

    Raises Problem (malformed-request) if the request does not open a WebSocket for AMQP.
    """
    protocol = ServerProtocol(
        subprotocols=[_SUBPROTOCOL], max_size=None, state=State.OPEN, logger=_frames_logger
    )
    if request.method != hdrs.METH_GET or request.version < HttpVersion11:
        raise _no_handshake("it needs GET and HTTP/1.1")
    answer = protocol.accept(
        Handshake(request.url.raw_path, Headers(list(request.headers.items())))
    )
    if answer.status_code != 101:
        raise _no_handshake(str(protocol.handshake_exc))
    return protocol, answer.serialize()


def _no_handshake(reason: str) -> Problem:
    problem = Problem(
        "malformed-request",
        f"this is not the handshake of a WebSocket with the sub-protocol amqp ({reason}); connect "
        "with a client of AMQP 1.0 over WebSocket",
    )
    problem.headers.append((hdrs.SEC_WEBSOCKET_VERSION, "13"))
    return problem


class WebSocketConnection(asyncio.Transport, asyncio.Protocol):
    """One WebSocket. It is the protocol of a TCP or TLS transport, and the transport of `user`.

    `protocol` and `answer` are the result of `accept_handshake`. The limits of `connections` have
    admitted the client `peer`. `raw` is the TCP transport under TLS; it is None without TLS. The
    user gets the payloads of all frames in order. After `close` the user gets no more bytes.
    """

    __slots__ = ("_answer", "_client", "_closing_timer", "_connections", "_held_pong",
                 "_is_closing", "_is_counted", "_is_ended", "_is_in_message", "_is_paused",
                 "_loop", "_needed_bytes", "_protocol", "_raw", "_rest", "_user",
                 "_wire", "closed")  # fmt: skip

    def __init__(
        self,
        protocol: ServerProtocol,
        answer: bytes,
        user: asyncio.Protocol,
        connections: Connections,
        peer: Peer,
        raw: asyncio.Transport | None,
    ) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._answer = answer
        self._user = user
        self._connections = connections
        self._client = peer.client
        self._raw = raw
        self._wire: asyncio.Transport | None = None
        """The transport below; None before the connection is made and after it is lost."""
        self._rest = bytearray()
        """The beginning of an incomplete frame."""
        self._needed_bytes = 0
        """Nothing can be read before `_rest` has this size."""
        self._is_counted = False
        """Whether `Connections.arriving` counts the incomplete frame."""
        self._is_in_message = False
        """Whether a message has begun, and its last frame is still to come."""
        self._is_closing = False
        """Whether the user gets no more bytes and may write none."""
        self._is_ended = False
        """Whether the last byte was written; received bytes are discarded."""
        self._is_paused = False
        """Whether the operating system has not accepted all bytes."""
        self._held_pong = b""
        """The newest answer to a ping that arrived while `_is_paused`."""
        self._closing_timer: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()
        """Completed when the connection is lost."""

    # -- the protocol of the transport below -------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the handshake, and let the user begin."""
        self._wire = cast(asyncio.Transport, transport)
        self._connections.upgraded.add(self)
        self._wire.set_write_buffer_limits()  # HTTP has set them to 0
        self._wire.write(self._answer)
        self._user.connection_made(self)

    def data_received(self, data: bytes) -> None:
        if self._is_ended:
            return
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed_bytes:
                return
            data = bytes(self._rest)
            self._drop_rest()
        at = 0
        while at < len(data) and not self._is_ended:
            if not self._is_in_message and not self._is_closing:
                payloads, at = take_payloads(data, at, MAX_FRAME_BYTES)
                if payloads:
                    self._deliver(payloads)
                    continue
            end = frame_end(data, at)
            if end - at > MAX_FRAME_BYTES + 14:
                self._fail(CloseCode.MESSAGE_TOO_BIG, f"a frame is larger than {MAX_FRAME_BYTES}")
            elif end > len(data):
                self._keep(data[at:], end - at)
                at = len(data)
            else:
                self._read_other_frame(data[at:end])
                at = end

    def eof_received(self) -> None:
        """Let the transport below close, because the client sends nothing more."""

    def pause_writing(self) -> None:
        self._is_paused = True
        self._user.pause_writing()

    def resume_writing(self) -> None:
        self._is_paused = False
        pong, self._held_pong = self._held_pong, b""
        if pong and self._wire is not None:
            self._wire.write(pong)
        self._user.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._closing_timer is not None:
            self._closing_timer.cancel()
        self._drop_rest()
        self._is_closing = self._is_ended = True
        self._wire = self._raw = None
        self._connections.upgraded.discard(self)
        self._connections.limits.leave(self._client)
        self.closed.set_result(None)
        self._user.connection_lost(exc)

    # -- the transport of the user -----------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes in one or more frames. Do nothing once the WebSocket is closing."""
        if self._is_closing or self._wire is None:
            return
        if len(data) <= MAX_SENT_BYTES:
            self._protocol.send_binary(data)
        else:
            whole = memoryview(data)
            for start in range(0, len(whole), MAX_SENT_BYTES):
                self._protocol.send_binary(whole[start : start + MAX_SENT_BYTES])
        self._wire.writelines(self._protocol.data_to_send())

    def close(self) -> None:
        """Send the written bytes, then close with the closing handshake."""
        self._close(CloseCode.NORMAL_CLOSURE)

    def finish(self) -> None:
        self._close(CloseCode.GOING_AWAY)

    def abort(self) -> None:
        self._is_closing = self._is_ended = True
        if self._wire is not None:
            self._wire.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._wire is None or self._wire.is_closing()

    def pause_reading(self) -> None:
        if self._wire is not None and not self.is_closing():
            self._wire.pause_reading()

    def resume_reading(self) -> None:
        if self._wire is not None and not self.is_closing():
            self._wire.resume_reading()

    def is_reading(self) -> bool:
        return self._wire is not None and self._wire.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._wire is not None:
            self._wire.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the operating system has not accepted, also encrypted ones."""
        return sum(
            wire.get_write_buffer_size() for wire in (self._wire, self._raw) if wire is not None
        )

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._wire is None else self._wire.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._user = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._user

    # -- frames ------------------------------------------------------------------------------

    def _deliver(self, payloads: Iterable[bytes | bytearray | memoryview]) -> None:
        data = b"".join(payloads)
        if data and not self._is_closing:
            self._user.data_received(data)

    def _read_other_frame(self, data: bytes) -> None:
        """Let the library read one frame: a part of a message, a ping, a close, or an error."""
        protocol = self._protocol
        protocol.receive_data(data)
        for frame in cast("list[Frame]", protocol.events_received()):
            if frame.opcode is Opcode.TEXT:
                protocol.fail(CloseCode.UNSUPPORTED_DATA, "AMQP needs binary frames")
            elif frame.opcode in (Opcode.BINARY, Opcode.CONT):
                self._is_in_message = not frame.fin
                self._deliver([frame.data])
        self._send_control_frames()

    def _send_control_frames(self) -> None:
        """Send what the library answers: a pong or a close.

        While the client does not read, keep only the newest pong, so that pings use no memory.
        """
        frames = self._protocol.data_to_send()
        if not frames or self._wire is None:
            return
        if self._protocol.state is not State.OPEN:
            if not self._is_closing:
                self._wire.writelines(filter(None, frames))
                self._await_end()
            if not frames[-1]:  # the library ends what it sends with empty bytes
                self._end()
        elif self._is_paused:
            self._held_pong = frames[-1]
        else:
            self._wire.writelines(frames)

    def _keep(self, data: bytes, needed_bytes: int) -> None:
        """Keep the beginning of a frame that needs `needed_bytes`, and count its memory."""
        self._rest += data
        self._needed_bytes = needed_bytes
        if needed_bytes <= UNCOUNTED_BYTES:
            return
        arriving = self._connections.arriving
        refused = arriving.take(self, self._client, needed_bytes, self._give_way)
        if refused is not None:
            self._give_way(refused)
        else:
            self._is_counted = True

    def _drop_rest(self) -> None:
        self._rest.clear()
        if self._is_counted:
            self._is_counted = False
            self._connections.arriving.release(self)

    def _give_way(self, limit_name: str = LIMIT) -> None:
        """Close, because other connections need the memory of the incomplete frame, or because
        the memory is above a limit."""
        self._connections.closed_early["arriving-limit"] += 1
        self._fail(CloseCode.TRY_AGAIN_LATER, f"frames of more than {limit_name} are arriving")

    # -- closing -----------------------------------------------------------------------------

    def _close(self, code: CloseCode) -> None:
        if self._is_closing:
            return
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code)
        self.resume_reading()  # the client's close must arrive
        self._send_control_frames()

    def _fail(self, code: CloseCode, reason: str) -> None:
        """Close with an error, and read nothing more."""
        self._drop_rest()
        self._protocol.fail(code, reason)
        self._send_control_frames()

    def _await_end(self) -> None:
        """Let the client end the connection, or abort it after CLOSING_S."""
        self._is_closing = True
        if self._closing_timer is None:
            self._closing_timer = self._loop.call_later(CLOSING_S, self.abort)

    def _end(self) -> None:
        """Half-close, and discard what still arrives.

        If the broker closed while input is unread, the client would get a reset instead of the
        close code.
        """
        self._is_ended = True
        if self._wire is None:
            return
        if self._wire.can_write_eof():
            self._wire.write_eof()
        else:
            self._wire.close()
