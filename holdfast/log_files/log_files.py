"""The log's segment files in one directory, in order, up to the current end of the log.

`refresh` may be called repeatedly while a broker writes. It opens new files, closes deleted ones,
and reads only the block headers that were written since the last call. This module writes nothing,
but `durable_offset` may sync files.
"""

import errno
import logging
from collections.abc import Iterator
from pathlib import Path

from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch_header import HEADER_SIZE, BatchHeader
from holdfast.commitlog.format.segment_format import (
    Blocks,
    parse_segment_name,
    segment_name,
)
from holdfast.log_files.errors import FilesUnreadable
from holdfast.log_files.sealed_blocks import SealedBlocks
from holdfast.log_files.segment_file import LOG_DIRECTORY, SegmentFile
from holdfast.log_files.walked_blocks import WalkedBlocks

_log = logging.getLogger("holdfast.log_files")


class LogSegment:
    """One segment: its file, and its blocks, which come from the footer or from a walk."""

    def __init__(self, file: SegmentFile) -> None:
        self.file = file
        self.blocks: SealedBlocks | WalkedBlocks = WalkedBlocks(file)
        self._is_decided = False

    def look_for_footer(self) -> None:
        """Use the footer as soon as there is an intact one. A damaged one is checked only once."""
        sealed = None if self._is_decided else SealedBlocks.of(self.file)
        if sealed is not None:
            self._is_decided = True
            if sealed.is_intact():
                self.blocks = sealed


class LogFiles:
    """The segments that are part of the log now, oldest first. Close it after use."""

    def __init__(self, path: str, *, may_map: bool = False) -> None:
        self._directory = Path(path) / LOG_DIRECTORY
        self._path = path
        self._may_map = may_map
        self._open: dict[int, LogSegment] = {}
        self._synced_to = 0
        self._proven = 0
        self.segments: tuple[LogSegment, ...] = ()

    def close(self) -> None:
        for segment in self._open.values():
            segment.file.close()
        self._open.clear()
        self.segments = ()

    def refresh(self) -> None:
        """Update `segments` from the directory. Raises FilesUnreadable, UnknownFormatVersion."""
        try:
            self._open_files()
            segments = self._without_overlaps()
            for segment in segments:
                segment.look_for_footer()
            self.segments = self._walk(segments)
        except OSError as error:
            raise FilesUnreadable(self._path, str(error)) from error

    def _open_files(self) -> None:
        try:
            names = [path.name for path in self._directory.iterdir()]
        except OSError as error:
            reason = error.strerror or str(error)
            raise FilesUnreadable(self._path, f"{LOG_DIRECTORY}: {reason}") from error
        starts = {start for name in names if (start := parse_segment_name(name)) is not None}
        for start in self._open.keys() - starts:
            self._open.pop(start).file.close()
        for start in sorted(starts - self._open.keys()):
            try:
                self._open[start] = LogSegment(
                    SegmentFile.open(self._directory, start, may_map=self._may_map)
                )
            except FileNotFoundError:
                continue  # retention has deleted it meanwhile
            except CorruptBatch as error:
                _log.warning("%s/%020d is skipped: %s", self._directory, start, error)

    def _without_overlaps(self) -> list[LogSegment]:
        """Return the segments in order, without segments that begin inside the preceding one."""
        segments: list[LogSegment] = []
        for _, segment in sorted(self._open.items()):
            if not segments or segment.file.start_offset >= segments[-1].file.end_offset:
                segments.append(segment)
        return segments

    def _walk(self, segments: list[LogSegment]) -> tuple[LogSegment, ...]:
        """Walk the segments without a footer. Return the segments up to the current end of the log.

        A walk stops at bytes that are not a block. But if blocks of later segments prove that these
        bytes were once durable, the bytes are damage. Then the segment is walked again, and the
        walk skips the damage.
        """
        for segment in reversed(segments):  # its headers prove that older segments are durable
            if isinstance(segment.blocks, WalkedBlocks):
                segment.blocks.advance(self._proven)
                self._proven = max(self._proven, segment.blocks.durable_offset)
        for index, segment in enumerate(segments):
            walked = segment.blocks
            if isinstance(walked, SealedBlocks) or walked.is_ended:
                continue
            following = segments[index + 1 :]
            if any(len(each.blocks) for each in following):
                self._raise_proven_offset(following)
                walked.advance(self._proven)
            if not walked.is_ended:
                return tuple(segments[: index + 1])
        return tuple(segments)

    def _raise_proven_offset(self, segments: list[LogSegment]) -> None:
        """Read one block header of each sealed segment. The header records up to which offset the
        log was durable. Raise the proven durable offset to the highest of these offsets."""
        for segment in segments:
            if isinstance(segment.blocks, SealedBlocks):
                place = segment.blocks.any_block_offset()
                if place is None:
                    continue
                try:
                    header = BatchHeader.decode(segment.file.read(place, HEADER_SIZE))
                except CorruptBatch:
                    continue
                if header.physical_offset == place:
                    self._proven = max(self._proven, header.durable_offset)

    # -- durability -----------------------------------------------------------------------

    def durable_offset(self) -> int:
        """Sync the files. Return the physical offset up to which the log is on the disk: its end at
        the last `refresh`. If a file cannot be synced, returns the highest offset that was synced
        before, or that a block header records as durable."""
        if not self.segments:
            return 0
        last = self.segments[-1]
        end = last.file.end_offset
        if isinstance(last.blocks, WalkedBlocks):
            end = last.blocks.end
        proven = max(self._proven, self._synced_to)
        try:
            for segment in self.segments:
                if segment.file.end_offset > proven and end > proven:
                    segment.file.sync()
        except OSError as error:
            _log.info("%s cannot be synced (%s): the proven offset is used", self._path, error)
            return proven
        self._synced_to = max(end, proven)
        return self._synced_to

    # -- contents --------------------------------------------------------------------------

    def file(self, start_offset: int) -> SegmentFile:
        """Return the open file with this start offset. Raises FileNotFoundError."""
        if (found := self._open.get(start_offset)) is None:
            raise FileNotFoundError(errno.ENOENT, "deleted", segment_name(start_offset))
        return found.file

    def rows(
        self, topic_id: int, queue: int, start: int, end: int
    ) -> Iterator[tuple[LogSegment, Blocks]]:
        """Yield (segment, rows of its block table) for a queue's blocks with offsets in
        [start, end), in order."""
        for segment in self.segments:
            first, last_end = segment.blocks.queues(topic_id).get(queue, (0, 0))
            if first < end and start < last_end:
                for rows in segment.blocks.rows(topic_id, queue, start, end):
                    yield segment, rows
