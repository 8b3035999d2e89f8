"""Verify the state of groups with leases: every row of their cursors, and their offsets.

While a broker runs, the cursors are read before the log, so that the log contains every message
that the cursors record as settled.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.backup import source
from holdfast.check.report import CheckReport
from holdfast.consumequeue.lmdb_env.env import CORRUPT
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.cursor.cursor import CursorKey
from holdfast.groups.cursor.rows import StoredCursor
from holdfast.groups.cursor.settled_offsets import CHUNK
from holdfast.groups.storage.cursor_store import CursorsCorrupt, CursorStore
from holdfast.groups.storage.group_table import GroupTable
from holdfast.groups.storage.restore import StoredCursors

_WHERE = "state/groups"
_AGAIN = "groups continue from their stored offsets; later settled messages are redelivered"
_AUTOMATIC = "nothing to do: the broker does it at its next start"


Cursors = StoredCursors | Exception | None
"""The rows of all cursors, or the error that made all of them unreadable, or None if there are no
cursors."""


def stopped_cursors(directory: Path) -> Cursors:
    """Read the rows in `directory`, which no process has open. OSError propagates."""
    return _read(directory, _load_cursors)


def live_cursors(directory: Path) -> Cursors:
    """Read the rows in `directory`, to which a broker may be writing. OSError propagates."""
    return _read(directory, source.live_cursors)


def check_groups(
    found: Cursors,
    groups: GroupTable,
    topics: TopicTable,
    ends: Mapping[QueueKey, int],
    report: CheckReport,
) -> None:
    """Check the rows and add findings to the report. `ends` has the end offset of each queue."""
    if found is None:
        if len(groups):
            report.note(_WHERE, f"missing; {_AGAIN}", "groups-missing", mend=_AUTOMATIC)
        return
    if isinstance(found, Exception):
        report.damage(_WHERE, f"{found}; {_AGAIN}", "groups-damaged", mend=_AUTOMATIC)
        return
    for damaged in found.damaged_cursors() | found.headless:
        what = (
            f"rows of {_name(damaged, groups, topics)} are damaged; the messages that they record "
            "as settled are delivered again"
        )
        report.damage(_WHERE, what, "groups-row", mend=_AUTOMATIC)
    _check_ends(found, groups, topics, ends, report)


def _read(directory: Path, read: Callable[[Path], StoredCursors]) -> Cursors:
    if not (directory / "data.mdb").exists():
        return None
    try:
        return read(directory)
    except (CursorsCorrupt, *CORRUPT) as error:
        return error


def _load_cursors(directory: Path) -> StoredCursors:
    size = (directory / "data.mdb").stat().st_size
    store = CursorStore(directory, size + 2**24, readonly=True)
    try:
        return store.load()
    finally:
        store.stop()


def _check_ends(
    found: StoredCursors,
    groups: GroupTable,
    topics: TopicTable,
    ends: Mapping[QueueKey, int],
    report: CheckReport,
) -> None:
    for key, stored in found.cursors.items():
        if groups.by_id(key[0]) is None or topics.by_id(key[1]) is None:
            continue  # deleted; the broker deletes its rows at the next start
        kept = topics.kept.get(key[1], {}).get(key[2], 0)
        end = max(ends.get(key[1:], 0), kept)
        if _settled_below(stored) > end:
            report.note(
                _WHERE,
                f"{_name(key, groups, topics)} has settled messages at or after offset {end}, "
                "where its queue ends: its position is reset, and its receipts become invalid",
                "groups-beyond-log",
                mend=_AUTOMATIC,
            )


def _settled_below(stored: StoredCursor) -> int:
    """Return the offset after all offsets whose state the cursor records."""
    chunks = (number * CHUNK + bits.bit_length() for number, bits in stored.chunks.items())
    return max([stored.row.floor, *chunks, *(at + 1 for at in stored.attempts)])


def _name(key: CursorKey | None, groups: GroupTable, topics: TopicTable) -> str:
    if key is None:
        return "an unknown cursor"
    group, topic = groups.by_id(key[0]), topics.by_id(key[1])
    return (
        f"group {group.name if group else key[0]} on queue {key[2]} of "
        f"{repr(topic.name) if topic else key[1]}"
    )
