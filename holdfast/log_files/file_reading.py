"""Read one range of one queue from segment files, as runs of whole blocks.

If the files lack some messages, the result has a MissingRange instead of them. The caller decides
whether to fail, to skip these messages, or to read them from the broker. Every read gives the same
messages, because blocks never change. All checksums are verified.

Blocks are read into fresh memory, or, if the caller allows it, used where they lie in the mapped
file: filling fresh memory takes several times as long as verifying the checksums.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch_header import HEADER_SIZE
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.format.header_table import Int64s, gather_headers
from holdfast.commitlog.format.segment_format import (
    BLOCK_DTYPE,
    Blocks,
    end_offset,
    end_offsets,
    rows_from,
)
from holdfast.commitlog.format.split_bodies import SplitBodies, allocate
from holdfast.log_files.ranges import FilePart, QueuePart, SegmentRange
from holdfast.log_files.sealed_blocks import SealedBlocks
from holdfast.log_files.segment_file import LOG_DIRECTORY, SegmentFile
from holdfast.log_files.walked_blocks import WalkedBlocks

#: One run of blocks has about this many bytes, and at most about this many messages: as many as a
#: record batch of Spark's source.
RUN_BYTES = 8 * 1024 * 1024
RUN_MESSAGES = 50_000
#: Reading this many unneeded bytes costs about as much as another system call.
NEAR_BYTES = 8 * 1024
#: Blocks of at most this mean size are cut from the bytes of a window: that costs less than a place
#: in the list of a system call.
CUT_BYTES = 1024
#: The size of such a window.
_WINDOW_BYTES = 4 * 1024 * 1024
#: If the bodies of a block have at least this mean size, it is faster to read them into a separate
#: buffer.
APART_BYTES = 16 * 1024
#: Blocks of at least this mean size may be mapped. Smaller blocks are faster to read together.
MAPPED_BYTES = 32 * 1024
#: One run of mapped blocks has about this many bytes, and about this many messages at most.
MAPPED_RUN_BYTES = 64 * 1024 * 1024
MAPPED_RUN_MESSAGES = 400_000
#: A run of mapped blocks lies within this many bytes of the log, so that positions fit an int32.
_MAPPED_SPAN = 1024**3
#: Blocks with larger gaps between them are brought into memory by separate system calls.
_MAPPED_NEAR_BYTES = 64 * 1024
#: The fields of a block header that its row in the block table also has.
_TABLE_FIELDS = ("topic_id", "queue_id", "base_offset", "physical_offset", "message_count")
_MISSING = "not in the log's files"


@dataclass(frozen=True, slots=True)
class MissingRange:
    """Offsets from `start` to before `end` that the files do not have."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class FoundBlocks:
    """Consecutive blocks. Only the messages from offset `start` on belong to the result, and, in
    the last block, only those before the end of the part."""

    blocks: BatchRun
    start: int


def read_files(path: str, part: FilePart) -> Iterator[FoundBlocks | MissingRange]:
    """Yield the blocks of `part` in order of their offsets, with a MissingRange for missing
    messages. Raises UnknownFormatVersion."""
    return read_segments(part, part.segments, lambda each: closing(_open_segment(path, each)))


def read_segments(
    part: QueuePart,
    segments: Iterable[SegmentRange],
    open_segment: Callable[[SegmentRange], AbstractContextManager[SegmentFile]],
) -> Iterator[FoundBlocks | MissingRange]:
    """Do what `read_files` does, for ranges of files that `open_segment` opens. `open_segment` may
    raise OSError and CorruptBatch.

    If a file may be mapped, its large blocks are used where they lie in the mapped file. They keep
    the disk space of a file that was deleted."""
    offset, reason = part.start, ""
    for segment in segments:
        try:
            with open_segment(segment) as file:
                for base, end, found in _read_segment(_BlockReader(file), segment, part, offset):
                    if base > offset:
                        yield MissingRange(offset, min(base, part.end), reason or _MISSING)
                    if isinstance(found, BatchRun):
                        yield FoundBlocks(found, max(base, offset))
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


#: (first offset, end offset, the blocks or the reason why they cannot be read).
_FoundRows = tuple[int, int, BatchRun | str]


def _read_segment(
    reader: "_BlockReader", segment: SegmentRange, part: QueuePart, offset: int
) -> Iterator[_FoundRows]:
    """Yield the blocks of a part in one segment, from `offset` on; adjacent blocks come together.

    The block table of the plan or of the footer has the locations of the blocks. If a row of the
    table does not match the file, the blocks after it are found by a walk over the block headers.
    So a damaged table loses no message.
    """
    file, read_to = reader.file, segment.first
    for base, end, found in _read_tables(reader, _table_rows(file, segment, part, offset), segment):
        if base > offset or isinstance(found, str):
            break
        yield base, end, found
        offset = end
        read_to = int(found.field("physical_offset")[-1] + found.total_sizes[-1])
    if offset >= part.end or read_to == segment.end:
        return
    walked = WalkedBlocks(file, start=segment.first)
    walked.advance(segment.end, until=segment.end)
    rows = walked.rows(part.topic_id, part.queue, offset, part.end)
    yield from _read_tables(reader, rows, segment)


