"""Channels: one lazily begun session each, whose callbacks run one after the other."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, Protocol, Self, TypeVar

from holdfast.amqp.engine.incoming_link import Delivery
from holdfast.amqp.wire.conditions import DecodeError
from holdfast.amqp.wire.performatives import Modified
from holdfast.client.channels.callbacks import CallbackPool
from holdfast.client.channels.channel_session import ChannelSession
from holdfast.client.channels.confirmation import Confirmation
from holdfast.client.channels.consumer import Consumer
from holdfast.client.channels.inbox import Inbox
from holdfast.client.channels.incoming import ConsumerLink, GetLink
from holdfast.client.channels.messages import ChannelMessage, message_of
from holdfast.client.errors import (
    ApiError,
    BadReply,
    ChannelClosed,
    ClientClosed,
    ConnectionFailed,
    ExclusiveHeld,
    HoldfastError,
)
from holdfast.client.produce.new_message import Body, encode_body
from holdfast.client.session.attaches import Start
from holdfast.client.session.connection import SessionConnection
from holdfast.client.session.messages import encode_message
from holdfast.client.transport.loop_thread import LoopThread
from holdfast.client.transport.retry import FOREVER

T = TypeVar("T")

_log = logging.getLogger("holdfast.client")

#: How many publishes of one channel may wait for their confirmation.
MAX_UNCONFIRMED = 1_000
_MOST_CREDIT = 0x7FFFFFFF


class ChannelOwner(Protocol):
    """A connection, as its channels use it."""

    thread: LoopThread
    inbox: Inbox
    pool: CallbackPool
    ack_delay_ms: float

    async def connected(self, *, patient: bool = False) -> SessionConnection: ...
    def forget(self, channel: "Channel") -> None: ...


class Channel:
    """One channel of a connection, for any thread; `connection.channel()` returns it.

    Callbacks of one channel never overlap, and run in the order of the deliveries. One synchronous
    call (`consume`, `cancel`, `get`) runs at a time, and other threads wait for their turn.
    Callbacks may call everything. If the connection is lost, the consumers are restored, and
    `get` goes on waiting. All methods raise ChannelClosed once the channel is closed.
    """

    def __init__(self, owner: ChannelOwner, number: int) -> None:
        self.id = number
        """From 1 to 65,535."""
        self._owner = owner
        self._session: ChannelSession | None = None
        self._consumers: dict[str, Consumer] = {}
        self._getters: dict[str, GetLink] = {}
        """The links of `get`, by group."""
        self._is_closed = False
        self._tag_count = 0
        self._turn = asyncio.Lock()
        self._beginning = asyncio.Lock()
        self._publishing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._restoring: asyncio.Task[None] | None = None
        self._room = threading.BoundedSemaphore(MAX_UNCONFIRMED)

    # -- consuming

    def consume(
        self,
        callback: Callable[[ChannelMessage], object],
        *,
        group: str | None = None,
        topic: str | None = None,
        credit: int = 200,
        settled: bool = False,
        auto_flow: bool = True,
        start: Start | int = "next",
    ) -> str:
        """Let `callback` process the messages of a group, or of a topic from `start` on; return
        the consumer tag. Give `group` or `topic`.

        At most `credit` messages are unsettled. Settling messages renews the credit, in the same
        packet as the acknowledgements; with `auto_flow=False`, only `add_credit` grants more. With
        `settled=True`, and always for a topic, messages need no outcome. A callback that raises is
        logged, and its message is given back as failed (`nack`) if it has no outcome.
        """
        if (group is None) == (topic is None):
            raise ValueError("a consumer needs either a group or a topic")
        _check_count("credit", credit)
        is_settled = settled or topic is not None
        self._tag_count += 1
        tag = f"consumer-{self._tag_count}"
        consumer = Consumer(tag, callback, group, topic, credit, is_settled, auto_flow, start)
        self._run(lambda: self._consume(consumer))
        return tag

    def cancel(self, tag: str) -> None:
        """End a consumer: none of its callbacks starts any more, and the messages that wait for
        them return to the group. Unsettled messages can still be settled. An unknown tag is
        ignored."""
        self._run(lambda: self._cancel(tag))

    def add_credit(self, tag: str, count: int) -> None:
        """Let the broker send `count` more messages to a consumer without `auto_flow`. An unknown
        tag is ignored."""
        _check_count("count", count)
        self._check_open()
        self._owner.inbox.post(self._add_credit, tag, count)

    def get(self, group: str, *, timeout_s: float | None = 0) -> ChannelMessage | None:
        """Return the next message of a group. It needs an outcome.

        Return None if there is no message: at once, or after `timeout_s`; None waits without end.
        Closing the channel ends the wait with ChannelClosed. The channel remains a member of the
        group until it closes.
        """
        if timeout_s is not None and timeout_s < 0:
            raise ValueError(f"a timeout is a number of seconds from 0 on, not {timeout_s!r}")
        return self._run(lambda: self._get(group, timeout_s))

    # -- publishing

    def publish(
        self,
        topic: str,
        body: Body,
        *,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        ttl_ms: int | None = None,
        priority: int | None = None,
    ) -> None:
        """Publish a message, and return when the broker has stored it. Raises as
        Confirmation.wait does."""
        self.publish_nowait(
            topic, body, key=key, tag=tag, properties=properties, ttl_ms=ttl_ms, priority=priority
        ).wait()

    def publish_nowait(
        self,
        topic: str,
        body: Body,
        *,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        ttl_ms: int | None = None,
        priority: int | None = None,
    ) -> Confirmation:
        """Publish a message, and return before the broker has stored it.

        Messages leave in the order of the calls. Waits while MAX_UNCONFIRMED messages of the
        channel have no confirmation. A message whose connection is lost is not sent again: its
        confirmation raises ConnectionFailed.
        """
        message = encode_message(encode_body(body), key, tag, properties, ttl_ms, priority)
        self._check_open()
        self._room.acquire()
        future: Future[None] = Future()
        future.add_done_callback(lambda _: self._room.release())
        try:
            self._check_open()
            self._owner.inbox.post(self._start_publish, topic, message, future)
        except ClientClosed as error:
            future.set_exception(error)
            raise
        return Confirmation(future)

    # -- end

    def close(self) -> None:
        """End waiting calls, send collected outcomes and end the session. What is unsettled returns
        to its group. A callback that runs is not waited for. May be repeated, also in callbacks."""
        if not self._is_closed:
            self._owner.thread.run(self.shut())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def shut(self) -> None:
        """Close the channel; for the loop thread. May be repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        self._owner.forget(self)
        self._owner.pool.drop(self, lambda _: True)
        for task in list(self._tasks):
            task.cancel()
        if self._restoring is not None:
            self._restoring.cancel()
        if self._session is not None:
            await self._session.close()

    # -- callbacks, in threads of the executor

    def run_callback(self, item: tuple[Consumer, ConsumerLink, Delivery]) -> None:
        """Run the callback of one delivery, unless its connection was lost meanwhile."""
        consumer, link, delivery = item
        settled = consumer.is_settled
        if self._is_closed or (not settled and link.owner.is_lost):
            return
        post = self._owner.inbox.post
        try:
            if link.is_cancelled:
                post(link.give_back, [delivery])
                return
            try:
                message = message_of(delivery, link.owner, consumer.tag, settled=settled)
                if consumer.is_new(message):
                    consumer.callback(message)
            except BaseException as error:  # a callback must not end the block of its channel
                self._report(error, consumer)
                if not settled:
                    post(link.owner.settle, delivery.id, Modified(delivery_failed=True))
            if settled:
                post(link.finish, 1)
        except ClientClosed:
            pass  # the connection was closed while the callback ran

    def callbacks_are_idle(self) -> None:
        """Send the collected outcomes without further delay."""
        session = self._session
        if session is not None and not self._is_closed:
            with contextlib.suppress(ClientClosed):
                self._owner.inbox.post(session.flush)

    def _report(self, error: BaseException, consumer: Consumer) -> None:
        text = "a callback of %s on channel %d failed"
        if isinstance(error, DecodeError | KeyError) and error.__traceback__ is not None:
            text = "a message for %s on channel %d was not processed"
        _log.error(text, consumer.tag, self.id, exc_info=error)

    # -- the rest runs on the loop thread

    def _run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a synchronous call after those before it, and return its result."""

        async def in_turn() -> T:
            if self._is_closed:
                raise ChannelClosed
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                async with self._turn:
                    return await call()
            finally:
                self._tasks.discard(task)

        try:
            return self._owner.thread.run(in_turn())
        except ClientClosed:
            if self._is_closed:
                raise ChannelClosed from None
            raise

    def _check_open(self) -> None:
        if self._is_closed:
            raise ChannelClosed

    async def _begin(self, *, patient: bool = False) -> ChannelSession:
        """Return the session on the present connection; begin it at first use."""
        async with self._beginning:
            while True:
                connection = await self._owner.connected(patient=patient)
                if self._session is not None and not self._session.is_lost:
                    return self._session
                try:
                    session = await connection.begin()
                except ConnectionFailed:
                    continue
                self._session = ChannelSession(
                    session, self._owner.inbox.post, self._owner.ack_delay_ms
                )
                return self._session

    async def _consume(self, consumer: Consumer) -> None:
        while True:
            session = await self._begin()
            try:
                await self._attach(consumer, session)
            except ConnectionFailed:
                continue
            self._consumers[consumer.tag] = consumer
            return

    async def _attach(self, consumer: Consumer, session: ChannelSession) -> None:
        link = ConsumerLink(
            session, consumer.credit,
            lambda link, deliveries: self._owner.pool.add(
                self, [(consumer, link, each) for each in deliveries]
            ),
            lambda link, error: self._link_ended(consumer, link, error),
            settled=consumer.is_settled, auto_flow=consumer.auto_flow,
        )  # fmt: skip
        await session.attach(
            link, group=consumer.group, topic=consumer.topic, start=consumer.restart(),
            settled=consumer.is_settled,
        )  # fmt: skip
        consumer.link = link
        link.add_credit(consumer.credit)

    def _link_ended(self, consumer: Consumer, link: ConsumerLink, error: Exception) -> None:
        """Report that the broker has ended a consumer. A lost connection is not reported here."""
        if (
            consumer.link is link
            and not self._is_closed
            and not isinstance(error, ConnectionFailed | ClientClosed)
        ):
            self._consumers.pop(consumer.tag, None)
            _log.error("the broker ended %s of channel %d: %s", consumer.tag, self.id, error)

    def restore(self) -> None:
        """Attach the consumers again, on a new connection."""
        if self._restoring is not None:
            self._restoring.cancel()
        if self._consumers:
            self._restoring = asyncio.create_task(self._restore())

    async def _restore(self) -> None:
        for consumer in list(self._consumers.values()):
            tries = 0
            while consumer.tag in self._consumers:
                tries += 1
                session = await self._begin(patient=True)
                if consumer.link is not None and consumer.link.owner is session:
                    break
                try:
                    await self._attach(consumer, session)
                except ApiError as error:
                    # The broker may not have noticed yet that the old connection is lost.
                    if not error.is_passing and not isinstance(error, ExclusiveHeld):
                        self._consumers.pop(consumer.tag, None)
                        _log.error("%s of channel %d ends: %s", consumer.tag, self.id, error)
                        break
                    await asyncio.sleep(FOREVER.backoff_s(tries))
                except HoldfastError:
                    await asyncio.sleep(FOREVER.backoff_s(tries))

    async def _cancel(self, tag: str) -> None:
        consumer = self._consumers.pop(tag, None)
        if consumer is None or consumer.link is None:
            return
        link = consumer.link
        link.cancel()
        waiting = self._owner.pool.drop(self, lambda item: item[0] is consumer)
        link.give_back([delivery for _, its, delivery in waiting if its is link])
        link.owner.flush()

    def _add_credit(self, tag: str, count: int) -> None:
        consumer = self._consumers.get(tag)
        if consumer is not None and consumer.link is not None:
            consumer.link.add_credit(min(count, _MOST_CREDIT - consumer.link.credit))

    async def _get(self, group: str, timeout_s: float | None) -> ChannelMessage | None:
        loop = asyncio.get_running_loop()
        ends_s = None if timeout_s is None else loop.time() + timeout_s
        while True:
            session = await self._begin(patient=timeout_s is None)
            left_s = None if ends_s is None else max(0.0, ends_s - loop.time())
            try:
                delivery = await (await self._getter(session, group)).fetch(left_s)
            except ConnectionFailed:
                continue
            if delivery is None:
                return None
            try:
                return message_of(delivery, session, "", settled=False)
            except (DecodeError, KeyError, TypeError) as error:
                raise BadReply("the broker", f"a message is not readable: {error!r}") from error

    async def _getter(self, session: ChannelSession, group: str) -> GetLink:
        """Return the link that fetches single messages of a group; attach it at first use."""
        found = self._getters.get(group)
        if found is None or found.has_ended or found.owner is not session:
            found = GetLink(session)
            await session.attach(found, group=group, topic=None, start="next", settled=False)
            self._getters[group] = found
        return found

    def _start_publish(self, topic: str, message: bytes, future: "Future[None]") -> None:
        task = asyncio.create_task(self._publish(topic, message))
        self._tasks.add(task)

        def finish(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            error = ChannelClosed() if task.cancelled() else task.exception()
            if isinstance(error, ClientClosed):
                error = ChannelClosed()
            future.set_exception(error) if error is not None else future.set_result(None)

        task.add_done_callback(finish)
        if self._is_closed:
            task.cancel()

    async def _publish(self, topic: str, message: bytes) -> None:
        async with self._publishing:  # keeps the order of the calls
            session = await self._begin()
            sender = await session.sender(topic)
            confirmed = sender.enqueue(message)
        await confirmed


def _check_count(name: str, count: int) -> None:
    if type(count) is not int or not 1 <= count <= _MOST_CREDIT:
        raise ValueError(f"{name} is a whole number from 1 to {_MOST_CREDIT}, not {count!r}")
