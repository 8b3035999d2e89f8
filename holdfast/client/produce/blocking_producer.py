"""The batching producer for threads. It works like the asyncio producer, but send() waits while the
buffer is full.

One lock protects the accumulator: the sending threads and the event loop hold it whenever they use
the accumulator.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import msgspec

from holdfast.client.errors import ProducerClosed
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
            producer.wait_resolved(self._batch, timeout_s)
        return get_result(self._batch, self._row)


class Producer(BaseProducer):
    """Batches messages to one topic. Made by `Client.producer`; any thread may send."""

    def __init__(
        self, target: ProducerTarget, options: ProducerOptions, loop_thread: LoopThread
    ) -> None:
        lock = threading.Lock()
        #: Notified when batches are stored or have failed: then their results are known, and there
        #: is free space in the buffer.
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
                self._resolved.wait()
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
                raise TimeoutError(f"not stored within {timeout_s} s, but still on its way")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        with note_publish_failure(error):
            self.close()

    def _call_on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        self._loop_thread.call_soon(callback, *arguments)

    def batches_resolved(self, batches: Sequence[PendingBatch]) -> None:
        """Wake the threads that wait for these batches, or for free space in the buffer."""
        self._resolved.notify_all()
