"""The blocks of a segment without a footer, found by walking its headers: above all of the one
that is being written, which is walked on from where it ended whenever it is looked at.

What ends the walk is half written, was torn by a crash, or is damage, and only what was durable
once can be damaged (FORMAT.md 7.5). So the walk passes over damage that lies below the highest
durable offset that any block proves, and waits before the rest. Of blocks above it the payload is
proven here: their header may have been written and they not.
"""

from collections.abc import Iterator
from contextlib import closing

import numpy as np

from holdfast.commitlog.batch_header import HEADER_SIZE
from holdfast.commitlog.checksum import crc32c
from holdfast.commitlog.header_table import (
    HEADER_DTYPE,
    Headers,
    block_ends,
    intact_headers,
    intact_headers_apart,
)
from holdfast.commitlog.log_scan import Damage, scan_segment
from holdfast.commitlog.segment_format import (
    BLOCK_DTYPE,
    END_MARK_SIZE,
    TRAILER_SIZE,
    Blocks,
    end_offset,
    end_offsets,
    is_end_mark,
)
from holdfast.spark.files.segment_file import SegmentFile

#: Blocks of so many bytes, on average, are large: their headers are read one by one, so many
#: before they are looked at.
_LARGE_BYTES = 4 * 1024
_AT_ONCE = 256
#: Small ones are read with all that is between their headers, so much at once.
_LEAST_BYTES = 16 * 1024
_MOST_BYTES = 4 * 1024 * 1024
_DENSE = 32


class WalkedBlocks:
    """The blocks of one segment up to where the walk has come. OSError passes through `advance`,
    and so does UnknownFormatVersion for a block that a newer Holdfast wrote."""

    def __init__(self, file: SegmentFile, *, start: int | None = None) -> None:
        """`start` is where a block begins, the first one if not given."""
        self.end = file.first_offset if start is None else start
        """Where the next block would be."""
        self.durable_offset = 0
        """The highest durable offset that its blocks prove."""
        self.is_ended = False
        """Whether the walk met the segment's end: no block comes after it."""
        self._file = file
        self._rows: dict[tuple[int, int], list[Blocks]] = {}
        self._are_large = True
        self._window = _LEAST_BYTES
        self._searched_at = -1

    def __len__(self) -> int:
        return sum(len(piece) for pieces in self._rows.values() for piece in pieces)

    # -- walking -----------------------------------------------------------------------------

    def advance(self, durable_offset: int = 0, *, until: int | None = None) -> None:
        """Walk on, to before `until` at most. `durable_offset` was proven by others."""
        self.durable_offset = max(self.durable_offset, durable_offset)
        border = self._file.end_offset if until is None else until
        while not self.is_ended and self.end < border:
            headers = self._headers_at(self.end, border)
            if len(headers):
                if not self._take(headers[headers["physical_offset"] < border]):
                    return
            elif not self._pass_damage():
                return
        self.is_ended = self.is_ended or self.end >= self._file.end_offset

    def _headers_at(self, at: int, border: int) -> Headers:
        """Return some headers of blocks that follow one another from this place on; none only if
        there is no block."""
        if self._are_large:
            headers = intact_headers_apart(self._file.read, at, border, _AT_ONCE)
        else:
            window = min(self._window, self._file.end_offset - at)
            headers = intact_headers(self._file.read(at, window), 0, at)
            if len(headers) > _DENSE:
                self._window = min(4 * self._window, _MOST_BYTES)
            elif self._window > _LEAST_BYTES:
                self._window //= 2
        if len(headers):
            size = int(block_ends(headers)[-1]) - at
            self._are_large = size >= _LARGE_BYTES * len(headers)
        return headers

    def _take(self, headers: Headers) -> bool:
        """Take blocks up to the first that is not wholly there; return whether all are."""
        self.durable_offset = max(self.durable_offset, int(headers["durable_offset"].max()))
        ends = block_ends(headers)
        whole = len(headers)
        for index in np.flatnonzero(ends > self.durable_offset).tolist():
            if not self._is_whole(headers[index]):
                whole = index
                break
        if whole:
            self._put(headers[:whole])
            self.end = int(ends[whole - 1])
        return whole == len(headers) or self._pass_damage()

    def _is_whole(self, header: np.void) -> bool:
        size = int(header["total_size"]) - HEADER_SIZE
        payload = self._file.read(int(header["physical_offset"]) + HEADER_SIZE, size)
        return len(payload) == size and crc32c(payload) == int(header["payload_crc"])

    def _put(self, headers: Headers) -> None:
        rows = _rows_of(headers)
        order = np.lexsort((rows["queue_id"], rows["topic_id"]))  # stable: in order of the log
        rows = rows[order]
        change = (np.diff(rows["topic_id"]) != 0) | (np.diff(rows["queue_id"]) != 0)
        for piece in np.split(rows, np.flatnonzero(change) + 1):
            key = int(piece[0]["topic_id"]), int(piece[0]["queue_id"])
            self._rows.setdefault(key, []).append(piece)

    def _pass_damage(self) -> bool:
        """Look at what is no block; return whether the walk goes on behind it."""
        at, end = self.end, self._file.end_offset
        if at + END_MARK_SIZE + TRAILER_SIZE > end:
            self.is_ended = True
            return False
        found = self._file.read(at, HEADER_SIZE)
        if is_end_mark(found, at):
            self.is_ended = True
            return False
        if at == self._searched_at and not any(found):
            return False  # still unwritten
        damage = self._search(at)
        if damage is None:
            return True  # it became a block meanwhile
        self._searched_at = at
        if damage.reason == "unwritten":
            return False
        if damage.start >= self.durable_offset and not self._is_proven_behind(damage):
            return False
        if damage.header is not None:
            # Its offsets are its own for ever: whoever reads there is told.
            self._put(np.frombuffer(self._file.read(damage.start, HEADER_SIZE), HEADER_DTYPE))
        self.end = damage.end
        return True

    def _search(self, at: int) -> Damage | None:
        """Return the damage that begins here, None where a block does."""
        segment = self._file.as_segment()
        with closing(segment.file):
            found = next(scan_segment(segment, at), None)
        return found if isinstance(found, Damage) else None

    def _is_proven_behind(self, damage: Damage) -> bool:
        """Return whether what follows proves that what is damaged was durable."""
        at = damage.end
        while at < self._file.end_offset:
            headers = self._headers_at(at, self._file.end_offset)
            if not len(headers):
                return False
            if int(headers["durable_offset"].max()) > damage.start:
                return True
            at = int(block_ends(headers)[-1])
        return False

    # -- what was found ----------------------------------------------------------------------

    def queues(self, topic_id: int) -> dict[int, tuple[int, int]]:
        """Return of each queue of a topic that has blocks: its first offset, and that after its
        last."""
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


def _rows_of(headers: Headers) -> Blocks:
    """Return headers as a footer's block table has them."""
    rows: Blocks = np.empty(len(headers), BLOCK_DTYPE)
    for name in BLOCK_DTYPE.names or ():
        rows[name] = headers["total_size" if name == "size" else name]
    return rows
