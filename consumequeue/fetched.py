"""What a pull found: rows of batches, and whole runs of small batches. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.batch_header import BatchHeader, Buffer
from holdfast.commitlog.batch_run import BatchRun
from holdfast.consumequeue.lost_ranges import LostRanges


class Piece(Protocol):
    """A part of what a pull delivers: messages of one queue, ascending."""

    @property
    def blocks(self) -> Buffer:
        """The whole blocks that hold them, as they are stored."""

    @property
    def message_count(self) -> int:
        """How many messages are meant."""

    @property
    def stored_messages(self) -> int:
        """How many messages the blocks have."""

    @property
    def text_bytes(self) -> int:
        """Bytes of their bodies, keys, tags and properties."""

    @property
    def store_timestamp_us(self) -> int:
        """When the first of them was stored."""

    def slices(self) -> "Iterator[BatchSlice]":
        """Yield them batch by batch."""


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """The rows of one batch that a pull delivers, ascending."""

    batch: Batch
    rows: range | Sequence[int]

    @property
    def blocks(self) -> memoryview:
        """The batch's block."""
        return self.batch.block

    @property
    def message_count(self) -> int:
        """The number of rows."""
        return len(self.rows)

    @property
    def stored_messages(self) -> int:
        """All messages of the batch."""
        return len(self.batch)

    @property
    def text_bytes(self) -> int:
        """Bytes of the rows' texts."""
        if len(self.rows) == len(self.batch):
            return text_bytes(self.batch.header)
        return int(message_sizes(self.batch)[np.asarray(self.rows)].sum())

    @property
    def store_timestamp_us(self) -> int:
        """When the batch was stored."""
        return self.batch.header.store_timestamp_us

    def slices(self) -> "Iterator[BatchSlice]":
        """Yield this."""
        yield self


class RunSlice:
    """A run of whole batches of one queue that follow each other without a gap, from an offset
    in the first of them to the end of the last."""

    __slots__ = ("_run", "_start_offset")

    def __init__(self, run: BatchRun, start_offset: int) -> None:
        self._run = run
        self._start_offset = max(start_offset, int(run.base_offsets[0]))

    @property
    def blocks(self) -> Buffer:
        """The batches' blocks, one after another."""
        return bytes(self._run.buffer)  # no copy: it is bytes already

    @property
    def end_offset(self) -> int:
        """The queue offset after the last message."""
        return int(self._run.end_offsets[-1])

    @property
    def message_count(self) -> int:
        """How many messages are meant."""
        return self.end_offset - self._start_offset

    @property
    def stored_messages(self) -> int:
        """All messages of the batches."""
        return int(self._run.message_counts.sum())

    @property
    def text_bytes(self) -> int:
        """Bytes of the batches' texts: also of those in the first one before the start."""
        run = self._run
        return int(sum(run.field(name).sum() for name in _TEXT_FIELDS))

    @property
    def store_timestamp_us(self) -> int:
        """When the first batch was stored."""
        return int(self._run.field("store_timestamp_us")[0])

    def slices(self) -> Iterator[BatchSlice]:
        """Yield the batches one by one, each decoded as it is asked for."""
        first = self._start_offset - int(self._run.base_offsets[0])
        for position in self._run.positions.tolist():
            batch = Batch.decode(self._run.buffer, position, verify_payload=False)
            yield BatchSlice(batch, range(first, len(batch)))
            first = 0


class Fetched(NamedTuple):
    """What a pull found. `next_offset` is past all that was scanned, delivered or not.
    `skipped` are the ranges of lost messages that it passed over."""

    pieces: Sequence[Piece]
    next_offset: int
    min_offset: int
    max_offset: int
    message_count: int
    skipped: LostRanges = ()

    @property
    def slices(self) -> list[BatchSlice]:
        """The messages batch by batch."""
        return [each for piece in self.pieces for each in piece.slices()]

    @property
    def text_bytes(self) -> int:
        """Bytes of the messages' texts."""
        return sum(piece.text_bytes for piece in self.pieces)

    @property
    def block_bytes(self) -> int:
        """Bytes of the blocks that hold the messages."""
        return sum(len(piece.blocks) for piece in self.pieces)


_TEXT_FIELDS = (
    "body_bytes",
    "key_bytes",
    "tag_bytes",
    "property_name_bytes",
    "property_value_bytes",
)


def text_bytes(header: BatchHeader) -> int:
    """Return the bytes of bodies, keys, tags and properties that a whole batch has."""
    return (
        header.body_bytes
        + header.key_bytes
        + header.tag_bytes
        + header.property_name_bytes
        + header.property_value_bytes
    )


def message_sizes(batch: Batch) -> "npt.NDArray[np.int64]":
    """Return each message's bytes of body, key, tag and properties."""
    sizes = np.diff(batch.body_offsets).astype(np.int64)
    if batch.key_offsets is not None:
        sizes += np.diff(batch.key_offsets)
    if batch.tag_offsets is not None:
        sizes += np.diff(batch.tag_offsets)
    listed, names, values = batch.property_list, batch.name_offsets, batch.value_offsets
    if listed is not None and names is not None and values is not None:
        sizes += np.diff(names[listed].astype(np.int64) + values[listed])
    return sizes
