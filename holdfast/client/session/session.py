"""A session: one connection of AMQP 1.0, and its senders and receivers."""

from typing import Self

from holdfast.client.errors import ClientClosed
from holdfast.client.session.attaches import Start, receiver_attach, sender_attach
from holdfast.client.session.connection import LinkSession, SessionConnection
from holdfast.client.session.links import AsyncReceiver, AsyncSender
from holdfast.client.session.streams import check_url
from holdfast.client.transport import target


class AsyncSession:
    """Senders and receivers over one connection; use it in `async with`, for one event loop.

    If the connection is lost, all senders and receivers raise ConnectionFailed, and messages that
    were not settled return to their groups. Open another session then.
    """

    def __init__(self, broker: target.Target, url: str | None) -> None:
        if url is not None:
            check_url(url)
        self._connection = SessionConnection(broker, url)
        self._session: LinkSession | None = None
        self._link_count = 0

    async def sender(self, topic: str, *, settled: bool = False) -> AsyncSender:
        """Return a sender to a topic, or to the `address` of a temporary queue.

        With `settled=True` the broker does not confirm messages. This is faster, and messages can
        be lost.
        """
        session = self._opened()
        sender = AsyncSender(session, settled=settled)
        attach = sender_attach(name := self._next_name(), topic, settled=settled)
        await sender.attach(session.check_open().sender(name, attach))
        return sender

    async def receiver(
        self,
        *,
        group: str | None = None,
        topic: str | None = None,
        dynamic: bool = False,
        credit: int = 200,
        settled: bool = False,
        start: Start | int = "next",
    ) -> AsyncReceiver:
        """Return a receiver of a group's messages, of all messages of a topic, or of a new
        temporary queue. Give `group`, `topic` or `dynamic`.

        A receiver of a group is a member of the group: it must settle each message. The group must
        exist. With `settled=True` messages count as acknowledged when the broker sends them. A
        receiver of a topic begins at `start`: "first", "last", "next" (messages that are stored
        from now on), or an offset. With `dynamic=True` the broker makes a temporary queue, for
        replies: every client may send to the receiver's `address`, and only this session can
        receive. The queue ends with the receiver; messages that are left in it are lost.
        """
        name = self._next_name()
        attach = receiver_attach(
            name, group=group, topic=topic, dynamic=dynamic, start=start, settled=settled
        )
        session = self._opened()
        receiver = AsyncReceiver(session, credit, settled=settled)
        await receiver.attach(session.check_open().receiver(name, attach))
        receiver.resume()
        return receiver

    async def close(self) -> None:
        """Close all senders and receivers, and the connection. May be repeated."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        await self._connection.open()
        try:
            self._session = await self._connection.begin()
        except BaseException:
            await self._connection.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _opened(self) -> LinkSession:
        if self._session is None:
            raise ClientClosed
        return self._session

    def _next_name(self) -> str:
        self._link_count += 1
        return f"link-{self._link_count}"
