"""Runs: messages that were stored in many small batches, decoded together. Pure.

To decode a batch alone takes about 20 microseconds, even if the batch is very small. In a run of
thousands of batches, each batch takes about 2 microseconds. Rarely used fields (properties,
creation time) are decoded for each batch at first access.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import repeat
from typing import Self

import numpy as np

from holdfast.client.read.message import Message, MessageBatch, texts_of
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.format.header_table import Int64s


class MessageRun:
    """Consecutive messages of one queue: rows `start_row` (inclusive) to `end_row` (exclusive) of a
    run. Offsets ascend with the rows."""

    def __init__(self, topic: str, columns: "RunColumns", start_row: int, end_row: int) -> None:
        self.topic = topic
        self.queue = columns.queue
        self._columns = columns
        self.start_row = start_row
        self.end_row = end_row

    def __len__(self) -> int:
        return self.end_row - self.start_row

    def __iter__(self) -> Iterator[Message]:
        rows = range(self.start_row, self.end_row)
        bodies = self._columns.bodies[self.start_row : self.end_row]
        return map(Message, bodies, repeat(self._columns), rows)

    @property
    def end_offset(self) -> int:
        """The offset after the last message."""
        return self._columns.offset_of(self.end_row - 1) + 1

    def until(self, end_offset: int) -> Self:
        """Return a copy that ends before `end_offset`."""
        end_row = min(self.end_row, max(self.start_row, self._columns.row_at(end_offset)))
        return type(self)(self.topic, self._columns, self.start_row, end_row)

    def batches(self) -> Iterator[MessageBatch]:
        """Yield the messages in the batches in which they are stored."""
        first = self._columns.block_of(self.start_row)
        for block in range(first, len(self._columns.run)):
            base = int(self._columns.first_rows[block])
            if base >= self.end_row:
                return
            batch = self._columns.batch(block)
            start, end = max(0, self.start_row - base), min(len(batch), self.end_row - base)
            yield MessageBatch(self.topic, batch, start, end)


class RunColumns:
    """The columns of a run's messages, by row. The run's blocks (stored batches) belong to one
    queue and are in order."""

    def __init__(self, topic: str, run: BatchRun) -> None:
        self.topic = topic
        self.run = run
        self.topic_id = int(run.field("topic_id")[0])
        self.queue = int(run.field("queue_id")[0])
        counts = run.message_counts
        #: The row of each block's first message.
        self.first_rows: Int64s = np.cumsum(counts) - counts
        self.row_count = int(counts.sum())
        self._last_batch: tuple[int, Batch] | None = None

    def row_at(self, offset: int) -> int:
        """Return the first row whose offset is at least `offset`; if there is none, return the
        number of rows."""
        run = self.run
        block = int(np.searchsorted(run.end_offsets, offset, "right"))
        if block == len(run):
            return self.row_count
        return int(self.first_rows[block]) + max(0, offset - int(run.base_offsets[block]))

    def block_of(self, row: int) -> int:
        return int(np.searchsorted(self.first_rows, row, "right")) - 1

    def batch(self, block: int) -> Batch:
        """Return a block as a decoded batch. The last decoded batch is cached."""
        if self._last_batch is None or self._last_batch[0] != block:
            position = int(self.run.positions[block])
            batch = Batch.decode(self.run.buffer, position, verify_payload=False)
            self._last_batch = (block, batch)
        return self._last_batch[1]

    @cached_property
    def bodies(self) -> list[bytes]:
        return self._texts("body_offsets", "bodies")

    @cached_property
    def keys(self) -> list[str | None]:
        return [text.decode() or None for text in self._texts("key_offsets", "keys")]

    @cached_property
    def tags(self) -> list[str | None]:
        return [text.decode() or None for text in self._texts("tag_offsets", "tags")]

    @cached_property
    def _stored_ms(self) -> Int64s:
        return self.run.field("store_timestamp_us") // 1000

    def offset_of(self, row: int) -> int:
        block = self.block_of(row)
        return int(self.run.base_offsets[block] + row - self.first_rows[block])

    def store_timestamp_ms_of(self, row: int) -> int:
        return int(self._stored_ms[self.block_of(row)])

    def properties_of(self, row: int) -> Mapping[str, str]:
        block = self.block_of(row)
        return self.batch(block).properties(row - int(self.first_rows[block]))

    def born_timestamp_ms_of(self, row: int) -> int:
        block = self.block_of(row)
        return self.batch(block).born_timestamp_us(row - int(self.first_rows[block])) // 1000

    def _texts(self, offsets: str, texts: str) -> list[bytes]:
        return texts_of(self.run.buffer, *self.run.text_ranges(offsets, texts))
