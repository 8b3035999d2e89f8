"""Find the end of the log after a start, cut a torn tail, and never more than that.

The walk begins at the last position that the index committed, which was synced by then, and
goes over all later segments. Where it meets bytes that are no block, the question is whether
they were ever durable. Every block says how far the log was durable when it was appended, so a
single intact block later in the log can prove that a hole before it is rot and not a crash:

    damage, and something proves it was durable   corruption: kept, reported, never served
    damage with no such proof                     a torn tail: cut, with all that follows it
    files behind a hole, with no such proof       not of a crash: left as they are, and reported
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from holdfast.commitlog.commit_log import CommitLog, block_header
from holdfast.commitlog.errors import MISSING_SEGMENT, CorruptBatch
from holdfast.commitlog.header_table import Run, block_ends, run_of
from holdfast.commitlog.log_scan import Damage, scan_runs
from holdfast.commitlog.segment import Segment, read_trailer
from holdfast.commitlog.segment_format import END_MARK_SIZE

_logger = logging.getLogger(__name__)
_ZEROS = bytes(1024 * 1024)


@dataclass(slots=True)
class Recovered:
    """What recovery found and did."""

    written_offset: int
    """Where the next block goes; all below is synced."""
    blocks: int = 0
    bytes: int = 0
    last_timestamp_us: int = 0
    cut_bytes: int = 0
    """Bytes of a torn tail that were cut."""
    left_out: list[Path] = field(default_factory=list)
    """Files behind a hole at the end of the log: no crash leaves one, so they are not cut."""
    damage: list[Damage] = field(default_factory=list)
    """What is corrupt: durable once, unreadable now. Where its header is intact, or known from
    the segment's footer, `on_blocks` got it too: its queue keeps the offsets, and a pull that
    begins there is told."""


def recover(
    log: CommitLog,
    *,
    from_offset: int,
    from_counts: tuple[int, int, int],
    on_blocks: Callable[[Run], None],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Recovered:
    """Walk the opened log from `from_offset`, leave it ready to be appended to.

    `from_counts` is (start offset of the segment of `from_offset`, blocks, keyed messages in it
    before that position). `on_blocks` gets all blocks in log order, when it is certain that they
    stay, in runs of some thousands. `progress` gets bytes done and in all,
    as often. OSError passes through.
    """
    result = Recovered(written_offset=from_offset)
    # What a killed process wrote is in the page cache; nothing that is built on a block before
    # this ends may outlive the block.
    for segment in log.segments:
        if segment.end_offset > from_offset:
            segment.sync()
    total = max((segment.end_offset for segment in log.segments), default=0) - from_offset
    durable = from_offset
    for segment in log.segments:
        if segment.start_offset == from_counts[0]:
            segment.block_count, segment.key_count = from_counts[1:]
        segment.written = min(max(from_offset, segment.first_offset), segment.end_offset)

    def accept(segment: Segment, run: Run) -> None:
        headers = run.headers
        segment.count_all(headers)
        result.written_offset = int(block_ends(headers)[-1])
        result.blocks += len(headers)
        result.bytes += int(headers["total_size"].sum(dtype=np.int64))
        newest_us = int(headers["store_timestamp_us"].max())
        result.last_timestamp_us = max(result.last_timestamp_us, newest_us)
        on_blocks(run)

    # From the first damage on, what is found waits here until it is proven durable.
    unproven: deque[tuple[Segment, Damage | Run]] = deque()

    def settle() -> None:
        while unproven:
            segment, found = unproven[0]
            if not isinstance(found, Damage):
                accept(segment, found)
            elif found.start < durable:
                for piece in pieces(log, segment, found):
                    result.damage.append(piece)
                    if piece.header is not None:
                        accept(segment, run_of(piece.header))
                # It is kept: nothing is written over it.
                segment.written = max(segment.written, found.end)
            else:
                return
            unproven.popleft()

    for segment, found in scan_runs(log.segments, from_offset):
        if not isinstance(found, Damage):
            durable = max(durable, int(found.headers["durable_offset"].max()))
            progress(int(found.headers["physical_offset"][-1]) - from_offset, total)
        elif found.header is not None:
            durable = max(durable, found.header.durable_offset)
            progress(found.header.physical_offset - from_offset, total)
        unproven.append((segment, found))
        settle()
    for index, (behind, unsure) in enumerate(unproven):
        if isinstance(unsure, Damage) and unsure.reason == MISSING_SEGMENT:
            # The name of each segment was durable before the next one was made.
            result.left_out = log.leave_out(behind)
            unproven = deque(list(unproven)[:index])
            break
    active = unproven[0][0] if unproven else None
    if unproven:
        torn = unproven[0][1]
        assert isinstance(torn, Damage)
        result.cut_bytes = _cut(log, torn.start)
        if result.cut_bytes:
            _logger.warning(
                "cut a torn tail of %d bytes at %d (%s), never acknowledged as durable",
                result.cut_bytes,
                torn.start,
                torn.reason,
            )
    walked = [segment for segment in log.segments if segment.end_offset > from_offset]
    _settle_segments(log, active)
    _write_again(log, durable)
    # Also what is set aside as the prepared segment: what was cut must not come back there.
    for segment in walked:
        segment.sync()
    result.written_offset = max(result.written_offset, log.written_offset)
    return result


def pieces(log: CommitLog, segment: Segment, damage: Damage) -> list[Damage]:
    """Return damage block by block, where the segment's footer still lists the blocks that are
    no longer to be known by their headers: their queues keep the offsets."""
    tables = log.footer(segment) if damage.header is None else None
    if tables is None:
        return [damage]
    blocks = tables[0]
    inside = (blocks["physical_offset"] >= damage.start) & (blocks["physical_offset"] < damage.end)
    headers = [block_header(row) for row in np.sort(blocks[inside], order="physical_offset")]
    return [
        Damage(header.physical_offset, header.end_physical_offset, damage.reason, header)
        for header in headers
    ] or [damage]


def _settle_segments(log: CommitLog, active: Segment | None) -> None:
    """Mark which segments take no more blocks. Those after `active`, where the log goes on,
    are empty; None: the last segment met its end mark, or ends in corruption."""
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
    """Write what is not proven durable once more, so that the sync to come means it: after a
    failed sync the kernel counts the pages as clean, though they are nowhere but in memory."""
    for segment in log.segments:
        at = max(durable, segment.first_offset)
        end = segment.written + (END_MARK_SIZE if segment.ended else 0)
        # Of a segment whose tail is damaged all is kept, and there is no end mark; a file that
        # was cut short has less than its header says.
        while at < end and (chunk := segment.read(at, min(len(_ZEROS), end - at))):
            segment.file.write([chunk], at - segment.start_offset)
            at += len(chunk)


def _cut(log: CommitLog, offset: int) -> int:
    """Zero everything from `offset` on, so that no stale block can come back to life behind a
    new one; return how many bytes were not zero already, counted by extents."""
    cut = 0
    for segment in log.segments:
        if segment.end_offset <= offset:
            continue
        at = max(offset, segment.first_offset)
        end = segment.start_offset + segment.file.data_end(at - segment.start_offset)
        while at < end:
            chunk = segment.read(at, min(len(_ZEROS), end - at))
            if chunk.count(0) != len(chunk):
                segment.file.write([_ZEROS[: len(chunk)]], at - segment.start_offset)
                cut += len(chunk.rstrip(b"\0"))
            at += max(len(chunk), 1)
    return cut
