"""Verify what groups with leases keep: every row of their cursors, and where those stand."""

from collections.abc import Mapping
from pathlib import Path

from holdfast.check.report import CheckReport
from holdfast.consumequeue.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.cursor_rows import StoredCursor
from holdfast.groups.cursor_store import CursorsCorrupt, CursorStore
from holdfast.groups.done_chunks import CHUNK
from holdfast.groups.group_table import GroupTable
from holdfast.groups.rows import CursorKey
from holdfast.groups.stored_cursors import StoredCursors

_WHERE = "state/groups"
_AGAIN = "groups go on from their stored offsets, what they settled beyond those comes again"
_BY_ITSELF = "nothing to do: the broker does it at its next start"


def check_groups(
    directory: Path,
    groups: GroupTable,
    topics: TopicTable,
    ends: Mapping[QueueKey, int],
    report: CheckReport,
) -> None:
    """Check the rows in `directory`, which nobody has open; `ends` says where queues end. OSError
    passes through, findings are in the report."""
    if not (directory / "data.mdb").exists():
        if len(groups):
            report.note(_WHERE, f"missing; {_AGAIN}", "groups-missing", mend=_BY_ITSELF)
        return
    try:
        size = (directory / "data.mdb").stat().st_size
        store = CursorStore(directory, size + 2**24, readonly=True)
        try:
            found = store.load()
        finally:
            store.stop()
    except CursorsCorrupt as error:
        report.damage(_WHERE, f"{error}; {_AGAIN}", "groups-damaged", mend=_BY_ITSELF)
        return
    for damaged in found.damaged_cursors() | found.headless:
        what = f"rows of {_name(damaged, groups, topics)} are damaged; what they said was settled"
        report.damage(_WHERE, f"{what} comes again", "groups-row", mend=_BY_ITSELF)
    _check_ends(found, groups, topics, ends, report)


def _check_ends(
    found: StoredCursors,
    groups: GroupTable,
    topics: TopicTable,
    ends: Mapping[QueueKey, int],
    report: CheckReport,
) -> None:
    for key, stored in found.cursors.items():
        if groups.by_id(key[0]) is None or topics.by_id(key[1]) is None:
            continue  # it is gone, and its rows go at the next start
        kept = topics.kept.get(key[1], {}).get(key[2], 0)
        end = max(ends.get(key[1:], 0), kept)
        if _settled_below(stored) > end:
            report.note(
                _WHERE,
                f"{_name(key, groups, topics)} has settled messages beyond offset {end}, where "
                "its queue ends: it is set back, and its receipts are void",
                "groups-beyond-log",
                mend=_BY_ITSELF,
            )


def _settled_below(stored: StoredCursor) -> int:
    """Return the offset behind all that a cursor says anything of for certain."""
    chunks = (number * CHUNK + bits.bit_length() for number, bits in stored.chunks.items())
    return max([stored.row.floor, *chunks, *(at + 1 for at in stored.attempts)])


def _name(key: CursorKey | None, groups: GroupTable, topics: TopicTable) -> str:
    if key is None:
        return "a cursor of which no more is known"
    group, topic = groups.by_id(key[0]), topics.by_id(key[1])
    return (
        f"group {group.name if group else key[0]} on queue {key[2]} of "
        f"{repr(topic.name) if topic else key[1]}"
    )
