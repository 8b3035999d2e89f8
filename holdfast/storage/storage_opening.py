"""Open a data directory: log, state, index, then scan the log. This blocks, so Storage calls it in
a thread.

The log is authoritative. Records that are missing or damaged in the state are read from the log,
which has a copy of them in a topic of its own. An index that is damaged, or does not belong to this
log, is rebuilt.
"""

import errno
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import lmdb
import msgspec

from holdfast.commitlog.append.producer_sequences import ProducerLimits, ProducerSequences
from holdfast.commitlog.disk.data_dir import DataDir
from holdfast.commitlog.disk.disk import Disk, free_bytes, sync_directory
from holdfast.commitlog.errors import MISSING_SEGMENT
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.recovery import RecoveryResult, recover
from holdfast.config import Config
from holdfast.consumequeue.damage.damage_book import DamageBook, Fault
from holdfast.consumequeue.index.consume_queue import ConsumeQueue
from holdfast.consumequeue.index.index import Index, IndexCorrupt, ReputPosition
from holdfast.consumequeue.index.queue_lookup import queue_bytes_at
from holdfast.consumequeue.index.rebuild import IndexRebuild
from holdfast.consumequeue.index.reput import ReputService
from holdfast.consumequeue.index.seal import was_closed_in_order
from holdfast.consumequeue.maintenance.damage_at_start import StartCheck, keep_ends, note_damage
from holdfast.consumequeue.publishing import ArrivalListener
from holdfast.consumequeue.state.group_offsets import offsets_beyond_end
from holdfast.consumequeue.state.journal import state_in_log
from holdfast.consumequeue.state.records import INCOMPLETE, encode_offsets, offsets_key
from holdfast.consumequeue.state.store import StateCorrupt, StateStore, set_aside
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import STATE_TOPIC_ID, QueueKey
from holdfast.groups.storage.open import OpenedGroups, open_groups

_logger = logging.getLogger(__name__)


class OpeningCancelled(Exception):
    """The broker must stop before recovery has ended. The next start recovers again."""


class RecoveryProgress(msgspec.Struct):
    """The progress of opening. Other threads may read it at any time."""

    step: str = "opening"
    done_bytes: int = 0
    total_bytes: int = 0
    is_cancelled: bool = False
    """Set this to True when the result is no longer needed. Opening then raises
    OpeningCancelled."""


class StorageEvents(msgspec.Struct):
    """Callbacks of the storage. The listeners and `on_trim` are called on the event loop,
    `on_failure` and `on_sync` in the storage's threads."""

    on_failure: Callable[[Exception], None]
    """Called with an error after which only a restart of the broker helps."""
    arrival_listeners: list[ArrivalListener] = msgspec.field(default_factory=list)
    """Called with the new max offsets of queues. The list may change while the storage is open."""
    on_sync: Callable[[float], None] = lambda seconds: None
    """Called with the duration of each sync of the log, in seconds."""
    on_trim: Callable[[Mapping[QueueKey, int]], None] = lambda begins: None
    """Called with the new min offsets of queues."""


class OpenDataDir(msgspec.Struct):
    """An open data directory whose threads are not started yet."""

    log: CommitLog
    state: StateStore
    table: TopicTable
    index: Index
    queues: dict[QueueKey, ConsumeQueue]
    sequences: ProducerSequences
    reput: ReputService
    recovered: RecoveryResult
    damage: DamageBook
    """The known damage."""
    groups: OpenedGroups
    """The opened state of groups with leases."""
    closing: ExitStack = msgspec.field(default_factory=ExitStack)
    """Closes the files. Use it after the threads have ended."""

    @property
    def last_timestamp_us(self) -> int:
        """The newest store timestamp of all queues. The wall clock may show an earlier time."""
        newest = [cq.newest.store_timestamp_us for cq in self.queues.values() if cq.newest]
        return max([self.recovered.last_timestamp_us, *newest])

    def faults(self) -> list[Fault]:
        """Return the known damage to data that is still kept."""
        return self.damage.faults(self.table, self.queues)

    @property
    def may_lack_topics(self) -> bool:
        """Whether topics may be missing, so that an unknown topic was not necessarily deleted."""
        return INCOMPLETE in self.state.records or bool(self.state.damaged)


