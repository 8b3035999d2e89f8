"""One connection of AMQP with one session: it moves bytes, and passes events to the links."""

import asyncio
import uuid

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
from holdfast.amqp.wire.conditions import AmqpError
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


class SessionConnection:
    """A connection with one session, for one event loop."""

    def __init__(self, target: Target, url: str | None) -> None:
        self._target = target
        self._address = url
        self._url = url or target.url
        settings = ConnectionSettings(
            f"holdfast-{uuid.uuid4().hex}", idle_timeout_ms=_IDLE_TIMEOUT_MS
        )
        self.engine = Connection(settings, is_server=False)
        self.session: Session | None = None
        self.error: Exception | None = None
        """Why the connection ended; None while it is open."""
        self._begun: asyncio.Future[None] | None = None
        self._output = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Connect, authenticate and begin the session.

        Raises ConnectionFailed, or ApiError if the broker refuses.
        """
        self._stream = await open_stream(self._target, self._address)
        self._begun = asyncio.get_running_loop().create_future()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        self.flush()
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                await self._begun
        except TimeoutError:
            await self.close()
            reason = "the broker did not open the session"
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

    def check_open(self) -> Session:
        """Return the session. Raises the error that ended the connection."""
        if self.error is not None:
            raise self.error
        if self.session is None:
            raise ClientClosed
        return self.session

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
                self.session = self.engine.begin()
            case Begun() if self._begun is not None and not self._begun.done():
                self._begun.set_result(None)
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
            case Closed(error) | Ended(_, error):
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
        if self._begun is not None and not self._begun.done():
            self._begun.set_exception(error)
        for link in self.session.links if self.session is not None else []:
            link.context.ended(error)


def error_from(error: Error | AmqpError | None) -> HoldfastError:
    """Return the client's error for an error of the broker. It has the type of the problem, or the
    AMQP condition if the broker names no problem."""
    if error is None:
        return ClientClosed()
    info = error.info or {}
    type_ = str(info.get("problem", error.condition))
    return api_error(0, {"type": type_, "detail": error.description or ""})
