"""A session: one connection of AMQP 1.0, and its senders and receivers."""

from typing import Any, Self
from urllib.parse import quote

from holdfast.amqp.wire.performatives import Attach, Source, Target
from holdfast.client.session.connection import SessionConnection
from holdfast.client.session.links import AsyncReceiver, AsyncSender, Start
from holdfast.client.session.streams import check_url
from holdfast.client.transport import target

_SETTLED, _UNSETTLED = 1, 0
#: The broker confirms every outcome, once it is stored.
_SETTLES_SECOND = 1
_START = "rabbitmq:stream-offset-spec"


class AsyncSession:
    """Senders and receivers over one connection; use it in `async with`, for one event loop.

    If the connection is lost, all senders and receivers raise ConnectionFailed, and messages that
    were not settled return to their groups. Open another session then.
    """

    def __init__(self, broker: target.Target, url: str | None) -> None:
        if url is not None:
            check_url(url)
        self._connection = SessionConnection(broker, url)
        self._link_count = 0

    async def sender(self, topic: str, *, settled: bool = False) -> AsyncSender:
        """Return a sender to a topic.

        With `settled=True` the broker does not confirm messages. This is faster, and messages can
        be lost.
        """
        session = self._connection.check_open()
        sender = AsyncSender(self._connection, settled=settled)
        name = self._next_name()
        mode = _SETTLED if settled else _UNSETTLED
        destination = Target(f"/topics/{quote(topic, safe='')}")
        link = session.sender(
            name,
            lambda handle: Attach(
                name, handle, False, mode, source=Source(), target=destination,
                initial_delivery_count=0,
            ),
        )  # fmt: skip
        await sender._attach(link)
        return sender

    async def receiver(
        self,
        *,
        group: str | None = None,
        topic: str | None = None,
        credit: int = 200,
        settled: bool = False,
        start: Start | int = "next",
    ) -> AsyncReceiver:
        """Return a receiver of a group's messages, or of all messages of a topic. Give `group` or
        `topic`.

        A receiver of a group is a member of the group: it must settle each message. The group must
        exist. With `settled=True` messages count as acknowledged when the broker sends them. A
        receiver of a topic begins at `start`: "first", "last", "next" (messages that are stored
        from now on), or an offset.
        """
        if (group is None) == (topic is None):
            raise ValueError("a receiver needs either a group or a topic")
        session = self._connection.check_open()
        receiver = AsyncReceiver(self._connection, credit, settled=settled)
        name = self._next_name()
        mode = _SETTLED if settled else _UNSETTLED
        kind, node = ("groups", group) if topic is None else ("topics", topic)
        filters: dict[str, Any] | None = None if topic is None else {_START: start}
        source = Source(f"/{kind}/{quote(str(node), safe='')}", filter=filters)
        link = session.receiver(
            name,
            lambda handle: Attach(
                name, handle, True, mode, _SETTLES_SECOND, source=source, target=Target()
            ),
        )
        await receiver._attach(link)
        receiver.resume()
        return receiver

    async def close(self) -> None:
        """Close all senders and receivers, and the connection. May be repeated."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        await self._connection.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _next_name(self) -> str:
        self._link_count += 1
        return f"link-{self._link_count}"
