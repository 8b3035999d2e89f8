"""What a read wants, how the queues of a poll share its limits, and what a read delivers. Pure.

The queues of a poll are read one after another. Each queue may use an equal share of the limits
that are left, so that a full queue leaves room for the next queues. If a queue does not use its
whole share, the next queues get the rest. The offsets of the poll determine which queue is read
first. A reader that continues after each reply sends other offsets, so the first queue changes from
poll to poll.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_header import BatchHeader, Buffer
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.consumequeue.lost_ranges import LostRanges

#: Knuth's multiplier for hashing: it spreads numbers that are close or differ by round numbers.
_SPREAD = 2654435761
#: One pull skips at most this many lost ranges, because a response header must hold them.
MAX_SKIPPED_RANGES = 64


class MessageFilter(Protocol):
    """Selects the messages that a pull wants."""

    def may_match(self, tag_summary: int) -> bool:
        """Return False if no message of a batch with this summary can match."""

    def cost_us(self, messages: int, text_bytes: int) -> float:
        """Return about how many microseconds it takes to match `messages` messages whose keys,
        tags and property values have `text_bytes` bytes together."""

    def matching_rows(self, batch: Batch, start_row: int, end_row: int) -> Sequence[int]:
        """Return the rows from `start_row` to before `end_row` that match, ascending."""


class Wanted(NamedTuple):
    """What one read may deliver: at most `max_messages` messages with at most `max_bytes` of text
    (bodies, keys, tags and properties), and only messages that match `filter`. With `skip_corrupt`
    the read continues after damage. If `rebuilt` is set, runs of small blocks may be merged: the
    `blocks` of such a Piece are one block with the flag REBUILT. A read with a filter examines no
    batch that begins at `filter_end` or later."""

    max_messages: int
    max_bytes: int
    filter: MessageFilter | None = None
    skip_corrupt: bool = False
    rebuilt: bool = False
    filter_end: int = sys.maxsize


class Piece(Protocol):
    """A part of a pull's messages: messages of one queue, in ascending order."""

    @property
    def blocks(self) -> Buffer:
        """The whole blocks that hold the messages, as they are stored or, if the read allows it,
        merged."""

    @property
    def message_count(self) -> int:
        """The number of messages that the pull delivers."""

    @property
    def stored_messages(self) -> int:
        """The number of messages in the whole blocks."""

    @property
    def text_bytes(self) -> int:
        """Bytes of the messages' bodies, keys, tags and properties."""

    @property
    def store_timestamp_us(self) -> int:
        """When the first message was stored."""

    def slices(self) -> "Iterator[BatchSlice]":
        """Yield the messages batch by batch."""


class BatchSlice(msgspec.Struct, frozen=True):
    """The rows of one batch that a pull delivers, in ascending order."""

    batch: Batch
    rows: range | Sequence[int]

    @property
    def blocks(self) -> memoryview:
        return self.batch.block

    @property
    def message_count(self) -> int:
        return len(self.rows)

    @property
    def stored_messages(self) -> int:
        return len(self.batch)

    @property
    def text_bytes(self) -> int:
        """Bytes of the rows' texts."""
        if len(self.rows) == len(self.batch):
            return text_bytes(self.batch.header)
        return int(message_sizes(self.batch)[np.asarray(self.rows)].sum())

    @property
    def store_timestamp_us(self) -> int:
        return self.batch.header.store_timestamp_us

    def slices(self) -> "Iterator[BatchSlice]":
        yield self


class RunSlice:
    """Consecutive batches of one queue, without gaps. The messages are those from an offset in the
    first batch up to the end of the last batch."""

    __slots__ = ("_run", "_start_offset")

    def __init__(self, run: BatchRun, start_offset: int) -> None:
        self._run = run
        self._start_offset = max(start_offset, int(run.base_offsets[0]))

    @property
    def blocks(self) -> Buffer:
        return bytes(self._run.buffer)  # no copy: the buffer is a bytes object

    @property
    def end_offset(self) -> int:
        """The queue offset after the last message."""
        return int(self._run.end_offsets[-1])

    @property
    def message_count(self) -> int:
        return self.end_offset - self._start_offset

    @property
    def stored_messages(self) -> int:
        return int(self._run.message_counts.sum())

    @property
    def text_bytes(self) -> int:
        """Bytes of the whole batches' texts, including messages before the start offset."""
        run = self._run
        return int(sum(run.field(name).sum() for name in _TEXT_FIELDS))

    @property
    def store_timestamp_us(self) -> int:
        return int(self._run.field("store_timestamp_us")[0])

    def slices(self) -> Iterator[BatchSlice]:
        """Yield the batches one by one. Each is decoded only when it is requested."""
        first = self._start_offset - int(self._run.base_offsets[0])
        for position in self._run.positions.tolist():
            batch = Batch.decode(self._run.buffer, position, verify_payload=False)
            yield BatchSlice(batch, range(first, len(batch)))
            first = 0


