"""Read one range of one queue from segment files, as record batches. Runs inside a task.

If the files do not have some rows, a MissingRange takes their place. The caller decides whether to
fail, to skip these rows, or to read them from the broker. Every read gives the same rows, because
blocks never change.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch import tag_summary, tags_code
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.format.segment_format import (
    BLOCK_DTYPE,
    Blocks,
    end_offset,
    end_offsets,
    rows_from,
)
from holdfast.spark.arrow.decoder import cut_portions, decode, select_rows
from holdfast.spark.files.block_reading import group_rows, read_blocks
from holdfast.spark.files.sealed_blocks import SealedBlocks
from holdfast.spark.files.segment_file import LOG_DIRECTORY, SegmentFile
from holdfast.spark.files.walked_blocks import WalkedBlocks
from holdfast.spark.options.offsets import QueueRange, SegmentRange
from holdfast.spark.options.read import ReadOptions

_MISSING = "not in the log's files"


@dataclass(frozen=True, slots=True)
class MissingRange:
    """Offsets from `start` to before `end` that the files do not have."""

    start: int
    end: int
    reason: str


def read_files(
    path: str, part: QueueRange, options: ReadOptions
) -> Iterator[pa.RecordBatch | MissingRange]:
    """Yield the rows of `part` in order of their offsets, with a MissingRange for missing rows.

    Raises UnknownFormatVersion.
    """
    offset, reason = part.start, ""
    for segment in part.segments:
        try:
            with closing(_open_segment(path, segment)) as file:
                for base, end, found in _read_segment(file, segment, part, offset):
                    if base > offset:
                        yield MissingRange(offset, min(base, part.end), reason or _MISSING)
                    if isinstance(found, BatchRun):
                        yield from _decode_run(found, part, max(base, offset), options)
                        reason = ""
                    else:
                        yield MissingRange(max(base, offset), min(end, part.end), found)
                    offset = end
        except (OSError, CorruptBatch) as error:
            reason = reason or _explain_error(error)
    if offset < part.end:
        yield MissingRange(offset, part.end, reason or _MISSING)


def _open_segment(path: str, segment: SegmentRange) -> SegmentFile:
    file = SegmentFile.open(Path(path) / LOG_DIRECTORY, segment.start_offset)
    if file.created_timestamp_us != segment.created_timestamp_us:
        file.close()
        raise CorruptBatch("another-segment", f"{file.path} is not the file that was planned with")
    return file


def _decode_run(
    run: BatchRun, part: QueueRange, offset: int, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    rows = select_rows(run, offset, part.end)
    if options.tags:
        # `field` returns the unsigned 64-bit summary as an int64 with the same bits.
        wanted = np.uint64(tag_summary(map(tags_code, options.tags))).astype(np.int64)
        may_have = run.field("tag_summary")[rows.block] & wanted != 0
        rows = type(rows)(*(column[may_have] for column in rows))
    for each in cut_portions(run, rows):
        yield decode(run, each, part, options.columns, tags=options.tags)


#: (first offset, end offset, the blocks or the reason why they cannot be read).
_FoundBlocks = tuple[int, int, BatchRun | str]


def _read_segment(
    file: SegmentFile, segment: SegmentRange, part: QueueRange, offset: int
) -> Iterator[_FoundBlocks]:
    """Yield the blocks of a part in one segment, from `offset` on; adjacent blocks come together.

    The block table of the plan or the footer says where the blocks are. If a row of the table does
    not match the file, the blocks after it are found by a walk over the block headers, so that a
    damaged table loses no message.
    """
    read_to = segment.first
    for base, end, found in _read_tables(file, _table_rows(file, segment, part, offset), segment):
        if base > offset or isinstance(found, str):
            break
        yield base, end, found
        offset = end
        read_to = int(found.field("physical_offset")[-1] + found.total_sizes[-1])
    if offset >= part.end or read_to == segment.end:
        return
    walked = WalkedBlocks(file, start=segment.first)
    walked.advance(segment.end, until=segment.end)
    yield from _read_tables(file, walked.rows(part.topic_id, part.queue, offset, part.end), segment)


def _table_rows(
    file: SegmentFile, segment: SegmentRange, part: QueueRange, offset: int
) -> Iterator[Blocks]:
    """Yield the block table's rows for a part from `offset` on. The table is that of the plan if it
    has one, otherwise that of the footer."""
    if segment.blocks:
        rows = np.frombuffer(segment.blocks, BLOCK_DTYPE)
        yield rows_from(rows, part.topic_id, part.queue, offset)
    elif (sealed := SealedBlocks.of(file)) is not None:
        yield from sealed.rows(part.topic_id, part.queue, offset, part.end)


def _read_tables(
    file: SegmentFile, tables: Iterator[Blocks], segment: SegmentRange
) -> Iterator[_FoundBlocks]:
    """Yield the blocks of these rows: adjacent blocks together, damaged blocks one by one."""
    for rows in tables:
        inside = rows["physical_offset"] < segment.end
        rows = rows[inside & (rows["physical_offset"] >= segment.first)]
        for group in group_rows(rows):
            gaps = np.flatnonzero(group["base_offset"][1:] != end_offsets(group[:-1])) + 1
            for neighbours in np.split(group, gaps):
                yield from _read_rows(file, neighbours)


def _read_rows(file: SegmentFile, rows: Blocks) -> Iterator[_FoundBlocks]:
    base, end = int(rows[0]["base_offset"]), end_offset(rows[-1])
    try:
        yield base, end, read_blocks(file, rows)
    except (CorruptBatch, OSError) as error:
        if len(rows) == 1:
            yield base, end, _explain_error(error)
            return
        middle = len(rows) // 2
        yield from _read_rows(file, rows[:middle])
        yield from _read_rows(file, rows[middle:])


def _explain_error(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "the segment file is gone: retention, or a moved directory"
    if isinstance(error, OSError):
        return f"unreadable: {error.strerror or error}"
    return str(error)
