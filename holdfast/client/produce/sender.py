"""Sends the batches of a producer."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from holdfast.client.errors import BadReply, ClientClosed
from holdfast.client.instrumentation import Observer
from holdfast.client.produce.accumulator import (
    Accumulator,
    PendingBatch,
    ProducerOptions,
    Stored,
)
from holdfast.client.produce.identities import ProducerIdentity, ProducerIds
from holdfast.client.produce.publish_queue import PublishOptions
from holdfast.client.produce.publish_request import PublishReply
from holdfast.client.transport.requests import BATCH, Transport
from holdfast.client.transport.retry import RetryPolicy
from holdfast.commitlog.format.message_id import parse_message_id

_BATCHES = {"Content-Type": BATCH}
_log = logging.getLogger("holdfast.client")


class Sender:
    """Sends the batches of one producer: several requests at a time, in order per queue. Belongs to
    one event loop.

    After a transient failure the same bytes are sent again, until the delivery timeout. If the
    broker has already stored a batch, it does not store the batch again, and replies with the
    offsets of the stored batch. After a final failure the affected queues continue with a new
    producer id, because the sequence number that the broker expects is unknown.

    The sender holds `lock` whenever it uses the accumulator. When the outcomes of batches are set,
    it calls `on_resolved(batches)` on the loop, with the lock held.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        transport: Transport,
        topic: str,
        options: ProducerOptions,
        *,
        ids: ProducerIds,
        lock: AbstractContextManager[object],
        on_resolved: Callable[[Sequence[PendingBatch]], None],
        observer: Observer | None = None,
    ) -> None:
        self._accumulator = accumulator
        self._transport = transport
        self._topic = topic
        self._path = f"/v1/topics/{topic}/messages"
        self._params = PublishOptions(options.durability, options.mandatory).params
        self._linger_s = options.linger_ms / 1000
        self._max_in_flight = options.max_in_flight
        self._retry = RetryPolicy(give_up_after_s=options.delivery_timeout_ms / 1000)
        self._lock = lock
        self._on_resolved = on_resolved
        self._ids = ids
        self._identities: dict[int, ProducerIdentity] = {}
        self._requests: set[asyncio.Task[list[Stored]]] = set()
        self._has_warned = False
        self._observer = observer

    def linger(self, batch: PendingBatch) -> None:
        """Send a batch after the linger time, even if the batch is not full."""
        asyncio.get_running_loop().call_later(self._linger_s, self.close_batch, batch)

    def close_batch(self, batch: PendingBatch) -> None:
        """Send a batch now if it is still open."""
        if batch.is_open:
            with self._lock:
                self._accumulator.close(batch)
            self.pump()

    def close_all(self) -> None:
        """Send every open batch now."""
        with self._lock:
            self._accumulator.close_all()
        self.pump()

    def pump(self) -> None:
        """Start requests while batches are ready and fewer than `max_in_flight` are in flight."""
        while len(self._requests) < self._max_in_flight and (batches := self._take()):
            task = asyncio.get_running_loop().create_task(self._publish(batches))
            self._requests.add(task)
            task.add_done_callback(partial(self._finish_request, batches))

    async def _publish(self, batches: list[PendingBatch]) -> list[Stored]:
        blocks = [self._encode(batch) for batch in batches]
        with self._observe(batches):
            reply = await self._transport.request(
                "POST",
                self._path,
                params=self._params,
                headers=_BATCHES,
                body=blocks,
                retry=self._retry,
            )
        published = reply.json(PublishReply)
        if len(published.results) != len(blocks):
            raise BadReply(reply.url, f"{len(published.results)} results for {len(blocks)} batches")
        return [
            Stored(parse_message_id(entry.message_id)[0], entry.offset, published.durable)
            for entry in published.results
        ]

    def _observe(self, batches: Sequence[PendingBatch]) -> AbstractContextManager[None]:
        if self._observer is None:
            return nullcontext()
        count = sum(batch.message_count for batch in batches)
        properties = [each for batch in batches for each in batch.properties or () if each]
        return self._observer.send_batches(self._topic, count, properties)

    def _finish_request(
        self, batches: list[PendingBatch], request: asyncio.Task[list[Stored]]
    ) -> None:
        """Resolve the batches of a request, even if the request failed or was cancelled, because
        callers may wait for the batches."""
        self._requests.discard(request)
        try:
            self._resolve(batches, request.result())
        except asyncio.CancelledError:
            # The loop is closing: also fail the batches that wait.
            while batches:
                self._fail(batches, ClientClosed())
                batches = self._take()
        except Exception as error:
            self._fail(batches, error)
        self.pump()

    def _fail(self, batches: Sequence[PendingBatch], error: Exception) -> None:
        for batch in batches:
            self._identities.pop(batch.queue, None)
        message_count = sum(batch.message_count for batch in batches)
        # Warn only the first time: a broker that refuses one batch usually refuses all later ones.
        level = logging.DEBUG if self._has_warned else logging.WARNING
        self._has_warned = True
        _log.log(level, "%d messages to %s failed: %s", message_count, self._path, error)
        self._resolve(batches, [error] * len(batches))

    def _take(self) -> list[PendingBatch]:
        with self._lock:
            return self._accumulator.take()

    def _resolve(
        self, batches: Sequence[PendingBatch], outcomes: Sequence[Stored | Exception]
    ) -> None:
        with self._lock:
            self._accumulator.resolve(batches, outcomes)
            self._on_resolved(batches)

    def _encode(self, batch: PendingBatch) -> bytes:
        identity = self._identities.get(batch.queue)
        if identity is None:
            identity = self._identities[batch.queue] = ProducerIdentity(self._ids.create())
        sequence = identity.next_sequence
        identity.next_sequence += 1
        return batch.encode(producer_id=identity.producer_id, sequence=sequence)
