"""The batching producers, one for asyncio and one for threads, over one accumulator and sender.

send() only puts the message into its queue's open batch and returns a handle of two words.
Batches leave when they are full, when they have lingered, or when somebody waits for them.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from holdfast.client.accumulator import Accumulator, Body, MessageLimits, PendingBatch
from holdfast.client.errors import ProducerBufferFull, ProducerClosed, PublishFailed
from holdfast.client.loop_thread import LoopThread
from holdfast.client.message import PublishResult
from holdfast.client.pulling import TopicDescription
from holdfast.client.retry import RetryPolicy
from holdfast.client.sender import Sender
from holdfast.client.transport import Transport
from holdfast.commitlog.message_id import format_message_id


@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """What a producer may be told; `Client.producer` documents each."""

    queue: int | None = None
    durability: str | None = None
    linger_ms: float = 5.0
    batch_bytes: int = 512 * 1024
    buffer_bytes: int = 32 * 1024 * 1024
    max_in_flight: int = 2
    delivery_timeout_ms: float = 120_000.0

    def __post_init__(self) -> None:
        for name in ("batch_bytes", "buffer_bytes", "max_in_flight", "delivery_timeout_ms"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is more than 0, not {getattr(self, name)}")
        if self.linger_ms < 0:
            raise ValueError(f"linger_ms is at least 0, not {self.linger_ms}")


@dataclass(frozen=True, slots=True)
class ProducerTarget:
    """Where a producer sends: `describe` tells the topic's queues and limits when asked."""

    transport: Transport
    topic: str
    describe: Callable[[], Coroutine[Any, Any, TopicDescription]]


class SendHandle(msgspec.Struct, gc=False, frozen=True, eq=False):
    """A message that was sent by an AsyncProducer: await it for its PublishResult.

    Waiting for a handle sends its batch without further lingering. It raises the error with
    which the batch failed.
    """

    _batch: PendingBatch
    _row: int

    def done(self) -> bool:
        """Return whether the message is stored, or has failed."""
        return self._batch.outcome is not None

    def __await__(self) -> Generator[Any, None, PublishResult]:
        if self._batch.outcome is None:
            producer: AsyncProducer = self._batch.owner
            yield from producer.settled(self._batch).__await__()
        return _result(self._batch, self._row)


class BlockingSendHandle(msgspec.Struct, gc=False, frozen=True, eq=False):
    """A message that was sent by a Producer: result() waits for its PublishResult."""

    _batch: PendingBatch
    _row: int

    def done(self) -> bool:
        """Return whether the message is stored, or has failed."""
        return self._batch.outcome is not None

    def result(self, timeout_s: float | None = None) -> PublishResult:
        """Wait until the message is stored, sending its batch without further lingering.

        Raises TimeoutError, with the message still on its way, or the error with which its
        batch failed.
        """
        if self._batch.outcome is None:
            producer: Producer = self._batch.owner
            producer.wait_settled(self._batch, timeout_s)
        return _result(self._batch, self._row)


