"""The storage: an open data directory with its threads, and the message store that uses them.

Open: lock, open files, scan the log, start threads. Close is the reverse. This module does not
know the layers above it (hold service, HTTP).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar, TypeVarTuple

from holdfast.commitlog.ageing_clock import AgeingClock, wall_clock_us
from holdfast.commitlog.append.appender import Appender, AppendRequest
from holdfast.commitlog.append.syncer import Syncer
from holdfast.commitlog.disk.data_dir import DataDir
from holdfast.commitlog.disk.disk import Disk, LinuxDisk
from holdfast.commitlog.errors import LogError, LogPoisoned, NoSegment
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.footer import seal_segment
from holdfast.commitlog.segments.segment import Segment
from holdfast.commitlog.segments.segment_keeper import SegmentKeeper
from holdfast.config import Config
from holdfast.consumequeue.damage.damage_book import DamageKeeper, Fault
from holdfast.consumequeue.lmdb_env.live_env import ReaderWatch
from holdfast.consumequeue.maintenance.retention_service import RetentionService
from holdfast.consumequeue.maintenance.scrub import Scrub
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.publishing import PublishAdmission
from holdfast.consumequeue.state.journal import encode_snapshot
from holdfast.consumequeue.thread_calls import call_in_thread
from holdfast.consumequeue.topics import STATE_TOPIC_ID
from holdfast.groups.storage.open import OpenedGroups
from holdfast.groups.storage.progress_page import kernel_boot_id
from holdfast.storage.alarms import DISK, Alarms
from holdfast.storage.storage_opening import (
    OpenDataDir,
    RecoveryProgress,
    StorageEvents,
    StorageOpening,
)

__all__ = ["Storage", "StorageEvents"]

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

_READER_THREADS = 4


class Storage:
    """An open data directory with its threads. Await `open` and `close` on the event loop. Use the
    attribute `store` only while the storage is open."""

    def __init__(
        self,
        config: Config,
        events: StorageEvents,
        *,
        disk: Disk | None = None,
        now_us: Callable[[], int] = wall_clock_us,
        boot_id: bytes | None = None,
    ) -> None:
        """By default, `disk`, `now_us` (the wall clock) and `boot_id` (changes when the machine
        boots) are those of the machine."""
        self._config = config
        self._events = events
        self._disk = disk if disk is not None else LinuxDisk()
        self._now_us = now_us
        self._boot_id = kernel_boot_id() if boot_id is None else boot_id
        self.ageing = AgeingClock(now_us, partial(time.clock_gettime, time.CLOCK_BOOTTIME))
        """The clock that measures ages, such as those of messages for retention."""
        self._executor = ThreadPoolExecutor(_READER_THREADS, "holdfast-reader")
        self.progress = RecoveryProgress()
        self.read_only: str | None = None
        """The reason why publishing is impossible, None if it is possible."""
        self._opened: OpenDataDir | None = None
        self._has_parts = False
        """Whether `open` has created all parts that `close` stops."""
        self.damage_keeper: DamageKeeper | None = None
        self._data_dir: DataDir | None = None

    def lock(self) -> None:
        """Lock the data directory. Raise DataDirInUse, NotADataDir or UnknownFormatVersion."""
        config = self._config
        self._data_dir = DataDir(config.data_dir, config.commitlog.reserve_bytes)

    async def open(self) -> MessageStore:
        """Recover, start the threads, return the store. UnknownFormatVersion, lmdb.Error and
        OSError from recovery propagate; then everything is closed except the lock, which `close`
        releases."""
        assert self._data_dir is not None
        opening = StorageOpening(
            self._data_dir,
            self._config,
            self._disk,
            self._events.on_failure,
            self.progress,
            now_us=self._now_us,
            ageing_us=self.ageing.now_us,
            boot_id=self._boot_id,
        )
        self._loop = asyncio.get_running_loop()
        # If this task is cancelled, it must not wait for recovery. The caller then calls `close`,
        # which sets `is_cancelled`; this ends the recovery.
        opened = self._opened = await self._loop.run_in_executor(self._executor, opening.open)
        self._create_log_threads(opened, self._data_dir)
        self._create_store(opened)
        self._create_maintenance(opened)
        self._has_parts = True
        self.ageing.start(opened.last_timestamp_us)
        opened.state.start()
        opened.groups.store.start()
        opened.reput.start(opened.recovered.written_offset)
        self.syncer.start()
        self.appender.start()
        self.keeper.start()
        self.scrub.start()
        self.retention.start()
        await self.alarms.start()
        self.readers.start()
        self.damage_keeper = DamageKeeper(opened.damage, self.store.state.commit)
        # After a crash, the log may lack the last changes of the state.
        self._append_snapshot()
        return self.store

    def _create_log_threads(self, opened: OpenDataDir, data_dir: DataDir) -> None:
        config = self._config.commitlog
        self.syncer = Syncer(
            opened.log,
            durable_offset=opened.recovered.written_offset,
            flush_interval_s=config.flush_interval_ms / 1000,
            inbox=opened.reput,
            on_failure=self._on_sync_failure,
            observe=self._events.on_sync,
            monotonic=time.monotonic,
        )
        self.keeper = SegmentKeeper(opened.log)
        self.alarms = Alarms(
            directories=[data_dir.commitlog, data_dir.consumequeue, data_dir.state],
            min_free_bytes=config.min_free_bytes,
            max_memory_bytes=self._config.max_memory_bytes,
            log=opened.log,
            reput=opened.reput,
            max_uncommitted_entries=self._config.consumequeue.max_uncommitted_entries,
        )
        self.admission = PublishAdmission(config.max_in_flight_bytes, self.alarms.by_name)
        self.alarms.on_measured = self.admission.update
        self.appender = Appender(
            opened.log,
            opened.sequences,
            self.syncer,
            next_offsets={key: cq.max_offset for key, cq in opened.queues.items()},
            last_timestamp_us=opened.last_timestamp_us,
            max_waiting_bytes=config.max_waiting_bytes,
            max_bytes_now=config.append_on_loop_bytes,
            now_us=self._now_us,
            monotonic=time.monotonic,
            inbox=opened.reput,
            on_roll=self._on_roll,
            on_failure=self._on_append_failure,
        )

    def _create_store(self, opened: OpenDataDir) -> None:
        self.store = MessageStore(
            log=opened.log,
            appender=self.appender,
            index=opened.index,
            queues=opened.queues,
            state=opened.state,
            table=opened.table,
            config=self._config.topics,
            admission=self.admission,
            arrival_listeners=self._events.arrival_listeners,
            executor=self._executor,
            queue_config=self._config.consumequeue,
            sync_timeout_ms=self._config.commitlog.sync_timeout_ms,
            damage=opened.damage,
            now_ms=lambda: self._now_us() // 1000,
        )
        opened.reput.on_pass = self.store.publishing.deliver_pass

    def _create_maintenance(self, opened: OpenDataDir) -> None:
        config = self._config.commitlog
        self.retention = RetentionService(
            log=opened.log,
            index=opened.index,
            queues=opened.queues,
            table=opened.table,
            keep_unknown_topics=opened.may_lack_topics,
            commit_state=self.store.state.commit,
            read_leases=self.store.read_leases,
            is_disk_low=lambda: self.alarms.by_name[DISK]() is not None,
            in_thread=self._in_thread,
            max_total_bytes=config.max_total_bytes,
            interval_s=config.retention_interval_ms / 1000,
            now_us=self.ageing.now_us,
            on_trim=self._events.on_trim,
        )
        self.scrub = Scrub(
            opened.log,
            opened.index,
            opened.queues,
            opened.damage,
            bytes_per_s=config.scrub_bytes_per_s,
            run_on_loop=self.run_on_loop,
            is_busy=lambda: self.appender.waiting_bytes > 0,
            reseal=self.reseal,
        )
        self.readers = ReaderWatch(
            {
                "index": opened.index.env,
                "state": opened.state.env,
                "groups": opened.groups.store.env,
            },
            self._in_thread,
        )

    async def close(self) -> None:
        """Finish accepted publishes and close everything, also after `open` has raised; may be
        called twice."""
        opened = self._opened
        if opened is not None:
            if self._has_parts:
                await self._stop_tasks()
                await asyncio.to_thread(self._stop_threads, opened)
                self._has_parts = False
            await asyncio.to_thread(opened.closing.close)
            self._opened = None
        self.progress.is_cancelled = True
        await asyncio.to_thread(self._executor.shutdown)
        if self._data_dir is not None:
            self._data_dir.close()
            self._data_dir = None

    async def _stop_tasks(self) -> None:
        await self.alarms.stop()
        await self.readers.stop()
        await self.retention.stop()
        if self.damage_keeper is not None:  # None if the start did not end
            await self.damage_keeper.stop()
        await self.store.state.wait()

    def _stop_threads(self, opened: OpenDataDir) -> None:
        self.scrub.stop()
        self.appender.stop()
        self.syncer.stop()
        opened.reput.stop()
        self.keeper.stop()
        self._executor.shutdown()

    @property
    def opened(self) -> OpenDataDir:
        """The data directory; only while open."""
        assert self._opened is not None
        return self._opened

    @property
    def log(self) -> CommitLog:
        """The commit log; only while open."""
        return self.opened.log

    @property
    def groups(self) -> OpenedGroups:
        """The opened state of groups with leases; only while open. Before `close`, the group
        service must have stopped and committed its changes."""
        return self.opened.groups

    @property
    def degraded(self) -> list[Fault]:
        """Known damage to data that is still kept, and files or databases that cannot be written
        now."""
        opened = self._opened
        if opened is None:
            return []
        faults = opened.faults()
        if opened.index.is_condemned:
            faults.append(Fault("damaged-index", "it is rebuilt at the next start"))
        refusal = opened.log.refusal
        if isinstance(refusal, NoSegment):
            faults.append(Fault("no-segment", f"publishing waits for a segment: {refusal}"))
        for reason, what, failure in (
            ("index-not-written", "the index lags behind", opened.reput.committer.failure),
            ("state-not-written", "topics and stored offsets cannot change", opened.state.failure),
            ("groups-not-written", "groups cannot settle messages", opened.groups.store.failure),
        ):
            if failure is not None:
                faults.append(
                    Fault(reason, f"{what}, it is tried again each second: {failure}; see the disk")
                )
        return faults

    @property
    def raised_alarms(self) -> dict[str, str]:
        """The alarms that stop publishing now, by name. They end by themselves."""
        if self._opened is None:
            return {}
        return {name: str(error) for name, error in self.alarms.raised().items()}

    def _in_thread(self, function: Callable[[*_Ts], _T], *args: *_Ts) -> Awaitable[_T]:
        return call_in_thread(function, *args, executor=self._executor)

    def run_on_loop(self, function: Callable[[], None]) -> None:
        """Call a function on the event loop, later. Any thread may call this."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            _logger.warning("a thread reported a result after the event loop had ended")

    def reseal(self, segment: Segment) -> None:
        """Write the footer of a sealed segment again, in the keeper's thread."""
        segment.sealed = False
        self.keeper.submit(lambda: seal_segment(segment))

    # -- callbacks, in the storage's threads -----------------------------------------------

    def _on_sync_failure(self, error: Exception) -> None:
        cause = f"a sync of the log failed: {error}"
        self.read_only = cause
        self.appender.poison(cause)
        # Last: when the listeners are called, the appender refuses all publishes.
        self._become_read_only(cause)

    def _on_append_failure(self, error: Exception) -> None:
        """Handle a failed append. After a disk error the broker is read-only; any other error is
        a defect of the code and fails the broker."""
        if isinstance(error, OSError):
            self._become_read_only(f"a write to the log failed: {error}")
        else:
            self._events.on_failure(error)

    def _become_read_only(self, cause: str) -> None:
        self.read_only = cause
        self.run_on_loop(partial(self.admission.fail, LogPoisoned(cause)))

    def _on_roll(self, ended: Segment) -> None:
        """Let the keeper seal the ended segment, and append a snapshot of the state to the new
        segment. Called in the appender thread."""
        self.keeper.seal_ended(ended)
        self._append_snapshot()

    def _append_snapshot(self) -> None:
        """Append a snapshot of the whole state to the log, before the waiting publishes."""
        records = dict(self.opened.state.records)
        size = sum(len(key) + len(value) for key, value in records.items())
        if size > self._config.commitlog.segment_bytes // 4:
            _logger.warning("the state (%d bytes) is too large to be repeated in the log", size)
            return
        snapshot = AppendRequest(STATE_TOPIC_ID, encode_snapshot(records), durable=False)
        try:
            self.appender.submit(snapshot, urgent=True)
        except LogError as error:
            _logger.warning("the snapshot of the state could not be written to the log: %s", error)
