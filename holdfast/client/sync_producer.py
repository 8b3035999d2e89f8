"""The batching producer for threads: as the one for asyncio, but that send() waits for room.

One lock is held around every touch of the accumulator, by those who send and by the loop.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Self

import msgspec

from holdfast.client.accumulator import Accumulator
from holdfast.client.errors import ProducerClosed, PublishFailed
from holdfast.client.loop_thread import LoopThread
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
        #: Notified whenever batches are settled: there is room, and there are results.
        self._settled = threading.Condition(self._lock)
        self._parts: tuple[Accumulator, Sender] | None = None
        #: What send() adds to; None before the start and after the end.
        self._accumulator: Accumulator | None = None

    def start(self) -> None:
        """Ask the broker for the topic's queues. `with` does it; may be repeated."""
        if self._parts is None:
            description = self._loop_thread.run(self._target.describe())
            self._parts = accumulator_and_sender(
                self, self._target, self._options, description, self._lock
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
    ) -> BlockingSendHandle:
        """Put a message on its way and return its handle; wait while the buffer is full.

        Without key and queue the queues take turns, a batch each. `priority` (0 to 9) is the
        producer's own if not given; groups deliver nothing that is older than `ttl_ms`.
        TypeError, ValueError, MessageTooLarge or UnknownQueue refuse this message alone.
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
        """Send everything now, and wait until all sent so far is stored or has failed.

        Failures are told by the handles, or else by close(). Raises TimeoutError with
        messages still on their way.
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
        """Send and settle everything, and take no more. May be repeated.

        Raises PublishFailed for messages that failed with nobody having looked at a handle of
        their batch.
        """
        with self._lock:
            self._accumulator = None
        if self._parts is not None:
            self.flush()
            raise_unseen_failures(self._target.topic, self._parts[0])

    def wait_settled(self, batch: PendingBatch, timeout_s: float | None) -> None:
        """Wait until a batch is settled, sending it now. What handles wait by."""
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

    # -- what the accumulator (in the thread that sends) and the sender (in the loop's) call ---

    def batch_opened(self, batch: PendingBatch) -> None:
        """Time a new batch's linger."""
        assert self._parts is not None
        self._loop_thread.call_soon(self._parts[1].linger, batch)

    def batch_ready(self) -> None:
        """Send what is ready."""
        assert self._parts is not None
        self._loop_thread.call_soon(self._parts[1].pump)

    def batches_settled(self, batches: Sequence[PendingBatch]) -> None:
        """Tell those who wait for these batches, or for room."""
        self._settled.notify_all()
