"""The batching producers, for asyncio and for threads.

send() only appends the message to its queue's open batch and returns a small handle. A batch is
sent when it is full, when its linger time ends, or when a caller waits for it. An Accumulator
collects the batches, and a Sender sends them on an event loop. The two producers differ in how they
call that loop, and in how their callers wait.
"""

import asyncio
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from holdfast.client.errors import ProducerBufferFull, ProducerClosed, PublishFailed
from holdfast.client.instrumentation import Observer
from holdfast.client.produce.accumulator import Accumulator, PendingBatch, ProducerOptions
from holdfast.client.produce.identities import ProducerIds
from holdfast.client.produce.new_message import Body, as_born_us
from holdfast.client.produce.observed import ObservedAccumulator
from holdfast.client.produce.sender import Sender
from holdfast.client.read.facts import TopicFacts
from holdfast.client.read.results import PublishResult
from holdfast.client.timestamps import Time
from holdfast.client.transport.loop_thread import LoopThread
from holdfast.client.transport.requests import Transport
from holdfast.commitlog.format.limits import MessageLimits
from holdfast.commitlog.format.message_id import format_message_id


class _Handle(msgspec.Struct, gc=False, frozen=True, eq=False):
    """One message of a batch."""

    _batch: PendingBatch
    _row: int

    def done(self) -> bool:
        """Return whether the message was stored or has failed."""
        return self._batch.outcome is not None

    def _get_result(self) -> PublishResult:
        """Return the result of the message, or raise the error of its batch. Call this when the
        batch is resolved."""
        batch = self._batch
        outcome = batch.outcome
        assert outcome is not None
        if isinstance(outcome, Exception):
            batch.is_failure_seen = True
            # A copy is raised: the traceback of the original would refer to this handle, and keep
            # the batch in a cycle that is never freed: the collector does not track the handle.
            error = copy(outcome)
            error.__cause__ = outcome.__cause__
            raise error
        offset = outcome.base_offset + self._row
        message_id = format_message_id(outcome.topic_id, batch.queue, offset)
        return PublishResult(batch.queue, offset, message_id, outcome.durable)


class SendHandle(_Handle, gc=False, frozen=True, eq=False):
    """A message sent by an AsyncProducer: await the handle for its PublishResult.

    Awaiting sends the batch immediately, without waiting for its linger time. It raises the error
    with which the batch failed.
    """

    def __await__(self) -> Generator[Any, None, PublishResult]:
        if self._batch.outcome is None:
            producer: AsyncProducer = self._batch.owner
            yield from producer.wait_resolved(self._batch).__await__()
        return self._get_result()


class BlockingSendHandle(_Handle, gc=False, frozen=True, eq=False):
    """A message sent by a Producer: result() waits for its PublishResult."""

    def result(self, timeout_s: float | None = None) -> PublishResult:
        """Send the batch immediately, without waiting for its linger time. Return the result when
        the message is stored.

        Raises TimeoutError if the message is still in flight after `timeout_s`, or the error with
        which its batch failed.
        """
        if self._batch.outcome is None:
            producer: Producer = self._batch.owner
            producer.wait_resolved(self._batch, timeout_s)
        return self._get_result()


@dataclass(frozen=True, slots=True)
class ProducerTarget:
    """Where a producer sends. `describe` fetches the topic's queues and limits. `observer` is None
    if the client has no instrumentation."""

    transport: Transport
    topic: str
    describe: Callable[[], Coroutine[Any, Any, TopicFacts]]
    ids: ProducerIds
    observer: Observer | None = None


