"""The common parts of the asyncio producer and the blocking producer: their options, the creation
of their accumulator and sender, and the results of messages."""

import random
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.client.errors import PublishFailed
from holdfast.client.produce.accumulator import Accumulator
from holdfast.client.produce.message_checks import check_priority
from holdfast.client.produce.pending_batch import PendingBatch
from holdfast.client.produce.sender import Sender
from holdfast.client.read.message import PublishResult
from holdfast.client.read.pull import TopicDescription
from holdfast.client.transport.requests import Transport
from holdfast.client.transport.retry import RetryPolicy
from holdfast.commitlog.format.batch_check import MessageLimits
from holdfast.commitlog.format.message_id import format_message_id


@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """The options of a producer; `Client.producer` documents each."""

    queue: int | None = None
    priority: int | None = None
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
        if self.priority is not None:
            check_priority(self.priority)


@dataclass(frozen=True, slots=True)
class ProducerTarget:
    """Where a producer sends. `describe` fetches the topic's queues and limits."""

    transport: Transport
    topic: str
    describe: Callable[[], Coroutine[Any, Any, TopicDescription]]


class BatchListener(Protocol):
    """The methods of a producer that its accumulator and its sender call, with the lock held."""

    def batch_opened(self, batch: PendingBatch) -> None:
        """Start a new batch's linger timer."""

    def batch_ready(self) -> None:
        """Send the ready batches."""

    def batches_settled(self, batches: Sequence[PendingBatch]) -> None:
        """Wake the callers that wait for these batches, or for free space in the buffer."""


def accumulator_and_sender(
    listener: BatchListener,
    target: ProducerTarget,
    options: ProducerOptions,
    description: TopicDescription,
    lock: AbstractContextManager[object],
) -> tuple[Accumulator, Sender]:
    """Return the accumulator and the sender of a new producer. The sender holds `lock` whenever it
    uses the accumulator; all other code must do the same."""
    accumulator = Accumulator(
        queue_count=description.queue_count,
        priority_levels=description.config.priority_levels,
        queue=options.queue,
        priority=options.priority,
        # A random start, so that producers with few messages do not all use queue 0.
        first_queue=random.randrange(description.queue_count),  # noqa: S311 - no secret
        batch_bytes=options.batch_bytes,
        buffer_bytes=options.buffer_bytes,
        limits=MessageLimits(max_message_bytes=description.config.max_message_bytes),
        owner=listener,
        clock_us=lambda: time.time_ns() // 1000,
        opened=listener.batch_opened,
        closed=listener.batch_ready,
    )
    sender = Sender(
        accumulator,
        target.transport,
        topic=target.topic,
        durability=options.durability,
        linger_ms=options.linger_ms,
        max_in_flight=options.max_in_flight,
        retry=RetryPolicy(give_up_after_s=options.delivery_timeout_ms / 1000),
        lock=lock,
        settled=listener.batches_settled,
    )
    return accumulator, sender


def message_result(batch: PendingBatch, row: int) -> PublishResult:
    """Return the result of one message of a settled batch, or raise the batch's error."""
    outcome = batch.outcome
    assert outcome is not None
    if isinstance(outcome, Exception):
        batch.is_looked_at = True
        raise outcome
    offset = outcome.base_offset + row
    message_id = format_message_id(outcome.topic_id, batch.queue, offset)
    return PublishResult(batch.queue, offset, message_id, outcome.durable)


def raise_unseen_failures(topic: str, accumulator: Accumulator) -> None:
    """Raise PublishFailed if there are failed batches whose failure no caller has read."""
    failed = accumulator.unseen_failures()
    if failed:
        cause = failed[0].outcome
        assert isinstance(cause, Exception)
        message_count = sum(batch.message_count for batch in failed)
        raise PublishFailed(topic, message_count, cause) from cause
