"""Puts the storage together: data directory, log, index, state, and their threads.

Opening is: lock, state, index, walk of the log, threads. Closing is the same backwards. What is
above (hold service, HTTP) is not known here.
"""

import asyncio
import copy
import logging
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.commitlog.appender import Appender, AppendRequest
from holdfast.commitlog.batch import Batch, encode_batch
from holdfast.commitlog.batch_header import BatchHeader
from holdfast.commitlog.commit_log import CommitLog
from holdfast.commitlog.data_dir import DataDir
from holdfast.commitlog.disk import Disk, LinuxDisk
from holdfast.commitlog.errors import LogError
from holdfast.commitlog.log_scan import Damage, scan_log
from holdfast.commitlog.producer_sequences import ProducerSequences
from holdfast.commitlog.recovery import Recovered, recover
from holdfast.commitlog.segment import Segment
from holdfast.commitlog.segment_keeper import SegmentKeeper
from holdfast.commitlog.syncer import Syncer
from holdfast.config import Config
from holdfast.consumequeue.consume_queue import ConsumeQueue
from holdfast.consumequeue.index import Index, IndexCorrupt, ReputPosition
from holdfast.consumequeue.message_store import DELETED_TAG, MessageStore
from holdfast.consumequeue.queue_lookup import units_from
from holdfast.consumequeue.reput import ReputService
from holdfast.consumequeue.retention_service import RetentionService
from holdfast.consumequeue.state_store import StateCorrupt, StateStore
from holdfast.consumequeue.topic_table import TopicTable
from holdfast.consumequeue.topics import STATE_TOPIC_ID, QueueKey

_logger = logging.getLogger(__name__)

_SNAPSHOT_BATCH_BYTES = 256 * 1024
_READER_THREADS = 4


def now_us() -> int:
    """Return the wall clock in microseconds since 1970."""
    return time.time_ns() // 1000


@dataclass(slots=True)
class RecoveryProgress:
    """How far opening has come; read by other threads while it goes on."""

    step: str = "opening"
    done_bytes: int = 0
    total_bytes: int = 0


@dataclass(slots=True)
class StorageEvents:
    """What the storage tells those above. Called in its own threads."""

    arrived: Callable[[dict[QueueKey, int]], None]
    failed: Callable[[Exception], None]
    synced: Callable[[float], None] = lambda seconds: None


@dataclass(slots=True)
class _Opened:
    """What the blocking part of opening made."""

    log: CommitLog
    state: StateStore
    table: TopicTable
    index: Index
    queues: dict[QueueKey, ConsumeQueue]
    sequences: ProducerSequences
    reput: ReputService
    recovered: Recovered
    degraded: list[str] = field(default_factory=list)