@dataclass(eq=False)
class StorageOpening:
    """Opens one locked data directory. `now_us` is the wall clock. `ageing_us` is the clock that
    measures ages. `boot_id` changes when the machine boots."""

    data_dir: DataDir
    config: Config
    disk: Disk
    on_failure: Callable[[Exception], None]
    progress: RecoveryProgress
    _: KW_ONLY
    now_us: Callable[[], int]
    ageing_us: Callable[[], int]
    boot_id: bytes

    def open(self) -> OpenDataDir:
        """Open and recover. If the disk is full, release the reserve and try again.
        UnknownFormatVersion, lmdb.Error and OSError propagate; then all files are closed."""
        try:
            return self._open_with_sound_index()
        except (OSError, lmdb.DiskError) as error:
            if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.data_dir.release_reserve()
            return self._open_with_sound_index()

    def _open_with_sound_index(self) -> OpenDataDir:
        try:
            return self._open()
        except IndexCorrupt as error:
            _logger.warning("the index is damaged (%s): it is rebuilt from the log", error)
            _delete_index(self.data_dir.consumequeue)
            return self._open()

    def _open(self) -> OpenDataDir:
        """Open everything. Raise IndexCorrupt when damage of the index is found."""
        with ExitStack() as closing:
            self.progress.step = "opening the log"
            log = self._open_log()
            closing.callback(log.close)
            self.progress.step = "opening the state"
            state = self._open_state()
            closing.callback(state.stop)
            book = DamageBook()
            book.files += [
                Fault("damaged-file", f"{path.name}: {reason}")
                for path, reason in log.damaged_headers
            ]
            book.files += [Fault("damaged-state", lost) for lost in _complete_state(state, log)]
            book.load(state.records)
            self.progress.step = "opening the index"
            was_clean = was_closed_in_order(self.data_dir.consumequeue)
            started_s = time.monotonic()
            index = Index(self.data_dir.consumequeue, self.config.consumequeue.map_size_bytes)
            closing.callback(index.close)
            indexed_ends: dict[QueueKey, int] = {}
            if not _is_within_log(index.position(), log):
                _logger.warning("the index reaches beyond the end of the log: it is rebuilt")
                indexed_ends = _indexed_ends(index)
                index.clear()
            opened = self._recover(log, state, index, indexed_ends, book)
            _log_recovered(opened, was_clean, time.monotonic() - started_s)
            closing.callback(opened.groups.close)
            opened.closing = closing.pop_all()
            for fault in opened.faults():
                _logger.error("the data directory is damaged: %s", fault)
            return opened

    def _open_log(self) -> CommitLog:
        log = CommitLog(
            self.data_dir.commitlog,
            self.config.commitlog,
            self.disk,
            now_us=self.now_us,
            disk_full=self.data_dir.release_reserve,
            has_reserve=self.data_dir.has_reserve,
            free_bytes=lambda: free_bytes(self.data_dir.commitlog),
        )
        log.open()
        return log

    def _open_state(self) -> StateStore:
        """Open the state. If it is damaged as a whole, move it aside and start a new state."""
        directory = self.data_dir.state
        map_size_bytes = self.config.consumequeue.state_map_size_bytes
        disk_full = self.data_dir.release_reserve
        try:
            return StateStore(directory, map_size_bytes, disk_full=disk_full)
        except StateCorrupt as error:
            aside = directory.with_name(f"{directory.name}.corrupt-{self.now_us()}")
            set_aside(directory, aside)
            _logger.error("the state is damaged (%s), it is kept as %s", error, aside.name)
            return StateStore(directory, map_size_bytes, disk_full=disk_full)

    def _recover(
        self,
        log: CommitLog,
        state: StateStore,
        index: Index,
        indexed_ends: dict[QueueKey, int],
        book: DamageBook,
    ) -> OpenDataDir:
        """Scan the log from the position up to which the index is complete, and bring index, state
        and groups up to date. The caller must close the files of the result."""
        table = TopicTable(state.records)
        queues = _load_queues(index, table)
        scanned_from = index.position().physical_offset
        sequences, reput, recovered = self._index_log(log, index, table, queues, book)
        book.files += [
            Fault(
                "damaged-file", f"{path.name}: it follows a hole at the end of the log, and is kept"
            )
            for path in recovered.left_out
        ]
        for found in recovered.damage:
            if found.reason != MISSING_SEGMENT:
                note_damage(found, book)
        _set_begins(index, queues, table)
        _note_lost_ends(queues, table, indexed_ends, book)
        keep_ends(queues, book)
        check = StartCheck(log, index, queues, book)
        check.note_holes()
        check.note_lost_end(scanned_from)
        check.recheck()
        _set_offsets_back(state, table, queues)
        self.progress.step = "restoring groups"
        groups = self._open_groups(state, table, queues)
        book.files += [Fault("damaged-groups", each) for each in groups.faults]
        return OpenDataDir(
            log, state, table, index, queues, sequences, reput, recovered, book, groups
        )

    def _index_log(
        self,
        log: CommitLog,
        index: Index,
        table: TopicTable,
        queues: dict[QueueKey, ConsumeQueue],
        book: DamageBook,
    ) -> tuple[ProducerSequences, ReputService, RecoveryResult]:
        """Scan the log and index its blocks. Return the producers' sequences after these blocks,
        the reput service, and what the scan found."""
        indexed_sequences = self._sequences_of(index)

        def note_gap(key: QueueKey, start: int, end: int) -> None:
            """Record lost messages: their block is unrecognizable, or its segment is missing."""
            if table.by_id(key[0]) is not None:
                book.record_lost(key, start, end, "missing-block")

        rebuild = IndexRebuild(
            index,
            queues,
            indexed_sequences,
            is_known=lambda topic_id: table.needs_durable(topic_id) is not None,
            segment_start=log.segment_start,
            note_gap=note_gap,
        )
        self.progress.step = "recovering the log"
        position = index.position()
        recovered = recover(
            log,
            from_offset=max(position.physical_offset, log.min_offset),
            from_counts=(position.segment_start, position.block_count, position.key_count),
            on_blocks=rebuild.add,
            progress=self._set_progress,
        )
        self.progress.step = "indexing the log"
        rebuild.end()
        config = self.config.consumequeue
        reput = ReputService(
            index,
            queues=queues,
            sequences=indexed_sequences,
            needs_durable=table.needs_durable,
            segment_start=log.segment_start,
            on_failure=self.on_failure,
            commit_interval_s=config.commit_interval_ms / 1000,
            tail_entries=config.tail_entries,
            eager_tail=config.eager_tail,
            monotonic=time.monotonic,
        )
        sequences = self._sequences_of(index)
        for header in rebuild.rest():
            sequences.record(header)
            reput.index_recovered(header)
        return sequences, reput, recovered

    def _open_groups(
        self, state: StateStore, table: TopicTable, queues: dict[QueueKey, ConsumeQueue]
    ) -> OpenedGroups:
        self.data_dir.renew()
        return open_groups(
            self.data_dir.state,
            self.config.groups,
            records=state.records,
            topics=table,
            queues=queues,
            boot_id=self.boot_id,
            now_ms=self.now_us() // 1000,
            disk_full=self.data_dir.release_reserve,
        )

    def _sequences_of(self, index: Index) -> ProducerSequences:
        """Return the producers' sequences in the state that the index has stored."""
        config = self.config.commitlog
        sequences = ProducerSequences(
            expiry_us=config.producer_expiry_ms * 1000,
            limits=ProducerLimits(
                config.max_producers,
                config.max_producers_per_topic,
                config.max_producers_per_client,
                config.max_broker_producers,
            ),
            not_after_us=self.ageing_us,
        )
        for key, producer in index.producers():
            sequences.restore(key, producer)
        return sequences

    def _set_progress(self, done: int, total: int) -> None:
        if self.progress.is_cancelled:
            raise OpeningCancelled
        self.progress.done_bytes = done
        self.progress.total_bytes = total


