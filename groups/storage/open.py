"""Opens the stored state of groups in a data directory, after the log is recovered. It blocks.

A damaged store is renamed, and a new one is created. Lost cursors begin at the group's stored
offsets, which are copies of their floors. So a start never fails because of damaged cursors; it
fails if the disk cannot be written.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from holdfast.consumequeue.index.consume_queue import ConsumeQueue
from holdfast.consumequeue.state.store import set_aside
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.config import GroupsConfig
from holdfast.groups.cursor.cursor import Cursor, CursorKey
from holdfast.groups.storage.cursor_store import CursorsCorrupt, CursorStore
from holdfast.groups.storage.group_table import GroupTable
from holdfast.groups.storage.progress_page import ProgressPage
from holdfast.groups.storage.restore import QueueRange, RestoreInput, StoredCursors, restore_cursors

_logger = logging.getLogger(__name__)

#: The names of the store's directory and of the progress page, both in `state/`.
DIRECTORY, PAGE = "groups", "groups.page"


class OpenedGroups(msgspec.Struct):
    """The opened state of all groups. The thread of the store is not started yet."""

    store: CursorStore
    page: ProgressPage
    table: GroupTable
    cursors: dict[CursorKey, Cursor]
    """The cursors of all groups in all queues of their topics. Their rows and the page are already
    written."""
    active: dict[int, str]
    """group id -> the active member, for groups that serve one member at a time."""
    faults: list[str]
    """Descriptions of what was damaged."""
    opened_ms: int
    """The broker's time at the start. It is not earlier than any stored change."""

    @property
    def boot(self) -> int:
        """How often a broker was started with this store, including this start."""
        return self.store.boot

    def close(self) -> None:
        """Commit pending changes and close everything cleanly. May be called twice."""
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
    """Open or create the state, restore every cursor, and store the restored cursors. `queues` are
    the queues of the recovered log.

    Raises StateFull, StateUnavailable, MalformedRecord, lmdb.Error, OSError; then everything is
    closed.
    """
    store, found, faults = _open_store(state_directory / DIRECTORY, config, now_ms, disk_full)
    page: ProgressPage | None = None
    try:
        page = ProgressPage(state_directory / PAGE, boot_id)
        table = GroupTable(records)
        now_ms = max(now_ms, store.clock_ms)
        known = _restore_input(store, page, topics, queues, now_ms)
        restored = restore_cursors(table.all(), found, known)
        if store.is_new and len(table):
            faults.append(
                "the cursors of groups are lost: the groups continue at their stored offsets, and "
                "messages that they settled after these offsets are delivered again"
            )
        store.begin(restored.writes, found.damaged)
        restored.mark_written()
        page.begin(restored.cursors)
    except BaseException:
        store.stop()
        if page is not None:
            page.close()
        raise
    faults += restored.notes
    return OpenedGroups(store, page, table, restored.cursors, restored.active, faults, now_ms)


def _restore_input(
    store: CursorStore,
    page: ProgressPage,
    topics: TopicTable,
    queues: Mapping[QueueKey, ConsumeQueue],
    now_ms: int,
) -> RestoreInput:
    def queue_range(key: QueueKey) -> QueueRange:
        cq = queues.get(key)
        return QueueRange() if cq is None else QueueRange(cq.min_offset, cq.max_offset)

    return RestoreInput(
        boot=store.boot + 1,
        now_ms=now_ms,
        pages=page.found,
        is_page_trusted=page.is_trusted,
        is_copy=store.is_copy,
        topic=topics.by_id,
        queue_range=queue_range,
        stored_offsets=lambda group, topic_id: topics.offsets(group, topic_id).offsets,
    )


def _open_store(
    directory: Path, config: GroupsConfig, now_ms: int, disk_full: Callable[[], None]
) -> tuple[CursorStore, StoredCursors, list[str]]:
    """Open the store and read it. If it is damaged, rename it and create a new one."""
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
        faults.append(f"the cursors of groups are damaged ({error}); they are kept as {aside.name}")
        _logger.error("%s", faults[0])
    store = CursorStore(directory, config.map_size_bytes, disk_full=disk_full)
    return store, StoredCursors(), faults
