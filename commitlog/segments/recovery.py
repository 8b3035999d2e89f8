"""Find the end of the log when the broker starts, and cut a torn tail (an incomplete last write).
Nothing else is cut.

Recovery scans from the last offset that the index committed (the log up to there was synced before
that commit) to the end of the last segment. If it finds damage, it must decide whether the damaged
bytes were ever durable. Every block records the durable offset at the time of its append. So one
intact block later in the log can prove that earlier damage is corruption and not a torn write:

    damage that a later block proves durable      corruption: kept, reported, never served
    damage without such a proof                   a torn tail: cut, with everything after it
    a missing segment file, without such a proof  no crash causes it: the files after it are
                                                  left as they are, and reported
"""

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from holdfast.commitlog.errors import MISSING_SEGMENT, CorruptBatch
from holdfast.commitlog.format.header_table import Run, block_ends, run_of
from holdfast.commitlog.format.segment_format import END_MARK_SIZE
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.footer import block_header, read_footer
from holdfast.commitlog.segments.log_scan import Damage, scan_runs
from holdfast.commitlog.segments.segment import Segment, read_trailer

_logger = logging.getLogger(__name__)
_ZEROS = bytes(1024 * 1024)


class RecoveryResult(msgspec.Struct):
    """The result of a recovery."""

    written_offset: int
    """Physical offset of the next block; all bytes below this offset are synced."""
    blocks: int = 0
    bytes: int = 0
    last_timestamp_us: int = 0
    cut_bytes: int = 0
    """Number of bytes of a torn tail that were cut."""
    left_out: list[Path] = msgspec.field(default_factory=list)
    """Segment files at the end of the log that follow a missing file. A crash cannot remove a
    file, so the files after it are not cut."""
    damage: list[Damage] = msgspec.field(default_factory=list)
    """Corruption: bytes that were durable and are unreadable now. If a damaged block has an intact
    header, or the segment's footer lists the block, `on_blocks` gets this block too. So its queue
    keeps the offsets, and a pull that starts at these offsets gets an error."""


