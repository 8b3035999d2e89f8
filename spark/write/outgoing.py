"""Encode the rows of a window (a section of a partition, see windows.py) as batches, one per topic
and queue. The same rows always give the same batches, except for the creation time in the batch
header."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import pyarrow as pa

from holdfast.commitlog.format.batch_header import BatchHeader
from holdfast.commitlog.format.checksum import crc32c
from holdfast.commitlog.format.header_table import Int64s
from holdfast.spark.errors import UnwritableRow
from holdfast.spark.write.arrow_encoder import encode_rows
from holdfast.spark.write.partitioner import (
    Partitioner,
    TargetTopic,
    UInt32s,
    UnroutableRow,
    key_hashes,
)
from holdfast.spark.write.producer_identity import Producer
from holdfast.spark.write.windows import Window


@dataclass(frozen=True, slots=True)
class OutgoingBatch:
    """A batch to send: its rows, and their encoded bytes. `numbers` are the positions of the rows
    in the partition. The header has no producer and no sequence number yet."""

    target: TargetTopic
    rows: pa.RecordBatch
    hashes: UInt32s | None
    numbers: Int64s
    header: BatchHeader
    payload: bytes

    @classmethod
    def of_rows(
        cls,
        target: TargetTopic,
        queue: int,
        columns: tuple[pa.RecordBatch, UInt32s | None, Int64s],
        start: int,
        end: int,
    ) -> Self:
        """Return a batch of the rows [start, end) for a queue. `columns` are the rows, the hashes
        of their keys if they have keys, and their positions in the partition."""
        rows, hashes, numbers = columns
        rows = rows.slice(start, end - start)
        hashes = None if hashes is None else hashes[start:end]
        header, payload = encode_rows(
            rows,
            hashes,
            topic_id=target.topic_id,
            queue=queue,
            born_timestamp_us=time.time_ns() // 1000,
        )
        return cls(target, rows, hashes, numbers[start:end], header, payload)

    @property
    def queue(self) -> tuple[str, int]:
        """The topic's name and the queue's number."""
        return self.target.name, self.header.queue_id

    @property
    def first_row(self) -> int:
        return int(self.numbers[0])

    @property
    def last_row(self) -> int:
        return int(self.numbers[-1])

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, end: int) -> "OutgoingBatch":
        """Return a batch of the rows [start, end) of this batch."""
        columns = self.rows, self.hashes, self.numbers
        return self.of_rows(self.target, self.header.queue_id, columns, start, end)


class BatchEncoder:
    """Encodes windows as batches. Each attempt at a partition has its own encoder."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._partitioners: dict[str, Partitioner] = {}
        self._digest = 0

    def digest(self) -> int:
        """Return a checksum of all batches encoded so far, and of their order."""
        return self._digest

    def encode(
        self, window: Window, target: TargetTopic, indexes: Int64s | None = None
    ) -> Iterator[OutgoingBatch]:
        """Yield the batches of a window for one topic, one batch per queue. `indexes` are the
        positions of the topic's rows in the window; None means all rows. Raises UnwritableRow if a
        row names a queue that does not exist or has another priority level."""
        rows, numbers = window.rows, np.arange(len(window.rows), dtype=np.int64)
        if indexes is not None:
            rows, numbers = rows.take(pa.array(indexes)), indexes
        numbers = numbers + window.first_row
        hashes = key_hashes(rows.column("key")) if "key" in rows.schema.names else None
        try:
            queues = self._partitioner(target).queues(rows, hashes)
        except UnroutableRow as error:
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
            batch = OutgoingBatch.of_rows(target, queue, (rows, hashes, numbers), start, end)
            self._digest = crc32c(b"%d %d %d" % (self._digest, queue, batch.header.payload_crc))
            yield batch

    def _partitioner(self, target: TargetTopic) -> Partitioner:
        if target.name not in self._partitioners:
            # Rows without a key and a queue go to the queues in turn. The first queue depends on
            # partition and epoch, so that not all tasks and micro-batches begin at queue 0.
            turn = self._producer.partition + self._producer.epoch
            self._partitioners[target.name] = Partitioner(target, turn)
        return self._partitioners[target.name]
