"""Two ends of a connection, whose bytes are passed in memory."""

from collections.abc import Callable
from typing import Any

from holdfast.amqp.engine.connection import Connection, ConnectionSettings
from holdfast.amqp.engine.events import (
    Attached,
    Begun,
    Closed,
    Event,
    Opened,
    Received,
    SaslOffered,
    SaslStarted,
)
from holdfast.amqp.engine.incoming_link import IncomingLink
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.engine.session import Session
from holdfast.amqp.wire.frames import cut
from holdfast.amqp.wire.performatives import Attach, Source, Target, decode_composite


def performatives(data: bytes) -> list[Any]:
    """Decode the frames of some output."""
    return [
        decode_composite(data, each.start, each.end)[0]
        for each in cut(data, 0, len(data), 1 << 30)
        if each.start < each.end
    ]


class End:
    """One end, which accepts what the other end asks for and records the events."""

    def __init__(self, settings: ConnectionSettings, *, is_server: bool) -> None:
        self.connection = Connection(settings, is_server=is_server)
        self.events: list[Event] = []
        self.on_event: Callable[[Event], bool] = lambda event: False
        """Returns whether it has handled an event itself."""
        self.sent: list[Any] | None = None
        """The performatives that `Pair.pump` has passed from this end, in the order on the wire.
        None: they are not recorded."""

    def receive(self, data: bytes) -> None:
        for event in self.connection.receive_data(data):
            self.events.append(event)
            if not self.on_event(event):
                self._answer(event)

    def _answer(self, event: Event) -> None:
        connection = self.connection
        match event:
            case SaslStarted():
                connection.sasl_outcome(0)
            case SaslOffered():
                connection.sasl_init("ANONYMOUS", b"", None)
            case Opened():
                connection.open()
            case Begun(session, _, False):
                connection.answer_begin(session)
            case Attached(link, False):
                accept(link)

    def take_output(self) -> bytes:
        """Take the bytes to send, and record their performatives if that is wanted."""
        data = self.connection.take_output()
        if self.sent is not None:
            self.sent += performatives(data)
        return data

    def take(self, kind: type) -> list[Any]:
        """Return the events of a kind, and forget them."""
        found = [each for each in self.events if type(each) is kind]
        self.events = [each for each in self.events if type(each) is not kind]
        return found

    def messages(self) -> list[bytes]:
        """Return the messages that arrived since the last call."""
        return [each.message for event in self.take(Received) for each in event.deliveries]


def accept(link: Any) -> None:
    """Answer an attach with the same source and target."""
    remote = link.remote
    link.send_attach(
        Attach(
            link.name, link.handle, link.role, remote.snd_settle_mode, remote.rcv_settle_mode,
            remote.source, remote.target, initial_delivery_count=None if link.role else 0,
        )
    )  # fmt: skip


class Pair:
    """A client and a server that are connected."""

    def __init__(
        self,
        client: ConnectionSettings | None = None,
        server: ConnectionSettings | None = None,
    ) -> None:
        self.client = End(client or ConnectionSettings("client"), is_server=False)
        self.server = End(server or ConnectionSettings("server"), is_server=True)

    def pump(self, *, step: int = 0) -> None:
        """Pass bytes until both ends are quiet; `step` bytes at a time if it is not 0."""
        while True:
            there = self.client.take_output()
            back = self.server.take_output()
            if not there and not back:
                return
            for end, data in ((self.server, there), (self.client, back)):
                for at in range(0, len(data), step or max(1, len(data))):
                    end.receive(data[at : at + (step or len(data))])

    def begun(self) -> tuple[Session, Session]:
        """Begin a session from the client; return its two ends."""
        session = self.client.connection.begin()
        self.pump()
        (begun,) = self.server.take(Begun)
        self.client.take(Begun)
        return session, begun.session

    def sender(
        self, session: Session, name: str = "out", **options: Any
    ) -> tuple[OutgoingLink, IncomingLink]:
        """Attach a link from the client to the server; return its two ends."""
        link = session.sender(
            name,
            lambda handle: Attach(
                name, handle, False, source=Source("here"), target=Target("there"),
                initial_delivery_count=0, **options,
            ),
        )  # fmt: skip
        self.pump()
        (attached,) = self.server.take(Attached)
        return link, attached.link

    def receiver(
        self, session: Session, name: str = "in", **options: Any
    ) -> tuple[IncomingLink, OutgoingLink]:
        """Attach a link from the server to the client; return its two ends."""
        link = session.receiver(
            name,
            lambda handle: Attach(
                name, handle, True, source=Source("there"), target=Target("here"), **options
            ),
        )
        self.pump()
        (attached,) = self.server.take(Attached)
        return link, attached.link

    def closed(self) -> tuple[list[Closed], list[Closed]]:
        """Return the ends of the connection, as the client and as the server saw them."""
        return self.client.take(Closed), self.server.take(Closed)
