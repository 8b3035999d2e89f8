"""Scan the log's blocks from a physical offset on, and report damaged ranges.

After damage the scan continues at the next intact header or end mark that records the physical
offset where it was found. The scan does not look for headers in the payload of an intact header,
because a body may contain any bytes, even a copy of a block. Recovery, sealing and `holdfast check`
use this module. It only reads; any thread may call it.

`scan_log` yields blocks. `scan_runs` is faster for large logs: it verifies thousands of blocks at
once and yields tables of their headers. Both find the same damage, because both use the same code
for every block that is not certainly intact.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from holdfast.commitlog.errors import MISSING_SEGMENT, CorruptBatch, UnknownFormatVersion
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import with_requests
from holdfast.commitlog.format.batch_header import (
    ALIGNMENT,
    HEADER_SIZE,
    MAGIC,
    BatchHeader,
    Buffer,
)
from holdfast.commitlog.format.header_table import NO_RUN, Run, block_ends, find_intact_run, run_of
from holdfast.commitlog.format.segment_format import (
    END_MARK_MAGIC,
    END_MARK_SIZE,
    TRAILER_SIZE,
    is_end_mark,
)
from holdfast.commitlog.segments.segment import Segment

#: A scan reads at least this many bytes at once.
_WINDOW_BYTES = 4 * 1024 * 1024
#: `scan_headers` reads at least this many bytes at once. It skips most payloads.
_HEADERS_WINDOW_BYTES = 16 * 1024
#: The most blocks in the first run after damage; each further run may have twice as many. With
#: long runs only, many damaged blocks close together would cause the headers after them to be
#: verified again and again.
_SHORT_RUN = 64
#: The most blocks in any run.
_LONG_RUN = 65_536

_T = TypeVar("_T")

#: The magic of a block and of an end mark, and the byte where each has its physical offset.
_SIGNS = ((MAGIC, 24), (END_MARK_MAGIC, 8))


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged range: the physical offsets from `start` to before `end` contain no intact block.
    `reason` is a fixed word; "unwritten" means that the rest of the segment is zero. If only the
    payload of a block is damaged, `header` is the block's intact header."""

    start: int
    end: int
    reason: str
    header: BatchHeader | None = field(default=None, repr=False)


def scan_log(
    segments: Sequence[Segment], start_offset: int, *, verify_payload: bool = True
) -> Iterator[tuple[Segment, Batch | Damage]]:
    """Yield every block at or after `start_offset` in log order, and the damage between blocks.

    A segment's scan stops at its end mark, or else at the end of the file. The last item of the
    active segment, which has no end mark, is therefore a Damage; its reason is "unwritten" if the
    segment is intact.
    """
    scan = partial(scan_segment, verify_payload=verify_payload)
    return _over_segments(segments, start_offset, scan)


def scan_runs(
    segments: Sequence[Segment], start_offset: int
) -> Iterator[tuple[Segment, Run | Damage]]:
    """Do what `scan_log` does, but yield adjacent intact blocks together, as runs of at least one
    block. Payloads are verified."""
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
    while (found := _read_at(window, at, verify_payload=verify_payload)) is not None:
        yield found
        at = _end(found)


def scan_headers(
    segment: Segment, is_wanted: Callable[[BatchHeader], bool]
) -> Iterator[Batch | BatchHeader | Damage]:
    """Yield one segment's blocks and damage, as scan_log does. For a block that `is_wanted`
    rejects, yield only the header; its payload is neither read nor verified."""
    window = _Window(segment, _HEADERS_WINDOW_BYTES)
    at = segment.first_offset
    while (header := _header_or_damage(window, at)) is not None:
        found: Batch | BatchHeader | Damage = header
        if isinstance(header, BatchHeader) and (
            is_wanted(header) or header.end_physical_offset > segment.end_offset
        ):
            found = _decode(window, header, verify_payload=True)
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
        # There is damage at `at`, a block across the window's end, or the end of the blocks.
        found = _read_at(window, at, verify_payload=True)
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


