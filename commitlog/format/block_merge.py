"""Merge many small blocks into one block, for a reply. Pure.

A reader of a thousand small blocks verifies a thousand headers and payloads. A merged block has the
same messages with one header and one payload. Its columns are computed with array operations over
all blocks. The flag REBUILT marks the block: it has a column of store timestamps, and a checksum by
the broker. Such a block is only sent, never stored.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.commitlog.format.batch_encoding import Sections
from holdfast.commitlog.format.batch_header import (
    BORN,
    ENVELOPES,
    EXPIRES,
    HEADER_SIZE,
    KEYS,
    PRODUCERS,
    PROPERTIES,
    REBUILT,
    REQUEST_SEQUENCE,
    TAGS,
    BatchHeader,
    Buffer,
)
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.format.header_table import Int64s

#: Blocks are merged if they have at most this many bytes on average. For larger blocks, the merge
#: would cost the broker more (it copies and checks all bytes again) than it saves the reader.
MAX_AVERAGE_BYTES = 4096

Numbers = npt.NDArray[Any]


def merge_blocks(run: BatchRun) -> bytes | None:
    """Return one block with all messages of `run`, whose blocks the BatchRun has verified.

    Every field of every message is that of the stored block. The header's physical offset and
    durable offset are those of the first block. Return None if the blocks are too large, are not
    consecutive blocks of one queue, or cannot be expressed exactly as one block.
    """
    if len(run) < 2 or len(run.buffer) > MAX_AVERAGE_BYTES * len(run) or not _are_consecutive(run):
        return None
    merged = _Merge(run)
    if not merged.add_columns():
        return None
    sections, header = merged.sections, merged.header
    header.total_size = HEADER_SIZE + sections.size
    header.payload_crc = sections.crc()
    return sections.join(header.encode())


def _are_consecutive(run: BatchRun) -> bool:
    """Return whether the blocks belong to one queue, and none is missing between them."""
    topics, queues = run.field("topic_id"), run.field("queue_id")
    return bool(
        (topics == topics[0]).all()
        and (queues == queues[0]).all()
        and (run.base_offsets[1:] == run.end_offsets[:-1]).all()
    )


class _Merge:
    """A merged block under construction."""

    def __init__(self, run: BatchRun) -> None:
        self._run = run
        self._nothing = np.zeros(len(run), np.int64)
        self.sections = Sections()
        first = BatchHeader.decode(run.buffer, int(run.positions[0]))
        summary = np.bitwise_or.reduce(run.field("tag_summary").astype(np.uint64))
        self.header = replace(
            first,
            flags=REBUILT,
            message_count=int(run.message_counts.sum()),
            producer_id=0,
            sequence=0,
            producer_epoch=0,
            tag_summary=int(summary),
            requests=(),
        )

    def add_columns(self) -> bool:
        """Add all sections, in the order of the format. Return False if a column cannot be merged
        exactly."""
        run, header = self._run, self.header
        counts = run.message_counts
        header.body_bytes = int(run.sizes["bodies"].sum())
        if not self._add_texts("body_offsets", "bodies", counts):
            return False
        if run.has(KEYS).any():
            header.flags |= KEYS
            header.key_bytes = int(run.sizes["keys"].sum())
            self._add_numbers("key_hashes", "<u4")
            if not self._add_texts("key_offsets", "keys", counts):
                return False
        if run.has(TAGS).any():
            header.flags |= TAGS
            header.tag_bytes = int(run.sizes["tags"].sum())
            self._add_numbers("tag_codes", "<u4")
            if not self._add_texts("tag_offsets", "tags", counts):
                return False
        if run.has(PROPERTIES).any() and not self._add_properties():
            return False
        born = run.numbers("born", "<i8", run.field("born_timestamp_us"))
        header.born_timestamp_us = int(born[0])
        if bool((born != born[0]).any()):
            header.flags |= BORN
            self._add(born)
        if run.has(EXPIRES).any():
            header.flags |= EXPIRES
            self._add_numbers("expires", "<i8")
        if not self._add_producers():
            return False
        if run.has(ENVELOPES).any():
            header.flags |= ENVELOPES
            header.envelope_bytes = int(run.sizes["envelopes"].sum())
            if not self._add_texts("envelope_offsets", "envelopes", counts):
                return False
        self._add(run.store_timestamps_us)
        return True

    def _add(self, column: Numbers) -> None:
        self.sections.add(_bytes_of(column))

    def _add_numbers(self, section: str, dtype: str) -> None:
        self._add(self._run.numbers(section, dtype, self._nothing))

    def _add_texts(self, offsets: str, texts: str, counts: Int64s) -> bool:
        """Add the offsets and the bytes of a column with `counts[i]` texts in block i. Return
        False if the offsets of a block do not cover its section."""
        if not self._add_offsets(offsets, counts, self._run.sizes[texts]):
            return False
        self.sections.add(_join(self._run, texts))
        return True

    def _add_properties(self) -> bool:
        header, run = self.header, self._run
        entries = run.field("property_count")
        header.flags |= PROPERTIES
        header.property_count = int(entries.sum())
        header.property_name_bytes = int(run.sizes["names"].sum())
        header.property_value_bytes = int(run.sizes["values"].sum())
        return (
            self._add_offsets("property_list", run.message_counts, entries)
            and self._add_texts("name_offsets", "names", entries)
            and self._add_texts("value_offsets", "values", entries)
        )

    def _add_producers(self) -> bool:
        """Add the producers' columns, if a publish has a producer. Return False if the sequences
        of some producers count requests, and those of others count batches."""
        run, header = self._run, self.header
        fields = [
            run.numbers("producer_ids", "<u8", run.field("producer_id")),
            run.numbers("sequences", "<i8", run.field("sequence")),
            run.numbers("epochs", "<u4", run.field("producer_epoch")),
        ]
        has_producer = run.has(PRODUCERS) | (run.field("producer_id") != 0)
        counts_requests = (run.has(REQUEST_SEQUENCE) | run.has(PRODUCERS))[has_producer]
        if counts_requests.any():
            if not counts_requests.all():
                return False
            header.flags |= REQUEST_SEQUENCE
        if any(bool(field.any()) for field in fields):
            header.flags |= PRODUCERS
            for field in fields:
                self._add(field)
        return True

    def _add_offsets(self, section: str, counts: Int64s, ends: Int64s) -> bool:
        """Add the offsets of `counts[i]` values that end at `ends[i]` in block i. Return False if
        the offsets of a block do not begin at 0, do not end there, or decrease."""
        run = self._run
        present = run.sizes[section] > 0
        words = np.frombuffer(run.buffer, "<i4")
        at = (run.starts[section] // words.itemsize)[present]
        used = counts[present]
        if bool((words[at] != 0).any() or (words[at + used] != ends[present]).any()):
            return False
        column = np.zeros(int(counts.sum()) + 1, np.int64)
        if len(used) == len(counts) and bool((used == 1).all()):
            column[1:] = ends
        else:
            before = np.cumsum(used) - used
            rows = np.arange(int(used.sum())) + np.repeat(at - before, used)
            sizes = words[rows + 1].astype(np.int64) - words[rows]
            if bool((sizes < 0).any()):
                return False
            column[1:][np.repeat(present, counts)] = sizes
        self._add(np.cumsum(column).astype("<i4"))
        return True


def _bytes_of(array: Numbers) -> memoryview:
    return array.view(np.uint8).data


def _join(run: BatchRun, section: str) -> Buffer:
    """Return the bytes of one section of all blocks, one after another."""
    starts, sizes = run.starts[section], run.sizes[section]
    size = int(sizes[0])
    if size and bool((sizes == size).all()):
        places = len(run.buffer) - size + 1
        everywhere = np.ndarray((places,), f"V{size}", run.buffer, strides=(1,))
        return _bytes_of(everywhere[starts])
    data = bytes(run.buffer)  # no copy: the buffer of a stored run is a bytes object
    pieces = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
    return b"".join([data[start:end] for start, end in pieces])
