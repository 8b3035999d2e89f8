"""The batching producer for asyncio.

send() only puts the message into its queue's open batch and returns a handle of two words.
Batches leave when they are full, when they have lingered, or when somebody waits for them.
"""

import asyncio
from collections.abc import Generator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Self

import msgspec

from holdfast.client.accumulator import Accumulator
from holdfast.client.errors import ProducerBufferFull, ProducerClosed, PublishFailed
from holdfast.client.message import PublishResult
from holdfast.client.message_checks import Body
from holdfast.client.pending_batch import PendingBatch
from holdfast.client.producing import (
    ProducerOptions,
    ProducerTarget,
    accumulator_and_sender,
    message_result,
    raise_unseen_failures,
)
from holdfast.client.sender import Sender


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
        return message_result(self._batch, self._row)


class AsyncProducer:
    """Batches messages to one topic. Made by `AsyncClient.producer`; belongs to its loop."""

    def __init__(self, target: ProducerTarget, options: ProducerOptions) -> None:
        self.target = target
        self.options = options
        self._parts: tuple[Accumulator, Sender] | None = None
        #: What send() adds to; None before the start and after the end.
        self._accumulator: Accumulator | None = None
        self._room = asyncio.Event()
        self._has_ready_batches = False

    async def start(self) -> None:
        """Ask the broker for the topic's queues. `async with` does it; may be repeated."""
        if self._parts is None:
            description = await self.target.describe()
            self._parts = accumulator_and_sender(
                self, self.target, self.options, description, nullcontext()
            )
            self._accumulator, _ = self._parts

    def send(
        self,
        body: Body,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        *,
        priority: int | None = None,
        ttl_ms: int | None = None,
    ) -> SendHandle:
        """Put a message on its way and return its handle, at once.

        Without key and queue the queues take turns, a batch each. `priority` (0 to 9) is the
        producer's own if not given; groups deliver nothing that is older than `ttl_ms`.
        Raises ProducerBufferFull when as much waits as may: put an `await producer.drain()`
        between sends, at least once for every half of the buffer. TypeError, ValueError,
        MessageTooLarge or UnknownQueue refuse this message alone.
        """
        accumulator = self._accumulator
        if accumulator is None:
            raise ProducerClosed
        if accumulator.is_full:
            raise ProducerBufferFull(self.options.buffer_bytes)
        batch = accumulator.add(body, key, tag, properties, queue, priority, ttl_ms)
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
        if self._parts is not None:
            accumulator, sender = self._parts
            sender.close_all()
            for batch in accumulator.unsettled():
                await self.settled(batch)

    async def close(self) -> None:
        """Send and settle everything, and take no more. May be repeated.

        Raises PublishFailed for messages that failed with nobody having looked at a handle of
        their batch.
        """
        self._accumulator = None
        if self._parts is not None:
            await self.flush()
            raise_unseen_failures(self.target.topic, self._parts[0])

    async def settled(self, batch: PendingBatch) -> None:
        """Wait until a batch is settled, sending it now. What handles wait by."""
        if batch.outcome is not None:
            return
        if batch.waiter is None:
            batch.waiter = asyncio.Event()
        assert self._parts is not None
        self._parts[1].close_batch(batch)
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

    # -- what the accumulator and the sender call --------------------------------------------

    def batch_opened(self, batch: PendingBatch) -> None:
        """Time a new batch's linger."""
        assert self._parts is not None
        self._parts[1].linger(batch)

    def batch_ready(self) -> None:
        """Send what is ready."""
        assert self._parts is not None
        self._has_ready_batches = True
        self._parts[1].pump()

    def batches_settled(self, batches: Sequence[PendingBatch]) -> None:
        """Tell who waits for these batches, or for room."""
        for batch in batches:
            if batch.waiter is not None:
                batch.waiter.set()
        self._room.set()