def _table_rows(
    file: SegmentFile, segment: SegmentRange, part: QueuePart, offset: int
) -> Iterator[Blocks]:
    """Yield the block table's rows for a part from `offset` on. The table is that of the plan if it
    has one, otherwise that of the footer."""
    if segment.blocks:
        rows = np.frombuffer(segment.blocks, BLOCK_DTYPE)
        yield rows_from(rows, part.topic_id, part.queue, offset)
    elif (sealed := SealedBlocks.of(file)) is not None:
        yield from sealed.rows(part.topic_id, part.queue, offset, part.end)


def _read_tables(
    reader: "_BlockReader", tables: Iterator[Blocks], segment: SegmentRange
) -> Iterator[_FoundRows]:
    """Yield the blocks of these rows: adjacent blocks together, damaged blocks one by one."""
    for rows in tables:
        inside = rows["physical_offset"] < segment.end
        rows = rows[inside & (rows["physical_offset"] >= segment.first)]
        for group in _group_rows(rows, *reader.run_limits(rows)):
            gaps = np.flatnonzero(group["base_offset"][1:] != end_offsets(group[:-1])) + 1
            for neighbours in np.split(group, gaps):
                yield from _read_rows(reader, neighbours)


def _read_rows(reader: "_BlockReader", rows: Blocks) -> Iterator[_FoundRows]:
    base, end = int(rows[0]["base_offset"]), end_offset(rows[-1])
    try:
        yield base, end, reader.read(rows)
    except (CorruptBatch, OSError) as error:
        if len(rows) == 1:
            yield base, end, _explain_error(error)
            return
        middle = len(rows) // 2
        yield from _read_rows(reader, rows[:middle])
        yield from _read_rows(reader, rows[middle:])


