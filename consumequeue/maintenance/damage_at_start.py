"""Find damage when the broker opens the data directory: messages that are lost because the log has
holes, and messages that an earlier start found lost and that can be read again. These functions
block; nothing else runs yet."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from operator import attrgetter

import msgspec

from holdfast.commitlog.errors import MISSING_SEGMENT, CorruptRecord
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.log_scan import Damage, scan_runs, scan_segment
from holdfast.commitlog.segments.recovery import split_damage
from holdfast.commitlog.segments.segment import Segment
from holdfast.consumequeue.damage.damage_book import DamageBook, Fault
from holdfast.consumequeue.index.consume_queue import ConsumeQueue
from holdfast.consumequeue.index.index import Index
from holdfast.consumequeue.index.queue_lookup import (
    PHYSICAL_OFFSET,
    first_unit_reaching,
    units_from,
)
from holdfast.consumequeue.reading.reader import verified
from holdfast.consumequeue.topics import STATE_TOPIC_ID, QueueKey

#: A start reads at most this many bytes of damaged blocks again, in case a file was restored.
RECHECKED_BYTES = 64 * 1024 * 1024

#: Every start reads this many bytes before the index's position again.
CHECKED_BYTES = 16 * 1024 * 1024

_END = attrgetter("end_physical_offset")


def holes(log: CommitLog) -> Iterator[tuple[int, int, str]]:
    """Yield the holes of the log: ranges of physical offsets that no file contains, as (start, end,
    reason). The part that retention deleted is also a hole; no queue has messages there."""
    segments = log.segments
    if segments and segments[0].start_offset:
        yield 0, segments[0].start_offset, MISSING_SEGMENT
    for before, after in pairwise(segments):
        if before.end_offset < after.start_offset:
            yield before.end_offset, after.start_offset, MISSING_SEGMENT
    for segment in segments:
        size = segment.file.size()
        if size < segment.size:
            yield segment.start_offset + size, segment.end_offset, "truncated-segment"


def lost_between(
    index: Index, queues: Mapping[QueueKey, ConsumeQueue], start: int, end: int
) -> Iterator[tuple[QueueKey, int, int]]:
    """Yield each queue that has messages in a hole of the log, with their first offset and the
    offset after them. Leave out the broker's own topic, because the state has its content, too."""
    for key, cq in queues.items():
        if key[0] == STATE_TOPIC_ID:
            continue
        oldest = next(units_from(index, key, cq, cq.min_offset), None)
        if oldest is None or oldest.physical_offset >= end:
            continue  # a shortcut: in the hole that retention left, no queue has messages
        first = first_unit_reaching(index, key, cq, _END, start + 1)
        if first is None or first.physical_offset >= end:
            continue
        after = first_unit_reaching(index, key, cq, PHYSICAL_OFFSET, end)
        lost_end = cq.max_offset if after is None else after.base_offset
        yield key, max(first.base_offset, cq.min_offset), lost_end


def note_damage(found: Damage, book: DamageBook) -> None:
    """Record damage that a scan of the log found. If the header of the block is intact, record the
    lost offsets of its queue; otherwise record the place in the log."""
    header = found.header
    if header is None or header.topic_id == STATE_TOPIC_ID:
        book.note_damage(found.start, found.end, found.reason)
    else:
        key = (header.topic_id, header.queue_id)
        book.record_lost(key, header.base_offset, header.end_offset, found.reason)


def keep_ends(queues: dict[QueueKey, ConsumeQueue], book: DamageBook) -> None:
    """Let queues continue at their old ends even if the log lost their last messages, because an
    offset is never given to a second message."""
    for key, ranges in book.lost.items():
        if ranges:
            cq = queues.setdefault(key, ConsumeQueue(None, 0, 0))
            cq.max_offset = max(cq.max_offset, ranges[-1].end_offset)


class StartCheck(msgspec.Struct, frozen=True):
    """Compares the log with the index at a start, and records the damage in `book`."""

    log: CommitLog
    index: Index
    queues: Mapping[QueueKey, ConsumeQueue]
    book: DamageBook

    def note_holes(self) -> None:
        """Record the holes of the log, and the indexed messages whose blocks were in a hole."""
        for start, end, reason in holes(self.log):
            if start:
                self.book.files.append(Fault(reason, f"the log lacks {start} to {end}"))
            self._note_lost_between(start, end, reason)

    def note_lost_end(self, position: int) -> None:
        """Read the last CHECKED_BYTES before the index's position, which recovery does not scan.
        Record the messages that were lost there since the last stop, because a disk may have
        dropped synced data, or the log may be an older copy. Raises UnknownFormatVersion."""
        at = self._block_before(position - CHECKED_BYTES)
        if at is None:
            return
        for segment, found in scan_runs(self.log.segments, at):
            if not isinstance(found, Damage):
                if int(found.headers["physical_offset"][-1]) >= position:
                    return
                continue
            if found.start >= position:
                return
            if found.reason == MISSING_SEGMENT:
                continue  # `note_holes` recorded it
            for piece in split_damage(segment, found):
                if piece.header is not None and piece.start < position:
                    note_damage(piece, self.book)
                elif piece.start < position:
                    end = min(piece.end, position)
                    reason = "missing-block" if piece.reason == "unwritten" else piece.reason
                    if not self._note_lost_between(piece.start, end, reason):
                        self.book.note_damage(piece.start, end, reason)

    def recheck(self) -> None:
        """Forget damage that an earlier start found, if the place or the messages can be read now
        because a file was restored."""
        log = self.log
        for start, (end, _) in list(self.book.damage.items()):
            segment = log.segment_at(start)
            if end <= log.min_offset or (segment is not None and _is_block(segment, start)):
                self.book.forget_damage(start)
        left = RECHECKED_BYTES
        for key, ranges in list(self.book.lost.items()):
            cq = self.queues.get(key)
            if cq is None:
                continue
            for each in ranges:
                at = max(each.start_offset, cq.min_offset)
                for unit in units_from(self.index, key, cq, at):
                    if unit.base_offset >= each.end_offset or left <= 0:
                        break
                    left -= unit.size
                    try:
                        verified(log.read_batch(unit.physical_offset, unit.size), unit, key)
                    except CorruptRecord as error:
                        if error.reason == MISSING_SEGMENT:
                            break
                    else:
                        self.book.record_readable(key, unit.base_offset, unit.end_offset)

    def _note_lost_between(self, start: int, end: int, reason: str) -> bool:
        """Record the messages in a range of the log as lost; return whether there are any."""
        lost = list(lost_between(self.index, self.queues, start, end))
        for key, lost_start, lost_end in lost:
            self.book.record_lost(key, lost_start, lost_end, reason)
        return bool(lost)

    def _block_before(self, floor: int) -> int | None:
        """Return the physical offset of the first block at or after `floor`, or the start of the
        log if `floor` is before it. Return None if no queue has such a block."""
        if floor <= self.log.min_offset:
            return self.log.min_offset
        found: list[int] = []
        for key, cq in self.queues.items():
            if cq.newest is not None and cq.newest.physical_offset >= floor:
                unit = first_unit_reaching(self.index, key, cq, PHYSICAL_OFFSET, floor)
                if unit is not None:
                    found.append(unit.physical_offset)
        return min(found, default=None)


def _is_block(segment: Segment, start: int) -> bool:
    return not isinstance(next(scan_segment(segment, start), None), Damage)
