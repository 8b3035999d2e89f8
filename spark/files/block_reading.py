"""A stretch of one queue's blocks, read from a segment file and proven: what the decoder takes."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from holdfast.commitlog.batch_header import HEADER_SIZE
from holdfast.commitlog.batch_run import BatchRun
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.header_table import Int64s
from holdfast.commitlog.segment_format import Blocks
from holdfast.spark.decode import MAX_ROWS, TARGET_BYTES
from holdfast.spark.files.segment_file import SegmentFile

#: Reading so many bytes that belong to others costs about what another call costs.
NEAR_BYTES = 8 * 1024
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
    sizes = rows["size"].astype(np.int64)
    if int(sizes.min()) < HEADER_SIZE:
        raise CorruptBatch("bad-size", f"a block of {int(sizes.min())} bytes")
    buffer = memoryview(bytearray(int(sizes.sum())))
    _fill(file, buffer, rows["physical_offset"].astype(np.int64), sizes)
    run = BatchRun(buffer.toreadonly())
    if len(run) != len(rows) or any(
        not np.array_equal(run.field(name), rows[name].astype(np.int64)) for name in _TOLD
    ):
        raise CorruptBatch("misplaced", "blocks of other places than they are read at")
    return run


def _fill(
    file: SegmentFile,
    buffer: memoryview,
    places: Int64s,
    sizes: Int64s,
) -> None:
    """Read blocks into `buffer`, one after another. What lies near each other is one call; what
    lies between is read aside."""
    gaps = places[1:] - (places + sizes)[:-1]
    aside = memoryview(bytearray(NEAR_BYTES))
    borders = [0, *(np.flatnonzero((gaps > NEAR_BYTES) | (gaps < 0)) + 1).tolist(), len(places)]
    at = 0
    for first, end in pairwise(borders):
        views = []
        joints = (np.flatnonzero(gaps[first : end - 1]) + first + 1).tolist()
        begin = first
        for joint in [*joints, end]:
            size = int(sizes[begin:joint].sum())
            views.append(buffer[at : at + size])
            at += size
            if joint < end:
                views.append(aside[: int(gaps[joint - 1])])
            begin = joint
        file.read_into(int(places[first]), views)
