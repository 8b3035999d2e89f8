"""Walk the log's blocks from a position on, and say where the walk cannot trust the bytes.

Past damage the walk goes on at the next bytes that prove to be a block of this very place. What
an intact header says to be its payload is never searched: a body may hold anything, also the
bytes of a block. Used by recovery, by sealing and by `holdfast check`. Reads only; any thread.

`scan_log` yields blocks; `scan_runs`, for whoever goes over gigabytes, proves the same blocks by
the thousand, and yields tables of their headers. It finds the same damage, since both take the
same step where a block is not beyond doubt.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.batch_header import ALIGNMENT, HEADER_SIZE, MAGIC, BatchHeader, Buffer
from holdfast.commitlog.errors import MISSING_SEGMENT, CorruptBatch, UnknownFormatVersion
from holdfast.commitlog.header_table import NO_RUN, Run, block_ends, intact_run, run_of
from holdfast.commitlog.rows import with_requests
from holdfast.commitlog.segment import Segment
from holdfast.commitlog.segment_format import (
    END_MARK_MAGIC,
    END_MARK_SIZE,
    TRAILER_SIZE,
    is_end_mark,
)

_WINDOW_BYTES = 4 * 1024 * 1024
#: So much is read at once by whoever passes over what lies between headers.
_HEADERS_WINDOW_BYTES = 16 * 1024
#: After damage, runs of blocks are tried short: much damage close together must not make every
#: header behind it be proven again and again.
_SHORT_RUN = 64
_LONG_RUN = 65_536

_T = TypeVar("_T")

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
    scan = partial(scan_segment, verify_payload=verify_payload)
    return _over_segments(segments, start_offset, scan)


def scan_runs(
    segments: Sequence[Segment], start_offset: int
) -> Iterator[tuple[Segment, Run | Damage]]:
    """As scan_log, with payloads verified; but intact blocks that lie one after another come as
    runs, each of one block at least."""
    return _over_segments(segments, start_offset, scan_segment_runs)


def _over_segments(
    segments: Sequence[Segment],
    start_offset: int,
    scan: Callable[[Segment, int], Iterator[_T | Damage]],
) -> Iterator[tuple[Segment, _T | Damage]]:
    expected: int | None = None
    for segment in segments:
        if expected is not None and max(expected, start_offset) < segment.start_offset:
            missing = max(expected, start_offset)
            yield segment, Damage(missing, segment.start_offset, MISSING_SEGMENT)
        expected = segment.end_offset
        if segment.end_offset <= start_offset:
            continue
        for found in scan(segment, start_offset):
            yield segment, found


def scan_segment(
    segment: Segment, start_offset: int = 0, *, verify_payload: bool = True
) -> Iterator[Batch | Damage]:
    """Yield one segment's blocks and damage, as scan_log does."""
    window = _Window(segment)
    at = max(start_offset, segment.first_offset)
    while (found := _found_at(window, at, verify_payload=verify_payload)) is not None:
        yield found
        at = _end(found)


def scan_headers(
    segment: Segment, is_wanted: Callable[[BatchHeader], bool]
) -> Iterator[Batch | BatchHeader | Damage]:
    """Yield one segment's blocks and damage, as scan_log does; of a block that is not wanted the
    header alone: its payload is neither read nor verified."""
    window = _Window(segment, _HEADERS_WINDOW_BYTES)
    at = segment.first_offset
    while (header := _header_or_damage(window, at)) is not None:
        found: Batch | BatchHeader | Damage = header
        if isinstance(header, BatchHeader) and (
            is_wanted(header) or header.end_physical_offset > segment.end_offset
        ):
            found = _decoded(window, header, verify_payload=True)
        yield found
        at = _end(found)


def scan_segment_runs(segment: Segment, start_offset: int = 0) -> Iterator[Run | Damage]:
    """Yield one segment's runs of blocks and damage, as scan_runs does."""
    window = _Window(segment)
    at = max(start_offset, segment.first_offset)
    most = _SHORT_RUN
    while True:
        run = window.run_at(at, most)
        if len(run.headers):
            yield run
            at = int(block_ends(run.headers)[-1])
            most = min(2 * most, _LONG_RUN)
            continue
        # Damage, a block that lies across the window's end, or the end of the blocks.
        found = _found_at(window, at, verify_payload=True)
        if found is None:
            return
        if isinstance(found, Damage):
            yield found
            most = _SHORT_RUN
        else:
            yield run_of(with_requests(found))
        at = _end(found)


