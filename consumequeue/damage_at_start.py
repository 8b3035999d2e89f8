"""What an opening finds damaged: which messages the holes of the log cost, and which of those that
were lost at an earlier start can be read again. It blocks; nothing else runs yet."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from operator import attrgetter

from holdfast.commitlog.commit_log import CommitLog
from holdfast.commitlog.errors import MISSING_SEGMENT, CorruptRecord
from holdfast.commitlog.log_scan import Damage, scan_segment
from holdfast.commitlog.segment import Segment
from holdfast.consumequeue.consume_queue import ConsumeQueue
from holdfast.consumequeue.damage_book import DamageBook, Fault
from holdfast.consumequeue.index import Index
from holdfast.consumequeue.queue_lookup import PHYSICAL_OFFSET, first_unit_reaching, units_from
from holdfast.consumequeue.reader import verified
from holdfast.consumequeue.topics import STATE_TOPIC_ID, QueueKey

#: Bytes of blocks that are read again at a start, to see whether they are still damaged.
RECHECKED_BYTES = 64 * 1024 * 1024

_END = attrgetter("end_physical_offset")


def holes(log: CommitLog) -> Iterator[tuple[int, int, str]]:
    """Yield from where to where the log's files lack bytes, and why. What retention deleted is
    among it: no queue has messages there."""
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


def note_holes(
    log: CommitLog, index: Index, queues: Mapping[QueueKey, ConsumeQueue], book: DamageBook
) -> None:
    """Note the holes of the log, and the messages that the index has and that lay in them."""
    for start, end, reason in holes(log):
        if start:
            book.files.append(Fault(reason, f"the log lacks {start} to {end}"))
        for key, lost_start, lost_end in lost_between(index, queues, start, end):
            book.note_lost(key, lost_start, lost_end, reason)


def lost_between(
    index: Index, queues: Mapping[QueueKey, ConsumeQueue], start: int, end: int
) -> Iterator[tuple[QueueKey, int, int]]:
    """Yield each queue that has messages in a hole of the log, with their first offset and the one
    after them. The broker's own topic is passed over: what it notes is in the state too."""
    for key, cq in queues.items():
        if key[0] == STATE_TOPIC_ID:
            continue
        oldest = next(units_from(index, key, cq, cq.min_offset), None)
        if oldest is None or oldest.physical_offset >= end:
            continue  # so it is for every queue after retention: one look, no search
        first = first_unit_reaching(index, key, cq, _END, start + 1)
        if first is None or first.physical_offset >= end:
            continue
        after = first_unit_reaching(index, key, cq, PHYSICAL_OFFSET, end)
        lost_end = cq.max_offset if after is None else after.base_offset
        yield key, max(first.base_offset, cq.min_offset), lost_end


def note_damage(found: Damage, book: DamageBook) -> None:
    """Note what the walk of the log found: by its queue, where its header tells that."""
    header = found.header
    if header is None or header.topic_id == STATE_TOPIC_ID:
        book.note_damage(found.start, found.end, found.reason)
    else:
        key = (header.topic_id, header.queue_id)
        book.note_lost(key, header.base_offset, header.end_offset, found.reason)


def keep_ends(queues: dict[QueueKey, ConsumeQueue], book: DamageBook) -> None:
    """Let queues go on where they had ended, though the log lost their last messages: an offset
    that stood for one message never stands for another."""
    for key, ranges in book.lost.items():
        if ranges:
            cq = queues.setdefault(key, ConsumeQueue(None, 0, 0))
            cq.max_offset = max(cq.max_offset, ranges[-1].end_offset)


def recheck(
    log: CommitLog, index: Index, queues: Mapping[QueueKey, ConsumeQueue], book: DamageBook
) -> None:
    """Forget what was damaged at an earlier start and is not any more: a file was put back."""
    for start, (end, _) in list(book.damage.items()):
        segment = log.segment_at(start)
        if end <= log.min_offset or (segment is not None and _is_block(segment, start)):
            book.forget_damage(start)
    left = RECHECKED_BYTES
    for key, ranges in list(book.lost.items()):
        cq = queues.get(key)
        if cq is None:
            continue
        for each in ranges:
            at = max(each.start_offset, cq.min_offset)
            for unit in units_from(index, key, cq, at):
                if unit.base_offset >= each.end_offset or left <= 0:
                    break
                left -= unit.size
                try:
                    verified(log.read_batch(unit.physical_offset, unit.size), unit, key)
                except CorruptRecord as error:
                    if error.reason == MISSING_SEGMENT:
                        break
                else:
                    book.note_mended(key, unit.base_offset, unit.end_offset)


def _is_block(segment: Segment, start: int) -> bool:
    return not isinstance(next(scan_segment(segment, start), None), Damage)