class _BaseProducer(ABC):
    """A producer to one topic. All code that uses the accumulator holds `lock`."""

    def __init__(
        self, target: ProducerTarget, options: ProducerOptions, lock: AbstractContextManager[object]
    ) -> None:
        self.target = target
        self.options = options
        self._lock = lock
        self._parts: tuple[Accumulator, Sender] | None = None
        #: The accumulator that send() uses; None before the start and after close().
        self._accumulator: Accumulator | None = None

    def _create_parts(self, description: TopicFacts) -> None:
        """Create the accumulator and the sender: from now on messages can be sent."""
        target = self.target
        make = Accumulator if target.observer is None else ObservedAccumulator
        accumulator = make(
            self.options,
            queue_count=description.queue_count,
            priority_levels=description.config.priority_levels,
            # A random start, so that producers with few messages do not all use queue 0.
            first_queue=random.randrange(description.queue_count),  # noqa: S311 - no secret
            limits=MessageLimits(max_message_bytes=description.config.max_message_bytes),
            owner=self,
            clock_us=lambda: time.time_ns() // 1000,
            on_opened=self.batch_opened,
            on_ready=self.batch_ready,
        )
        sender = Sender(
            accumulator,
            target.transport,
            target.topic,
            self.options,
            ids=target.ids,
            lock=self._lock,
            on_resolved=self._wake_callers,
            observer=target.observer,
        )
        self._parts = accumulator, sender
        self._accumulator = accumulator  # last, because other threads may send from now on

    @property
    def _sender(self) -> Sender:
        assert self._parts is not None
        return self._parts[1]

    def _raise_unseen_failures(self) -> None:
        """Raise PublishFailed if there are failed batches whose failure no caller has read."""
        assert self._parts is not None
        failed = self._parts[0].take_unseen_failures()
        if failed:
            cause = failed[0].outcome
            assert isinstance(cause, Exception)
            message_count = sum(batch.message_count for batch in failed)
            raise PublishFailed(self.target.topic, message_count, cause) from cause

    # -- called by the accumulator and the sender, with the lock held -------------------------

    def batch_opened(self, batch: PendingBatch) -> None:
        """Start a new batch's linger timer."""
        self._call_on_loop(self._sender.linger, batch)

    def batch_ready(self) -> None:
        """Send the ready batches."""
        self._call_on_loop(self._sender.pump)

    @abstractmethod
    def _call_on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call a method of the sender on its event loop."""

    @abstractmethod
    def _wake_callers(self, batches: Sequence[PendingBatch]) -> None:
        """Wake the callers that wait for these resolved batches, or for room in the buffer."""


class AsyncProducer(_BaseProducer):
    """Batches messages to one topic. Made by `AsyncClient.producer`; belongs to its loop."""

    def __init__(self, target: ProducerTarget, options: ProducerOptions) -> None:
        super().__init__(target, options, nullcontext())
        self._room = asyncio.Event()
        self._has_ready_batches = False

    async def start(self) -> None:
        """Fetch the topic's queues from the broker. `async with` calls this; may be repeated."""
        if self._parts is None:
            self._create_parts(await self.target.describe())

    def send(
        self,
        body: Body,
        *,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        born_timestamp_ms: Time | None = None,
    ) -> SendHandle:
        """Add a message to its batch and return its handle, without waiting.

        Messages without key and queue go to one queue until its batch is full or sent, then to the
        next queue. The default of `priority` (0 to 9) is the producer's priority. Groups do not
        deliver a message that is older than its `ttl_ms`. `born_timestamp_ms` is the time at which
        the message was created (default: now); a program that copies messages gives the original.
        Raises ProducerBufferFull when the buffer is full: call `await producer.drain()` between
        sends, at least once for every `buffer_bytes / 2` sent. After TypeError, ValueError,
        MessageTooLarge and UnknownQueue, other messages can still be sent.
        """
        accumulator = self._accumulator
        if accumulator is None:
            raise ProducerClosed
        if accumulator.is_full:
            raise ProducerBufferFull(self.options.buffer_bytes)
        born_us = None if born_timestamp_ms is None else as_born_us(born_timestamp_ms)
        batch = accumulator.add(body, key, tag, properties, queue, priority, ttl_ms, born_us)
        return SendHandle(batch, len(batch.bodies) - 1)

    async def drain(self) -> None:
        """Wait until half of the buffer is free. Let the event loop send the ready batches."""
        accumulator = self._accumulator
        if accumulator is None:
            raise ProducerClosed
        while not accumulator.has_room:
            self._room.clear()
            await self._room.wait()
        if self._has_ready_batches:
            self._has_ready_batches = False
            await asyncio.sleep(0)

    async def flush(self) -> None:
        """Send all batches now, and wait until every message sent before is stored or has failed.

        This call does not raise the errors of failed messages; their handles or close() raise them.
        If this call is cancelled, the messages are still sent.
        """
        if self._parts is not None:
            accumulator, sender = self._parts
            sender.close_all()
            for batch in accumulator.unresolved():
                await self.wait_resolved(batch)

    async def close(self) -> None:
        """Send all batches, wait for their results, and accept no more messages. May be repeated.

        Raises PublishFailed for failed batches whose error no handle has raised.
        """
        self._accumulator = None
        if self._parts is not None:
            await self.flush()
            self._raise_unseen_failures()

    async def wait_resolved(self, batch: PendingBatch) -> None:
        """Send a batch now and wait until it is stored or has failed. Handles call this."""
        if batch.outcome is not None:
            return
        if batch.waiter is None:
            batch.waiter = asyncio.Event()
        self._sender.close_batch(batch)
        await batch.waiter.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        with _note_publish_failure(error):
            await self.close()

    def batch_ready(self) -> None:
        """Send the ready batches, at the next drain() at the latest."""
        self._has_ready_batches = True
        super().batch_ready()

    def _call_on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        callback(*arguments)

    def _wake_callers(self, batches: Sequence[PendingBatch]) -> None:
        for batch in batches:
            if batch.waiter is not None:
                batch.waiter.set()
        self._room.set()