def _end(found: Batch | BatchHeader | Damage) -> int:
    if isinstance(found, Damage):
        return found.end
    header = found if isinstance(found, BatchHeader) else found.header
    return header.end_physical_offset


def _found_at(window: "_Window", at: int, *, verify_payload: bool) -> Batch | Damage | None:
    """Return the block at this place, or the damage from there on; None where the segment's
    blocks end."""
    header = _header_or_damage(window, at)
    if header is None or isinstance(header, Damage):
        return header
    return _decoded(window, header, verify_payload=verify_payload)


def _header_or_damage(window: "_Window", at: int) -> BatchHeader | Damage | None:
    """Return the intact header at this place, or the damage; None where the blocks end."""
    segment = window.segment
    if at + END_MARK_SIZE + TRAILER_SIZE > segment.end_offset:
        return None
    if is_end_mark(window.bytes_at(at, END_MARK_SIZE), at):
        return None
    try:
        return _header_at(window.bytes_at(at, HEADER_SIZE), at)
    except CorruptBatch as error:
        data_end = segment.start_offset + segment.file.data_end(at - segment.start_offset)
        data_end = min(data_end, segment.end_offset)
        found, is_unwritten = _next_block(window, at, data_end)
        if found is not None:
            return Damage(at, found, error.reason)
        return Damage(at, segment.end_offset, "unwritten" if is_unwritten else error.reason)


def _decoded(window: "_Window", header: BatchHeader, *, verify_payload: bool) -> Batch | Damage:
    """Return the block of an intact header, or the damage that its payload is."""
    at = header.physical_offset
    try:
        return Batch.decode(window.bytes_at(at, header.total_size), verify_payload=verify_payload)
    except CorruptBatch as error:
        end = min(header.end_physical_offset, window.segment.end_offset)
        return Damage(at, end, error.reason, header)


class _Window:
    """A part of a segment in memory, moved along as the walk proceeds."""

    def __init__(self, segment: Segment, least_bytes: int = _WINDOW_BYTES) -> None:
        """`least_bytes` are read at once."""
        self.segment = segment
        self._least_bytes = least_bytes
        self._start = 0
        self._data = b""

    def bytes_at(self, at: int, size: int) -> memoryview:
        """Return up to `size` bytes at this physical offset; fewer at the segment's end."""
        size = min(size, self.segment.end_offset - at)
        if at < self._start or at + size > self._start + len(self._data):
            self._start = at
            window = min(max(size, self._least_bytes), self.segment.end_offset - at)
            self._data = self.segment.read(at, window)
        return memoryview(self._data)[at - self._start : at - self._start + size]

    def run_at(self, at: int, most: int) -> Run:
        """Return the intact blocks from this physical offset on that are in the window as it is;
        at most so many."""
        if not self._start <= at < self._start + len(self._data):
            return NO_RUN
        return intact_run(self._data, at - self._start, at, most)


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


def _next_block(window: _Window, start: int, end: int) -> tuple[int | None, bool]:
    """Return where the next block's intact header or end mark is, behind `start` and before `end`,
    and whether nothing but zeros lies from `start` on."""
    is_zero = not any(window.bytes_at(start, ALIGNMENT))
    at = start + ALIGNMENT
    while at < end:
        chunk = window.bytes_at(at, _WINDOW_BYTES)
        # The room that a segment has left, up to a gigabyte of it, is passed over by this alone.
        if np.frombuffer(chunk, np.uint8).any():
            is_zero = False
            for place in _claims(chunk, at):
                if _begins(window.segment, place):
                    return place, False
        # What lies across the border of two chunks is seen whole in the second.
        at += max(len(chunk) - HEADER_SIZE, ALIGNMENT) & -ALIGNMENT
    return None, is_zero


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
