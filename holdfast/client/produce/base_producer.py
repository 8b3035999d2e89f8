"""What the producer for asyncio and the one for threads do alike.

A producer has an accumulator, which collects messages into batches, and a sender, which sends the
batches on an event loop. The two producers differ in how they call that loop, and in how their
callers wait.
"""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.client.errors import PublishFailed
from holdfast.client.produce.accumulator import Accumulator
from holdfast.client.produce.options import ProducerOptions
from holdfast.client.produce.pending_batch import PendingBatch
from holdfast.client.produce.sender import Sender
from holdfast.client.read.message import PublishResult
from holdfast.client.read.pull import TopicFacts
from holdfast.client.transport.requests import Transport
from holdfast.client.transport.retry import RetryPolicy
from holdfast.commitlog.format.batch_check import MessageLimits
from holdfast.commitlog.format.message_id import format_message_id


@dataclass(frozen=True, slots=True)
class ProducerTarget:
    """Where a producer sends. `describe` fetches the topic's queues and limits."""

    transport: Transport
    topic: str
    describe: Callable[[], Coroutine[Any, Any, TopicFacts]]


class BaseProducer(ABC):
    """The parts of a producer to one topic. All code that uses the accumulator holds `lock`."""

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
        options, config = self.options, description.config
        accumulator = Accumulator(
            queue_count=description.queue_count,
            priority_levels=config.priority_levels,
            queue=options.queue,
            priority=options.priority,
            # A random start, so that producers with few messages do not all use queue 0.
            first_queue=random.randrange(description.queue_count),  # noqa: S311 - no secret
            batch_bytes=options.batch_bytes,
            buffer_bytes=options.buffer_bytes,
            limits=MessageLimits(max_message_bytes=config.max_message_bytes),
            owner=self,
            clock_us=lambda: time.time_ns() // 1000,
            on_opened=self.batch_opened,
            on_ready=self.batch_ready,
        )
        sender = Sender(
            accumulator,
            self.target.transport,
            topic=self.target.topic,
            durability=options.durability,
            linger_ms=options.linger_ms,
            max_in_flight=options.max_in_flight,
            retry=RetryPolicy(give_up_after_s=options.delivery_timeout_ms / 1000),
            lock=self._lock,
            on_resolved=self.batches_resolved,
        )
        self._parts = accumulator, sender
        self._accumulator = accumulator  # last, because other threads may send from now on

    @property
    def _sender(self) -> Sender:
        assert self._parts is not None
        return self._parts[1]

    @abstractmethod
    def _call_on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call a method of the sender on its event loop."""

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
    def batches_resolved(self, batches: Sequence[PendingBatch]) -> None:
        """Wake the callers that wait for these batches, or for free space in the buffer."""


def get_result(batch: PendingBatch, row: int) -> PublishResult:
    """Return the result of one message of a resolved batch, or raise the batch's error."""
    outcome = batch.outcome
    assert outcome is not None
    if isinstance(outcome, Exception):
        batch.is_failure_seen = True
        raise outcome
    offset = outcome.base_offset + row
    message_id = format_message_id(outcome.topic_id, batch.queue, offset)
    return PublishResult(batch.queue, offset, message_id, outcome.durable)


@contextmanager
def note_publish_failure(error: BaseException | None) -> Iterator[None]:
    """While a `with` block of a producer ends with `error`, add a PublishFailed to that error as a
    note. Without an error, let it pass."""
    try:
        yield
    except PublishFailed as failed:
        if error is None:
            raise
        error.add_note(str(failed))
