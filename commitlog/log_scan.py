"""Walk the log's blocks from a position on, and say where the walk cannot trust the bytes.

Past damage the walk goes on at the next bytes that prove to be a block of this very place. What
an intact header says to be its payload is never searched: a body may hold anything, also the
bytes of a block. Used by recovery, by sealing and by `holdfast check`. Reads only; any thread.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.batch_header import ALIGNMENT, HEADER_SIZE, MAGIC, BatchHeader, Buffer
from holdfast.commitlog.errors import CorruptBatch, UnknownFormatVersion
from holdfast.commitlog.segment import Segment
from holdfast.commitlog.segment_format import (
    END_MARK_MAGIC,
    END_MARK_SIZE,
    TRAILER_SIZE,
    is_end_mark,
)

_WINDOW_BYTES = 4 * 1024 * 1024

#: What a block and an end mark begin with, and at which byte each says where it belongs.
_SIGNS = ((MAGIC, 24), (END_MARK_MAGIC, 8))


@dataclass(frozen=True, slots=True)
class Damage:
    """Physical offsets from `start` to `end` hold no intact block. `reason` is a stable word;
    "unwritten" means that nothing but zeros follows in the segment. `header` is there when it
    is intact and the payload after it is not."""

    start: int
    end: int
    reason: str
    header: BatchHeader | None = field(default=None, repr=False)


def scan_log(
    segments: Sequence[Segment], start_offset: int, *, verify_payload: bool = True
) -> Iterator[tuple[Segment, Batch | Damage]]:
    """Yield every block at or after `start_offset` in log order, and the damage in between.

    A segment whose end mark is met ends there; one without is walked to its end, so the last
    thing yielded for the segment being written is Damage, "unwritten" when all is well.
    """
    expected: int | None = None
    for segment in segments:
        if expected is not None and max(expected, start_offset) < segment.start_offset:
            missing = max(expected, start_offset)
            yield segment, Damage(missing, segment.start_offset, "missing-segment")
        expected = segment.end_offset
        if segment.end_offset <= start_offset:
            continue
        for found in scan_segment(segment, start_offset, verify_payload=verify_payload):
            yield segment, found


def scan_segment(
    segment: Segment, start_offset: int = 0, *, verify_payload: bool = True
) -> Iterator[Batch | Damage]:
    """Yield one segment's blocks and damage, as scan_log does."""
    window = _Window(segment)
    at = max(start_offset, segment.first_offset)
    while at + END_MARK_SIZE + TRAILER_SIZE <= segment.end_offset:
        if is_end_mark(window.bytes_at(at, END_MARK_SIZE), at):
            return
        try:
            header = _header_at(window.bytes_at(at, HEADER_SIZE), at)
        except CorruptBatch as error:
            data_end = segment.start_offset + segment.file.data_end(at - segment.start_offset)
            found = _next_block(window, at + ALIGNMENT, data_end)
            if found is None:
                unwritten = _is_zero(window, at, data_end)
                yield Damage(at, segment.end_offset, "unwritten" if unwritten else error.reason)
                return
            yield Damage(at, found, error.reason)
            at = found
            continue
        end = header.end_physical_offset
        try:
            batch = Batch.decode(
                window.bytes_at(at, header.total_size), verify_payload=verify_payload
            )
        except CorruptBatch as error:
            yield Damage(at, min(end, segment.end_offset), error.reason, header)
        else:
            yield batch
        at = end


class _Window:
    """A part of a segment in memory, moved along as the walk proceeds."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._start = 0
        self._data = memoryview(b"")

    def bytes_at(self, at: int, size: int) -> memoryview:
        """Return up to `size` bytes at this physical offset; fewer at the segment's end."""
        size = min(size, self.segment.end_offset - at)
        if at < self._start or at + size > self._start + len(self._data):
            self._start = at
            self._data = memoryview(self.segment.read(at, max(size, _WINDOW_BYTES)))
        return self._data[at - self._start : at - self._start + size]


def _header_at(raw: Buffer, at: int) -> BatchHeader:
    """Return the intact header in `raw` that belongs at `at`. Raises CorruptBatch;
    UnknownFormatVersion only for one of this place: a body may hold one of any other."""
    try:
        header = BatchHeader.decode(raw)
    except UnknownFormatVersion as error:
        if _claims(raw, at) == [at]:
            raise
        raise CorruptBatch("misplaced", f"of another place, and {error}") from error
    if header.physical_offset != at:
        raise CorruptBatch("misplaced", f"it says that it belongs at {header.physical_offset}")
    return header


def _next_block(window: _Window, at: int, end: int) -> int | None:
    """Return where the next block's intact header or end mark is, from `at` to `end`."""
    while at < end:
        chunk = window.bytes_at(at, _WINDOW_BYTES)
        for place in _claims(chunk, at):
            if _begins(window.segment, place):
                return place
        # What lies across the border of two chunks is seen whole in the second.
        at += max(len(chunk) - HEADER_SIZE, ALIGNMENT) & -ALIGNMENT
    return None


def _claims(chunk: Buffer, at: int) -> list[int]:
    """Return the places in `chunk`, which begins at `at`, that look like the first bytes of a
    block or an end mark of that very place. Noise costs next to nothing."""
    words = np.frombuffer(chunk[: len(chunk) & -ALIGNMENT], "<u8")
    places = at + ALIGNMENT * np.arange(len(words), dtype=np.uint64)
    found = np.zeros(len(words), np.bool_)
    for magic, offset_at in _SIGNS:
        ahead = offset_at // ALIGNMENT
        count = max(len(words) - ahead, 0)
        begins = words[:count].astype(np.uint32) == int.from_bytes(magic, "little")
        found[:count] |= begins & (words[ahead:] == places[:count])
    return [int(place) for place in places[found]]


def _begins(segment: Segment, at: int) -> bool:
    """Return whether an end mark or a block, whatever its payload, is at `at`."""
    if is_end_mark(segment.read(at, END_MARK_SIZE), at):
        return True
    try:
        _header_at(segment.read(at, HEADER_SIZE), at)
    except CorruptBatch:
        return False
    return True


def _is_zero(window: _Window, at: int, end: int) -> bool:
    while at < end:
        chunk = bytes(window.bytes_at(at, min(_WINDOW_BYTES, end - at)))
        if chunk.count(0) != len(chunk):
            return False
        at += max(len(chunk), ALIGNMENT)
    return True