def _read_at(window: "_Window", at: int, *, verify_payload: bool) -> Batch | Damage | None:
    """Return the block at physical offset `at`, or the damage that starts there. Return None at
    the end of the segment's blocks."""
    header = _header_or_damage(window, at)
    if header is None or isinstance(header, Damage):
        return header
    return _decode(window, header, verify_payload=verify_payload)


def _header_or_damage(window: "_Window", at: int) -> BatchHeader | Damage | None:
    """Return the intact header at physical offset `at`, or the damage that starts there. Return
    None at the end of the segment's blocks."""
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


def _decode(window: "_Window", header: BatchHeader, *, verify_payload: bool) -> Batch | Damage:
    """Return the block of an intact header, or a Damage if its payload is damaged."""
    at = header.physical_offset
    try:
        return Batch.decode(window.bytes_at(at, header.total_size), verify_payload=verify_payload)
    except CorruptBatch as error:
        end = min(header.end_physical_offset, window.segment.end_offset)
        return Damage(at, end, error.reason, header)


class _Window:
    """A part of a segment in memory, which moves forward with the scan."""

    def __init__(self, segment: Segment, least_bytes: int = _WINDOW_BYTES) -> None:
        """Each read has at least `least_bytes`, except at the segment's end."""
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
        """Return at most `most` adjacent intact blocks of the window, from this physical offset
        on. The file is not read."""
        if not self._start <= at < self._start + len(self._data):
            return NO_RUN
        return find_intact_run(self._data, at - self._start, at, most)


def _header_at(raw: Buffer, at: int) -> BatchHeader:
    """Return the intact header in `raw`, if its physical offset is `at`. Raise CorruptBatch
    otherwise. Raise UnknownFormatVersion only if the physical offset in the newer header is `at`:
    a body may contain headers with other offsets."""
    try:
        header = BatchHeader.decode(raw)
    except UnknownFormatVersion as error:
        if _find_claims(raw, at) == [at]:
            raise
        raise CorruptBatch("misplaced", f"it has another offset, and {error}") from error
    if header.physical_offset != at:
        raise CorruptBatch("misplaced", f"its header has offset {header.physical_offset}")
    return header


def _next_block(window: _Window, start: int, end: int) -> tuple[int | None, bool]:
    """Return two values: the place of the next intact header or end mark after `start` and before
    `end`, or None; and whether all bytes from `start` to `end` are zero."""
    is_zero = not any(window.bytes_at(start, ALIGNMENT))
    at = start + ALIGNMENT
    while at < end:
        chunk = window.bytes_at(at, _WINDOW_BYTES)
        # This test alone skips a segment's unused room, which may be up to a gigabyte.
        if np.frombuffer(chunk, np.uint8).any():
            is_zero = False
            for place in _find_claims(chunk, at):
                if _is_block_or_mark(window.segment, place):
                    return place, False
        # Chunks overlap, so the second chunk contains a whole header at the border.
        at += max(len(chunk) - HEADER_SIZE, ALIGNMENT) & -ALIGNMENT
    return None, is_zero


def _find_claims(chunk: Buffer, at: int) -> list[int]:
    """Return the physical offsets in `chunk` where a block or an end mark seems to start: the bytes
    have its magic and record this physical offset. `chunk` starts at `at`. This test is fast on
    random bytes."""
    words = np.frombuffer(chunk[: len(chunk) & -ALIGNMENT], "<u8")
    places = at + ALIGNMENT * np.arange(len(words), dtype=np.uint64)
    found = np.zeros(len(words), np.bool_)
    for magic, offset_at in _SIGNS:
        ahead = offset_at // ALIGNMENT
        count = max(len(words) - ahead, 0)
        begins = words[:count].astype(np.uint32) == int.from_bytes(magic, "little")
        found[:count] |= begins & (words[ahead:] == places[:count])
    return [int(place) for place in places[found]]


def _is_block_or_mark(segment: Segment, at: int) -> bool:
    """Return whether an end mark or an intact header is at `at`; payloads are not verified."""
    if is_end_mark(segment.read(at, END_MARK_SIZE), at):
        return True
    try:
        _header_at(segment.read(at, HEADER_SIZE), at)
    except CorruptBatch:
        return False
    return True
