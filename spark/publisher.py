"""Sends a task's batches, in order, and proves that what was stored before is the same.

To a queue, the next batch is sent once the broker has the one before. So whatever the broker
calls too old to be remembered was acknowledged to some attempt; and of each batch that it
remembers from another attempt, the checksum is compared with what this one sends. An attempt
that is given other rows thus ends in ReplayDiffers, and never takes them for stored.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from holdfast.commitlog.batch_header import BatchHeader
from holdfast.spark.broker_client import PublishedBatch, Pulled
from holdfast.spark.errors import (
    BrokerRefused,
    ReplayDiffers,
    ReplyMismatch,
    TopicRecreated,
    WriteRefused,
)
from holdfast.spark.outgoing import Outgoing

_log = logging.getLogger("holdfast.spark")

#: What the broker takes in a request, unless it is configured otherwise.
MAX_REQUEST_BYTES = 16 * 1024 * 1024
_TOO_OLD = "/problems/sequence-too-old"


class Store(Protocol):
    """The broker, as far as a publisher needs it."""

    def publish(self, topic: str, batches: bytes, *, durability: str) -> list[PublishedBatch]:
        """Publish encoded batches; return where each is."""

    def pull(self, topic: str, topic_id: int, queue: int, offset: int, *, max_bytes: int) -> Pulled:
        """Return whole blocks from the one with `offset` in it on."""


@dataclass(slots=True)
class Tally:
    """What an attempt has sent. `duplicates` of its batches were stored by another."""

    rows: int = 0
    batches: int = 0
    duplicates: int = 0
    size_bytes: int = 0


class Publisher:
    """Sends batches, one request after the other. For one thread at a time.

    `send` raises WriteRefused and ReplayDiffers, and what the broker's client raises; after that
    nothing more may be sent.
    """

    def __init__(self, store: Store, partition: int, durability: str) -> None:
        self._store = store
        self._partition = partition
        self._durability = durability
        self._unproven: dict[tuple[str, int], Outgoing] = {}
        self.tally = Tally()

    def send(self, batches: Iterable[Outgoing]) -> None:
        """Store batches, of which no two are of the same queue, unless an attempt has already."""
        for request in _requests(batches):
            self._send(request)

    def finish(self) -> Tally:
        """Return what was sent, once all of it is proven to be stored. Raises ReplayDiffers."""
        for batch in self._unproven.values():
            raise self._differs(batch, "it has more rows for this queue")
        return self.tally

    def _send(self, request: list[Outgoing]) -> None:
        content = b"".join([batch.block for batch in request])
        try:
            published = self._store.publish(
                request[0].target.name, content, durability=self._durability
            )
        except BrokerRefused as refused:
            if refused.type != _TOO_OLD:
                raise self._refused(request, refused) from refused
            if len(request) > 1:  # of each by itself it says whether it is that one
                for batch in request:
                    self._send([batch])
                return
            self._count(request[0], is_duplicate=True)
            self._unproven[request[0].queue] = request[0]
            return
        if len(published) != len(request):
            raise ReplyMismatch(f"{len(request)} batches sent, {len(published)} answered")
        for batch, found in zip(request, published, strict=True):
            if found.is_duplicate:
                self._prove(batch, found)
            self._count(batch, is_duplicate=found.is_duplicate)
            self._unproven.pop(batch.queue, None)

    def _count(self, batch: Outgoing, *, is_duplicate: bool) -> None:
        self.tally.rows += batch.header.message_count
        self.tally.batches += 1
        self.tally.duplicates += is_duplicate
        self.tally.size_bytes += len(batch.block)

    def _prove(self, batch: Outgoing, found: PublishedBatch) -> None:
        """Compare a batch with the one that is stored under its sequence. Raises ReplayDiffers."""
        sent = batch.header
        if found.count != sent.message_count:
            raise self._differs(batch, f"{found.count} rows there, {sent.message_count} now")
        target = batch.target
        try:
            block = self._store.pull(
                target.name, target.topic_id, found.queue, found.offset, max_bytes=1
            ).body
        except (BrokerRefused, TopicRecreated) as error:
            # Not allowed to read, or gone by now: the number of rows is all there is to compare.
            _log.info("what was stored of %s cannot be compared: %s", target.name, error)
            return
        stored = BatchHeader.decode(block)
        if stored.base_offset != found.offset or stored.payload_crc != sent.payload_crc:
            raise self._differs(batch, "other contents")

    def _differs(self, batch: Outgoing, reason: str) -> ReplayDiffers:
        topic, queue = batch.queue
        return ReplayDiffers(
            topic, queue, self._partition, batch.first_row, batch.header.sequence, reason
        )

    def _refused(self, request: list[Outgoing], refused: BrokerRefused) -> WriteRefused:
        return WriteRefused(
            request[0].target.name,
            tuple(batch.header.queue_id for batch in request),
            self._partition,
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
        if is_other or (request and size + len(batch.block) > MAX_REQUEST_BYTES):
            yield request
            request, size = [], 0
        request.append(batch)
        size += len(batch.block)
    if request:
        yield request
