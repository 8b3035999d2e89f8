"""A window's rows made into batches, one a topic and queue.

Everything in a batch but the time of its making depends on the rows alone.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import pyarrow as pa

from holdfast.commitlog.batch_header import BatchHeader
from holdfast.commitlog.checksum import crc32c
from holdfast.spark.encode import encode_rows
from holdfast.spark.errors import UnwritableRow
from holdfast.spark.identity import Producer
from holdfast.spark.routing import Int64s, Router, Target, UInt32s, Unroutable, key_hashes
from holdfast.spark.windows import Window


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A batch on its way: its rows, their `numbers` in the partition, and the bytes made of them.

    The header names no producer and sequence yet.
    """

    target: Target
    rows: pa.RecordBatch
    hashes: UInt32s | None
    numbers: Int64s
    header: BatchHeader
    payload: bytes

    @classmethod
    def of(
        cls,
        target: Target,
        queue: int,
        rows: pa.RecordBatch,
        hashes: UInt32s | None,
        numbers: Int64s,
    ) -> Self:
        """Return the batch of these rows for a queue."""
        header, payload = encode_rows(
            rows,
            hashes,
            topic_id=target.topic_id,
            queue=queue,
            born_timestamp_us=time.time_ns() // 1000,
        )
        return cls(target, rows, hashes, numbers, header, payload)

    @property
    def queue(self) -> tuple[str, int]:
        """Topic and queue."""
        return self.target.name, self.header.queue_id

    @property
    def first_row(self) -> int:
        """The number of its first row."""
        return int(self.numbers[0])

    @property
    def last_row(self) -> int:
        """The number of its last row."""
        return int(self.numbers[-1])

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, end: int) -> "Outgoing":
        """Return the batch of some of these rows."""
        return self.of(
            self.target,
            self.header.queue_id,
            self.rows.slice(start, end - start),
            None if self.hashes is None else self.hashes[start:end],
            self.numbers[start:end],
        )


class Encoder:
    """Makes batches of windows. One belongs to one attempt at one partition."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
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
        ends = [0, *(np.flatnonzero(np.diff(queues)) + 1).tolist(), len(queues)]
        for start, end in pairwise(ends):
            queue = int(queues[start])
            batch = Outgoing.of(
                target,
                queue,
                rows.slice(start, end - start),
                None if hashes is None else hashes[start:end],
                numbers[start:end],
            )
            self._digest = crc32c(b"%d %d %d" % (self._digest, queue, batch.header.payload_crc))
            yield batch

    def _router(self, target: Target) -> Router:
        router = self._routers.get(target.name)
        if router is None:
            # Neighbours in time and in place begin in neighbouring queues.
            turn = self._producer.partition + self._producer.epoch
            router = self._routers[target.name] = Router(target, turn)
        return router
