"""The batching producer for asyncio.

send() only appends the message to its queue's open batch and returns a small handle. A batch is
sent when it is full, when its linger time ends, or when a caller waits for it.
"""

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Self

import msgspec

from holdfast.client.errors import ProducerBufferFull, ProducerClosed
from holdfast.client.produce.base_producer import (
    BaseProducer,
    ProducerTarget,
    get_result,
    note_publish_failure,
)
from holdfast.client.produce.message_checks import Body
from holdfast.client.produce.options import ProducerOptions
from holdfast.client.produce.pending_batch import PendingBatch
from holdfast.client.read.message import PublishResult


class SendHandle(msgspec.Struct, gc=False, frozen=True, eq=False):
    """A message sent by an AsyncProducer: await the handle for its PublishResult.

    Awaiting sends the batch at once, without waiting for its linger time. It raises the error with
    which the batch failed.
    """

    _batch: PendingBatch
    _row: int

    def done(self) -> bool:
        """Return whether the message was stored or has failed."""
        return self._batch.outcome is not None

    def __await__(self) -> Generator[Any, None, PublishResult]:
        if self._batch.outcome is None:
            producer: AsyncProducer = self._batch.owner
            yield from producer.wait_resolved(self._batch).__await__()
        return get_result(self._batch, self._row)


class AsyncProducer(BaseProducer):
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
    ) -> SendHandle:
        """Add a message to its batch and return its handle, without waiting.

        Without key and queue the queues take turns, one batch each. `priority` (0 to 9) defaults
        to the producer's; groups do not deliver a message that is older than its `ttl_ms`.
        Raises ProducerBufferFull when the buffer is full: call `await producer.drain()` between
        sends, at least once for every `buffer_bytes / 2` sent. After TypeError, ValueError,
        MessageTooLarge and UnknownQueue, other messages can still be sent.
        """
        accumulator = self._accumulator
        if accumulator is None:
            raise ProducerClosed
        if accumulator.is_full:
            raise ProducerBufferFull(self.options.buffer_bytes)
        batch = accumulator.add(body, key, tag, properties, queue, priority, ttl_ms)
        return SendHandle(batch, len(batch.bodies) - 1)

    async def drain(self) -> None:
        """Wait until half of the buffer is free, and let ready batches be sent."""
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
        """Send all batches now, and wait until each message sent so far is stored or has failed.

        Does not raise for failed messages: their handles do, or close() does. If this call is
        cancelled, the messages are still sent.
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
        with note_publish_failure(error):
            await self.close()

    def _call_on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        callback(*arguments)

    def batch_ready(self) -> None:
        """Send the ready batches, at the next drain() at the latest."""
        self._has_ready_batches = True
        super().batch_ready()

    def batches_resolved(self, batches: Sequence[PendingBatch]) -> None:
        """Wake the callers that wait for these batches, or for free space in the buffer."""
        for batch in batches:
            if batch.waiter is not None:
                batch.waiter.set()
        self._room.set()