class Storage:
    """An open data directory with its threads. `open` and `close` are the event loop's to
    await; `store` is there in between."""

    def __init__(self, config: Config, events: StorageEvents, *, disk: Disk | None = None) -> None:
        self._config = config
        self._events = events
        self._disk = disk if disk is not None else LinuxDisk()
        self._executor = ThreadPoolExecutor(_READER_THREADS, "holdfast-reader")
        self.progress = RecoveryProgress()
        self.read_only: str | None = None
        """Why nothing can be published, None while it can."""
        self.degraded: list[str] = []
        """What was found damaged."""
        self._opened: _Opened | None = None
        self._data_dir: DataDir | None = None

    def lock(self) -> None:
        """Lock the data directory. Raises DataDirInUse, NotADataDir, UnknownFormatVersion."""
        config = self._config
        self._data_dir = DataDir(config.data_dir, config.commitlog.reserve_bytes)

    async def open(self) -> MessageStore:
        """Recover, start the threads, return the store. UnknownFormatVersion and OSError pass
        through, with everything closed."""
        loop = asyncio.get_running_loop()
        opened = self._opened = await loop.run_in_executor(self._executor, self._open)
        self.degraded = opened.degraded
        config = self._config
        self.syncer = Syncer(
            opened.log,
            durable_offset=opened.recovered.written_offset,
            flush_interval_s=config.commitlog.flush_interval_ms / 1000,
            advanced=opened.reput.durable_advanced,
            completed=lambda requests: self.store.completed(requests),
            failed=self._sync_failed,
            observe=self._events.synced,
            monotonic=time.monotonic,
        )
        self.keeper = SegmentKeeper(opened.log)
        self.appender = Appender(
            opened.log,
            opened.sequences,
            self.syncer,
            next_offsets={key: cq.max_offset for key, cq in opened.queues.items()},
            last_timestamp_us=opened.recovered.last_timestamp_us,
            max_waiting_bytes=config.commitlog.max_waiting_bytes,
            now_us=now_us,
            dispatch=opened.reput.dispatch,
            completed=lambda requests: self.store.completed(requests),
            rolled=self._rolled,
            failed=self._events.failed,
        )
        self.store = MessageStore(
            log=opened.log,
            appender=self.appender,
            index=opened.index,
            queues=opened.queues,
            state=opened.state,
            table=opened.table,
            config=config.topics,
            executor=self._executor,
            cache_bytes=config.consumequeue.hot_cache_bytes,
            now_ms=lambda: now_us() // 1000,
        )
        self.retention = RetentionService(
            log=opened.log,
            index=opened.index,
            queues=opened.queues,
            table=opened.table,
            commit_state=self.store.commit_state,
            in_thread=lambda function: loop.run_in_executor(self._executor, function),
            max_total_bytes=config.commitlog.max_total_bytes,
            interval_s=config.commitlog.retention_interval_ms / 1000,
            now_us=now_us,
        )
        opened.state.start()
        opened.reput.start(opened.recovered.written_offset)
        self.syncer.start()
        self.appender.start()
        self.keeper.start()
        self.retention.start()
        return self.store

    async def close(self) -> None:
        """Finish what was accepted and close everything; may be called twice."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await self.retention.stop()
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._stop_threads, opened)
        self._executor.shutdown(wait=True)
        if opened is not None:
            opened.index.close()
            opened.log.close()
        if self._data_dir is not None:
            self._data_dir.close()
            self._data_dir = None

    def _stop_threads(self, opened: _Opened) -> None:
        self.appender.stop()
        self.syncer.stop()
        opened.reput.stop()
        self.keeper.stop()
        opened.state.stop()

    @property
    def log(self) -> CommitLog:
        """The commit log; only while open."""
        assert self._opened is not None
        return self._opened.log

    @property
    def reput(self) -> ReputService:
        """The reput service; only while open."""
        assert self._opened is not None
        return self._opened.reput

    # -- opening, in a thread --------------------------------------------------------------

    def _open(self) -> _Opened:
        data_dir = self._data_dir
        assert data_dir is not None
        config = self._config
        log = CommitLog(
            data_dir.commitlog,
            config.commitlog,
            self._disk,
            now_us=now_us,
            disk_full=data_dir.release_reserve,
            has_reserve=data_dir.has_reserve,
        )
        degraded: list[str] = []
        self.progress.step = "opening the log"
        log.open()
        degraded += [f"{path.name}: {reason}" for path, reason in log.damaged_headers]
        self.progress.step = "opening the state"
        state = _open_state(data_dir.state, config.consumequeue.state_map_size_bytes, log)
        table = TopicTable(state.records)
        self.progress.step = "opening the index"
        index = _open_index(data_dir.consumequeue, config.consumequeue.map_size_bytes, log)
        queues = _load_queues(index, table)
        sequences = self._new_sequences()
        indexed_sequences = self._new_sequences()
        for key, producer in index.producers():
            sequences.restore(key, producer)
            indexed_sequences.restore(key, copy.deepcopy(producer))
        reput = ReputService(
            index,
            queues=queues,
            sequences=indexed_sequences,
            needs_durable=_durability_of(table),
            segment_start=lambda offset: getattr(log.segment_at(offset), "start_offset", 0),
            notify=self._events.arrived,
            failed=self._events.failed,
            commit_interval_s=config.consumequeue.commit_interval_ms / 1000,
            tail_entries=config.consumequeue.tail_entries,
        )

        def on_block(header: BatchHeader) -> None:
            sequences.record(header)
            reput.recovered(header)

        self.progress.step = "recovering the log"
        position = index.position()
        recovered = recover(
            log,
            from_offset=max(position.physical_offset, log.min_offset),
            from_counts=(position.segment_start, position.block_count, position.key_count),
            on_block=on_block,
            progress=self._set_progress,
        )
        degraded += [f"the log is damaged: {damage}" for damage in recovered.damage]
        _set_begins(index, queues, table)
        return _Opened(log, state, table, index, queues, sequences, reput, recovered, degraded)

    def _new_sequences(self) -> ProducerSequences:
        config = self._config.commitlog
        return ProducerSequences(
            expiry_us=config.producer_expiry_ms * 1000, max_producers=config.max_producers
        )

    def _set_progress(self, done: int, total: int) -> None:
        self.progress.done_bytes = done
        self.progress.total_bytes = total

    # -- callbacks, in the storage's threads -----------------------------------------------

    def _sync_failed(self, error: Exception) -> None:
        self.read_only = f"a sync of the log failed: {error}"
        self.appender.poison(self.read_only)

    def _rolled(self, ended: Segment) -> None:
        """A segment ended (in the appender thread): begin the next with a snapshot."""
        self.keeper.rolled(ended)
        if self._opened is None:
            return
        records = list(self._opened.state.records.items())
        size = sum(len(key) + len(value) for key, value in records)
        if size > self._config.commitlog.segment_bytes // 4:
            _logger.warning("the state (%d bytes) is too large to be repeated in the log", size)
            return
        for batch in _snapshot_batches(records):
            try:
                self.appender.submit(AppendRequest(STATE_TOPIC_ID, [batch], durable=False))
            except LogError as error:
                _logger.warning("no snapshot of the state in the log: %s", error)
                return


def _durability_of(table: TopicTable) -> Callable[[int], bool | None]:
    def needs_durable(topic_id: int) -> bool | None:
        if topic_id == STATE_TOPIC_ID:
            return False
        topic = table.by_id(topic_id)
        return None if topic is None else topic.config.durability == "fsync"

    return needs_durable


def _open_state(directory: Path, map_size_bytes: int, log: CommitLog) -> StateStore:
    """Open the state; what is missing or damaged in it comes from the log's state topic."""
    try:
        state = StateStore(directory, map_size_bytes)
    except StateCorrupt as error:
        aside = directory.with_name(f"{directory.name}.corrupt-{now_us()}")
        directory.rename(aside)
        _logger.error("the state is damaged (%s), kept as %s, read from the log", error, aside)
        state = StateStore(directory, map_size_bytes)
    if (state.is_new and log.segments) or state.damaged:
        records = _state_in_log(log)
        if not state.is_new:
            records = {key: records[key] for key in state.damaged if key in records}
        state.restore(records)
        _logger.warning("%d records of the state were read from the log", len(records))
    return state


