"""A raw AMQP client for tests: the client half of the engine, on a real socket."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from holdfast.amqp.engine.connection import Connection, ConnectionSettings
from holdfast.amqp.engine.events import (
    Attached,
    Begun,
    Closed,
    Detached,
    Disposed,
    Event,
    Opened,
    Received,
    SaslChallenged,
    SaslOffered,
)
from holdfast.amqp.engine.incoming_link import Delivery, IncomingLink
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.engine.session import Session
from holdfast.amqp.wire.performatives import Attach, Source, Target
from holdfast.amqp.wire.types import encode

_Found = TypeVar("_Found")
#: How long a test waits for what must happen.
TIMEOUT_S = 20


class AmqpClient(asyncio.Protocol):
    """One connection. `events` has all events that no method has taken, in order."""

    def __init__(
        self,
        settings: ConnectionSettings | None = None,
        mechanism: str = "ANONYMOUS",
        response: bytes | None = b"",
        later_response: bytes = b"",
    ) -> None:
        self.engine = Connection(settings or ConnectionSettings("test"), is_server=False)
        self.events: list[Event] = []
        self.is_lost = False
        self.is_reading = True
        self.received_bytes = 0
        self.mechanisms: tuple[str, ...] = ()
        self._sasl = mechanism, response, later_response
        self._changed = asyncio.Event()
        self.transport: Any = None

    # ---- The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.write()

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        for event in self.engine.receive_data(data):
            self.events.append(event)
            if isinstance(event, SaslOffered):
                self.mechanisms = event.mechanisms
                self.engine.sasl_init(self._sasl[0], self._sasl[1], None)
            elif isinstance(event, SaslChallenged):
                self.engine.sasl_response(self._sasl[2])
        self.write()
        self._changed.set()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.is_lost = True
        self._changed.set()

    def write(self) -> None:
        """Send the output of the engine."""
        if output := self.engine.take_output():
            self.transport.write(output)

    # ---- Waiting

    async def until(self, find: Callable[[], _Found | None], what: str = "") -> _Found:
        """Send the output, then wait until `find` returns something, and return it."""
        self.write()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while not (found := find()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"no {what or find}; events: {self.events}") from None
        return found

    async def next(self, kind: type[_Found]) -> _Found:
        """Wait for the next event of a kind, and take it."""

        def find() -> _Found | None:
            for index, event in enumerate(self.events):
                if type(event) is kind:
                    del self.events[index]
                    return event
            return None

        return await self.until(find, kind.__name__)

    async def lost(self) -> None:
        """Wait until the connection is lost."""
        await self.until(lambda: self.is_lost, "end of the connection")

    async def closed(self) -> Any:
        """Wait until the broker closes; return the error, and wait for the end of the socket."""
        closed = await self.next(Closed)
        self.write()
        self.transport.close()
        await self.lost()
        return closed.error

    # ---- Sessions and links

    async def session(self) -> Session:
        session = self.engine.begin()
        await self.next(Begun)
        return session

    async def sender(
        self, session: Session, address: str | None, name: str = "", **options: Any
    ) -> OutgoingLink:
        """Attach a link on which this client sends."""
        name = name or f"to-{address}"
        link = session.sender(
            name,
            lambda handle: Attach(
                name, handle, False,
                **{
                    "source": Source("client"), "target": Target(address),
                    "initial_delivery_count": 0, **options,
                },
            ),
        )  # fmt: skip
        await self._attached(link)
        return link

    async def receiver(
        self, session: Session, address: str, name: str = "", credit: int = 0, **options: Any
    ) -> IncomingLink:
        """Attach a link on which this client receives, and grant credit."""
        name = name or f"from-{address}"
        link = session.receiver(
            name,
            lambda handle: Attach(
                name, handle, True,
                **{"source": Source(address), "target": Target("client"), **options},
            ),
        )  # fmt: skip
        await self._attached(link)
        if credit:
            link.grant(credit)
            self.write()
        return link

    async def _attached(self, link: Any) -> None:
        def find() -> bool:
            for event in self.events:
                if isinstance(event, Attached) and event.link is link:
                    self.events.remove(event)
                    return True
            return False

        await self.until(find, f"attach of {link.name}")

    async def detached(self, link: Any) -> Any:
        """Wait until the broker detaches a link; return its error."""

        def find() -> Detached | None:
            for event in self.events:
                if isinstance(event, Detached) and event.link is link:
                    self.events.remove(event)
                    return event
            return None

        return (await self.until(find, f"detach of {link.name}")).error

    # ---- Messages

    async def send(
        self,
        link: OutgoingLink,
        *messages: bytes,
        settled: bool = False,
        tag: bytes | None = None,
    ) -> list[int]:
        """Send messages as far as there is credit, and wait for more; return their ids."""
        sent = []
        for message in messages:
            await self.until(lambda: link.sendable, "credit")
            sent.append(link.send(message, settled=settled, tag=tag))
        self.write()
        return sent

    async def outcomes(self, ids: list[int]) -> dict[int, Any]:
        """Wait for the outcomes of deliveries that this client sent."""
        found: dict[int, Any] = {}

        def find() -> bool:
            for event in list(self.events):
                if isinstance(event, Disposed):
                    self.events.remove(event)
                    found.update({each: event.state for each, _ in event.deliveries})
            return all(each in found for each in ids)

        await self.until(find, f"outcomes of {ids}")
        return {each: found[each] for each in ids}

    async def receive(self, count: int) -> list[Delivery]:
        """Wait for deliveries, on any link."""
        found: list[Delivery] = []

        def find() -> bool:
            for event in list(self.events):
                if isinstance(event, Received):
                    self.events.remove(event)
                    found.extend(event.deliveries)
            return len(found) >= count

        await self.until(find, f"{count} messages")
        return found


@asynccontextmanager
async def amqp_client(
    port: int,
    settings: ConnectionSettings | None = None,
    *,
    opens: bool = True,
    tls: ssl.SSLContext | None = None,
    **sasl: Any,
) -> AsyncIterator[AmqpClient]:
    """Connect. With `opens`, wait until the broker has opened the connection."""
    loop = asyncio.get_running_loop()
    transport, client = await loop.create_connection(
        lambda: AmqpClient(settings, **sasl),
        "127.0.0.1",
        port,
        ssl=tls,
        server_hostname="localhost" if tls else None,
    )
    try:
        if opens:
            await client.next(Opened)
        yield client
    finally:
        transport.abort()
        await client.lost()


def data_message(body: bytes) -> bytes:
    """Return a message with one data section."""
    return b"\x00\x53\x75" + encode(body)