def recover(
    log: CommitLog,
    *,
    from_offset: int,
    from_counts: tuple[int, int, int],
    on_blocks: Callable[[Run], None],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> RecoveryResult:
    """Scan the opened log from `from_offset`, and make it ready for appends.

    `from_counts` has three numbers: the start offset of the segment that contains `from_offset`,
    and how many blocks and how many keyed messages are before `from_offset` in that segment.
    `on_blocks` gets all blocks in log order, in runs of at most 65,536 blocks, as soon as it is
    certain that recovery does not cut them. `progress` gets (bytes done, bytes in total), once for
    each run. OSError propagates.
    """
    # The writes of a killed process may be only in the page cache. Sync them first: data that
    # is derived from a block must not survive a power failure that loses the block.
    for segment in log.segments:
        if segment.end_offset > from_offset:
            segment.sync()
    for segment in log.segments:
        if segment.start_offset == from_counts[0]:
            segment.block_count, segment.key_count = from_counts[1:]
        segment.written = min(max(from_offset, segment.first_offset), segment.end_offset)
    scan = _Scan(log, from_offset, on_blocks)
    scan.scan_to_end(progress)
    result = scan.result
    result.left_out = scan.leave_out_after_missing()
    active = scan.unproven[0][0] if scan.unproven else None
    if scan.unproven:
        torn = scan.unproven[0][1]
        assert isinstance(torn, Damage)
        result.cut_bytes = _cut(log, torn.start)
        if result.cut_bytes:
            _logger.warning(
                "removed an incomplete tail of %d bytes at %d (%s), never acknowledged as durable",
                result.cut_bytes,
                torn.start,
                torn.reason,
            )
    scanned = [segment for segment in log.segments if segment.end_offset > from_offset]
    _mark_ended_segments(log, active)
    _write_again(log, scan.durable)
    # `scanned` includes the prepared segment: bytes that were cut in it must not reappear.
    for segment in scanned:
        segment.sync()
    result.written_offset = max(result.written_offset, log.written_offset)
    return result


class _Scan:
    """The scan of the log. `durable` is the offset below which all bytes are proven durable."""

    def __init__(self, log: CommitLog, from_offset: int, on_blocks: Callable[[Run], None]) -> None:
        self._log = log
        self._from_offset = from_offset
        self._on_blocks = on_blocks
        self.result = RecoveryResult(written_offset=from_offset)
        self.durable = from_offset
        #: Damage waits here, with everything after it, until a later block proves that the damaged
        #: bytes were durable.
        self.unproven: deque[tuple[Segment, Damage | Run]] = deque()

    def scan_to_end(self, progress: Callable[[int, int], None]) -> None:
        start, segments = self._from_offset, self._log.segments
        total = max((segment.end_offset for segment in segments), default=0) - start
        for segment, found in scan_runs(segments, start):
            if not isinstance(found, Damage):
                self.durable = max(self.durable, int(found.headers["durable_offset"].max()))
                progress(int(found.headers["physical_offset"][-1]) - start, total)
            elif found.header is not None:
                self.durable = max(self.durable, found.header.durable_offset)
                progress(found.header.physical_offset - start, total)
            self.unproven.append((segment, found))
            self._accept_proven()

    def leave_out_after_missing(self) -> list[Path]:
        """If a segment file is missing and not proven durable, remove the segments after it from
        the log. Return their paths. A crash cannot have lost the missing file: its name was
        durable before the next segment was created."""
        for index, (following, found) in enumerate(self.unproven):
            if isinstance(found, Damage) and found.reason == MISSING_SEGMENT:
                self.unproven = deque(list(self.unproven)[:index])
                return self._log.leave_out(following)
        return []

    def _accept_proven(self) -> None:
        while self.unproven:
            segment, found = self.unproven[0]
            if not isinstance(found, Damage):
                self._accept(segment, found)
            elif found.start < self.durable:
                for piece in split_damage(segment, found):
                    self.result.damage.append(piece)
                    if piece.header is not None:
                        self._accept(segment, run_of(piece.header))
                # Kept damage is never overwritten.
                segment.written = max(segment.written, found.end)
            else:
                return
            self.unproven.popleft()

    def _accept(self, segment: Segment, run: Run) -> None:
        headers, result = run.headers, self.result
        segment.count_all(headers)
        result.written_offset = int(block_ends(headers)[-1])
        result.blocks += len(headers)
        result.bytes += int(headers["total_size"].sum(dtype=np.int64))
        newest_us = int(headers["store_timestamp_us"].max())
        result.last_timestamp_us = max(result.last_timestamp_us, newest_us)
        self._on_blocks(run)


def split_damage(segment: Segment, damage: Damage) -> list[Damage]:
    """If headers are damaged but the segment's footer lists their blocks, return one Damage for
    each of these blocks, so that their queues keep the offsets. Otherwise return [damage]."""
    tables = read_footer(segment) if damage.header is None else None
    if tables is None:
        return [damage]
    blocks = tables[0]
    inside = (blocks["physical_offset"] >= damage.start) & (blocks["physical_offset"] < damage.end)
    headers = [block_header(row) for row in np.sort(blocks[inside], order="physical_offset")]
    return [
        Damage(header.physical_offset, header.end_physical_offset, damage.reason, header)
        for header in headers
    ] or [damage]


def _mark_ended_segments(log: CommitLog, active: Segment | None) -> None:
    """Mark the segments that take no more blocks: all except `active`. The segments after `active`
    are empty. `active` is None if the last segment has an end mark or ends in corruption."""
    if active is not None:
        log.end_at(active)
    for segment in log.segments:
        segment.ended = segment is not active
        segment.sealed = segment.ended and _has_footer(segment)


def _has_footer(segment: Segment) -> bool:
    try:
        return read_trailer(segment) is not None
    except CorruptBatch:
        return False


def _write_again(log: CommitLog, durable: int) -> None:
    """Write those bytes again that are not proven to be durable, so that the next sync really
    writes them to the disk. After a failed sync the kernel marks the pages as clean, although they
    are only in memory."""
    for segment in log.segments:
        at = max(durable, segment.first_offset)
        end = segment.written + (END_MARK_SIZE if segment.ended else 0)
        # A segment with a damaged tail is kept whole and has no end mark. A truncated file is
        # shorter than its header records.
        while at < end and (chunk := segment.read(at, min(len(_ZEROS), end - at))):
            segment.file.write([chunk], at - segment.start_offset)
            at += len(chunk)


def _cut(log: CommitLog, offset: int) -> int:
    """Overwrite everything from `offset` on with zeros, so that no stale block can reappear after
    a new block. Return the number of bytes that were not zero before; zeros between them may be
    counted too."""
    cut = 0
    for segment in log.segments:
        if segment.end_offset <= offset:
            continue
        at = max(offset, segment.first_offset)
        end = segment.start_offset + segment.file.data_end(at - segment.start_offset)
        while at < end:
            chunk = segment.read(at, min(len(_ZEROS), end - at))
            if chunk != _ZEROS[: len(chunk)]:
                segment.file.write([_ZEROS[: len(chunk)]], at - segment.start_offset)
                cut += len(chunk.rstrip(b"\0"))
            at += max(len(chunk), 1)
    return cut
