"""Walk the log's blocks from a position on, and say where the walk cannot trust the bytes.

Used by recovery, by sealing and by `holdfast check`. Reads only; any thread.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.batch_header import ALIGNMENT, HEADER_SIZE, MAGIC, BatchHeader
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.segment import Segment
from holdfast.commitlog.segment_format import END_MARK_SIZE, TRAILER_SIZE, is_end_mark

_WINDOW_BYTES = 4 * 1024 * 1024
_MAGIC_PREFIX = b"HF"  # of blocks and of end marks


@dataclass(frozen=True, slots=True)
class Damage:
    """Physical offsets from `start` to `end` hold no intact block. `reason` is a stable word;
    "unwritten" means that nothing but zeros follows in the segment."""

    start: int
    end: int
    reason: str


def scan_log(
    segments: Sequence[Segment], start_offset: int, *, verify_payload: bool = True
) -> Iterator[tuple[Segment, Batch | Damage]]:
    """Yield every block at or after `start_offset` in log order, and the damage in between.

    A segment whose end mark is met ends there; one without is walked to its end, so the last
    thing yielded for the segment being written is Damage, "unwritten" when all is well.
    """
    expected: int | None = None
    for segment in segments:
        if segment.end_offset <= start_offset:
            continue
        if expected is not None and segment.start_offset != expected:
            yield segment, Damage(expected, segment.start_offset, "missing-segment")
        expected = segment.end_offset
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
            batch = _block_at(window, at, verify_payload=verify_payload)
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
        yield batch
        at = batch.header.end_physical_offset


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


def _block_at(window: _Window, at: int, *, verify_payload: bool) -> Batch:
    """Return the intact block at `at`; raises CorruptBatch."""
    header = BatchHeader.decode(window.bytes_at(at, HEADER_SIZE))
    if header.physical_offset != at:
        raise CorruptBatch("misplaced", f"it says that it belongs at {header.physical_offset}")
    return Batch.decode(window.bytes_at(at, header.total_size), verify_payload=verify_payload)


def _next_block(window: _Window, at: int, end: int) -> int | None:
    """Return where the next intact block or end mark is from `at` to `end` in this segment."""
    while at < end:
        chunk = bytes(window.bytes_at(at, min(_WINDOW_BYTES, end - at)))
        position = -1
        while (position := chunk.find(_MAGIC_PREFIX, position + 1)) >= 0:
            candidate = at + position
            if (candidate - window.segment.start_offset) % ALIGNMENT == 0 and (
                _is_end(window.segment, candidate) or _is_block(window.segment, candidate)
            ):
                return candidate
        # A magic may lie across the border of two chunks.
        at += max(len(chunk) - len(MAGIC), ALIGNMENT)
    return None


def _is_end(segment: Segment, at: int) -> bool:
    return is_end_mark(segment.read(at, END_MARK_SIZE), at)


def _is_block(segment: Segment, at: int) -> bool:
    try:
        header = BatchHeader.decode(segment.read(at, HEADER_SIZE))
        if header.physical_offset != at:
            return False
        Batch.decode(segment.read(at, header.total_size))
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
