"""Takes batches from an accumulator to the broker: several requests at a time, in order a queue.

Lives on one event loop. A request that fails in a way that passes is sent again, byte for
byte, until the delivery timeout; the broker answers a batch that it has already with the first
offsets, so a retry is not stored twice. After a failure the queues concerned go on under a new
producer id, because nobody can tell then which sequence the broker expects.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial

import msgspec

from holdfast.client.accumulator import Accumulator
from holdfast.client.errors import BadReply, ClientClosed
from holdfast.client.pending_batch import PendingBatch, Stored
from holdfast.client.requests import BATCH, Requests
from holdfast.client.retry import RetryPolicy
from holdfast.commitlog.message_id import parse_message_id

_BATCHES = {"Content-Type": BATCH}

_log = logging.getLogger("holdfast.client")


class PublishedEntry(msgspec.Struct):
    """One entry of a publish's reply."""

    queue: int
    offset: int
    message_id: str


class PublishReply(msgspec.Struct):
    """The reply to a publish: an entry a batch, or a message."""

    results: list[PublishedEntry]
    durable: bool


class ProducerIdentity:
    """What makes a retry recognisable: a random producer id and the next sequence."""

    __slots__ = ("next_sequence", "producer_id")

    def __init__(self) -> None:
        self.producer_id = secrets.randbelow(2**63 - 1) + 1
        self.next_sequence = 0


class IdentityPool:
    """Identities for publishes of single requests, which may be under way side by side.

    Each counts its requests to one topic, so it serves one at a time. One whose request failed
    is not given back: nobody knows which sequence the broker expects of it. For any threads.
    """

    def __init__(self) -> None:
        self._idle: dict[str, list[ProducerIdentity]] = {}

    def take(self, topic: str) -> ProducerIdentity:
        """Return an identity that nobody else uses on this topic meanwhile."""
        try:
            return self._idle[topic].pop()
        except (KeyError, IndexError):  # also when another thread was quicker
            return ProducerIdentity()

    def give_back(self, topic: str, identity: ProducerIdentity) -> None:
        """Take back an identity whose request succeeded."""
        identity.next_sequence += 1
        self._idle.setdefault(topic, []).append(identity)


class Sender:
    """The requests of one producer. Belongs to one event loop.

    `lock` is held around every touch of the accumulator; `settled(batches)` is called on the
    loop, with the lock held, when their outcomes are set.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        transport: Requests,
        *,
        topic: str,
        durability: str | None,
        linger_ms: float,
        max_in_flight: int,
        retry: RetryPolicy,
        lock: AbstractContextManager[object],
        settled: Callable[[Sequence[PendingBatch]], None],
    ) -> None:
        self._accumulator = accumulator
        self._transport = transport
        self._path = f"/v1/topics/{topic}/messages"
        self._params = {} if durability is None else {"durability": durability}
        self._linger_s = linger_ms / 1000
        self._max_in_flight = max_in_flight
        self._retry = retry
        self._lock = lock
        self._settled = settled
        self._identities: dict[int, ProducerIdentity] = {}
        self._requests: set[asyncio.Task[list[Stored]]] = set()
        self._has_warned = False

    def linger(self, batch: PendingBatch) -> None:
        """Send an open batch after the linger time, however full it is by then."""
        asyncio.get_running_loop().call_later(self._linger_s, self.close_batch, batch)

    def close_batch(self, batch: PendingBatch) -> None:
        """Send a batch now, if it is still open."""
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
        """Start requests as long as something is ready and another one may be under way."""
        while len(self._requests) < self._max_in_flight and (batches := self._take()):
            task = asyncio.get_running_loop().create_task(self._publish(batches))
            self._requests.add(task)
            task.add_done_callback(partial(self._request_ended, batches))

    async def _publish(self, batches: list[PendingBatch]) -> list[Stored]:
        blocks = [self._encode(batch) for batch in batches]
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

    def _request_ended(
        self, batches: list[PendingBatch], request: asyncio.Task[list[Stored]]
    ) -> None:
        """Settle a request's batches, however it ended: somebody waits for each."""
        self._requests.discard(request)
        try:
            self._settle(batches, request.result())
        except asyncio.CancelledError:
            # The loop is ending: what waits for its turn fails with them.
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
        # Once aloud: a broker that refuses one batch mostly refuses all that follow.
        level = logging.DEBUG if self._has_warned else logging.WARNING
        self._has_warned = True
        _log.log(level, "%d messages to %s failed: %s", message_count, self._path, error)
        self._settle(batches, [error] * len(batches))

    def _take(self) -> list[PendingBatch]:
        with self._lock:
            return self._accumulator.take()

    def _settle(
        self, batches: Sequence[PendingBatch], outcomes: Sequence[Stored | Exception]
    ) -> None:
        with self._lock:
            self._accumulator.settle(batches, outcomes)
            self._settled(batches)

    def _encode(self, batch: PendingBatch) -> bytes:
        identity = self._identities.get(batch.queue)
        if identity is None:
            identity = self._identities[batch.queue] = ProducerIdentity()
        sequence = identity.next_sequence
        identity.next_sequence += 1
        return batch.encode(producer_id=identity.producer_id, sequence=sequence)
