"""Read and verify blocks of one queue from a segment file. The result has the form that
arrow/decoder.py needs."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch_header import HEADER_SIZE
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.format.header_table import Int64s
from holdfast.commitlog.format.segment_format import Blocks
from holdfast.commitlog.format.split_bodies import SplitBodies, unwritten
from holdfast.spark.arrow.decoder import MAX_ROWS, TARGET_BYTES
from holdfast.spark.files.segment_file import SegmentFile

#: Reading this many unneeded bytes costs about as much as another system call.
NEAR_BYTES = 8 * 1024
#: If the bodies of a block have at least this mean size, reading them into a buffer of their own is
#: faster.
APART_BYTES = 16 * 1024
#: The fields of a block header that its row in the block table also has.
_TABLE_FIELDS = ("topic_id", "queue_id", "base_offset", "physical_offset", "message_count")


def group_rows(rows: Blocks) -> Iterator[Blocks]:
    """Divide the rows of a block table into groups of about the size of one record batch. Each
    group has at least one block."""
    sizes = np.cumsum(rows["size"], dtype=np.int64)
    counts = np.cumsum(rows["message_count"], dtype=np.int64)
    at = 0
    while at < len(rows):
        bytes_before = int(sizes[at - 1]) if at else 0
        count_before = int(counts[at - 1]) if at else 0
        by_bytes = int(np.searchsorted(sizes, bytes_before + TARGET_BYTES)) + 1
        by_count = int(np.searchsorted(counts, count_before + MAX_ROWS, "right"))
        end = max(at + 1, min(by_bytes, by_count))
        yield rows[at:end]
        at = end


def read_blocks(file: SegmentFile, rows: Blocks) -> BatchRun:
    """Return the blocks of these rows, in order. Verify both checksums, and that each block matches
    its row.

    Raises CorruptBatch, UnknownFormatVersion; OSError passes through.
    """
    # The bodies of a single block are contiguous anyway, and reading it whole gives a clearer
    # error.
    are_large = int(rows["body_bytes"].sum(dtype=np.int64)) >= APART_BYTES * len(rows)
    apart = are_large and len(rows) > 1
    run = (_read_bodies_apart if apart else _read_whole_blocks)(file, rows)
    if len(run) != len(rows) or any(
        not np.array_equal(run.field(name), rows[name].astype(np.int64)) for name in _TABLE_FIELDS
    ):
        raise CorruptBatch("misplaced", "blocks of other places than they are read at")
    return run


def _read_whole_blocks(file: SegmentFile, rows: Blocks) -> BatchRun:
    """Read blocks one after another into one buffer. One system call reads several blocks that are
    near each other; the bytes between the blocks go to a scratch buffer."""
    places, sizes = rows["physical_offset"].astype(np.int64), rows["size"].astype(np.int64)
    if int(sizes.min()) < HEADER_SIZE:
        raise CorruptBatch("bad-size", f"a block of {int(sizes.min())} bytes")
    buffer = unwritten(int(sizes.sum()))
    ends = np.cumsum(sizes)
    gaps = places[1:] - (places + sizes)[:-1]
    aside = memoryview(bytearray(NEAR_BYTES))
    for first, end in _extents(gaps):
        views = []
        joints = [first, *(np.flatnonzero(gaps[first : end - 1]) + first + 1).tolist(), end]
        for begin, joint in pairwise(joints):
            views.append(buffer[int(ends[begin] - sizes[begin]) : int(ends[joint - 1])])
            if joint < end:
                views.append(aside[: int(gaps[joint - 1])])
        file.read_into(int(places[first]), views)
    return BatchRun(buffer.toreadonly())


def _read_bodies_apart(file: SegmentFile, rows: Blocks) -> BatchRun:
    """Read the bodies of all blocks directly into the buffer that becomes the body column, so that
    they are not copied again."""
    places, sizes = rows["physical_offset"].astype(np.int64), rows["size"].astype(np.int64)
    bodies = rows["body_bytes"].astype(np.int64)
    apart = SplitBodies.room_for(sizes, rows["message_count"].astype(np.int64), bodies)
    views = list(apart.places())
    for first, end in _extents(places[1:] - (places + sizes)[:-1], near_bytes=0):
        whole = [view for block in views[first:end] for view in block if len(view)]
        file.read_into(int(places[first]), whole)
    return BatchRun(apart)


def _extents(gaps: Int64s, near_bytes: int = NEAR_BYTES) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of the blocks that each system call reads, given the gaps between
    blocks."""
    is_apart = (gaps > near_bytes) | (gaps < 0)
    return pairwise([0, *(np.flatnonzero(is_apart) + 1).tolist(), len(gaps) + 1])