def _log_recovered(opened: OpenDataDir, was_clean: bool | None, seconds: float) -> None:
    """Log how the previous run ended, if that is known, and what recovery found."""
    how = {
        None: "recovered",
        True: "recovered after a clean stop",
        False: "recovered; the previous broker did not stop cleanly (killed, or power was lost)",
    }[was_clean]
    recovered = opened.recovered
    _logger.info(
        how,
        extra={
            "walked_blocks": recovered.blocks,
            "walked_bytes": recovered.bytes,
            "cut_bytes": recovered.cut_bytes,
            "damaged": len(recovered.damage),
            "topics": len(opened.table),
            "seconds": round(seconds, 3),
        },
    )


def _delete_index(directory: Path) -> None:
    """Delete an index: first its data file, then the other files. One of the other files may be the
    mark of a damaged index, so it must not be deleted before the damaged data."""
    data = directory / "data.mdb"
    if data.is_file():
        data.unlink()
        sync_directory(directory)
    shutil.rmtree(directory)


def _complete_state(state: StateStore, log: CommitLog) -> list[str]:
    """Read the records that the state lacks from the log, and store them in the state. Return the
    faults that remain."""
    if not state.is_new and not state.damaged:
        return ["topics may be missing"] if INCOMPLETE in state.records else []
    records, is_whole = state_in_log(log)
    missing = {key: value for key, value in records.items() if key not in state.records}
    if not is_whole:
        missing[INCOMPLETE] = b""
    state.restore(missing)
    if missing:
        _logger.warning("%d records of the state were read from the log", len(missing))
    lost = [f"record {key!r} of the state is damaged" for key in state.damaged]
    if INCOMPLETE in state.records:
        lost.append("the log was damaged when the state was read from it: topics may be missing")
    return lost