class AsyncProducer:
    """Batches messages to one topic. Made by `AsyncClient.producer`; belongs to its loop."""

    def __init__(self, target: ProducerTarget, options: ProducerOptions) -> None:
        self.target = target
        self.options = options
        self._accumulator: Accumulator | None = None
        self._sender: Sender | None = None
        self._room = asyncio.Event()
        self._has_ready_batches = False

    async def start(self) -> None:
        """Ask the broker for the topic's queues. `async with` does it; may be repeated."""
        if self._sender is None:
            description = await self.target.describe()
            self._accumulator = _accumulator(self, description, self.options)
            self._sender = _sender(
                self, self.target, self.options, self._accumulator, nullcontext()
            )

    def send(
        self,
        body: Body,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
    ) -> SendHandle:
        """Put a message on its way and return its handle, at once.

        Without key and queue the queues take turns, a batch each. Raises ProducerBufferFull
        when as much waits as may: put an `await producer.drain()` between sends, at least once
        for every half of the buffer. TypeError, ValueError, MessageTooLarge or UnknownQueue
        refuse this message alone.
        """
        accumulator = self._accumulator
        if accumulator is None:
            raise ProducerClosed
        if accumulator.is_full:
            raise ProducerBufferFull(self.options.buffer_bytes)
        batch = accumulator.add(body, key, tag, properties, queue)
        return SendHandle(batch, len(batch.bodies) - 1)

    async def drain(self) -> None:
        """Wait until half of the buffer is free, and let what is ready go out."""
        accumulator = self._accumulator
        if accumulator is None:
            raise ProducerClosed
        while not accumulator.is_roomy:
            self._room.clear()
            await self._room.wait()
        if self._has_ready_batches:
            self._has_ready_batches = False
            await asyncio.sleep(0)

    async def flush(self) -> None:
        """Send everything now, and wait until all sent so far is stored or has failed.

        Failures are told by the handles, or else by close(). Cancelling stops the waiting.
        """
        if self._accumulator is None or self._sender is None:
            raise ProducerClosed
        await self._flush(self._accumulator, self._sender)

    async def close(self) -> None:
        """Send and settle everything, and take no more. May be repeated.

        Raises PublishFailed for messages that failed with nobody having looked at a handle of
        their batch.
        """
        accumulator, self._accumulator = self._accumulator, None
        if accumulator is not None and self._sender is not None:
            await self._flush(accumulator, self._sender)
            _raise_unseen(self.target.topic, accumulator)

    async def settled(self, batch: PendingBatch) -> None:
        """Wait until a batch is settled, sending it now. What handles wait by."""
        if batch.outcome is not None:
            return
        if batch.waiter is None:
            batch.waiter = asyncio.Event()
        if self._sender is not None:
            self._sender.close_batch(batch)
        await batch.waiter.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        try:
            await self.close()
        except PublishFailed as failed:
            if error is None:
                raise
            error.add_note(str(failed))

    async def _flush(self, accumulator: Accumulator, sender: Sender) -> None:
        sender.close_all()
        for batch in accumulator.unsettled():
            await self.settled(batch)

    def _batch_opened(self, batch: PendingBatch) -> None:
        assert self._sender is not None
        self._sender.linger(batch)

    def _batch_ready(self) -> None:
        assert self._sender is not None
        self._has_ready_batches = True
        self._sender.pump()

    def _batches_settled(self, batches: Sequence[PendingBatch]) -> None:
        for batch in batches:
            if batch.waiter is not None:
                batch.waiter.set()
        self._room.set()


