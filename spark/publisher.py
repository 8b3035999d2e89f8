"""Sends a task's batches, in order, and proves that what was stored before is the same.

To a queue, the next batch is sent once the broker has the one before. So whatever the broker
calls too old to be remembered was acknowledged to some attempt; and of each batch that it
remembers from another attempt, the checksum is compared with what this one sends. An attempt
that is given other rows thus ends in ReplayDiffers, and never takes them for stored.

**Generations.** When a task fails on its way to the sink, or is killed, Spark ends the sink's rows
as if they had been all. So the last batch of an attempt may be only the beginning of what belongs
there. Whoever finds such a beginning leaves it, and sends the rest, and all that follows for that
queue, as the next generation of the producer, which is another producer to the broker. As nothing
of the former generation follows, its last batch is remembered, and every later attempt goes the
same way.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from holdfast.commitlog.batch import Batch
from holdfast.spark.broker_client import PublishedBatch, Pulled
from holdfast.spark.errors import (
    BrokerRefused,
    ReplayDiffers,
    ReplyMismatch,
    TopicRecreated,
    WriteRefused,
)
from holdfast.spark.identity import Producer
from holdfast.spark.outgoing import Outgoing
from holdfast.spark.proof import is_beginning

_log = logging.getLogger("holdfast.spark")

#: What the broker takes in a request, unless it is configured otherwise.
MAX_REQUEST_BYTES = 16 * 1024 * 1024
_TOO_OLD = "/problems/sequence-too-old"


class Store(Protocol):
    """The broker, as far as a publisher needs it."""

    def publish(self, topic: str, batches: bytes, *, durability: str) -> list[PublishedBatch]:
        """Publish encoded batches; return where each is."""

    def pull(
        self, topic: str, topic_id: int, queue: int, offset: int, *, max_bytes: int
    ) -> Pulled[bytes]:
        """Return whole blocks from the one with `offset` in it on."""


@dataclass(slots=True)
class Tally:
    """What an attempt has sent. `duplicates` of its batches were stored by another."""

    rows: int = 0
    batches: int = 0
    duplicates: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class _Lane:
    """How far an attempt is in one queue."""

    generation: int = 0
    sequence: int = 0
    unproven: Outgoing | None = None
    """The last batch, if the broker only says that it is too old."""
    has_ended: bool = False
    """The last batch is the beginning of one that was found: this attempt was cut short there."""


class Publisher:
    """Sends batches, one request after the other. For one thread at a time.

    `send` raises WriteRefused and ReplayDiffers, and what the broker's client raises; after that
    nothing more may be sent.
    """

    def __init__(self, store: Store, producer: Producer, durability: str) -> None:
        self._store = store
        self._producer = producer
        self._durability = durability
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self.tally = Tally()

    def send(self, batches: Iterable[Outgoing]) -> None:
        """Store batches, of which no two are of the same queue, unless an attempt has already."""
        for request in _requests(batches):
            for batch in request:
                if self._lane(batch).has_ended:
                    raise self._differs(batch, "fewer rows were stored before these")
            self._send(request)

    def finish(self) -> Tally:
        """Return what was sent, once all of it is proven to be stored. Raises ReplayDiffers."""
        for lane in self._lanes.values():
            if lane.unproven is not None:
                raise self._differs(lane.unproven, "more rows are there")
        return self.tally

    def _lane(self, batch: Outgoing) -> _Lane:
        return self._lanes.setdefault(batch.queue, _Lane())

    def _send(self, request: list[Outgoing]) -> None:
        try:
            published = self._store.publish(
                request[0].target.name,
                b"".join([part for batch in request for part in self._parts(batch)]),
                durability=self._durability,
            )
        except BrokerRefused as refused:
            if refused.type != _TOO_OLD:
                raise self._refused(request, refused) from refused
            if len(request) > 1:  # of each by itself it says whether it is that one
                for batch in request:
                    self._send([batch])
                return
            self._passed(request[0], is_duplicate=True)
            self._lane(request[0]).unproven = request[0]
            return
        if len(published) != len(request):
            raise ReplyMismatch(f"{len(request)} batches sent, {len(published)} answered")
        for batch, found in zip(request, published, strict=True):
            rest = self._prove(batch, found) if found.is_duplicate else None
            self._passed(batch, is_duplicate=found.is_duplicate)
            if rest is not None:
                lane = self._lane(batch)
                lane.generation, lane.sequence = lane.generation + 1, 0
                self.tally.rows -= len(rest)  # they are counted when they are sent
                self._send([rest])

    def _parts(self, batch: Outgoing) -> tuple[bytes, bytes]:
        """Return a batch's header, with its producer and sequence, and its payload."""
        lane = self._lane(batch)
        header = replace(
            batch.header,
            producer_id=self._producer.producer_id(lane.generation),
            producer_epoch=self._producer.epoch,
            sequence=lane.sequence if self._producer.writer else 0,
        )
        return bytes(header.encode()), batch.payload

    def _passed(self, batch: Outgoing, *, is_duplicate: bool) -> None:
        lane = self._lane(batch)
        lane.sequence += 1
        lane.unproven = None
        self.tally.rows += len(batch)
        self.tally.batches += 1
        self.tally.duplicates += is_duplicate
        self.tally.size_bytes += batch.header.total_size

    # -- what was stored before ------------------------------------------------------------

    def _prove(self, batch: Outgoing, found: PublishedBatch) -> Outgoing | None:
        """Compare a batch with what is stored under its sequence. Return the rest of it if that is
        its beginning, None if it is all there. Raises ReplayDiffers."""
        target = batch.target
        try:
            block = self._store.pull(
                target.name, target.topic_id, found.queue, found.offset, max_bytes=1
            ).body
        except (BrokerRefused, TopicRecreated) as error:
            # Not allowed to read, or gone by now: the number of rows is all there is to compare.
            if found.count != len(batch):
                raise self._differs(
                    batch,
                    f"{found.count} rows there, {len(batch)} now, and they cannot be compared: "
                    f"{error}",
                ) from error
            _log.info("what was stored of %s cannot be compared: %s", target.name, error)
            return None
        stored = Batch.decode(block)
        if stored.header.base_offset != found.offset or len(stored) != found.count:
            raise ReplyMismatch(f"the block at offset {found.offset} is not the one published")
        if not is_beginning(batch, stored):
            raise self._differs(batch, "other contents")
        self._lane(batch).has_ended = len(stored) > len(batch)
        return batch.part(len(stored), len(batch)) if len(stored) < len(batch) else None

    def _differs(self, batch: Outgoing, reason: str) -> ReplayDiffers:
        topic, queue = batch.queue
        return ReplayDiffers(topic, queue, self._producer.partition, batch.first_row, reason)

    def _refused(self, request: list[Outgoing], refused: BrokerRefused) -> WriteRefused:
        return WriteRefused(
            request[0].target.name,
            tuple(batch.header.queue_id for batch in request),
            self._producer.partition,
            min(batch.first_row for batch in request),
            max(batch.last_row for batch in request),
            refused,
        )


def _requests(batches: Iterable[Outgoing]) -> Iterator[list[Outgoing]]:
    """Yield batches that go together: of one topic, and not more than a request takes."""
    request: list[Outgoing] = []
    size = 0
    for batch in batches:
        is_other = bool(request) and request[0].target.name != batch.target.name
        if is_other or (request and size + batch.header.total_size > MAX_REQUEST_BYTES):
            yield request
            request, size = [], 0
        request.append(batch)
        size += batch.header.total_size
    if request:
        yield request
