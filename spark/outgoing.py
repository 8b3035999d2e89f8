"""A window's rows made into batches, one a topic and queue, each with its producer's sequence.

Everything in a batch but the time of its making depends on the rows alone.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from holdfast.commitlog.batch_header import BatchHeader
from holdfast.commitlog.checksum import crc32c
from holdfast.spark.encode import BatchPlace, encode_rows
from holdfast.spark.errors import UnwritableRow
from holdfast.spark.identity import Producer
from holdfast.spark.routing import Int64s, Router, Target, Unroutable, key_hashes
from holdfast.spark.windows import Window


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A batch on its way, and which of its partition's rows are in it."""

    target: Target
    first_row: int
    last_row: int
    header: BatchHeader
    block: bytes

    @property
    def queue(self) -> tuple[str, int]:
        """Topic and queue."""
        return self.target.name, self.header.queue_id


class Encoder:
    """Makes batches of windows. One belongs to one attempt at one partition."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._sequences: dict[tuple[str, int], int] = {}
        self._routers: dict[str, Router] = {}
        self._digest = 0

    def digest(self) -> int:
        """Return a number that stands for all batches made so far, and for their order."""
        return self._digest

    def encode(
        self, window: Window, target: Target, indexes: Int64s | None = None
    ) -> Iterator[Outgoing]:
        """Yield the batches of a window's rows for one topic: those at `indexes`, else all.

        Raises UnwritableRow for a row that names a queue that it cannot go to.
        """
        rows, numbers = window.rows, np.arange(len(window.rows), dtype=np.int64)
        if indexes is not None:
            rows, numbers = rows.take(pa.array(indexes)), indexes
        numbers = numbers + window.first_row
        hashes = key_hashes(rows.column("key")) if "key" in rows.schema.names else None
        try:
            queues = self._router(target).queues(rows, hashes)
        except Unroutable as error:
            raise UnwritableRow(
                self._producer.partition, int(numbers[error.row]), error.column, error.detail
            ) from error
        if len(queues) > 1 and bool((queues != queues[0]).any()):
            order = np.argsort(queues, kind="stable")
            rows, queues, numbers = rows.take(pa.array(order)), queues[order], numbers[order]
            hashes = None if hashes is None else hashes[order]
        starts = [0, *(np.flatnonzero(np.diff(queues)) + 1).tolist(), len(queues)]
        for start, end in pairwise(starts):
            part = rows.slice(start, end - start)
            queue = int(queues[start])
            own = None if hashes is None else hashes[start:end]
            header, block = encode_rows(part, own, self._place(target, queue))
            self._digest = crc32c(b"%d %d %d" % (self._digest, queue, header.payload_crc))
            yield Outgoing(target, int(numbers[start]), int(numbers[end - 1]), header, block)

    def _router(self, target: Target) -> Router:
        router = self._routers.get(target.name)
        if router is None:
            # Neighbours in time and in place begin in neighbouring queues.
            turn = self._producer.partition + self._producer.epoch
            router = self._routers[target.name] = Router(target, turn)
        return router

    def _place(self, target: Target, queue: int) -> BatchPlace:
        producer = self._producer
        sequence = 0
        if producer.producer_id:
            sequence = self._sequences.get((target.name, queue), 0)
            self._sequences[target.name, queue] = sequence + 1
        return BatchPlace(
            target.topic_id,
            queue,
            producer.producer_id,
            producer.epoch,
            sequence,
            time.time_ns() // 1000,
        )