class Fetched(NamedTuple):
    """The result of a pull. The pull has examined all messages before `next_offset`, including
    those that it does not deliver. `skipped` has the ranges of lost messages that the pull
    skipped."""

    pieces: Sequence[Piece]
    next_offset: int
    min_offset: int
    max_offset: int
    message_count: int
    skipped: LostRanges = ()

    @property
    def slices(self) -> list[BatchSlice]:
        """The messages batch by batch."""
        if len(self.pieces) == 1 and isinstance(self.pieces[0], BatchSlice):
            return [self.pieces[0]]
        return [each for piece in self.pieces for each in piece.slices()]

    @property
    def text_bytes(self) -> int:
        """Bytes of the messages' texts."""
        return sum(piece.text_bytes for piece in self.pieces)

    @property
    def block_bytes(self) -> int:
        """Bytes of the blocks that hold the messages."""
        return sum(len(piece.blocks) for piece in self.pieces)


def reading_order(offsets: Mapping[int, int], *, whole_batches: bool) -> list[int]:
    """Return the queues in the order in which a poll at these offsets reads them."""
    queues = list(offsets)
    start = sum(offsets.values())
    if whole_batches:
        # With whole batches, a poll may read only a few queues and increase the sum of the offsets
        # by a round number. Without the multiplier, the next poll would start with the same queues.
        start = start * _SPREAD >> 12
    first = start % len(queues)
    return queues[first:] + queues[:first]


class Shares:
    """What is left of the limits of one poll. For each queue, call `next_share`, then `subtract`.

    With `whole_batches` a batch counts in full even if the limits cut it, because it is sent whole.
    """

    def __init__(self, queues: int, wanted: Wanted, *, whole_batches: bool) -> None:
        self._wanted = wanted
        self._whole_batches = whole_batches
        self._queues_left = queues
        self._messages_left = wanted.max_messages
        self._bytes_left = wanted.max_bytes
        self._skips_left = MAX_SKIPPED_RANGES

    def next_share(self) -> Wanted | None:
        """Return what the next queue may deliver, or None if a limit is used up."""
        if self._messages_left <= 0 or self._bytes_left <= 0 or self._skips_left <= 0:
            return None
        return self._wanted._replace(
            max_messages=-(-self._messages_left // self._queues_left),
            max_bytes=-(-self._bytes_left // self._queues_left),
        )

    def subtract(self, fetched: Fetched | None) -> None:
        """Subtract what this queue delivered (None if its read failed); continue with the next."""
        self._queues_left -= 1
        if fetched is None or not self._queues_left:
            return
        self._skips_left -= len(fetched.skipped)
        if self._whole_batches:
            self._messages_left -= sum(piece.stored_messages for piece in fetched.pieces)
            self._bytes_left -= fetched.block_bytes
        else:
            self._messages_left -= fetched.message_count
            self._bytes_left -= fetched.text_bytes


_TEXT_FIELDS = (
    "body_bytes",
    "key_bytes",
    "tag_bytes",
    "property_name_bytes",
    "property_value_bytes",
)


def text_bytes(header: BatchHeader) -> int:
    """Return the bytes of bodies, keys, tags and properties of a whole batch."""
    return (
        header.body_bytes
        + header.key_bytes
        + header.tag_bytes
        + header.property_name_bytes
        + header.property_value_bytes
    )


def row_sizes(batch: Batch, rows: range | Sequence[int]) -> "npt.NDArray[np.int64]":
    """Return the bytes of body, key, tag and properties of each of these rows. The cost depends on
    the number of rows, not on the size of the batch."""
    start = np.arange(rows.start, rows.stop, rows.step) if isinstance(rows, range) else rows
    first = np.asarray(start, dtype=np.int64)
    last = first + 1
    sizes = np.zeros(len(first), dtype=np.int64)
    for offsets in (batch.body_offsets, batch.key_offsets, batch.tag_offsets):
        if offsets is not None:
            sizes += offsets[last] - offsets[first]
    listed = batch.property_list
    for offsets in (batch.name_offsets, batch.value_offsets):
        if listed is not None and offsets is not None:
            sizes += offsets[listed[last]] - offsets[listed[first]]
    return sizes


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