def _explain_error(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "the segment file is gone: retention, or a moved directory"
    if isinstance(error, OSError):
        return f"unreadable: {error.strerror or error}"
    return str(error)


def _group_rows(rows: Blocks, run_bytes: int, run_messages: int) -> Iterator[Blocks]:
    """Divide the rows of a block table into groups of about `run_bytes`, and of about
    `run_messages` at most. Each group has at least one block."""
    sizes = np.cumsum(rows["size"], dtype=np.int64)
    counts = np.cumsum(rows["message_count"], dtype=np.int64)
    at = 0
    while at < len(rows):
        bytes_before, count_before = (int(sizes[at - 1]), int(counts[at - 1])) if at else (0, 0)
        by_bytes = int(np.searchsorted(sizes, bytes_before + run_bytes)) + 1
        by_count = int(np.searchsorted(counts, count_before + run_messages, "right"))
        end = max(at + 1, min(by_bytes, by_count))
        yield rows[at:end]
        at = end


class _BlockReader:
    """Reads the blocks of one segment, in the way that is fastest for their sizes."""

    def __init__(self, file: SegmentFile) -> None:
        self.file = file

    def run_limits(self, rows: Blocks) -> tuple[int, int]:
        """Return the bytes and the messages of one run of the blocks of these rows."""
        if self._are_mapped(rows):
            return MAPPED_RUN_BYTES, MAPPED_RUN_MESSAGES
        return RUN_BYTES, RUN_MESSAGES

    def read(self, rows: Blocks) -> BatchRun:
        """Return the blocks of these rows, in order. Verify both checksums, and that each block
        matches its row. If the payload of a mapped block was verified before, it is not verified
        again. Raises CorruptBatch, UnknownFormatVersion, OSError."""
        run = _map_blocks(self.file, rows) if self._are_mapped(rows) else None
        if run is None:
            # The bodies of a single block are contiguous anyway, and reading it whole gives a
            # clearer error.
            are_large = int(rows["body_bytes"].sum(dtype=np.int64)) >= APART_BYTES * len(rows)
            are_small = int(rows["size"].sum(dtype=np.int64)) <= CUT_BYTES * len(rows)
            if are_large and len(rows) > 1:
                run = _read_bodies_apart(self.file, rows)
            else:
                run = (_cut_blocks if are_small else _read_whole_blocks)(self.file, rows)
        if len(run) != len(rows) or any(
            not np.array_equal(run.field(name), rows[name].astype(np.int64))
            for name in _TABLE_FIELDS
        ):
            raise CorruptBatch("misplaced", "the blocks differ from their rows in the block table")
        return run

    def _are_mapped(self, rows: Blocks) -> bool:
        """Return whether these blocks are mapped, if the file can be."""
        large = int(rows["size"].sum(dtype=np.int64)) >= MAPPED_BYTES * len(rows)
        return self.file.may_map and large


def _map_blocks(file: SegmentFile, rows: Blocks) -> BatchRun | None:
    """Return the blocks of these rows where they lie in the mapped file; None if they must be read
    with system calls, which also give the reason if that fails."""
    places, sizes = rows["physical_offset"].astype(np.int64), rows["size"].astype(np.int64)
    first, end = int(places[0]), int(places[-1] + sizes[-1])
    gaps = places[1:] - (places + sizes)[:-1]
    if int(sizes.min()) < HEADER_SIZE or end - first > _MAPPED_SPAN or bool((gaps < 0).any()):
        return None
    extents = _extents(gaps, _MAPPED_NEAR_BYTES)
    mapped = file.map([(int(places[a]), int(places[b - 1] + sizes[b - 1])) for a, b in extents])
    if mapped is None:
        return None
    blocks = mapped[first - file.start_offset : end - file.start_offset]
    positions = places - first
    headers = gather_headers(blocks, positions)
    if not np.array_equal(headers["total_size"], rows["size"]):
        return None  # otherwise a wrong size would lead to bytes that are not in memory
    return BatchRun(blocks, positions=positions, verified=file.are_verified(places))


def _cut_blocks(file: SegmentFile, rows: Blocks) -> BatchRun:
    """Read small blocks. Each system call reads a window of the file, from which the blocks are
    cut."""
    places, sizes = _places_and_sizes(rows)
    ends = places + sizes
    blocks: list[bytes] = []
    for first, end in _extents(places[1:] - ends[:-1]):
        while first < end:
            at = int(places[first])
            last = int(np.searchsorted(ends[first:end], at + _WINDOW_BYTES, "right"))
            next_first = first + max(last, 1)
            window = file.read(at, int(ends[next_first - 1]) - at)
            cuts = map(slice, *((each[first:next_first] - at).tolist() for each in (places, ends)))
            blocks += map(window.__getitem__, cuts)
            first = next_first
    return BatchRun(b"".join(blocks))


def _places_and_sizes(rows: Blocks) -> tuple[Int64s, Int64s]:
    """Return the physical offset and the size of each block. Raises CorruptBatch for a size that no
    block has."""
    places, sizes = rows["physical_offset"].astype(np.int64), rows["size"].astype(np.int64)
    if int(sizes.min()) < HEADER_SIZE:
        raise CorruptBatch("bad-size", f"a block of {int(sizes.min())} bytes")
    return places, sizes


def _read_whole_blocks(file: SegmentFile, rows: Blocks) -> BatchRun:
    """Read blocks into one buffer. One system call reads several blocks that are near each other;
    the bytes between the blocks go to a scratch buffer."""
    places, sizes = _places_and_sizes(rows)
    buffer = allocate(int(sizes.sum()))
    ends = np.cumsum(sizes)
    gaps = places[1:] - (places + sizes)[:-1]
    scratch = memoryview(bytearray(NEAR_BYTES))
    for first, end in _extents(gaps):
        views = []
        joints = [first, *(np.flatnonzero(gaps[first : end - 1]) + first + 1).tolist(), end]
        for begin, joint in pairwise(joints):
            views.append(buffer[int(ends[begin] - sizes[begin]) : int(ends[joint - 1])])
            if joint < end:
                views.append(scratch[: int(gaps[joint - 1])])
        file.read_into(int(places[first]), views)
    return BatchRun(buffer.toreadonly())


def _read_bodies_apart(file: SegmentFile, rows: Blocks) -> BatchRun:
    """Read blocks so that all bodies are in one buffer, which becomes the body column without
    another copy."""
    places, sizes = rows["physical_offset"].astype(np.int64), rows["size"].astype(np.int64)
    bodies = rows["body_bytes"].astype(np.int64)
    split = SplitBodies.room_for(sizes, rows["message_count"].astype(np.int64), bodies)
    views = list(split.places())
    for first, end in _extents(places[1:] - (places + sizes)[:-1], near_bytes=0):
        file.read_into(
            int(places[first]), [view for block in views[first:end] for view in block if len(view)]
        )
    return BatchRun(split)


def _extents(gaps: Int64s, near_bytes: int = NEAR_BYTES) -> Iterator[tuple[int, int]]:
    """Yield the numbers (first, end) of the blocks that each system call reads. `gaps` are the
    bytes between neighbouring blocks."""
    is_apart = (gaps > near_bytes) | (gaps < 0)
    return pairwise([0, *(np.flatnonzero(is_apart) + 1).tolist(), len(gaps) + 1])
