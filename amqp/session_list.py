"""The sessions of the open connections with their links, for operators. Reads only; on the loop."""

from collections.abc import Iterable
from typing import Literal, Protocol

import msgspec

from holdfast.amqp.engine.incoming_link import IncomingLink
from holdfast.amqp.engine.link import Link
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.engine.session import Session

#: A page has at most this many links. Of a session with more links, these are shown.
MAX_LINKS = 1_000

Place = tuple[int, int]
"""The number of a connection, and the channel of a session."""


class ListedLink(msgspec.Struct, frozen=True):
    """A link. `role` is the client's. `credit` is how many messages the sender may send now."""

    name: str
    address: str | None
    role: Literal["sender", "receiver"]
    attached: bool
    credit: int
    available: int | None
    draining: bool


class ListedSession(msgspec.Struct, frozen=True):
    """A session. `in` means from the client, and `out` means to the client. Windows count the
    frames that may be sent now. `link_count` counts all links, also those not in `links`."""

    connection: int
    client: str
    container_id: str
    channel: int
    window_in: int
    window_out: int
    unsettled_in: int
    unsettled_out: int
    link_count: int
    links: list[ListedLink]


class Listed(Protocol):
    """A connection, as the list reads it."""

    number: int
    client: str
    container_id: str

    @property
    def open_sessions(self) -> list[Session]:
        """The sessions that neither end has ended."""


def list_sessions(
    connections: Iterable[Listed], client: str | None, after: Place, limit: int
) -> tuple[list[ListedSession], bool]:
    """Return the first sessions after a place, in the order of connections and channels, and
    whether there are more. Without `client`, return those of all clients.

    The list ends after `limit` sessions, and before a session with which it would have more than
    MAX_LINKS links.
    """
    found: list[ListedSession] = []
    room = MAX_LINKS
    listed = [
        each
        for each in connections
        if each.number >= after[0] and (client is None or each.client == client)
    ]
    for connection in sorted(listed, key=lambda each: each.number):
        for session in sorted(connection.open_sessions, key=_channel):
            if (connection.number, _channel(session)) <= after:
                continue
            links = session.links
            if len(found) == limit or (found and len(links) > room):
                return found, True
            found.append(_session_state(connection, session, links))
            room -= len(links)
    return found, False


def _channel(session: Session) -> int:
    """Return the client's channel, which the client's logs show."""
    return session.channel if session.remote_channel is None else session.remote_channel


def _session_state(connection: Listed, session: Session, links: list[Link]) -> ListedSession:
    windows = session.windows
    return ListedSession(
        connection.number,
        connection.client,
        connection.container_id,
        _channel(session),
        max(0, windows.incoming_left),
        windows.outgoing_room,
        len(session.incoming_unsettled),
        len(session.outgoing_unsettled),
        len(links),
        [_link_state(each) for each in links[:MAX_LINKS]],
    )


def _link_state(link: Link) -> ListedLink:
    assert isinstance(link, (IncomingLink, OutgoingLink))
    return ListedLink(
        link.name,
        link.address,
        "sender" if isinstance(link, IncomingLink) else "receiver",
        link.is_attached,
        link.credit,
        link.available,
        link.is_draining,
    )
