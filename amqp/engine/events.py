"""What the engine reports of the bytes that it received. Pure."""

from typing import Any, NamedTuple

import msgspec

from holdfast.amqp.engine.incoming_link import Delivery, IncomingLink
from holdfast.amqp.engine.link import Link
from holdfast.amqp.engine.outgoing_link import OutgoingLink, Sent
from holdfast.amqp.wire.conditions import AmqpError
from holdfast.amqp.wire.performatives import Begin, Error, Open


class Opened(NamedTuple):
    """The peer opened the connection."""

    open: Open


class Begun(NamedTuple):
    """The peer began a session, or answered the begin of this end."""

    session: Any
    begin: Begin
    is_answer: bool


class Attached(NamedTuple):
    """The peer attached a link, or answered the attach of this end."""

    link: Link
    is_answer: bool
    session: Any


class Received(msgspec.Struct):
    """Deliveries of one link arrived, in order. There are no deliveries if the sender aborted a
    delivery: an aborted delivery also uses up credit."""

    link: IncomingLink
    deliveries: list[Delivery]


class CreditChanged(NamedTuple):
    """The receiver changed the credit of an outgoing link, or asks for a drain."""

    link: OutgoingLink


class WindowOpened(NamedTuple):
    """The peer's window has room again: outgoing links of the session may send."""

    session: Any


class Drained(NamedTuple):
    """The sender of an incoming link used up or gave back the credit of a drain."""

    link: IncomingLink


class Disposed(msgspec.Struct):
    """The receiver gave the state of deliveries that this end sent, in order of their ids.

    If `is_settled`, the engine has forgotten them. If not, this end settles them by `settle`.
    """

    session: Any
    deliveries: list[tuple[int, Sent]]
    state: Any
    is_settled: bool


class SenderSettled(NamedTuple):
    """The sender settled deliveries that this end received (rcv-settle-mode second)."""

    session: Any
    deliveries: list[tuple[int, Delivery]]
    state: Any


class Detached(NamedTuple):
    """A link ended: `error` is the peer's or, if `is_local`, the error that this end found."""

    link: Link
    is_closed: bool
    error: Error | AmqpError | None
    is_local: bool = False


class Ended(NamedTuple):
    """A session ended, and all its links with it."""

    session: Any
    error: Error | AmqpError | None
    is_local: bool = False


class Closed(NamedTuple):
    """The connection ended; send what is left of the output, then close the socket."""

    error: Error | AmqpError | None
    is_local: bool = False


class SaslStarted(NamedTuple):
    """The client chose a mechanism."""

    mechanism: str
    response: bytes | None
    hostname: str | None


class SaslResponded(NamedTuple):
    """The client answered a challenge."""

    response: bytes


class SaslOffered(NamedTuple):
    """The server offers mechanisms."""

    mechanisms: tuple[str, ...]


class SaslChallenged(NamedTuple):
    """The server sent a challenge."""

    challenge: bytes


class SaslEnded(NamedTuple):
    """The server ended the authentication; code 0 means success."""

    code: int


Event = (
    Opened | Begun | Attached | Received | CreditChanged | WindowOpened | Drained | Disposed
    | SenderSettled | Detached | Ended | Closed
    | SaslStarted | SaslResponded | SaslOffered | SaslChallenged | SaslEnded
)  # fmt: skip
