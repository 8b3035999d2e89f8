"""Consuming topics as a member of a group: an iterator over what it is given, or handlers.

One message of a key or queue at a time is in hand, in order; different ones beside each other.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from inspect import isawaitable, iscoroutinefunction
from threading import get_ident
from typing import Any, Self

from holdfast.client.consume_options import ConsumeOptions
from holdfast.client.delivery import Delivery
from holdfast.client.loop_thread import LoopThread
from holdfast.client.membership import Membership
from holdfast.client.requests import Requests

_log = logging.getLogger("holdfast.client")

Handler = Callable[[Delivery], Any]


class AsyncConsumer:
    """What `AsyncClient.consume` returns: iterate over it in `async with`, or `run` a handler.

    With a concurrency of 1 a delivery counts as done when the next one is asked for, unless
    something else was said of it. With more, so many may be in hand at once, of one task or of
    several that share the consumer; then each has to be settled, and asking for another waits
    while too many are not. Leaving the block gives back what is not settled. An error that ended
    the consuming is raised by whoever goes on. For one event loop.
    """

    def __init__(
        self, transport: Requests, options: ConsumeOptions, open_consumers: set["AsyncConsumer"]
    ) -> None:
        self._member = Membership(transport, options)
        #: Where it stands from its first message to its end, for the client to close it.
        self._open_consumers = open_consumers
        self._is_serial = options.concurrency == 1
        self._current: Delivery | None = None
        self._handling: set[asyncio.Task[None]] = set()
        #: Those of threads that handlers run in.
        self.handler_threads: set[int] = set()
        self._closing: asyncio.Task[None] | None = None

    @property
    def member(self) -> str:
        """The name under which the group knows it."""
        return self._member.options.member

    @property
    def available(self) -> int:
        """How many more the broker had at its last answer, at most."""
        return self._member.available

    @property
    def is_active(self) -> bool:
        """Whether the broker serves this member: where a group has one active member, the others
        wait for their turn."""
        return self._member.is_active

    # -- iterating ---------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Delivery]:
        try:
            while (delivery := await self.next()) is not None:
                yield delivery
        finally:
            await self.close()

    async def __anext__(self) -> Delivery:
        delivery = await self.next()
        if delivery is None:
            raise StopAsyncIteration
        return delivery

    async def next(self) -> Delivery | None:
        """Return the next delivery; None at the end, and once closed. A cancelled call loses
        nothing: call it again."""
        if self._is_serial and self._current is not None:
            self._current.ack()  # if nothing was said before
            self._current = None
        self._current = await self._take()
        return self._current

    async def _take(self) -> Delivery | None:
        member = self._member
        while True:
            if member.failure is not None:
                raise member.failure
            if self._closing is not None:
                return None
            if not member.has_begun:
                member.start()
                self._open_consumers.add(self)
            delivery = member.take()
            if delivery is not None or member.is_at_end:
                return delivery
            await member.change()

    async def commit(self) -> None:
        """Say that all given out so far is done, but for what was said otherwise, and return
        once everything that was said is durable."""
        for delivery in self._member.ready.in_hand:
            delivery.ack()
        self._current = None
        await self._member.flush()

    # -- handlers ----------------------------------------------------------------------------

    async def run(self, handler: Handler) -> None:
        """Call `handler` with each delivery, so many at a time as the concurrency is, until the
        consumer is stopped or closed, or this is cancelled. The consumer is closed at its end.

        A coroutine function is awaited, any other function is called in a thread. When it
        returns, the message is acknowledged; when it raises, the message has failed (nack), and
        the log `holdfast.client` says how; unless the handler has said something itself. Closing
        lets handlers finish; cancelling cancels coroutines, whose messages are released, and
        waits for threads. With `follow=False` it returns when nothing is left.
        """
        threads = None
        call: Callable[[Delivery], Awaitable[Any]] = handler
        if not iscoroutinefunction(handler):
            loop = asyncio.get_running_loop()
            threads = ThreadPoolExecutor(
                self._member.options.concurrency,
                thread_name_prefix="holdfast-handler",
                initializer=lambda: self.handler_threads.add(get_ident()),
            )

            def call(delivery: Delivery) -> Awaitable[Any]:
                return loop.run_in_executor(threads, handler, delivery)

        try:
            while (delivery := await self._take()) is not None:
                delivery._lease.is_handled = True
                task = asyncio.create_task(self._handle(call, delivery))
                self._handling.add(task)
                task.add_done_callback(self._handling.discard)
        except asyncio.CancelledError:
            for task in self._handling:
                task.cancel()
            raise
        finally:
            await self.close()
            if threads is not None:
                threads.shutdown(wait=False)

    async def _handle(self, call: Callable[[Delivery], Awaitable[Any]], delivery: Delivery) -> None:
        try:
            with delivery:
                result = await call(delivery)
                if isawaitable(result):  # of a function that only returns a coroutine
                    await result
        except Exception as error:
            _log.warning(
                "the handler failed at %s %d:%d (attempt %d): %r",
                delivery.topic,
                delivery.queue,
                delivery.offset,
                delivery.attempt,
                error,
                exc_info=error,
            )
        finally:
            self._member.handled(delivery)

    # -- closing -----------------------------------------------------------------------------

    def stop(self) -> None:
        """Begin to close, and do not wait for it: `run` returns when it is done."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
            self._member.stop_receiving()
            self._member.note_change()

    async def close(self) -> None:
        """Take no more, let handlers finish, say all that was said, give back what was not
        settled or not begun, and leave the group. May be repeated.

        Raises what kept the last of it from being said: those messages come again. Inside a
        handler it is only stop().
        """
        self.stop()
        assert self._closing is not None
        if asyncio.current_task() not in self._handling:
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        while self._handling:
            await asyncio.wait(self._handling)
        try:
            await self._member.leave()
        finally:
            self._open_consumers.discard(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Consumer:
    """What `Client.consume` returns: iterate over it in `with`, or `run` a handler.

    As AsyncConsumer. Any threads may share it; deliveries are settled in any thread.
    """

    def __init__(self, consumer: AsyncConsumer, loop_thread: LoopThread) -> None:
        self._consumer = consumer
        self._loop_thread = loop_thread

    @property
    def member(self) -> str:
        """The name under which the group knows it."""
        return self._consumer.member

    @property
    def available(self) -> int:
        """How many more the broker had at its last answer, at most."""
        return self._consumer.available

    @property
    def is_active(self) -> bool:
        """Whether the broker serves this member: where a group has one active member, the others
        wait for their turn."""
        return self._consumer.is_active

    def __iter__(self) -> Iterator[Delivery]:
        try:
            while (delivery := self.next()) is not None:
                yield delivery
        finally:
            self.close()

    def __next__(self) -> Delivery:
        delivery = self.next()
        if delivery is None:
            raise StopIteration
        return delivery

    def next(self) -> Delivery | None:
        """Return the next delivery; None at the end, and once closed."""
        return self._loop_thread.run(self._consumer.next())

    def commit(self) -> None:
        """Say that all given out so far is done, but for what was said otherwise, and return
        once everything that was said is durable."""
        self._loop_thread.run(self._consumer.commit())

    def run(self, handler: Handler) -> None:
        """Call `handler` with each delivery, in threads of its own, so many at a time as the
        concurrency is, until the consumer is stopped or closed, by a handler or in another
        thread, or this thread is interrupted. The consumer is closed at its end.

        When it returns, the message is acknowledged; when it raises, the message has failed
        (nack), and the log `holdfast.client` says how; unless the handler has said something
        itself. Handlers that run are let finish. With `follow=False` it returns when nothing is
        left.
        """
        self._loop_thread.run(self._consumer.run(handler))

    def stop(self) -> None:
        """Begin to close, and do not wait for it: `run` returns when it is done."""
        self._loop_thread.call_soon(self._consumer.stop)

    def close(self) -> None:
        """Take no more, let handlers finish, say all that was said, give back what was not
        settled or not begun, and leave the group. May be repeated.

        Raises what kept the last of it from being said: those messages come again. Inside a
        handler it is only stop().
        """
        if get_ident() in self._consumer.handler_threads:
            self.stop()
        else:
            self._loop_thread.run(self._consumer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
