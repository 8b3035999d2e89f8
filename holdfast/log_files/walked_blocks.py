"""The blocks of a segment without a footer, found by a walk from block header to block header.
Usually this is the segment that is being written; each walk continues where the last one ended.

A walk may meet bytes that are not a block: half written, torn by a crash, or damaged. Only bytes
that were once durable count as damaged (FORMAT.md 7.5). Each block header records up to which
offset the log was durable; the highest of these offsets is the proven durable offset. Below the
proven offset, the walk skips bytes that are not a block. Above the proven offset, the walk stops at
such bytes, and it also verifies the payload of each block, because the header may have been written
before the payload. A header proves this for every block before it, so the walk first reads all
headers, and then verifies only the blocks that none of them proves.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import closing

import numpy as np

from holdfast.commitlog.format.batch_header import HEADER_SIZE
from holdfast.commitlog.format.header_table import (
    HEADER_DTYPE,
    Headers,
    block_ends,
    count_intact_payloads,
    find_intact_headers,
    find_split_headers,
)
from holdfast.commitlog.format.segment_format import (
    BLOCK_DTYPE,
    END_MARK_SIZE,
    TRAILER_SIZE,
    Blocks,
    end_offset,
    end_offsets,
    is_end_mark,
)
from holdfast.commitlog.segments.log_scan import Damage, scan_segment
from holdfast.log_files.segment_file import SegmentFile

#: Blocks of at least this mean size are large: each header is read by a call of its own.
_LARGE_BYTES = 4 * 1024
_AT_ONCE = 256  # at most this many headers of large blocks per step
#: Small blocks are read whole: each call reads a window of at least this many bytes.
_LEAST_BYTES = 16 * 1024
_MOST_BYTES = 4 * 1024 * 1024  # the largest window
_DENSE = 32  # if a window has more headers than this, the next window is larger


class WalkedBlocks:
    """The blocks of one segment that the walk has found so far. `advance` may raise OSError, and
    UnknownFormatVersion for a block of a newer Holdfast."""

    def __init__(self, file: SegmentFile, *, start: int | None = None) -> None:
        """`start` is the physical offset of a block; the default is the segment's first block."""
        self.end = file.first_offset if start is None else start
        """The physical offset at which the next block would begin."""
        self.durable_offset = 0
        """The proven durable offset."""
        self.is_ended = False
        """True once the walk has reached the segment's end: no more blocks can follow."""
        self._file = file
        self._rows: dict[tuple[int, int], list[Blocks]] = {}
        self._are_large = True
        self._window = _LEAST_BYTES
        self._searched = (-1, -1)  # place and durable offset of the last search for damage

    def __len__(self) -> int:
        return sum(len(piece) for pieces in self._rows.values() for piece in pieces)

    # -- walking -----------------------------------------------------------------------------

    def advance(self, durable_offset: int = 0, *, until: int | None = None) -> None:
        """Continue the walk, at most to before `until`. `durable_offset` is the durable offset that
        other segments prove."""
        self.durable_offset = max(self.durable_offset, durable_offset)
        border = self._file.end_offset if until is None else until
        while not self.is_ended and self.end < border:
            self._add_blocks(border)
            if self.end < border and not self._skip_damage():
                return
        self.is_ended = self.is_ended or self.end >= self._file.end_offset

    def _add_blocks(self, border: int) -> None:
        """Add the blocks from `end` on, up to the first one that is incomplete. A block is added
        when a header after it proves that it was durable. The blocks that no header proves are
        verified at the end."""
        waiting: deque[Headers] = deque()
        for headers in self._walk_headers(border):
            self.durable_offset = max(self.durable_offset, int(headers["durable_offset"].max()))
            waiting.append(headers)
            while waiting and int(block_ends(waiting[0])[-1]) <= self.durable_offset:
                self._add(waiting.popleft())
        for headers in waiting:
            count = self._count_whole(headers)
            self._add(headers[:count])
            if count < len(headers):
                return

    def _walk_headers(self, border: int) -> Iterator[Headers]:
        """Yield the headers of consecutive blocks from `end` to before `border`, step by step."""
        at = self.end
        while at < border:
            headers = self._headers_at(at, border)
            headers = headers[headers["physical_offset"] < border]
            if not len(headers):
                return
            at = int(block_ends(headers)[-1])
            yield headers

    def _headers_at(self, at: int, border: int) -> Headers:
        """Return headers of consecutive blocks from `at` on; none if no block begins there."""
        if self._are_large:
            headers = find_split_headers(self._file.read, at, border, _AT_ONCE)
        else:
            window = min(self._window, self._file.end_offset - at)
            headers = find_intact_headers(self._file.read(at, window), 0, at)
            if len(headers) > _DENSE:
                self._window = min(4 * self._window, _MOST_BYTES)
            elif self._window > _LEAST_BYTES:
                self._window //= 2
        if len(headers):
            size = int(block_ends(headers)[-1]) - at
            self._are_large = size >= _LARGE_BYTES * len(headers)
        return headers

    def _count_whole(self, headers: Headers) -> int:
        """Return the number of blocks before the first one that is incomplete."""
        ends = block_ends(headers).astype(np.int64)
        places = headers["physical_offset"].astype(np.int64)
        first = begin = int(np.searchsorted(ends, self.durable_offset, "right"))
        while first < len(headers):
            at = int(places[first])
            end = max(first + 1, int(np.searchsorted(ends, at + _MOST_BYTES, "right")))
            data = self._file.view(at, int(ends[end - 1]) - at)
            complete = int(np.searchsorted(ends[first:end], at + len(data), "right"))
            block = slice(first, first + complete)
            first += count_intact_payloads(data, (places[block] - at).tolist(), headers[block])
            if first < end:
                break
        if first > begin:
            self._file.add_verified(int(places[begin]), int(ends[first - 1]))
        return first

    def _add(self, headers: Headers) -> None:
        """Add blocks, and continue the walk after them."""
        if len(headers):
            self._add_rows(headers)
            self.end = int(block_ends(headers)[-1])

    def _add_rows(self, headers: Headers) -> None:
        rows = _to_rows(headers)
        order = np.lexsort((rows["queue_id"], rows["topic_id"]))  # stable: in order of the log
        rows = rows[order]
        change = (np.diff(rows["topic_id"]) != 0) | (np.diff(rows["queue_id"]) != 0)
        for piece in np.split(rows, np.flatnonzero(change) + 1):
            key = int(piece[0]["topic_id"]), int(piece[0]["queue_id"])
            self._rows.setdefault(key, []).append(piece)

    def _skip_damage(self) -> bool:
        """Examine bytes that are not a block. Return True if the walk continues after them."""
        at, end = self.end, self._file.end_offset
        if at + END_MARK_SIZE + TRAILER_SIZE > end:
            self.is_ended = True
            return False
        found = self._file.read(at, HEADER_SIZE)
        if is_end_mark(found, at):
            self.is_ended = True
            return False
        search = (at, self.durable_offset)
        if not any(found):
            if self._searched == search:
                return False  # these bytes were searched before, and are still unwritten
            if self._file.is_zero(at):
                self._searched = search
                return False
        damage = self._find_damage(at)
        if damage is None:
            return True  # meanwhile the broker has completed a block here
        self._searched = search
        if damage.reason == "unwritten":
            return False
        if damage.start >= self.durable_offset:
            if not self._is_proven_durable(damage):
                return False
            # The broker may have written a block here after these bytes were read, and then the
            # blocks that prove it durable. So the bytes count only if read after the proof.
            damage = self._find_damage(at)
            if damage is None:
                return True
        if damage.header is not None:
            # The offsets of a damaged block are never assigned again. Keep its row, so that a read
            # of these offsets reports the damage.
            self._add_rows(np.frombuffer(self._file.read(damage.start, HEADER_SIZE), HEADER_DTYPE))
        self.end = damage.end
        return True

    def _find_damage(self, at: int) -> Damage | None:
        """Return the damage that begins at `at`, or None if a block begins there."""
        segment = self._file.as_segment()
        with closing(segment.file):
            found = next(scan_segment(segment, at), None)
        return found if isinstance(found, Damage) else None

    def _is_proven_durable(self, damage: Damage) -> bool:
        """Return True if blocks after the damage prove that the damaged bytes were durable."""
        at = damage.end
        while at < self._file.end_offset:
            headers = self._headers_at(at, self._file.end_offset)
            if not len(headers):
                return False
            if int(headers["durable_offset"].max()) > damage.start:
                return True
            at = int(block_ends(headers)[-1])
        return False

    # -- results -------------------------------------------------------------------------

    def queues(self, topic_id: int) -> dict[int, tuple[int, int]]:
        """Return (first offset, end offset) of each queue of a topic that has blocks."""
        return {
            queue: (int(pieces[0][0]["base_offset"]), end_offset(pieces[-1][-1]))
            for (topic, queue), pieces in self._rows.items()
            if topic == topic_id
        }

    def rows(self, topic_id: int, queue: int, start: int, end: int) -> Iterator[Blocks]:
        """Yield the rows of a queue's blocks with offsets in [start, end), in order."""
        pieces = self._rows.get((topic_id, queue), [])
        if len(pieces) > 1:
            pieces[:] = [np.concatenate(pieces)]
        for piece in pieces:
            rows = piece[(piece["base_offset"] < end) & (end_offsets(piece) > start)]
            if len(rows):
                yield rows


def _to_rows(headers: Headers) -> Blocks:
    """Return headers in the format of a footer's block table."""
    rows: Blocks = np.empty(len(headers), BLOCK_DTYPE)
    for name in BLOCK_DTYPE.names or ():
        rows[name] = headers["total_size" if name == "size" else name]
    return rows