class Producer(_BaseProducer):
    """Batches messages to one topic. Made by `Client.producer`; any thread may send."""

    def __init__(
        self, target: ProducerTarget, options: ProducerOptions, loop_thread: LoopThread
    ) -> None:
        lock = threading.Lock()
        #: Notified when batches are resolved. Then their results are known, and the buffer has
        #: room.
        self._resolved = threading.Condition(lock)
        super().__init__(target, options, lock)
        self._loop_thread = loop_thread

    def start(self) -> None:
        """Fetch the topic's queues from the broker. `with` calls this; may be repeated."""
        if self._parts is None:
            self._create_parts(self._loop_thread.run(self.target.describe()))

    def send(
        self,
        body: Body,
        *,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        born_timestamp_ms: Time | None = None,
    ) -> BlockingSendHandle:
        """Add a message to its batch and return its handle; wait while the buffer is full.

        Everything else is as in `AsyncProducer.send`.
        """
        born_us = None if born_timestamp_ms is None else as_born_us(born_timestamp_ms)
        with self._lock:
            accumulator = self._accumulator
            while accumulator is not None and accumulator.is_full:
                self._resolved.wait()
                accumulator = self._accumulator
            if accumulator is None:
                raise ProducerClosed
            batch = accumulator.add(body, key, tag, properties, queue, priority, ttl_ms, born_us)
            return BlockingSendHandle(batch, len(batch.bodies) - 1)

    def flush(self, timeout_s: float | None = None) -> None:
        """Send all batches now and wait, as AsyncProducer.flush does. Raises TimeoutError if
        messages are still in flight after `timeout_s`."""
        if self._parts is None:
            return
        accumulator, sender = self._parts
        with self._lock:
            batches = accumulator.unresolved()
        if batches:
            self._call_on_loop(sender.close_all)
            self._wait_resolved(batches, timeout_s)

    def close(self) -> None:
        """Send all batches, wait for their results, and accept no more messages. May be repeated.

        Raises PublishFailed for failed batches whose error no handle has raised.
        """
        with self._lock:
            self._accumulator = None
        if self._parts is not None:
            self.flush()
            self._raise_unseen_failures()

    def wait_resolved(self, batch: PendingBatch, timeout_s: float | None) -> None:
        """Send a batch now and wait until it is stored or has failed. Handles call this."""
        self._call_on_loop(self._sender.close_batch, batch)
        self._wait_resolved([batch], timeout_s)

    def _wait_resolved(self, batches: Sequence[PendingBatch], timeout_s: float | None) -> None:
        def is_resolved() -> bool:
            return all(batch.outcome is not None for batch in batches)

        with self._lock:
            if not self._resolved.wait_for(is_resolved, timeout_s):
                raise TimeoutError(f"not stored within {timeout_s} s, but still in flight")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        with _note_publish_failure(error):
            self.close()

    def _call_on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        self._loop_thread.call_soon(callback, *arguments)

    def _wake_callers(self, batches: Sequence[PendingBatch]) -> None:
        self._resolved.notify_all()


@contextmanager
def _note_publish_failure(error: BaseException | None) -> Iterator[None]:
    """Handle PublishFailed from closing a producer at the end of its `with` block. If the block has
    failed with `error`, add the text of PublishFailed to `error` as a note."""
    try:
        yield
    except PublishFailed as failed:
        if error is None:
            raise
        error.add_note(str(failed))
