"""Opens what groups with leases keep in a data directory, once its log is recovered. It blocks.

What is damaged as a whole is put aside; what is lost begins again from the stored offsets that
mirror it. So a start never fails for what the groups have, but for a disk that refuses to write.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.consumequeue.consume_queue import ConsumeQueue
from holdfast.consumequeue.state_store import set_aside
from holdfast.consumequeue.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.config import GroupsConfig
from holdfast.groups.cursor import Cursor
from holdfast.groups.cursor_rows import page_of
from holdfast.groups.cursor_store import CursorsCorrupt, CursorStore
from holdfast.groups.group_table import GroupTable
from holdfast.groups.progress_page import ProgressPage
from holdfast.groups.restoring import Known, QueueRange, restore_cursors
from holdfast.groups.rows import CursorKey
from holdfast.groups.stored_cursors import StoredCursors

_logger = logging.getLogger(__name__)

#: Where they are in `state/` and beside it.
DIRECTORY, PAGE = "groups", "groups.page"


@dataclass(slots=True)
class OpenedGroups:
    """All that groups with leases have; the store's thread is not started yet."""

    store: CursorStore
    page: ProgressPage
    table: GroupTable
    cursors: dict[CursorKey, Cursor]
    """Of every group in the table, on every queue of its topics; written and noted."""
    faults: list[str]
    """What was damaged, in sentences."""
    opened_ms: int
    """The broker's time at the start: not before that of any change that was stored."""

    @property
    def boot(self) -> int:
        """How often a broker was started on these cursors, this time included."""
        return self.store.boot

    def close(self) -> None:
        """Store what waits and close everything: the page is whole then. May be called twice."""
        self.store.stop()
        self.page.close()


def open_groups(
    state_directory: Path,
    config: GroupsConfig,
    *,
    records: Mapping[bytes, bytes],
    topics: TopicTable,
    queues: Mapping[QueueKey, ConsumeQueue],
    boot_id: bytes,
    now_ms: int,
    disk_full: Callable[[], None] = lambda: None,
) -> OpenedGroups:
    """Open or create, restore every cursor within the log as it was recovered, and store them.

    StateFull, StateUnavailable, MalformedRecord, lmdb.Error and OSError pass through, with
    everything closed.
    """
    store, found, faults = _open_store(state_directory / DIRECTORY, config, now_ms, disk_full)
    page: ProgressPage | None = None
    try:
        page = ProgressPage(state_directory / PAGE, boot_id)
        table = GroupTable(records)
        now_ms = max(now_ms, store.clock_ms)

        def queue_range(key: QueueKey) -> QueueRange:
            cq = queues.get(key)
            return QueueRange() if cq is None else QueueRange(cq.min_offset, cq.max_offset)

        known = Known(
            boot=store.boot + 1,
            now_ms=now_ms,
            pages=page.found,
            are_pages_believed=page.is_believed,
            is_copy=store.is_copy,
            topic=topics.by_id,
            queue_range=queue_range,
            stored_offsets=lambda group, topic_id: topics.offsets(group, topic_id).offsets,
        )
        restored = restore_cursors(table.all(), found, known)
        if store.is_new and len(table):
            faults.append(
                "the cursors of groups are lost: groups go on from their stored offsets, what "
                "they settled beyond those is delivered again"
            )
        store.begin(restored.writes, found.damaged)
        restored.written()
        page.begin({key: page_of(cursor) for key, cursor in restored.cursors.items()})
    except BaseException:
        store.stop()
        if page is not None:
            page.close()
        raise
    return OpenedGroups(store, page, table, restored.cursors, faults + restored.notes, now_ms)


def _open_store(
    directory: Path, config: GroupsConfig, now_ms: int, disk_full: Callable[[], None]
) -> tuple[CursorStore, StoredCursors, list[str]]:
    """Open the store and read it; one that is damaged as a whole is put aside for a new one."""
    faults: list[str] = []
    try:
        store = CursorStore(directory, config.map_size_bytes, disk_full=disk_full)
        try:
            return store, store.load(), faults
        except CursorsCorrupt:
            store.stop()
            raise
    except CursorsCorrupt as error:
        aside = directory.with_name(f"{directory.name}.corrupt-{now_ms}")
        set_aside(directory, aside)
        faults.append(f"the cursors of groups are damaged ({error}), they are kept as {aside.name}")
        _logger.error("%s", faults[0])
    store = CursorStore(directory, config.map_size_bytes, disk_full=disk_full)
    return store, StoredCursors(), faults
