"""The batching producer for threads. It works like the asyncio producer, but send() waits while the
buffer is full.

One lock protects the accumulator: the sending threads and the event loop hold it whenever they use
the accumulator.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Self

import msgspec

from holdfast.client.errors import ProducerClosed, PublishFailed
from holdfast.client.produce.accumulator import Accumulator
from holdfast.client.produce.message_checks import Body
from holdfast.client.produce.options import (
    ProducerOptions,
    ProducerTarget,
    accumulator_and_sender,
    message_result,
    raise_unseen_failures,
)
from holdfast.client.produce.pending_batch import PendingBatch
from holdfast.client.produce.sender import Sender
from holdfast.client.read.message import PublishResult
from holdfast.client.transport.loop_thread import LoopThread


class BlockingSendHandle(msgspec.Struct, gc=False, frozen=True, eq=False):
    """A message sent by a Producer: result() waits for its PublishResult."""

    _batch: PendingBatch
    _row: int

    def done(self) -> bool:
        """Return whether the message was stored or has failed."""
        return self._batch.outcome is not None

    def result(self, timeout_s: float | None = None) -> PublishResult:
        """Send the batch at once, without waiting for its linger time. Return the result when the
        message is stored.

        Raises TimeoutError if the message is still in flight after `timeout_s`, or the error with
        which its batch failed.
        """
        if self._batch.outcome is None:
            producer: Producer = self._batch.owner
            producer.wait_settled(self._batch, timeout_s)
        return message_result(self._batch, self._row)


class Producer:
    """Batches messages to one topic. Made by `Client.producer`; any thread may send."""

    def __init__(
        self, target: ProducerTarget, options: ProducerOptions, loop_thread: LoopThread
    ) -> None:
        self._target = target
        self._options = options
        self._loop_thread = loop_thread
        self._lock = threading.Lock()
        #: Notified when batches are stored or have failed: then their results are known, and there
        #: is free space in the buffer.
        self._settled = threading.Condition(self._lock)
        self._parts: tuple[Accumulator, Sender] | None = None
        #: The accumulator that send() uses; None before the start and after close().
        self._accumulator: Accumulator | None = None

    def start(self) -> None:
        """Fetch the topic's queues from the broker. `with` calls this; may be repeated."""
        if self._parts is None:
            description = self._loop_thread.run(self._target.describe())
            self._parts = accumulator_and_sender(
                self, self._target, self._options, description, self._lock
            )
            self._accumulator, _ = self._parts

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
    ) -> BlockingSendHandle:
        """Add a message to its batch and return its handle; wait while the buffer is full.

        Without key and queue the queues take turns, one batch each. `priority` (0 to 9) defaults
        to the producer's; groups do not deliver a message that is older than its `ttl_ms`.
        After TypeError, ValueError, MessageTooLarge and UnknownQueue, other messages can still be
        sent.
        """
        with self._lock:
            accumulator = self._accumulator
            while accumulator is not None and accumulator.is_full:
                self._settled.wait()
                accumulator = self._accumulator
            if accumulator is None:
                raise ProducerClosed
            batch = accumulator.add(body, key, tag, properties, queue, priority, ttl_ms)
            return BlockingSendHandle(batch, len(batch.bodies) - 1)

    def flush(self, timeout_s: float | None = None) -> None:
        """Send all batches now, and wait until each message sent so far is stored or has failed.

        Does not raise for failed messages: their handles do, or close() does. Raises TimeoutError
        if messages are still in flight after `timeout_s`.
        """
        if self._parts is None:
            return
        accumulator, sender = self._parts
        with self._lock:
            batches = accumulator.unsettled()
        if batches:
            self._loop_thread.call_soon(sender.close_all)
            self._wait_settled(batches, timeout_s)

    def close(self) -> None:
        """Send all batches, wait for their results, and accept no more messages. May be repeated.

        Raises PublishFailed for failed batches whose error no handle has raised.
        """
        with self._lock:
            self._accumulator = None
        if self._parts is not None:
            self.flush()
            raise_unseen_failures(self._target.topic, self._parts[0])

    def wait_settled(self, batch: PendingBatch, timeout_s: float | None) -> None:
        """Send a batch now and wait until it is stored or has failed. Handles call this."""
        assert self._parts is not None
        self._loop_thread.call_soon(self._parts[1].close_batch, batch)
        self._wait_settled([batch], timeout_s)

    def _wait_settled(self, batches: Sequence[PendingBatch], timeout_s: float | None) -> None:
        def is_settled() -> bool:
            return all(batch.outcome is not None for batch in batches)

        with self._lock:
            if not self._settled.wait_for(is_settled, timeout_s):
                raise TimeoutError(f"not stored within {timeout_s} s, but still on its way")

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

    # -- called by the accumulator (in the sending thread) and by the sender (on the loop) -----

    def batch_opened(self, batch: PendingBatch) -> None:
        """Start a new batch's linger timer."""
        assert self._parts is not None
        self._loop_thread.call_soon(self._parts[1].linger, batch)

    def batch_ready(self) -> None:
        """Send the ready batches."""
        assert self._parts is not None
        self._loop_thread.call_soon(self._parts[1].pump)

    def batches_settled(self, batches: Sequence[PendingBatch]) -> None:
        """Wake the threads that wait for these batches, or for free space in the buffer."""
        self._settled.notify_all()
