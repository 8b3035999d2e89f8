"""A connection: protocol headers, SASL, open and close, and its sessions. Pure.

    connection = Connection(settings, is_server=True)
    for event in connection.receive_data(data):
        ...
    socket.send(connection.take_output())

The owner must act on each event before it takes the next one: peers send open, begin and attach
in one go, without waiting for answers. `receive_data` never raises. An error of the peer ends
the link, the session or the connection as the specification asks, and is reported as an event with
`is_local`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from holdfast.amqp.engine.disposition_run import read_run
from holdfast.amqp.engine.events import (
    Closed,
    Disposed,
    Ended,
    Event,
    Opened,
    Received,
    SaslChallenged,
    SaslEnded,
    SaslOffered,
    SaslResponded,
    SaslStarted,
)
from holdfast.amqp.engine.frame_writer import FrameWriter
from holdfast.amqp.engine.free_numbers import FreeNumbers
from holdfast.amqp.engine.link import HeldBytes, error_of
from holdfast.amqp.engine.session import Session, SessionState
from holdfast.amqp.wire.conditions import (
    FRAMING_ERROR,
    ILLEGAL_STATE,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    AmqpError,
    ConnectionFailed,
    DecodeError,
    SessionFailed,
)
from holdfast.amqp.wire.fast_disposition import decode_disposition
from holdfast.amqp.wire.frames import (
    AMQP_FRAME,
    AMQP_HEADER,
    EMPTY_FRAME,
    HEADER_BYTES,
    MIN_MAX_FRAME_BYTES,
    SASL_FRAME,
    SASL_HEADER,
    Frame,
    cut,
)
from holdfast.amqp.wire.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Transfer,
    decode_composite,
)
from holdfast.amqp.wire.types import Buffer

#: The shortest idle timeout of a peer that is accepted. With a shorter one, most of the traffic
#: would be empty frames.
MIN_IDLE_TIMEOUT_MS = 100
#: The largest SASL frame: tokens may be long.
MAX_SASL_FRAME_BYTES = 8_192

_TRANSFER = b"\x00\x53\x14"
_DISPOSITION = b"\x00\x53\x15"


@dataclass(frozen=True)
class ConnectionSettings:
    """What this end announces. `idle_timeout_ms` 0 means no timeout."""

    container_id: str
    max_frame_bytes: int = 65_536
    channel_max: int = 65_535
    idle_timeout_ms: int = 0
    incoming_window: int = 400
    handle_max: int = 0xFFFFFFFF
    hostname: str | None = None
    offered_capabilities: tuple[str, ...] = ()
    desired_capabilities: tuple[str, ...] = ()
    properties: dict[str, Any] | None = None
    requires_sasl: bool = True
    first_id: int = 0
    """The first transfer-id and delivery-id of each session."""


class Phase(Enum):
    """What the connection expects of the peer next.

    | phase       | expected                                              |
    |-------------|-------------------------------------------------------|
    | SASL_HEADER | the protocol header of SASL (a server: or of AMQP)    |
    | SASL        | SASL frames                                           |
    | SASL_WAIT   | nothing: the owner has to give the outcome            |
    | AMQP_HEADER | the protocol header of AMQP                           |
    | FRAMES      | AMQP frames; the first is open                        |
    | CLOSE_SENT  | close; everything before it is ignored                |
    | CLOSED      | nothing                                               |
    """

    SASL_HEADER = "SASL header"
    SASL = "SASL"
    SASL_WAIT = "SASL wait"
    AMQP_HEADER = "AMQP header"
    FRAMES = "frames"
    CLOSE_SENT = "close sent"
    CLOSED = "closed"


class Connection:
    """One end of a connection: the server if `is_server`, otherwise the client."""

    def __init__(self, settings: ConnectionSettings, *, is_server: bool) -> None:
        self.settings = settings
        self.is_server = is_server
        self.context: Any = None
        """Whatever the owner keeps with the connection."""
        self.remote: Open | None = None
        """The open of the peer, without its lists and maps; None until it has arrived."""
        self.has_backlog = False
        """Whether `receive_data` stopped at `max_frames`. Call it again, with b""."""
        self._writer = FrameWriter()
        self._buffer = b""
        self._phase = Phase.SASL_HEADER
        self._is_open_sent = False
        self._mechanisms: tuple[str, ...] = ("ANONYMOUS",)
        self._sessions: dict[int, Session] = {}
        """By the channels of this end."""
        self._by_remote_channel: dict[int, Session] = {}
        self._channels = FreeNumbers()
        self._held = HeldBytes()
        if not is_server:
            self._phase = Phase.SASL_HEADER if settings.requires_sasl else Phase.AMQP_HEADER
            self._writer.write_bytes(SASL_HEADER if settings.requires_sasl else AMQP_HEADER)

    # ---- Commands of the owner

    def take_output(self) -> bytes:
        """Return the bytes to send; b"" if there are none."""
        return self._writer.take()

    @property
    def has_output(self) -> bool:
        """Whether `take_output` would return bytes."""
        return self._writer.has_output

    @property
    def is_closed(self) -> bool:
        """Whether both ends have closed, or an error makes further frames useless."""
        return self._phase is Phase.CLOSED

    def offer_mechanisms(self, mechanisms: tuple[str, ...]) -> None:
        """Offer SASL mechanisms. A server calls this before it receives."""
        self._mechanisms = mechanisms

    def sasl_challenge(self, challenge: bytes) -> None:
        """Send a challenge to the client."""
        self._writer.write(0, SaslChallenge(challenge), SASL_FRAME)
        self._phase = Phase.SASL

    def sasl_outcome(self, code: int) -> None:
        """End the authentication; code 0 lets the client in, any other ends the connection.

        If the owner calls this after it has handled the event, it must call `receive_data(b"")`
        afterwards: the client may have sent more bytes.
        """
        self._writer.write(0, SaslOutcome(code), SASL_FRAME)
        self._phase = Phase.CLOSED if code else Phase.AMQP_HEADER

    def sasl_init(self, mechanism: str, response: bytes | None, hostname: str | None) -> None:
        """Choose a mechanism, as the client."""
        self._writer.write(0, SaslInit(mechanism, response, hostname), SASL_FRAME)

    def sasl_response(self, response: bytes) -> None:
        """Answer a challenge, as the client."""
        self._writer.write(0, SaslResponse(response), SASL_FRAME)

    def open(self, properties: dict[str, Any] | None = None) -> None:
        """Send the open of this end, once."""
        if self._is_open_sent:
            return
        self._is_open_sent = True
        settings = self.settings
        self._writer.write(
            0,
            Open(
                settings.container_id,
                settings.hostname,
                settings.max_frame_bytes,
                settings.channel_max,
                settings.idle_timeout_ms or None,
                offered_capabilities=settings.offered_capabilities,
                desired_capabilities=settings.desired_capabilities,
                properties=properties if properties is not None else settings.properties,
            ),
        )

    def close(self, error: AmqpError | None = None) -> None:
        """Send the close of this end. Do nothing if it was sent before."""
        if self._phase in (Phase.CLOSE_SENT, Phase.CLOSED):
            return
        if self._phase is not Phase.FRAMES:
            self._phase = Phase.CLOSED
            return
        self.open()
        self._writer.write(0, Close(error_of(error) if error else None))
        self._phase = Phase.CLOSE_SENT

    def begin(self) -> Session:
        """Begin a session, once `open` was sent.

        Raises SessionFailed if the peer accepts no further session.
        """
        assert self._is_open_sent
        session = self._new_session()
        session.begin()
        return session

    def send_empty_frame(self) -> None:
        """Keep the connection alive: see `keepalive_ms`."""
        if self._phase is Phase.FRAMES and self._is_open_sent:
            self._writer.write_bytes(EMPTY_FRAME)

    @property
    def keepalive_ms(self) -> int | None:
        """How long this end may be silent: half of the peer's idle timeout. None: no limit."""
        timeout = self.remote.idle_time_out if self.remote else None
        return timeout // 2 if timeout else None

    @property
    def sessions(self) -> list[Session]:
        """The sessions that at least one end has not ended."""
        return list(self._sessions.values())

    def answer_begin(self, session: Session) -> None:
        """Answer the begin of the peer: see the event Begun."""
        session.begin(session.remote_channel)

    @property
    def unfinished_bytes(self) -> int:
        """The bytes held for unfinished frames and deliveries."""
        return len(self._buffer) + self._held.arriving

    @property
    def waiting_bytes(self) -> int:
        """The bytes of frames that wait for windows of the peer."""
        return self._held.waiting

    # ---- Bytes of the peer

    def is_heartbeat(self, data: Buffer) -> bool:
        """Return whether the next bytes of the peer are an empty frame and nothing else. Then
        `receive_data` would do nothing with them."""
        return (
            data == EMPTY_FRAME
            and self._phase is Phase.FRAMES
            and not self._buffer
            and self.remote is not None
        )

    def receive_data(self, data: Buffer, max_frames: int = 0) -> Iterator[Event]:
        """Process bytes of the peer. Iterate to the end; act on an event before the next.

        If `max_frames` is not 0, process at most this many frames: see `has_backlog`.
        """
        buffer = self._buffer + data if self._buffer else data
        self._buffer = b""
        self.has_backlog = False
        at, end, left = 0, len(buffer), max_frames or -1
        events: list[Event] = []
        try:
            while self._phase not in (Phase.CLOSED, Phase.SASL_WAIT):
                phase = self._phase
                if phase in (Phase.SASL_HEADER, Phase.AMQP_HEADER):
                    if not self._header_arrived(bytes(buffer[at : at + HEADER_BYTES]), events):
                        break
                    at += HEADER_BYTES
                    continue
                limit = MAX_SASL_FRAME_BYTES
                if phase is not Phase.SASL:
                    limit = self.settings.max_frame_bytes
                at, count = self._run_arrived(buffer, at, end, left, events)
                left -= count
                if not left:
                    self.has_backlog = at < end
                    break
                for each in cut(buffer, at, end, limit):
                    at = each.end
                    self._frame_arrived(buffer, each, events)
                    # Deliveries and final outcomes are collected as long as nothing else arrives.
                    if events and not _is_collected(events[-1]):
                        yield from events
                        events.clear()
                    if self._phase is not phase:
                        break
                    left -= 1
                    if not left:
                        self.has_backlog = at < end
                        break
                    if events:
                        break  # after a delivery, others may follow as a run
                else:
                    break
                if not left:
                    break
        except AmqpError as error:
            self._fail(error, events)
            at = end
        self._buffer = bytes(buffer[at:end])
        yield from events

    def fail(self, error: AmqpError) -> list[Event]:
        """Close the connection for an error that the owner found (such as a timeout)."""
        events: list[Event] = []
        self._fail(error, events)
        return events

    def _fail(self, error: AmqpError, events: list[Event]) -> None:
        if self._phase in (Phase.CLOSE_SENT, Phase.CLOSED):
            self._phase = Phase.CLOSED
            return
        self.close(error)
        events.append(Closed(error, is_local=True))

    def _header_arrived(self, header: bytes, events: list[Event]) -> bool:
        """Process a protocol header. Return False if it has not arrived completely."""
        is_sasl_possible = self._phase is Phase.SASL_HEADER
        expected = [SASL_HEADER] if is_sasl_possible else [AMQP_HEADER]
        if self.is_server and is_sasl_possible and not self.settings.requires_sasl:
            expected.append(AMQP_HEADER)
        if not any(each.startswith(header) for each in expected):
            # The specification: answer with the header that is supported, and close.
            self._writer.write_bytes(expected[0])
            self._phase = Phase.CLOSED
            events.append(
                Closed(
                    ConnectionFailed(FRAMING_ERROR, f"protocol header {header!r}"), is_local=True
                )
            )
            return True
        if len(header) < HEADER_BYTES:
            return False
        if self.is_server:
            self._writer.write_bytes(header)
        if header == AMQP_HEADER:
            self._phase = Phase.FRAMES
            if not self.is_server:
                self.open()
            return True
        self._phase = Phase.SASL
        if self.is_server:
            self._writer.write(0, SaslMechanisms(self._mechanisms), SASL_FRAME)
        return True

    def _run_arrived(
        self, buffer: Buffer, at: int, end: int, left: int, events: list[Event]
    ) -> tuple[int, int]:
        """Process frames that differ little: transfers that are whole deliveries of one link, or
        dispositions of successive deliveries; at most `left` if it is not negative. Return the
        offset after them, and their number."""
        if self._phase is not Phase.FRAMES or end - at < 12 or type(buffer) is not bytes:
            return at, 0
        channel = buffer[at + 6] << 8 | buffer[at + 7]
        session = self._by_remote_channel.get(channel)
        if session is None or session.state is not SessionState.MAPPED:
            return at, 0
        most = end - at if left < 0 else left
        if buffer[at + 8 : at + 11] == _DISPOSITION:
            run = read_run(buffer, at, end, most, self.settings.max_frame_bytes)
            if run is None:
                return at, 0
            disposition, at, count = run
            session.disposition_arrived(disposition, events)
            return at, count
        return session.run_arrived(buffer, at, end, most, self.settings.max_frame_bytes, events)

    def _frame_arrived(self, buffer: Buffer, found: Frame, events: list[Event]) -> None:
        if self._phase is Phase.SASL:
            self._sasl_arrived(buffer, found, events)
            return
        if found.type != AMQP_FRAME:
            raise DecodeError(f"frame type {found.type} is not allowed here", FRAMING_ERROR)
        if found.start == found.end:
            return  # an empty frame
        prefix = bytes(buffer[found.start : found.start + 3])
        performative: Any
        if self._phase is Phase.CLOSE_SENT:
            performative, _ = decode_composite(buffer, found.start, found.end)
            if type(performative) is Close:
                self._phase = Phase.CLOSED
                events.append(Closed(performative.error))
            return
        if prefix == _TRANSFER:
            session = self._session(found.channel)
            if session.state is not SessionState.END_SENT:
                try:
                    session.transfer_arrived(buffer, found.start, found.end, events)
                except SessionFailed as error:
                    self._end_session(session, error, events)
            return
        if prefix == _DISPOSITION:
            performative = decode_disposition(buffer, found.start, found.end)
        else:
            performative, stop = decode_composite(buffer, found.start, found.end)
            if type(performative) is not Transfer and stop != found.end:
                raise DecodeError("a frame has bytes behind its performative")
        self._performative_arrived(performative, buffer, found, events)

    def _performative_arrived(
        self, performative: Any, buffer: Buffer, found: Frame, events: list[Event]
    ) -> None:
        kind = type(performative)
        if kind is Open:
            self._open_arrived(performative, events)
            return
        if self.remote is None:
            raise ConnectionFailed(ILLEGAL_STATE, "the first frame is not open")
        if kind is Close:
            self.close()
            self._phase = Phase.CLOSED
            events.append(Closed(performative.error))
            return
        if kind is Begin:
            events.append(self._begin_arrived(performative, found.channel))
            return
        session = self._session(found.channel)
        if kind is End:
            del self._by_remote_channel[found.channel]
            is_reported = session.state is not SessionState.END_SENT
            event = session.remote_end(performative)
            del self._sessions[session.channel]
            self._channels.give_back(session.channel)
            if is_reported:
                events.append(event)
            return
        if session.state is SessionState.END_SENT:
            return  # the peer has not received the end
        try:
            if kind is Transfer:
                session.transfer_arrived(buffer, found.start, found.end, events)
            elif kind is Disposition:
                session.disposition_arrived(performative, events)
            elif kind is Flow:
                session.flow_arrived(performative, events)
            elif kind is Attach:
                events.append(session.attach_arrived(performative))
            elif kind is Detach:
                events.append(session.detach_arrived(performative))
            else:
                raise DecodeError(f"{kind.__name__} is not a performative")
        except SessionFailed as error:
            self._end_session(session, error, events)

    def _end_session(self, session: Session, error: SessionFailed, events: list[Event]) -> None:
        session.end(error)
        events.append(Ended(session, error, is_local=True))

    def _session(self, channel: int) -> Session:
        if self.remote is None:
            raise ConnectionFailed(ILLEGAL_STATE, "the first frame is not open")
        session = self._by_remote_channel.get(channel)
        if session is None:
            raise ConnectionFailed(NOT_ALLOWED, f"channel {channel} has no session")
        return session

    def _open_arrived(self, performative: Open, events: list[Event]) -> None:
        if self.remote is not None:
            raise ConnectionFailed(ILLEGAL_STATE, "open arrived a second time")
        timeout = performative.idle_time_out
        if timeout is not None and 0 < timeout < MIN_IDLE_TIMEOUT_MS:
            raise ConnectionFailed(
                NOT_ALLOWED, f"an idle-time-out below {MIN_IDLE_TIMEOUT_MS} ms is not supported"
            )
        if performative.max_frame_size < MIN_MAX_FRAME_BYTES:
            raise ConnectionFailed(
                NOT_ALLOWED, f"a max-frame-size below {MIN_MAX_FRAME_BYTES} is not allowed"
            )
        self.remote = Open(
            performative.container_id,
            performative.hostname,
            performative.max_frame_size,
            performative.channel_max,
            performative.idle_time_out,
        )
        self._writer.max_frame_bytes = performative.max_frame_size
        events.append(Opened(performative))

    def _begin_arrived(self, begin: Begin, channel: int) -> Event:
        if channel > self.settings.channel_max:
            raise ConnectionFailed(FRAMING_ERROR, f"channel {channel} is above channel-max")
        if channel in self._by_remote_channel:
            raise ConnectionFailed(ILLEGAL_STATE, f"channel {channel} has a session")
        if begin.remote_channel is not None:
            session = self._sessions.get(begin.remote_channel)
            if session is None or session.state not in (
                SessionState.BEGIN_SENT, SessionState.END_SENT,
            ):  # fmt: skip
                raise ConnectionFailed(NOT_ALLOWED, "begin answers no session of this end")
        else:
            session = self._new_session()
        self._by_remote_channel[channel] = session
        session.remote_channel = channel
        return session.remote_begin(begin)

    def _new_session(self) -> Session:
        channel = self._channels.lowest
        if self.remote is not None and channel > self.remote.channel_max:
            raise SessionFailed(RESOURCE_LIMIT_EXCEEDED, "the peer accepts no further session")
        self._channels.take()
        session = Session(
            channel, self._writer, self.settings.incoming_window, self.settings.handle_max,
            self._held, self.settings.first_id,
        )  # fmt: skip
        self._sessions[channel] = session
        return session

    def _sasl_arrived(self, buffer: Buffer, found: Frame, events: list[Event]) -> None:
        if found.type != SASL_FRAME:
            raise DecodeError(f"frame type {found.type} is not allowed here", FRAMING_ERROR)
        value, _ = decode_composite(buffer, found.start, found.end)
        if self.is_server and type(value) is SaslInit:
            self._phase = Phase.SASL_WAIT
            events.append(SaslStarted(value.mechanism, value.initial_response, value.hostname))
        elif self.is_server and type(value) is SaslResponse:
            self._phase = Phase.SASL_WAIT
            events.append(SaslResponded(value.response))
        elif not self.is_server and type(value) is SaslMechanisms:
            events.append(SaslOffered(value.mechanisms))
        elif not self.is_server and type(value) is SaslChallenge:
            events.append(SaslChallenged(value.challenge))
        elif not self.is_server and type(value) is SaslOutcome:
            events.append(SaslEnded(value.code))
            if value.code:
                self._phase = Phase.CLOSED
            else:
                self._phase = Phase.AMQP_HEADER
                self._writer.write_bytes(AMQP_HEADER)
        else:
            raise DecodeError(f"{type(value).__name__} is not allowed here", FRAMING_ERROR)


def _is_collected(event: Event) -> bool:
    kind = type(event)
    return kind is Received or (kind is Disposed and event.is_settled)  # type: ignore[union-attr]
