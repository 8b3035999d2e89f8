"""A blocking client of AMQP on the product's own engine, for tests that need every frame in hand.

with AmqpClient(port) as client:
    sender = client.sender("orders")
    client.send(sender, value_message("two coffees"))
    assert type(client.outcome(0)) is Accepted
"""

import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.amqp.engine.connection import Connection, ConnectionSettings
from holdfast.amqp.engine.events import (
    Attached,
    Begun,
    Detached,
    Disposed,
    Event,
    Opened,
    Received,
    SaslOffered,
)
from holdfast.amqp.engine.incoming_link import Delivery, IncomingLink
from holdfast.amqp.engine.link import Link
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.engine.session import Session
from holdfast.amqp.wire.performatives import Accepted, Attach, Source, Target
from holdfast.amqp.wire.types import Described, ULong, encode

_Kind = TypeVar("_Kind", bound=Link)

#: How long anything may take on a busy machine.
LONG_S = 30.0


class AmqpClient:
    """One connection with one session."""

    def __init__(
        self,
        port: int,
        *,
        container: str = "raw",
        settings: ConnectionSettings | None = None,
    ) -> None:
        self.connection = Connection(settings or ConnectionSettings(container), is_server=False)
        self.events: list[Event] = []
        """What was not taken yet."""
        self.states: dict[int, Any] = {}
        """The states of the deliveries that this end sent, by delivery-id."""
        self.deliveries: list[Delivery] = []
        """The deliveries that arrived and were not taken yet."""
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._wait_for(lambda: self._find(Opened))
        self.session: Session = self.connection.begin()
        self._wait_for(lambda: self._find(Begun))

    # ---- Links

    def sender(self, address: str | None, name: str | None = None, **fields: Any) -> OutgoingLink:
        """Attach a link on which this end sends. Raises AssertionError if it is refused."""
        target = Target(address, capabilities=fields.pop("capabilities", ()))
        return self._attached(
            self.session.sender(
                name or f"to {address}",
                lambda handle: Attach(
                    name or f"to {address}", handle, False, source=Source(), target=target,
                    initial_delivery_count=0, **fields,
                ),
            )
        )  # fmt: skip

    def receiver(
        self, address: str, credit: int = 0, name: str | None = None,
        source: Source | None = None, **fields: Any,
    ) -> IncomingLink:  # fmt: skip
        """Attach a link on which this end receives. Raises AssertionError if it is refused."""
        source = source or Source(address)
        link = self._attached(
            self.session.receiver(
                name or f"from {address}",
                lambda handle: Attach(
                    name or f"from {address}", handle, True, source=source, target=Target(),
                    **fields,
                ),
            )
        )  # fmt: skip
        if credit:
            link.grant(credit)
            self.flush()
        return link

    def _attached(self, link: _Kind) -> _Kind:
        self._wait_for(
            lambda: any(type(each) is Attached and each.link is link for each in self.events)
        )
        attach = link.remote
        assert attach is not None
        if (attach.source if link.role else attach.target) is None:
            self._wait_for(lambda: self._find(Detached))
            raise AssertionError(f"the link was refused: {self._find(Detached)}")
        return link

    # ---- Messages

    def send(self, link: OutgoingLink, message: bytes, *, settled: bool = False) -> int:
        """Send an encoded message when there is credit; return its delivery-id."""
        self._wait_for(lambda: link.sendable > 0)
        delivery_id = link.send(message, settled=settled)
        self.flush()
        return delivery_id

    def outcome(self, delivery_id: int) -> Any:
        """Wait for the state that the broker gives a delivery, and return it."""
        self._wait_for(lambda: delivery_id in self.states)
        return self.states[delivery_id]

    def take_outcomes(self) -> dict[int, Any]:
        """Wait for the state of any delivery that this end sent. Return all that have arrived since
        the last call, by delivery-id."""
        self._wait_for(lambda: self.states)
        taken, self.states = self.states, {}
        return taken

    def take(self, count: int = 1) -> list[Delivery]:
        """Wait for deliveries, of whatever link, and return them."""
        self._wait_for(lambda: len(self.deliveries) >= count)
        taken, self.deliveries = self.deliveries[:count], self.deliveries[count:]
        return taken

    def settle(self, delivery: Delivery, state: Any = Accepted(), *, settled: bool = True) -> None:  # noqa: B008
        """Give a delivery its outcome."""
        self.session.dispose(delivery.id, delivery.id, state, settled=settled)
        self.flush()

    def expect_nothing(self, quiet_s: float = 0.3) -> None:
        """Assert that no delivery arrives for some time."""
        end = time.monotonic() + quiet_s
        while time.monotonic() < end:
            self._read(max(0.01, end - time.monotonic()))
        assert not self.deliveries

    # ---- The socket

    def flush(self) -> None:
        """Send what the engine has to send."""
        if data := self.connection.take_output():
            self._socket.sendall(data)

    def wait_for_event(self, kind: type) -> Any:
        """Wait for an event of this kind, and take it."""
        self._wait_for(lambda: self._find(kind))
        found = self._find(kind)
        assert found is not None
        self.events.remove(found)
        return found

    def close(self) -> None:
        """Close the connection as the specification asks, and the socket."""
        if not self.connection.is_closed:
            self.connection.close()
            self._wait_for(lambda: self.connection.is_closed)
        self._socket.close()

    def cut(self) -> None:
        """End the connection without a close, like a crash."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._socket.fileno() >= 0:
            self.close()
        else:
            self.cut()

    def _find(self, kind: type) -> Event | None:
        return next((each for each in self.events if type(each) is kind), None)

    def _wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + LONG_S
        while not condition():
            assert time.monotonic() < deadline, f"the broker did not answer; events: {self.events}"
            self._read(1.0)

    def _read(self, wait_s: float) -> None:
        self.flush()
        self._socket.settimeout(wait_s)
        try:
            data = self._socket.recv(262_144)
        except TimeoutError:
            return
        assert data or self.connection.is_closed, "the broker closed the socket"
        for event in self.connection.receive_data(data):
            self._act(event)
        self.flush()

    def _act(self, event: Event) -> None:
        match event:
            case SaslOffered():
                self.connection.sasl_init("ANONYMOUS", b"", None)
            case Received(_, deliveries):
                self.deliveries += deliveries
            case Disposed(session, deliveries, state, is_settled):
                self.states |= dict.fromkeys((each for each, _ in deliveries), state)
                if not is_settled:
                    for delivery_id, _ in deliveries:
                        session.dispose(delivery_id, delivery_id, state, settled=True, role=False)
            case _:
                self.events.append(event)


def section(descriptor: int, value: Any) -> bytes:
    """Return an encoded section of a message."""
    return encode(Described(ULong(descriptor), value))


def value_message(value: Any) -> bytes:
    """Return an encoded message whose body is one value."""
    return section(0x77, value)


def data_message(content: bytes) -> bytes:
    """Return an encoded message whose body is bytes."""
    return section(0x75, content)
