"""Send a task's batches in order, and check that batches of an earlier attempt have the same rows.

The publisher sends the next batch to a queue only after the broker has stored the previous batch.
So if the broker reports a batch as too old, the batch was acknowledged to an earlier attempt. If
the broker still remembers the stored batch, the publisher compares its checksum with the batch of
this attempt. So an attempt with different rows fails with ReplayDiffers, and its rows never count
as stored.

**Generations.** If reading the input of the sink fails, Spark ends the input as if it were
complete. So the last batch that an attempt sends to a queue may have fewer rows than the same batch
of a complete attempt. A later attempt that finds such a short batch leaves it as it is. The attempt
sends the remaining rows, and all later batches for that queue, under another producer id: the
producer's next generation. Nothing more is sent under the former producer id, so the broker still
remembers the short batch as the last one of this id. So every later attempt finds the short batch,
too, and continues in the same way.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_columns
from holdfast.commitlog.format.batch_header import Buffer
from holdfast.spark.broker.client import PublishedBatch, PullOutcome
from holdfast.spark.errors import (
    BrokerRefused,
    ReplayDiffers,
    ReplyMismatch,
    TopicRecreated,
    WriteRefused,
)
from holdfast.spark.write.outgoing import OutgoingBatch
from holdfast.spark.write.producer_identity import Producer

_log = logging.getLogger("holdfast.spark")

#: The broker's default limits for one request.
MAX_REQUEST_BYTES = 16 * 1024 * 1024
MAX_REQUEST_BATCHES = 1_000
_TOO_OLD = "/problems/sequence-too-old"


class BatchStore(Protocol):
    """The operations of the broker that a publisher needs."""

    def publish(self, topic: str, batches: bytes, *, durability: str) -> list[PublishedBatch]:
        """Publish encoded batches, and return where the broker stored each of them."""

    def pull(
        self, topic: str, topic_id: int, queue: int, offset: int, *, max_bytes: int
    ) -> PullOutcome[Buffer]:
        """Return whole blocks, from the block that contains `offset` on."""


@dataclass(slots=True)
class WriteCounts:
    """How much an attempt has sent. `duplicates` is the number of sent batches that another attempt
    had already stored."""

    rows: int = 0
    batches: int = 0
    duplicates: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class QueueProgress:
    """The progress of an attempt in one queue.

    `unverified` is the last batch, if the broker reported it as too old, so that it could not be
    compared. If a later batch is found stored with the same content, `unverified` was stored with
    the same content, too. `has_ended` is
    True if the stored batch has more rows than the last batch: the input of this attempt ended
    too early.
    """

    generation: int = 0
    sequence: int = 0
    unverified: OutgoingBatch | None = None
    has_ended: bool = False


class Publisher:
    """Sends batches, one request after the other. Use it from one thread at a time. `send` raises
    WriteRefused, ReplayDiffers, and the errors of the broker's client. After an error, send nothing
    more."""

    def __init__(self, store: BatchStore, producer: Producer, durability: str) -> None:
        self._store = store
        self._producer = producer
        self._durability = durability
        self._queues: dict[tuple[str, int], QueueProgress] = {}
        self.counts = WriteCounts()

    def send(self, batches: Iterable[OutgoingBatch]) -> None:
        """Store the batches that are not stored yet. No two of them may be for the same queue."""
        for request in _group_requests(batches):
            for batch in request:
                if self._progress(batch).has_ended:
                    raise self._replay_error(batch, "fewer rows were stored before these")
            self._send(request)

    def finish(self) -> WriteCounts:
        """Return the counts after the last `send`. Raises ReplayDiffers if the last batch of a
        queue was too old: an earlier attempt stored more rows than this attempt has."""
        for progress in self._queues.values():
            if progress.unverified is not None:
                raise self._replay_error(progress.unverified, "more rows are stored")
        return self.counts

    def _progress(self, batch: OutgoingBatch) -> QueueProgress:
        return self._queues.setdefault(batch.queue, QueueProgress())

    def _send(self, request: list[OutgoingBatch]) -> None:
        try:
            published = self._store.publish(
                request[0].target.name,
                b"".join([part for batch in request for part in self._encode(batch)]),
                durability=self._durability,
            )
        except BrokerRefused as refused:
            if refused.type != _TOO_OLD:
                raise self._write_error(request, refused) from refused
            if len(request) > 1:  # send the batches one by one, to find those that are too old
                for batch in request:
                    self._send([batch])
                return
            self._record_stored(request[0], is_duplicate=True)
            self._progress(request[0]).unverified = request[0]
            return
        if len(published) != len(request):
            raise ReplyMismatch(f"{len(request)} batches sent, {len(published)} answered")
        for batch, found in zip(request, published, strict=True):
            rest = self._verify_stored(batch, found) if found.is_duplicate else None
            self._record_stored(batch, is_duplicate=found.is_duplicate)
            if rest is not None:
                progress = self._progress(batch)
                progress.generation, progress.sequence = progress.generation + 1, 0
                self.counts.rows -= len(rest)  # these rows are counted again when they are sent
                self._send([rest])

    def _encode(self, batch: OutgoingBatch) -> tuple[bytes, bytes]:
        """Return the header of a batch, with its producer and sequence number, and its payload."""
        progress = self._progress(batch)
        header = replace(
            batch.header,
            producer_id=self._producer.producer_id(progress.generation),
            producer_epoch=self._producer.epoch,
            sequence=progress.sequence if self._producer.writer else 0,
        )
        return header.encode(), batch.payload

    def _record_stored(self, batch: OutgoingBatch, *, is_duplicate: bool) -> None:
        progress = self._progress(batch)
        progress.sequence += 1
        progress.unverified = None
        self.counts.rows += len(batch)
        self.counts.batches += 1
        self.counts.duplicates += is_duplicate
        self.counts.size_bytes += batch.header.total_size

    # -- batches of earlier attempts -------------------------------------------------------

    def _verify_stored(self, batch: OutgoingBatch, found: PublishedBatch) -> OutgoingBatch | None:
        """Compare a batch with the stored batch of the same sequence number. Return the rest of the
        batch if only its beginning is stored, or None if all of it is stored. Raises ReplayDiffers
        if the two differ."""
        target = batch.target
        try:
            block = self._store.pull(
                target.name, target.topic_id, found.queue, found.offset, max_bytes=1
            ).body
        except (BrokerRefused, TopicRecreated) as error:
            # The token may not read the topic, or the batch is no longer stored. So only the
            # number of rows can be compared.
            if found.count != len(batch):
                counts = f"{found.count} rows are stored, {len(batch)} are sent"
                reason = f"{counts}, and they cannot be compared: {error}"
                raise self._replay_error(batch, reason) from error
            _log.info("the stored rows of %s cannot be compared: %s", target.name, error)
            return None
        stored = Batch.decode(block)
        if stored.header.base_offset != found.offset or len(stored) != found.count:
            raise ReplyMismatch(f"the block at offset {found.offset} is not the published one")
        if not _agrees_with_stored(batch, stored):
            raise self._replay_error(batch, "other contents")
        self._progress(batch).has_ended = len(stored) > len(batch)
        return batch.part(len(stored), len(batch)) if len(stored) < len(batch) else None

    def _replay_error(self, batch: OutgoingBatch, reason: str) -> ReplayDiffers:
        topic, queue = batch.queue
        return ReplayDiffers(topic, queue, self._producer.partition, batch.first_row, reason)

    def _write_error(self, request: list[OutgoingBatch], refused: BrokerRefused) -> WriteRefused:
        return WriteRefused(
            request[0].target.name,
            tuple(batch.header.queue_id for batch in request),
            self._producer.partition,
            min(batch.first_row for batch in request),
            max(batch.last_row for batch in request),
            refused,
        )


def _group_requests(batches: Iterable[OutgoingBatch]) -> Iterator[list[OutgoingBatch]]:
    """Divide batches into requests, each for one topic and within the broker's limits."""
    request: list[OutgoingBatch] = []
    size = 0
    for batch in batches:
        is_other = bool(request) and request[0].target.name != batch.target.name
        is_full = len(request) == MAX_REQUEST_BATCHES
        if is_other or is_full or (request and size + batch.header.total_size > MAX_REQUEST_BYTES):
            yield request
            request, size = [], 0
        request.append(batch)
        size += batch.header.total_size
    if request:
        yield request


def _agrees_with_stored(batch: OutgoingBatch, stored: Batch) -> bool:
    """Return True if the shorter of the two batches equals the beginning of the longer."""
    if len(stored) > len(batch):
        return batch.header.payload_crc == _crc_of_prefix(stored, len(batch))
    shorter = batch.part(0, len(stored)) if len(stored) < len(batch) else batch
    return shorter.header.payload_crc == stored.header.payload_crc


def _crc_of_prefix(stored: Batch, count: int) -> int:
    """Return the payload CRC of a batch of the first `count` stored messages."""
    rows = range(count)
    born, expires = stored.born_timestamps_us, stored.expires_timestamps_us
    header, _ = encode_columns(
        [stored.body(row) for row in rows],
        keys=[stored.key(row) for row in rows],
        tags=[stored.tag(row) for row in rows],
        properties=[stored.properties(row) for row in rows],
        born_timestamps_us=None if born is None else born[:count].tolist(),
        expires_timestamps_us=None if expires is None else expires[:count].tolist(),
    )
    return header.payload_crc
