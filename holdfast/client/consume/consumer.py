"""Consumers that are members of a group: iterate over deliveries, or run a handler for each.

Messages of one key or queue are processed one at a time, in order. Different keys or queues are
processed concurrently.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from inspect import isawaitable, iscoroutinefunction
from threading import get_ident
from typing import Any, Self

from holdfast.client.consume.delivery import Delivery
from holdfast.client.consume.join import ConsumeOptions
from holdfast.client.consume.membership import Membership
from holdfast.client.transport.loop_thread import LoopThread
from holdfast.client.transport.requests import Transport

_log = logging.getLogger("holdfast.client")

Handler = Callable[[Delivery], Any]


class AsyncConsumer:
    """The consumer that `AsyncClient.consume` returns: iterate in `async with`, or `run` a handler.

    With a concurrency of 1, asking for the next delivery acknowledges the current one, unless it
    was settled before. With a higher concurrency, each delivery must be settled explicitly. Then
    up to `concurrency` deliveries may be unsettled at a time, in one task or in several tasks that
    share the consumer; at this limit, next() waits.

    Leaving the block releases the unsettled messages. If an error has ended the consumer, further
    calls raise the same error. A consumer belongs to one event loop.
    """

    def __init__(
        self,
        transport: Transport,
        options: ConsumeOptions,
        open_consumers: set["AsyncConsumer"],
        member: Membership | None = None,
    ) -> None:
        self._member = member or Membership(transport, options)
        #: The client's open consumers. They contain this consumer from its start to its end.
        self._open_consumers = open_consumers
        self._is_serial = options.concurrency == 1
        self._current: Delivery | None = None
        self._handling: set[asyncio.Task[None]] = set()
        #: The tasks of `_handling` that wait for a handler in a thread.
        self._in_threads: set[asyncio.Task[None]] = set()
        self._is_cancelled = False
        #: The ids of the threads in which handlers run.
        self.handler_threads: set[int] = set()
        self._closing: asyncio.Task[None] | None = None

    @property
    def member(self) -> str:
        """This member's name in the group."""
        return self._member.options.member

    @property
    def available(self) -> int:
        """How many more messages were available, at most, when the broker last replied."""
        return self._member.available

    @property
    def is_active(self) -> bool:
        """Whether the broker serves this member. In a group with one active member, the other
        members wait until that member leaves or expires."""
        return self._member.is_active

    async def __aiter__(self) -> AsyncIterator[Delivery]:
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
        """Return the next delivery; None at the end and after close(). Cancelling is safe: the
        next call returns the delivery."""
        if self._is_serial and self._current is not None:
            self._current.ack()  # without effect if it was settled before
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
            if not member.has_started:
                member.start()
                self._open_consumers.add(self)
            delivery = member.take()
            if delivery is not None or member.is_at_end:
                return delivery
            await member.wait_for_change()

    async def commit(self) -> None:
        """Acknowledge all returned deliveries that are not settled. Return once the broker has
        durably stored these and all earlier acknowledgements."""
        for delivery in self._member.ready.in_progress:
            delivery.ack()
        self._current = None
        await self._member.flush()

    async def run(self, handler: Handler) -> None:
        """Call `handler` with each delivery, up to `concurrency` at a time, until the consumer is
        stopped or closed, or this call is cancelled. Closes the consumer at the end.

        A handler that is a coroutine function is awaited; any other handler is called in a thread.
        When the handler returns, its message is acknowledged. When it raises, its message is
        nacked and the logger `holdfast.client` logs the error. If the handler has settled the
        message itself, the consumer does not settle it again. With `follow=False`, return when no
        message is left.

        Closing waits for running handlers. Cancelling this call cancels handlers that are
        coroutines, and releases their messages. It waits for handlers in threads, whose messages
        stay leased and are settled as usual; a second cancellation ends this wait.
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

            async def call(delivery: Delivery) -> Any:
                task = asyncio.current_task()
                assert task is not None
                self._in_threads.add(task)
                try:
                    context = copy_context()  # the handler sees the context variables of `run`
                    return await loop.run_in_executor(threads, context.run, handler, delivery)
                finally:
                    self._in_threads.discard(task)

        try:
            while (delivery := await self._take()) is not None:
                delivery._lease.is_handled = True
                task = asyncio.create_task(self._handle(call, delivery))
                self._handling.add(task)
                task.add_done_callback(self._handling.discard)
            await self.close()
        except asyncio.CancelledError:
            self._is_cancelled = True
            for task in self._handling - self._in_threads:  # a thread cannot be cancelled
                task.cancel()
            raise
        finally:
            try:
                await self.close()
            finally:
                if threads is not None:
                    threads.shutdown(wait=False)

    async def _handle(self, call: Callable[[Delivery], Awaitable[Any]], delivery: Delivery) -> None:
        try:
            with delivery:
                result = await call(delivery)
                if isawaitable(result):  # the handler is a plain function that returns a coroutine
                    if self._is_cancelled and (task := asyncio.current_task()) is not None:
                        task.cancel()
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
            self._member.finish_handling(delivery)

    def stop(self) -> None:
        """Begin to close, and return immediately. `run` returns when closing is done."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
            self._member.stop_receiving()
            self._member.notify_change()

    async def close(self) -> None:
        """Stop receiving, wait for running handlers, send pending acknowledgements, release all
        unsettled messages, and leave the group. May be repeated.

        If acknowledgements cannot be sent, raises the error of their request; the messages are
        delivered again. Inside a handler, this only calls stop().
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
    """The consumer that `Client.consume` returns: iterate over it in `with`, or `run` a handler.

    Its methods are AsyncConsumer's methods as blocking calls. Any number of threads may share it;
    any thread may settle a delivery.
    """

    def __init__(self, consumer: AsyncConsumer, loop_thread: LoopThread) -> None:
        self._consumer = consumer
        self._loop_thread = loop_thread

    @property
    def member(self) -> str:
        return self._consumer.member

    @property
    def available(self) -> int:
        return self._consumer.available

    @property
    def is_active(self) -> bool:
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
        return self._loop_thread.run(self._consumer.next())

    def commit(self) -> None:
        self._loop_thread.run(self._consumer.commit())

    def run(self, handler: Handler) -> None:
        """Call `handler` with each delivery, as AsyncConsumer.run does; plain functions are called
        in threads of the consumer.

        Return when a handler or another thread stops or closes the consumer, or when this thread is
        interrupted. After an interrupt, closing the consumer waits for running handlers. With
        `follow=False`, return when no message is left.
        """
        self._loop_thread.run(self._consumer.run(handler))

    def stop(self) -> None:
        self._loop_thread.call_soon(self._consumer.stop)

    def close(self) -> None:
        if get_ident() in self._consumer.handler_threads:
            self.stop()
        else:
            self._loop_thread.run(self._consumer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