def _is_within_log(position: ReputPosition, log: CommitLog) -> bool:
    if position.physical_offset == 0:
        return True
    end = log.segments[-1].end_offset if log.segments else 0
    return position.physical_offset <= end


def _indexed_ends(index: Index) -> dict[QueueKey, int]:
    """Return the end of each queue in the index: the offset after its last message."""
    last = {key: index.last(key) for key in index.queues()}
    return {key: unit.end_offset for key, unit in last.items() if unit is not None}


def _note_lost_ends(
    queues: dict[QueueKey, ConsumeQueue],
    table: TopicTable,
    ends: dict[QueueKey, int],
    book: DamageBook,
) -> None:
    """Record as lost the messages that the index listed but that are not in the log. `ends` are the
    ends of the queues in the index."""
    for key, end in ends.items():
        if table.by_id(key[0]) is not None:
            cq = queues.get(key)
            max_offset = 0 if cq is None else cq.max_offset
            if max_offset < end:
                book.record_lost(key, max_offset, end, "lost-end")


def _set_offsets_back(
    state: StateStore, table: TopicTable, queues: dict[QueueKey, ConsumeQueue]
) -> None:
    """Set stored offsets that are beyond their queue's end back to that end."""
    set_back = offsets_beyond_end(table, queues)
    for (group, topic_id), stored in set_back.items():
        before = table.offsets(group, topic_id)
        topic = table.by_id(topic_id)
        _logger.warning(
            "group %s had stored %s for topic %s, which ends before that: set back to %s",
            group,
            before.offsets,
            topic_id if topic is None else topic.name,
            stored.offsets,
        )
        table.put_offsets(group, topic_id, stored)
    if set_back:
        state.restore({offsets_key(*key): encode_offsets(new) for key, new in set_back.items()})


def _load_queues(index: Index, table: TopicTable) -> dict[QueueKey, ConsumeQueue]:
    """Return every queue that has index entries or a stored min offset. Delete the index entries of
    deleted topics."""
    queues: dict[QueueKey, ConsumeQueue] = {}
    for key in index.queues():
        if key[0] != STATE_TOPIC_ID and table.by_id(key[0]) is None:
            last = index.last(key)
            while last is not None and index.delete_before(key, last.end_offset):
                pass
            continue
        begin = table.kept.get(key[0], {}).get(key[1], 0)
        queues[key] = ConsumeQueue(index.last(key), begin, 0)
    for topic_id, begins in table.kept.items():
        for queue, begin in begins.items():
            queues.setdefault((topic_id, queue), ConsumeQueue(None, begin, 0))
    return queues


def _set_begins(index: Index, queues: dict[QueueKey, ConsumeQueue], table: TopicTable) -> None:
    """Set each queue's min offset, once its entries are known. A queue may end below its min
    offset if the log's unsynced tail was lost; then it continues at its min offset."""
    for key, cq in queues.items():
        begin = table.kept.get(key[0], {}).get(key[1], 0)
        cq.trim_queue(begin, queue_bytes_at(index, key, cq, begin))
        cq.max_offset = max(cq.max_offset, begin)
