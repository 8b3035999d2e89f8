"""Senders and receivers: the links of a session, with the credit that both ends grant."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from holdfast.amqp.engine.incoming_link import Delivery, IncomingLink
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.wire.conditions import DecodeError, LinkFailed
from holdfast.amqp.wire.performatives import (
    Accepted,
    Modified,
    Rejected,
    Released,
)
from holdfast.client.errors import BadReply, ClientClosed, MessageReleased, SyncTimeout
from holdfast.client.produce.new_message import Body, encode_body
from holdfast.client.session.connection import LinkSession, error_from
from holdfast.client.session.messages import LinkMessage, decode_message, encode_message


class LinkEnd:
    """What senders and receivers have in common: the link, and how it begins and ends."""

    def __init__(self, session: LinkSession) -> None:
        self._session = session
        self._error: Exception | None = None
        self._is_attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._link: Any = None

    async def attach(self, link: OutgoingLink | IncomingLink) -> None:
        self._link = link
        link.context = self
        self._session.flush()
        await self._is_attached

    @property
    def has_ended(self) -> bool:
        """Whether the link can no longer be used."""
        return self._error is not None

    async def close(self) -> None:
        """Detach the link. May be repeated."""
        if self._error is None:
            self._link.detach()
            self._session.flush()
            self.ended(ClientClosed())

    def attached(self) -> None:
        """Record that the broker has answered the attach. A refusal has no source or target."""
        attach = self._link.remote
        is_accepted = (attach.source if self._link.role else attach.target) is not None
        if is_accepted and not self._is_attached.done():
            self._is_attached.set_result(None)

    def ended(self, error: Exception) -> None:
        """Record why the link has ended. Only the first error counts."""
        if self._error is not None:
            return
        self._error = error
        if not self._is_attached.done():
            self._is_attached.set_exception(error)

    def received(self, deliveries: list[Delivery]) -> None:
        """Take deliveries of the broker. Only receivers get some."""

    def credit_changed(self) -> None:
        """Use new credit. Only senders get some."""

    def settled(self, delivery_id: int) -> None:
        """Record that the broker has settled a delivery. Only receivers get some."""

    def drained(self) -> None:
        """Record that the broker has used up or returned the credit."""

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncSender(LinkEnd):
    """A link on which the program sends. Messages leave in the order of the calls of `send`."""

    def __init__(self, session: LinkSession, *, settled: bool) -> None:
        super().__init__(session)
        self._settled = settled
        self._waiting: deque[tuple[bytes, asyncio.Future[None]]] = deque()
        self._unconfirmed: set[asyncio.Future[None]] = set()

    async def send(
        self,
        body: Body,
        *,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        ttl_ms: int | None = None,
        priority: int | None = None,
        reply_to: str | None = None,
        correlation_id: str | None = None,
    ) -> None:
        """Send a message, and return when the broker has stored it. Several calls may wait at the
        same time. `reply_to` is an address for replies, such as that of a dynamic receiver.

        The call also waits while the broker grants no credit. A settled sender returns when the
        message is sent. Raises ApiError if the broker refuses the message; MessageReleased means
        that the broker did not store it and may store it later.
        """
        await self.enqueue(
            encode_message(
                encode_body(body), key, tag, properties, ttl_ms, priority, reply_to, correlation_id
            )
        )

    def enqueue(self, message: bytes) -> asyncio.Future[None]:
        """Send an encoded message after all earlier ones. The result is that of `send`."""
        self._check_open()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((message, future))
        self._unconfirmed.add(future)
        future.add_done_callback(self._unconfirmed.discard)
        self.credit_changed()
        return future

    def credit_changed(self) -> None:
        """Send waiting messages, as far as the credit and the window allow."""
        link: OutgoingLink = self._link
        while self._waiting and link.sendable:
            message, future = self._waiting.popleft()
            if future.done():  # the caller was cancelled
                continue
            try:
                link.send(message, settled=self._settled, context=_outcome_setter(future))
            except LinkFailed as error:
                future.set_exception(error_from(error))
                continue
            if self._settled:
                future.set_result(None)
        if self._session.engine.has_output:
            self._session.flush()
        if link.is_draining and not self._waiting:
            link.drained()

    def ended(self, error: Exception) -> None:
        """Fail every message that is not confirmed."""
        super().ended(error)
        self._waiting.clear()
        for future in list(self._unconfirmed):
            if not future.done():
                future.set_exception(error)


class AsyncReceiver(LinkEnd):
    """A link on which the program receives: iterate over it.

    The broker may send as many messages as the credit allows. The receiver renews the credit when
    less than half of it is left. A message counts against the credit until the program takes it,
    so a slow program holds back its own receiver, and no other.
    """

    def __init__(self, session: LinkSession, credit: int, *, settled: bool) -> None:
        super().__init__(session)
        self._settled = settled
        self._credit = _check_credit(credit)
        self._is_paused = False
        self._buffer: deque[Delivery] = deque()
        self._changed = asyncio.Event()
        self._unconfirmed: dict[int, tuple[asyncio.Future[None], set[int]]] = {}
        """The settled messages that the broker has not confirmed: the future and the messages of
        one call, by delivery-id."""

    @property
    def address(self) -> str:
        """The address from which the receiver gets its messages, such as "/temp/ID"."""
        attach = self._link.remote
        return "" if attach is None or attach.source is None else str(attach.source.address)

    # -- credit

    @property
    def credit(self) -> int:
        """How many messages the broker may send at the moment."""
        link: IncomingLink = self._link
        return link.credit

    @property
    def buffered(self) -> int:
        """How many messages have arrived and wait for the program."""
        return len(self._buffer)

    def set_credit(self, credit: int) -> None:
        """Change the credit. The receiver grants it immediately, and renews it as before.

        Messages that the broker has already sent still arrive.
        """
        self._credit = _check_credit(credit)
        self._grant()

    def pause(self) -> None:
        """Take the credit back. Messages that the broker has already sent still arrive."""
        self._is_paused = True
        self._grant()

    def resume(self) -> None:
        """Grant the credit again, after `pause` or `drain`."""
        self._is_paused = False
        self._grant()

    async def drain(self) -> int:
        """Let the broker send what it has now, at most the credit; return `buffered`.

        Afterwards the receiver has no credit until `resume`.
        """
        self._check_open()
        self._is_paused = True
        self._link.grant(max(0, self._credit - len(self._buffer)), drain=True)
        self._session.flush()
        while self._link.is_draining:
            self._changed.clear()
            await self._changed.wait()
            self._check_open()
        return len(self._buffer)

    def _grant(self) -> None:
        self._check_open()
        self._link.grant(0 if self._is_paused else max(0, self._credit - len(self._buffer)))
        self._session.flush()

    # -- messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LinkMessage:
        while not self._buffer:
            if isinstance(self._error, ClientClosed):
                raise StopAsyncIteration
            self._check_open()
            self._changed.clear()
            await self._changed.wait()
        delivery = self._buffer.popleft()
        left = self._link.credit + len(self._buffer)
        if 2 * left < self._credit and not self._is_paused and self._error is None:
            self._grant()
        try:
            return decode_message(delivery.message, None if self._settled else delivery.id)
        except (DecodeError, KeyError, TypeError) as error:
            raise BadReply("the broker", f"a message that cannot be decoded: {error!r}") from error

    def received(self, deliveries: list[Delivery]) -> None:
        """Keep deliveries until the program takes them."""
        self._buffer.extend(deliveries)
        self._changed.set()

    def drained(self) -> None:
        """Wake `drain`."""
        self._changed.set()

    def ended(self, error: Exception) -> None:
        """Wake everybody who waits. Messages that need settling return to the group."""
        super().ended(error)
        if not self._settled:
            self._buffer.clear()
        self._changed.set()
        for future, _ in self._unconfirmed.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # the program need not wait for the result

    # -- outcomes

    def accept(self, *messages: LinkMessage) -> asyncio.Future[None]:
        """Acknowledge messages. The result can be awaited: it is there once the broker has stored
        the acknowledgement."""
        return self._settle(messages, Accepted())

    def reject(self, *messages: LinkMessage) -> asyncio.Future[None]:
        """Declare that messages can never be processed: they become dead letters."""
        return self._settle(messages, Rejected())

    def release(self, *messages: LinkMessage) -> asyncio.Future[None]:
        """Give messages back, to be delivered again. This does not count as a failure."""
        return self._settle(messages, Released())

    def modify(self, *messages: LinkMessage) -> asyncio.Future[None]:
        """Report that processing failed: the group delivers the messages again, and counts it."""
        return self._settle(messages, Modified(delivery_failed=True))

    def settled(self, delivery_id: int) -> None:
        """Record that the broker has stored the outcome of a message."""
        if (found := self._unconfirmed.pop(delivery_id, None)) is not None:
            future, ids = found
            ids.discard(delivery_id)
            if not ids and not future.done():
                future.set_result(None)

    def _settle(self, messages: tuple[LinkMessage, ...], state: Any) -> asyncio.Future[None]:
        self._check_open()
        session = self._session.check_open()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ids: set[int] = set()
        for first, last in _ranges(messages):
            found = session.incoming_unsettled.find(first, last)
            ids.update(each for each, _ in found if each not in self._unconfirmed)
            session.dispose(first, last, state, settled=False)
        self._unconfirmed |= dict.fromkeys(ids, (future, ids))
        if not ids:
            future.set_result(None)
        self._session.flush()
        return future


def _ranges(messages: tuple[LinkMessage, ...]) -> Iterator[tuple[int, int]]:
    """Yield the first and last of consecutive delivery-ids."""
    ids = sorted({each.delivery_id for each in messages if each.delivery_id is not None})
    first = last = None
    for each in ids:
        if first is not None and last is not None and each != last + 1:
            yield first, last
            first = each
        first, last = each if first is None else first, each
    if first is not None and last is not None:
        yield first, last


def _check_credit(credit: int) -> int:
    if type(credit) is not int or not 0 <= credit <= 0x7FFFFFFF:
        raise ValueError(f"a credit is a whole number from 0 to 2147483647, not {credit!r}")
    return credit


def _outcome_setter(future: asyncio.Future[None]) -> Callable[[Any], None]:
    """Return a function that ends the future according to the outcome of the message."""

    def set_outcome(state: Any) -> None:
        if future.done():
            return
        match state:
            case Accepted():
                future.set_result(None)
            case Rejected(error) if error is not None:
                future.set_exception(error_from(error))
            case Modified():
                detail = "the message may be stored or not"
                future.set_exception(SyncTimeout(0, "sync-timeout", "", detail))
            case _:
                detail = "the broker did not store the message; send it again later"
                future.set_exception(MessageReleased(0, "amqp:released", "", detail))

    return set_outcome