def _state_in_log(log: CommitLog) -> dict[bytes, bytes]:
    """Return the state as the log's state topic has it, newest value of each record."""
    records: dict[bytes, bytes] = {}
    for _, batch in scan_log(log.segments, 0):
        if isinstance(batch, Damage) or batch.header.topic_id != STATE_TOPIC_ID:
            continue
        for row in range(len(batch)):
            key = (batch.key(row) or "").encode()
            if batch.tag(row) == DELETED_TAG:
                records.pop(key, None)
            else:
                records[key] = batch.body(row)
    return records


def _snapshot_batches(records: list[tuple[bytes, bytes]]) -> list[Batch]:
    batches = []
    part: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in [*records, (b"", b"")]:
        if part and (not key or size + len(key) + len(value) > _SNAPSHOT_BATCH_BYTES):
            keys = [each.decode() for each, _ in part]
            encoded = encode_batch([body for _, body in part], keys=keys, queue_id=0)
            batches.append(Batch.decode(encoded))
            part, size = [], 0
        part.append((key, value))
        size += len(key) + len(value)
    return batches


def _open_index(directory: Path, map_size_bytes: int, log: CommitLog) -> Index:
    """Open the index; one that is damaged or not of this log is made anew."""
    try:
        index = Index(directory, map_size_bytes)
        position = index.position()
    except IndexCorrupt as error:
        _logger.warning("the index is damaged (%s): it is rebuilt from the log", error)
        shutil.rmtree(directory)
        return Index(directory, map_size_bytes)
    if not _belongs(position, log):
        _logger.warning("the index does not belong to this log: it is rebuilt")
        index.clear()
    return index


def _belongs(position: ReputPosition, log: CommitLog) -> bool:
    if position.physical_offset == 0:
        return True
    end = log.segments[-1].end_offset if log.segments else 0
    return position.physical_offset <= end


def _load_queues(index: Index, table: TopicTable) -> dict[QueueKey, ConsumeQueue]:
    """Return every queue that has an index, or had messages once."""
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
    """Set where each queue begins, once its entries are known."""
    for key, cq in queues.items():
        begin = table.kept.get(key[0], {}).get(key[1], 0)
        unit = next(units_from(index, key, cq, begin), None)
        newest = cq.newest
        at_end = newest.end_queue_bytes if newest is not None else 0
        cq.trim_queue(begin, unit.queue_bytes if unit is not None else at_end)
