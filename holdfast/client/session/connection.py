"""One connection of AMQP with its sessions: it moves bytes, and passes events to the links."""

import asyncio
import uuid
from collections.abc import Callable

from holdfast.amqp.engine.connection import Connection, ConnectionSettings
from holdfast.amqp.engine.events import (
    Attached,
    Begun,
    Closed,
    CreditChanged,
    Detached,
    Disposed,
    Drained,
    Ended,
    Event,
    Opened,
    Received,
    SaslEnded,
    SaslOffered,
    SenderSettled,
    WindowOpened,
)
from holdfast.amqp.engine.session import Session
from holdfast.amqp.wire.conditions import AmqpError, SessionFailed
from holdfast.amqp.wire.performatives import Error
from holdfast.client.errors import (
    ClientClosed,
    ConnectionFailed,
    HoldfastError,
    Unauthenticated,
    api_error,
)
from holdfast.client.session.streams import open_stream
from holdfast.client.transport.target import Target

#: The broker sends at least an empty frame in this time. A connection that is silent for twice as
#: long has failed.
_IDLE_TIMEOUT_MS = 30_000
_OPEN_TIMEOUT_S = 30.0
_CLOSE_TIMEOUT_S = 5.0


class LinkSession:
    """One session of a connection, as its links use it. For the event loop of the connection."""

    def __init__(self, connection: "SessionConnection", session: Session) -> None:
        self._connection = connection
        self._session = session
        self.error: Exception | None = None
        """Why the session ended; None while it is open."""
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_ended: Callable[[Exception], None] = lambda _: None
        """Called once, after the links have ended."""

    @property
    def engine(self) -> Connection:
        """The engine of the connection."""
        return self._connection.engine

    def flush(self) -> None:
        """Let the writer send the engine's output."""
        self._connection.flush()

    def check_open(self) -> Session:
        """Return the engine's session. Raises the error that ended the session."""
        if self.error is not None:
            raise self.error
        return self._session

    def close(self) -> None:
        """End the session. Messages that are not settled return to their groups. May be
        repeated."""
        if self.error is None:
            self._session.end()
            self.flush()
            self.ended(ClientClosed())

    def ended(self, error: Exception) -> None:
        """Record why the session has ended, and end its links. Only the first error counts."""
        if self.error is not None:
            return
        self.error = error
        self._connection.sessions.discard(self)
        if not self.begun.done():
            self.begun.set_exception(error)
        for link in self._session.links:
            link.context.ended(error)
        self.when_ended(error)


