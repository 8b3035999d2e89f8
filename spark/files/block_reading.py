"""A stretch of one queue's blocks, read from a segment file and proven: what the decoder takes."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from holdfast.commitlog.batch_header import HEADER_SIZE
from holdfast.commitlog.batch_run import BatchRun
from holdfast.commitlog.bodies_apart import BodiesApart, unwritten
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.header_table import Int64s
from holdfast.commitlog.segment_format import Blocks
from holdfast.spark.decode import MAX_ROWS, TARGET_BYTES
from holdfast.spark.files.segment_file import SegmentFile

#: Reading so many bytes that belong to others costs about what another call costs.
NEAR_BYTES = 8 * 1024
#: Bodies of so many bytes a block are worth a place of their own.
APART_BYTES = 16 * 1024
#: What a row of the block table says of its block's header, by the header's names.
_TOLD = ("topic_id", "queue_id", "base_offset", "physical_offset", "message_count")


def groups(rows: Blocks) -> Iterator[Blocks]:
    """Cut rows into groups, each of about the size of one record batch; one block at least."""
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
    """Return the blocks of these rows, in order, proven by both checksums and to be those that
    the rows tell of. Raises CorruptBatch, UnknownFormatVersion; OSError passes through."""
    # A lone block's bodies lie together as they are, and its refusal is the format's own.
    are_large = int(rows["body_bytes"].sum(dtype=np.int64)) >= APART_BYTES * len(rows)
    apart = are_large and len(rows) > 1
    run = (_with_bodies_apart if apart else _as_they_lie)(file, rows)
    if len(run) != len(rows) or any(
        not np.array_equal(run.field(name), rows[name].astype(np.int64)) for name in _TOLD
    ):
        raise CorruptBatch("misplaced", "blocks of other places than they are read at")
    return run


def _as_they_lie(file: SegmentFile, rows: Blocks) -> BatchRun:
    """Read blocks one after another into one buffer. What lies near each other in the file is one
    call; what lies between is read aside."""
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


def _with_bodies_apart(file: SegmentFile, rows: Blocks) -> BatchRun:
    """Read the bodies of all blocks next to each other, as the column that they become: the system
    puts them there, and nobody copies them again."""
    places, sizes = rows["physical_offset"].astype(np.int64), rows["size"].astype(np.int64)
    bodies = rows["body_bytes"].astype(np.int64)
    apart = BodiesApart.room_for(sizes, rows["message_count"].astype(np.int64), bodies)
    views = list(apart.places())
    for first, end in _extents(places[1:] - (places + sizes)[:-1], near_bytes=0):
        whole = [view for block in views[first:end] for view in block if len(view)]
        file.read_into(int(places[first]), whole)
    return BatchRun(apart)


def _extents(gaps: Int64s, near_bytes: int = NEAR_BYTES) -> Iterator[tuple[int, int]]:
    """Yield from which block to before which one call reads, given what lies between them."""
    is_apart = (gaps > near_bytes) | (gaps < 0)
    return pairwise([0, *(np.flatnonzero(is_apart) + 1).tolist(), len(gaps) + 1])
