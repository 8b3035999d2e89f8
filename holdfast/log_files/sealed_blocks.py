"""The blocks of a sealed segment, from the block table in its footer. The table is searched in the
file and read in parts, so the whole table is never in memory."""

import bisect
import time
from collections.abc import Iterator

import numpy as np

from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.checksum import crc32c_extended
from holdfast.commitlog.format.segment_format import (
    BLOCK_DTYPE,
    TRAILER_SIZE,
    Blocks,
    FooterTrailer,
    end_offset,
    rows_from,
)
from holdfast.log_files.segment_file import FileChange, SegmentFile

#: At most this many rows are read at once, about 3.5 MB.
ROWS_AT_ONCE = 65_536
_ROW = BLOCK_DTYPE.itemsize
_CHUNK_BYTES = 4 * 1024 * 1024

#: Files whose tables this process found intact, so that it does not check them again for each plan.
#: Reading all tables of a large log takes longer than the rest of a plan.
_intact: set[FileChange] = set()
_MAX_REMEMBERED = 65_536
#: A file that was changed less than this many nanoseconds ago is not remembered as intact yet,
#: because another change in this period may leave its change time unchanged.
_UNCHANGED_NS = 1_000_000_000

#: Base offsets that sort before and after all rows of a queue.
_BEFORE_ALL, _AFTER_ALL = -1, 2**63


class SealedBlocks:
    """The rows of a block table, ordered by topic, queue and base offset. Methods raise OSError."""

    def __init__(self, file: SegmentFile, trailer: FooterTrailer) -> None:
        self._file = file
        self._count = trailer.block_count
        self._trailer = trailer
        self._footer_offset = file.end_offset - trailer.footer_size
        self._queues: dict[int, dict[int, tuple[int, int]]] = {}
        self._row_ranges: dict[tuple[int, int], tuple[int, int]] = {}

    @classmethod
    def of(cls, file: SegmentFile) -> "SealedBlocks | None":
        """Return the blocks of a segment, or None if the segment has no footer with an intact
        trailer. The footer's tables are not verified yet. Raises UnknownFormatVersion."""
        raw = file.read(file.end_offset - TRAILER_SIZE, TRAILER_SIZE)
        try:
            trailer = FooterTrailer.decode(raw)
        except CorruptBatch:
            return None
        if trailer is None or trailer.start_offset != file.start_offset:
            return None
        found = cls(file, trailer)
        return found if found._footer_offset >= file.first_offset else None

    def __len__(self) -> int:
        return self._count

    def is_intact(self) -> bool:
        """Return True if the tables match the trailer's checksum. Reads the tables, unless this
        process has already found them intact and the file has not changed since."""
        change = self._file.last_change()
        if change in _intact:
            return True
        if not self._matches_checksum():
            return False
        if time.time_ns() - change.at_ns > _UNCHANGED_NS:
            if len(_intact) >= _MAX_REMEMBERED:
                _intact.clear()
            _intact.add(change)
        return True

    def _matches_checksum(self) -> bool:
        crc, at, left = 0, self._footer_offset, self._trailer.footer_size - TRAILER_SIZE
        while left > 0:
            chunk = self._file.read(at, min(left, _CHUNK_BYTES))
            if not chunk:
                return False
            crc = crc32c_extended(crc, chunk)
            at += len(chunk)
            left -= len(chunk)
        return crc == self._trailer.tables_crc

    def queues(self, topic_id: int) -> dict[int, tuple[int, int]]:
        """Return (first offset, end offset) of each queue of a topic that has blocks."""
        found = self._queues.get(topic_id)
        if found is None:
            found = self._queues[topic_id] = {}
            row = self._find(topic_id, 0, _BEFORE_ALL)
            while row < self._count and (first := self._row(row))[0] == topic_id:
                queue, base = int(first[1]), int(first[2])
                row = self._row_range(topic_id, queue, row)[1]
                found[queue] = base, end_offset(self._read(row - 1, row)[0])
        return found

    def rows(self, topic_id: int, queue: int, start: int, end: int) -> Iterator[Blocks]:
        """Yield the rows of a queue's blocks with offsets in [start, end), in order. If the table
        is damaged, rows may be missing, but rows of another queue never appear."""
        first, last = self._row_range(topic_id, queue)
        if first == last:
            return
        # Usually the whole queue is requested. Then neither of these searches is needed.
        if start > self._row(first)[2]:  # the block with `start` in it begins at or before `start`
            first = max(first, self._find(topic_id, queue, start, first, last) - 1)
        if end <= self._row(last - 1)[2]:
            last = self._find(topic_id, queue, end - 1, first, last)
        for row in range(first, last, ROWS_AT_ONCE):
            found = self._read(row, min(row + ROWS_AT_ONCE, last))
            rows = rows_from(found, topic_id, queue, start)
            if len(rows):
                yield rows

    def any_block_offset(self) -> int | None:
        """Return the physical offset of one block, or None if there are no blocks."""
        return int(self._read(0, 1)["physical_offset"][0]) if self._count else None

    def _row_range(self, topic_id: int, queue: int, begin: int | None = None) -> tuple[int, int]:
        """Return the numbers of a queue's first row and of the row after its last. `begin` is the
        number of the first row, if it is known."""
        found = self._row_ranges.get((topic_id, queue))
        if found is None:
            if begin is None:
                begin = self._find(topic_id, queue, _BEFORE_ALL)
            found = begin, self._find(topic_id, queue, _AFTER_ALL, begin)
            self._row_ranges[topic_id, queue] = found
        return found

    def _find(
        self, topic_id: int, queue: int, base_offset: int, first: int = 0, end: int | None = None
    ) -> int:
        """Return the number of the first row that sorts after (topic_id, queue, base_offset).
        Search only the rows from `first` to before `end`."""
        key = (topic_id, queue, base_offset)
        return bisect.bisect_right(range(self._count), key, first, end, key=self._row)

    def _row(self, row: int) -> tuple[int, int, int]:
        found = self._read(row, row + 1)[0]
        return int(found["topic_id"]), int(found["queue_id"]), int(found["base_offset"])

    def _read(self, first: int, end: int) -> Blocks:
        raw = self._file.read(self._footer_offset + first * _ROW, (end - first) * _ROW)
        return np.frombuffer(raw, BLOCK_DTYPE, len(raw) // _ROW)