class Producer:
    """Batches messages to one topic. Made by `Client.producer`; any thread may send."""

    def __init__(
        self, target: ProducerTarget, options: ProducerOptions, loop_thread: LoopThread
    ) -> None:
        self._target = target
        self._options = options
        self._loop_thread = loop_thread
        self._lock = threading.Lock()
        #: Notified whenever batches are settled: there is room, and there are results.
        self._settled = threading.Condition(self._lock)
        self._accumulator: Accumulator | None = None
        self._sender: Sender | None = None

    def start(self) -> None:
        """Ask the broker for the topic's queues. `with` does it; may be repeated."""
        if self._sender is None:
            description = self._loop_thread.run(self._target.describe())
            self._accumulator = _accumulator(self, description, self._options)
            self._sender = _sender(self, self._target, self._options, self._accumulator, self._lock)

    def send(
        self,
        body: Body,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
    ) -> BlockingSendHandle:
        """Put a message on its way and return its handle; wait while the buffer is full.

        Without key and queue the queues take turns, a batch each. TypeError, ValueError,
        MessageTooLarge or UnknownQueue refuse this message alone.
        """
        with self._lock:
            accumulator = self._accumulator
            while accumulator is not None and accumulator.is_full:
                self._settled.wait()
                accumulator = self._accumulator
            if accumulator is None:
                raise ProducerClosed
            batch = accumulator.add(body, key, tag, properties, queue)
            return BlockingSendHandle(batch, len(batch.bodies) - 1)

    def flush(self, timeout_s: float | None = None) -> None:
        """Send everything now, and wait until all sent so far is stored or has failed.

        Failures are told by the handles, or else by close(). Raises TimeoutError with
        messages still on their way.
        """
        if self._accumulator is None:
            raise ProducerClosed
        self._flush(self._accumulator, timeout_s)

    def close(self) -> None:
        """Send and settle everything, and take no more. May be repeated.

        Raises PublishFailed for messages that failed with nobody having looked at a handle of
        their batch.
        """
        with self._lock:
            accumulator, self._accumulator = self._accumulator, None
        if accumulator is not None:
            self._flush(accumulator, None)
            _raise_unseen(self._target.topic, accumulator)

    def wait_settled(self, batch: PendingBatch, timeout_s: float | None) -> None:
        """Wait until a batch is settled, sending it now. What handles wait by."""
        assert self._sender is not None
        self._loop_thread.call_soon(self._sender.close_batch, batch)
        with self._lock:
            if not self._settled.wait_for(lambda: batch.outcome is not None, timeout_s):
                raise TimeoutError(f"not settled within {timeout_s} s; it is still on its way")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        try:
            self.close()
        except PublishFailed as failed:
            if error is None:
                raise
            error.add_note(str(failed))

    def _flush(self, accumulator: Accumulator, timeout_s: float | None) -> None:
        assert self._sender is not None
        with self._lock:
            batches = accumulator.unsettled()
        if not batches:
            return
        self._loop_thread.call_soon(self._sender.close_all)
        with self._lock:
            if not self._settled.wait_for(
                lambda: all(batch.outcome is not None for batch in batches), timeout_s
            ):
                raise TimeoutError(f"not all settled within {timeout_s} s; they are on their way")

    # The accumulator calls these with the lock held, in the thread that sends.

    def _batch_opened(self, batch: PendingBatch) -> None:
        assert self._sender is not None
        self._loop_thread.call_soon(self._sender.linger, batch)

    def _batch_ready(self) -> None:
        assert self._sender is not None
        self._loop_thread.call_soon(self._sender.pump)

    # The sender calls this with the lock held, in the loop's thread.

    def _batches_settled(self, batches: Sequence[PendingBatch]) -> None:
        self._settled.notify_all()


def _accumulator(
    producer: AsyncProducer | Producer, description: TopicDescription, options: ProducerOptions
) -> Accumulator:
    return Accumulator(
        queue_count=description.queue_count,
        queue=options.queue,
        # Producers that send little should not all begin with queue 0.
        first_queue=random.randrange(description.queue_count),  # noqa: S311 - no secret
        batch_bytes=options.batch_bytes,
        buffer_bytes=options.buffer_bytes,
        limits=MessageLimits(max_message_bytes=description.config.max_message_bytes),
        owner=producer,
        clock_us=lambda: time.time_ns() // 1000,
        opened=producer._batch_opened,
        closed=producer._batch_ready,
    )


def _sender(
    producer: AsyncProducer | Producer,
    target: ProducerTarget,
    options: ProducerOptions,
    accumulator: Accumulator,
    lock: AbstractContextManager[object],
) -> Sender:
    return Sender(
        accumulator,
        target.transport,
        topic=target.topic,
        durability=options.durability,
        linger_ms=options.linger_ms,
        max_in_flight=options.max_in_flight,
        retry=RetryPolicy(give_up_after_s=options.delivery_timeout_ms / 1000),
        lock=lock,
        settled=producer._batches_settled,
    )


def _result(batch: PendingBatch, row: int) -> PublishResult:
    """Return the result of one message of a settled batch, or raise why there is none."""
    outcome = batch.outcome
    assert outcome is not None
    if isinstance(outcome, Exception):
        batch.is_looked_at = True
        raise outcome
    offset = outcome.base_offset + row
    message_id = format_message_id(outcome.topic_id, batch.queue, offset)
    return PublishResult(batch.queue, offset, message_id, outcome.durable)


def _raise_unseen(topic: str, accumulator: Accumulator) -> None:
    failed = accumulator.unseen_failures()
    if failed:
        cause = failed[0].outcome
        assert isinstance(cause, Exception)
        message_count = sum(batch.message_count for batch in failed)
        raise PublishFailed(topic, message_count, cause) from cause
