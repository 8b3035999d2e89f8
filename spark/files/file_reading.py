"""One range of one queue -> its rows as record batches, from segment files. Runs inside a task.

What cannot be had of the files comes as Lost, in its place: whoever asked decides whether that
fails, is left out, or is had another way. The rows are the same each time: blocks never change.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from holdfast.commitlog.batch import tag_summary, tags_code
from holdfast.commitlog.batch_run import BatchRun
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.segment_format import (
    BLOCK_DTYPE,
    Blocks,
    end_offset,
    end_offsets,
    rows_from,
)
from holdfast.spark.decode import cut, decode, portion
from holdfast.spark.files.block_reading import groups, read_blocks
from holdfast.spark.files.sealed_blocks import SealedBlocks
from holdfast.spark.files.segment_file import LOG_DIRECTORY, SegmentFile
from holdfast.spark.files.walked_blocks import WalkedBlocks
from holdfast.spark.offsets import QueueRange, SegmentRange
from holdfast.spark.options import ReadOptions

_MISSING = "not in the log's files"


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets from `start` to before `end` that the files do not give."""

    start: int
    end: int
    reason: str


def read_files(
    path: str, part: QueueRange, options: ReadOptions
) -> Iterator[pa.RecordBatch | Lost]:
    """Yield the rows of `part` in order of their offsets, and Lost in place of those that are not
    there. Raises UnknownFormatVersion."""
    offset, reason = part.start, ""
    for segment in part.segments:
        try:
            with closing(_open(path, segment)) as file:
                for base, end, found in _blocks_of(file, segment, part, offset):
                    if base > offset:
                        yield Lost(offset, min(base, part.end), reason or _MISSING)
                    if isinstance(found, BatchRun):
                        yield from _batches(found, part, max(base, offset), options)
                        reason = ""
                    else:
                        yield Lost(max(base, offset), min(end, part.end), found)
                    offset = end
        except (OSError, CorruptBatch) as error:
            reason = reason or _why(error)
    if offset < part.end:
        yield Lost(offset, part.end, reason or _MISSING)


def _open(path: str, segment: SegmentRange) -> SegmentFile:
    file = SegmentFile.open(Path(path) / LOG_DIRECTORY, segment.start_offset)
    if file.created_timestamp_us != segment.created_timestamp_us:
        file.close()
        raise CorruptBatch("another-segment", f"{file.path} is not the file that was planned with")
    return file


def _batches(
    run: BatchRun, part: QueueRange, offset: int, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    rows = cut(run, offset, part.end)
    if options.tags:
        # The field comes as int64: the same bits.
        wanted = np.uint64(tag_summary(map(tags_code, options.tags))).astype(np.int64)
        may_have = run.field("tag_summary")[rows.block] & wanted != 0
        rows = type(rows)(*(column[may_have] for column in rows))
    for each in portion(run, rows):
        yield decode(run, each, part, options.columns, tags=options.tags)


#: The first offset of blocks, that after the last, and the blocks; or why they cannot be read.
_Found = tuple[int, int, BatchRun | str]


def _blocks_of(
    file: SegmentFile, segment: SegmentRange, part: QueueRange, offset: int
) -> Iterator[_Found]:
    """Yield the blocks of a part in one segment, from `offset` on, in runs.

    The plan or the footer is believed as long as what it says is there: a damaged one costs no
    message, so at the first doubt the headers themselves are walked.
    """
    read_to = segment.first
    for base, end, found in _runs(file, _told(file, segment, part, offset), segment):
        if base > offset or isinstance(found, str):
            break
        yield base, end, found
        offset = end
        read_to = int(found.field("physical_offset")[-1] + found.total_sizes[-1])
    if offset >= part.end or read_to == segment.end:
        return
    walked = WalkedBlocks(file, start=segment.first)
    walked.advance(segment.end, until=segment.end)
    yield from _runs(file, walked.rows(part.topic_id, part.queue, offset, part.end), segment)


def _told(
    file: SegmentFile, segment: SegmentRange, part: QueueRange, offset: int
) -> Iterator[Blocks]:
    """Yield what the plan, or else the footer, tells of the blocks of a part from `offset` on."""
    if segment.blocks:
        rows = np.frombuffer(segment.blocks, BLOCK_DTYPE)
        yield rows_from(rows, part.topic_id, part.queue, offset)
    elif (sealed := SealedBlocks.of(file)) is not None:
        yield from sealed.rows(part.topic_id, part.queue, offset, part.end)


def _runs(file: SegmentFile, tables: Iterator[Blocks], segment: SegmentRange) -> Iterator[_Found]:
    """Yield what the rows tell of: neighbours without a gap as runs, what is damaged alone."""
    for rows in tables:
        inside = rows["physical_offset"] < segment.end
        rows = rows[inside & (rows["physical_offset"] >= segment.first)]
        for group in groups(rows):
            gaps = np.flatnonzero(group["base_offset"][1:] != end_offsets(group[:-1])) + 1
            for neighbours in np.split(group, gaps):
                yield from _run(file, neighbours)


def _run(file: SegmentFile, rows: Blocks) -> Iterator[_Found]:
    base, end = int(rows[0]["base_offset"]), end_offset(rows[-1])
    try:
        yield base, end, read_blocks(file, rows)
    except (CorruptBatch, OSError) as error:
        if len(rows) == 1:
            yield base, end, _why(error)
            return
        middle = len(rows) // 2
        yield from _run(file, rows[:middle])
        yield from _run(file, rows[middle:])


def _why(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "the segment file is gone: retention, or a moved directory"
    if isinstance(error, OSError):
        return f"unreadable: {error.strerror or error}"
    return str(error)