class SessionConnection:
    """A connection with any number of sessions, for one event loop."""

    def __init__(self, target: Target, url: str | None) -> None:
        self._target = target
        self._address = url
        self._url = url or target.url
        settings = ConnectionSettings(
            f"holdfast-{uuid.uuid4().hex}", idle_timeout_ms=_IDLE_TIMEOUT_MS
        )
        self.engine = Connection(settings, is_server=False)
        self.sessions: set[LinkSession] = set()
        self.error: Exception | None = None
        """Why the connection ended; None while it is open."""
        self.has_ended = asyncio.Event()
        self._opened: asyncio.Future[None] | None = None
        self._output = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Connect and authenticate.

        Raises ConnectionFailed, or ApiError if the broker refuses.
        """
        self._stream = await open_stream(self._target, self._address)
        self._opened = asyncio.get_running_loop().create_future()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        self.flush()
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                await self._opened
        except TimeoutError:
            await self.close()
            reason = "the broker did not open the connection"
            raise ConnectionFailed(self._url, reason, maybe_executed=False) from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connection. Messages that are not settled return to their groups."""
        if self._tasks and self.error is None:
            self.engine.close()
            self.flush()
            await asyncio.wait(self._tasks[:1], timeout=_CLOSE_TIMEOUT_S)
        self._end(ClientClosed())
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stream.close()

    def flush(self) -> None:
        """Let the writer send the engine's output."""
        self._output.set()

    async def begin(self) -> LinkSession:
        """Begin a session. Raises the error that ended the connection, or ApiError if the broker
        accepts no further session."""
        if self.error is not None:
            raise self.error
        if self.engine.remote is None:
            raise ClientClosed
        try:
            engine_session = self.engine.begin()
        except SessionFailed as error:
            raise error_from(error) from error
        session = engine_session.context = LinkSession(self, engine_session)
        self.sessions.add(session)
        self.flush()
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                await session.begun
        except TimeoutError:
            session.close()
            reason = "the broker did not begin the session"
            raise ConnectionFailed(self._url, reason, maybe_executed=False) from None
        return session

    async def _read(self) -> None:
        reason = "the connection ended"
        try:
            while not self.engine.is_closed:
                async with asyncio.timeout(2 * _IDLE_TIMEOUT_MS / 1000):
                    data = await self._stream.receive()
                if not data:
                    break
                for event in self.engine.receive_data(data):
                    self._act(event)
                if self.engine.has_output:
                    self.flush()
        except TimeoutError:
            reason = "the connection was silent for too long"
        except OSError as error:
            reason = str(error) or type(error).__name__
        except AmqpError as error:
            reason = str(error)
        finally:
            self._end(ConnectionFailed(self._url, reason, maybe_executed=True))

    async def _write(self) -> None:
        try:
            while True:
                keepalive_ms = self.engine.keepalive_ms
                try:
                    async with asyncio.timeout(keepalive_ms and keepalive_ms / 1000):
                        await self._output.wait()
                except TimeoutError:
                    self.engine.send_empty_frame()
                self._output.clear()
                if data := self.engine.take_output():
                    await self._stream.send(data)
        except OSError as error:
            reason = str(error) or type(error).__name__
            self._end(ConnectionFailed(self._url, reason, maybe_executed=True))

    def _act(self, event: Event) -> None:
        match event:
            case SaslOffered(mechanisms):
                self._authenticate(mechanisms)
            case SaslEnded(code) if code:
                self._end(Unauthenticated(401, "unauthenticated", "", "the login was refused"))
            case Opened():
                if self._opened is not None and not self._opened.done():
                    self._opened.set_result(None)
            case Begun(session):
                if not session.context.begun.done():
                    session.context.begun.set_result(None)
            case Attached(link):
                link.context.attached()
            case Received(link, deliveries):
                link.context.received(deliveries)
            case CreditChanged(link):
                link.context.credit_changed()
            case WindowOpened(session):
                for link in session.links:
                    link.context.credit_changed()
            case Drained(link):
                link.context.drained()
            case Disposed(session, sent, state, is_settled):
                for delivery_id, each in sent:
                    each.context(state)
                    if not is_settled:
                        session.dispose(delivery_id, delivery_id, state, settled=True, role=False)
            case SenderSettled(_, received):
                for delivery_id, delivery in received:
                    delivery.link.context.settled(delivery_id)
            case Detached(link, _, error):
                link.context.ended(error_from(error))
            case Ended(session, error):
                session.context.ended(error_from(error))
            case Closed(error):
                self._end(error_from(error))

    def _authenticate(self, mechanisms: tuple[str, ...]) -> None:
        token = self._target.token
        if token is not None and self._address is not None and "PLAIN" in mechanisms:
            self.engine.sasl_init("PLAIN", b"\x00holdfast\x00" + token.encode(), None)
        elif "EXTERNAL" in mechanisms:
            self.engine.sasl_init("EXTERNAL", b"", None)
        else:
            self.engine.sasl_init("ANONYMOUS", b"", None)

    def _end(self, error: Exception) -> None:
        """Report the end of the connection to everybody who waits. Only the first error counts."""
        if self.error is not None:
            return
        self.error = error
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(error)
        for session in list(self.sessions):
            session.ended(error)
        self.has_ended.set()


def error_from(error: Error | AmqpError | None) -> HoldfastError:
    """Return the client's error for an error of the broker. It has the type of the problem, or the
    AMQP condition if the broker names no problem."""
    if error is None:
        return ClientClosed()
    info = error.info or {}
    type_ = str(info.get("problem", error.condition))
    return api_error(0, {"type": type_, "detail": error.description or ""})
