"""The cursors of all groups at a start: from rows, page and log. Pure.

A cursor that has no rows, or whose `cur` row is damaged, begins at the group's stored offset,
which mirrors its floor, else at the begin of its queue: what it had settled beyond that is
delivered again, under an epoch that no receipt of before has.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.groups.cursor import Cursor
from holdfast.groups.cursor_rows import Page, StoredCursor, restore, take_writes
from holdfast.groups.group_records import GroupRecord
from holdfast.groups.rows import CursorKey, DeleteRange, Write, all_of, key_prefix
from holdfast.groups.stored_cursors import StoredCursors

#: 2020-01-01, from which on new epochs count seconds: enough for u32 until 2156.
_EPOCHS_BEGIN_MS = 1_577_836_800_000


@dataclass(frozen=True, slots=True)
class QueueRange:
    """What a queue has, as it was recovered."""

    log_start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Known:
    """What is known at a start, of which cursors are made."""

    boot: int
    now_ms: int
    pages: Mapping[CursorKey, Page]
    #: Whether the pages say what was last, or only what was true once.
    are_pages_believed: bool
    #: Whether the rows are a backup's: other messages may have had these offsets since.
    is_copy: bool
    topic: Callable[[int], Topic | None]
    queue_range: Callable[[QueueKey], QueueRange]
    #: A group's stored offsets on a topic, by queue.
    stored_offsets: Callable[[str, int], Mapping[int, int]]


@dataclass(slots=True)
class Restored:
    """Every cursor of every group, and what is to be written before anything is delivered."""

    cursors: dict[CursorKey, Cursor] = field(default_factory=dict)
    writes: list[Write | DeleteRange] = field(default_factory=list)
    #: What was damaged, in sentences.
    notes: list[str] = field(default_factory=list)

    def written(self) -> None:
        """Note that the writes are durable."""
        for cursor in self.cursors.values():
            cursor.reserved_durable = cursor.reserved_next


def restore_cursors(groups: Iterable[GroupRecord], found: StoredCursors, known: Known) -> Restored:
    """Return the cursors of all queues that the groups have; rows of others are deleted."""
    restored = Restored()
    owners = _owners(groups, known)
    for key in sorted((found.cursors.keys() | found.headless) - owners.keys()):
        restored.writes += all_of(*key)
    for key, (group, topic) in owners.items():
        stored = found.cursors.get(key)
        if key in found.headless:
            restored.writes += all_of(*key)
        if stored is None:
            cursor = _begun_anew(key, group, topic, known)
        else:
            cursor = _restored(key, stored, group, topic, known)
        restored.cursors[key] = cursor
        restored.writes += take_writes(cursor, key_prefix(*key))
    for damaged in found.damaged_cursors():
        restored.notes.append(_sentence(damaged, owners, restored))
    return restored


def _owners(
    groups: Iterable[GroupRecord], known: Known
) -> dict[CursorKey, tuple[GroupRecord, Topic]]:
    owners = {}
    for group in groups:
        for topic_id in group.topics:
            topic = known.topic(topic_id)
            for queue in range(0 if topic is None else topic.queue_count):
                assert topic is not None
                owners[group.group_id, topic_id, queue] = group, topic
    return owners


def _restored(
    key: CursorKey, stored: StoredCursor, group: GroupRecord, topic: Topic, known: Known
) -> Cursor:
    within = known.queue_range(key[1:])
    page = known.pages.get(key)
    # A page is true of its moment at least: what it has seen beyond the end is lost.
    was_seen = page is not None and page.epoch == stored.row.epoch and page.next > within.end
    # In written mode what was delivered may be lost, and its offsets be used again.
    may_be_cut = topic.config.durability == "written" and not known.are_pages_believed
    cursor = restore(
        stored,
        boot=known.boot,
        end=within.end,
        log_start=within.log_start,
        now_ms=known.now_ms,
        longest_lease_ms=group.config.longest_lease_ms,
        most_failures=group.config.max_attempts,
        page=page if known.are_pages_believed else None,
        is_log_cut=was_seen or may_be_cut or known.is_copy,
    )
    if cursor.epoch != stored.row.epoch:
        cursor.epoch = max(cursor.epoch, new_epoch(known.now_ms))
    return cursor


def _begun_anew(key: CursorKey, group: GroupRecord, topic: Topic, known: Known) -> Cursor:
    within = known.queue_range(key[1:])
    offset = known.stored_offsets(group.name, topic.topic_id).get(key[2], within.log_start)
    cursor = begin_cursor(known.boot, known.now_ms, within, offset)
    cursor.seen_below = cursor.end  # nobody knows what was delivered
    return cursor


def _sentence(
    key: CursorKey | None,
    owners: Mapping[CursorKey, tuple[GroupRecord, Topic]],
    restored: Restored,
) -> str:
    if key is None or key not in owners:
        return "a row of a cursor that no group has any more is damaged: it is gone"
    group, topic = owners[key]
    return (
        f"rows of group {group.name} on queue {key[2]} of {topic.name!r} are damaged: messages "
        f"from offset {restored.cursors[key].floor} on that were settled may be delivered again"
    )


def new_epoch(now_ms: int) -> int:
    """Return an epoch that no cursor before this second began with."""
    return max((now_ms - _EPOCHS_BEGIN_MS) // 1000, 1)


def begin_cursor(boot: int, now_ms: int, known: QueueRange, offset: int) -> Cursor:
    """Return a new cursor at an offset, or where the queue begins or ends if that lies outside.
    It is to be written (`take_writes`) before anything is delivered."""
    floor = max(min(offset, known.end), 0)
    cursor = Cursor(boot=boot, floor=floor, end=known.end, epoch=new_epoch(now_ms))
    cursor.trim(known.log_start)
    cursor.changes.is_cursor_dirty = True
    return cursor
