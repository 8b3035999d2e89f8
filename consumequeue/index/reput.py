"""Reput: follow the log, add every batch to its queue, notify the hold service, write the index.

An entry becomes visible when its block is as durable as its topic requires, and never before an
earlier entry of its queue. Visible entries can be read from memory immediately. Reput also
completes publishes, so that a client can read from an offset as soon as the client knows the
offset.

The appender and the sync thread put reports into an inbox (the appender in the thread that runs its
round: its own, or the event loop's). A pass processes the inbox: it makes the
new entries visible, then it notifies. Passes run one at a time. The thread that holds `_pass_lock`
runs the pass and may change the in-memory queues. The reput thread runs passes, and when a commit
is due it writes the visible and synced entries to LMDB (`IndexCommitter`).

The eager tail is a pass that runs early, in the thread that reports. It makes the same
notifications as the reput thread, but they wait neither for another thread to wake up nor for LMDB.
Without it the reput thread runs every pass. No report is left in the inbox: a thread reports before
it tries to take `_pass_lock`, and the holder checks the inbox again after its pass.
"""

import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from operator import attrgetter
from typing import NamedTuple

import lmdb

from holdfast.commitlog.append.appender import AppendRequest
from holdfast.commitlog.append.producer_sequences import (
    ProducerKey,
    ProducerSequences,
    ProducerState,
)
from holdfast.commitlog.format.batch_header import BatchHeader
from holdfast.commitlog.segments.segment import keyed_messages
from holdfast.consumequeue.index.consume_queue import ConsumeQueue, CqUnit
from holdfast.consumequeue.index.index import Index, ReputPosition
from holdfast.consumequeue.topics import QueueKey

_logger = logging.getLogger(__name__)

_message_count = attrgetter("message_count")

#: Recovery commits the entries each time that this many have been added.
_RECOVERY_GROUP = 50_000
#: One transaction takes at most this many entries; a backlog needs several transactions.
COMMIT_GROUP = 50_000
#: One pass handles at most this many reports, then notifies.
_PASS_SIZE = 64
#: A thread that reports runs at most this many passes; the reput thread does the rest.
_EAGER_PASSES = 2
_FAILED_COMMIT_PAUSE_S = 1.0


#: A report: written blocks, the new durable offset, or requests to complete, all of whose blocks
#: were reported earlier.
_Report = list[BatchHeader] | int | tuple[AppendRequest, ...]


class Uncommitted(NamedTuple):
    """A block that is indexed in memory."""

    key: QueueKey | None
    """None if the block's topic was deleted. Then only the position advances."""
    unit: CqUnit
    header: BatchHeader


@dataclass(eq=False)
class ReputService:
    """Owns the in-memory queues and the index to which they are committed.

    It is the ReputInbox of the appender, which calls `put_headers` from one thread at a time, and
    of the sync thread, which alone calls `put_durable_offset`.

    `sequences` must be as the index has stored them. `needs_durable` returns whether the entries of
    a topic id wait for the sync; it returns None if there is no such topic. `segment_start` returns
    the start of the segment that holds a physical offset. `on_pass` is called after a pass, in the
    thread that ran the pass, with the new max offset of each queue that got visible entries, and
    with the finished requests; set it before `start`. `on_failure` is called when a pass or a
    commit fails for another reason than LMDB.
    """

    index: Index
    _: KW_ONLY
    queues: dict[QueueKey, ConsumeQueue]
    sequences: ProducerSequences
    needs_durable: Callable[[int], bool | None]
    segment_start: Callable[[int], int]
    on_pass: Callable[[dict[QueueKey, int], list[AppendRequest]], None] = lambda new, finished: None
    on_failure: Callable[[Exception], None]
    commit_interval_s: float
    tail_entries: int
    eager_tail: bool
    monotonic: Callable[[], float]

    def __post_init__(self) -> None:
        self.committer = IndexCommitter(self.index, self.sequences, self.segment_start)
        self._durable_offset = 0
        self._inbox: deque[_Report] = deque()
        #: Held during a pass, never while waiting for anything.
        self._pass_lock = threading.Lock()
        #: The reput thread sleeps on this queue. The content of its elements has no meaning.
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_asleep = False
        #: Whether the thread sleeps without a time limit, because there is nothing to commit.
        self._is_idle = False
        self._is_stopping = False
        self._is_stopped = False
        self._has_failed = False
        self._pending: deque[tuple[QueueKey, ConsumeQueue, CqUnit]] = deque()
        self.reput_offset = self.index.position().physical_offset
        """Physical offset up to which the log is indexed (in memory)."""
        self._next_commit_s = 0.0
        # Each counter has one writer: the thread that reports blocks, or the thread that commits.
        self._appended_blocks = self._appended_messages = 0
        self._committed_blocks = self._committed_messages = 0
        self._thread = threading.Thread(target=self._run, name="holdfast-reput", daemon=True)

    # -- start, stop, and what other threads call ------------------------------------------

    def index_recovered(self, header: BatchHeader) -> None:
        """Index a block that recovery found; call this before `start`. After each _RECOVERY_GROUP
        entries, commit the entries that are proven durable. Recovery writes the other blocks again
        before it ends."""
        self._count_appended([header])
        self._index_block(header, {}, visible=True)
        if self.uncommitted_count % _RECOVERY_GROUP == 0:
            self._drop_committed(self.committer.try_commit(header.durable_offset))

    def start(self, durable_offset: int) -> None:
        """Commit the entries that recovery found and start the thread."""
        self._durable_offset = durable_offset
        self._drop_committed(self.committer.try_commit(durable_offset))
        self._schedule_commit(self.commit_interval_s)
        self._thread.start()

    def stop(self) -> None:
        """Process the reports, commit the durable entries, end the thread. May be called twice."""
        self._is_stopping = True
        self._wakeups.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def put_headers(self, headers: list[BatchHeader]) -> None:
        """Report that these blocks were written. They must be in log order."""
        self._count_appended(headers)
        self._inbox.append(headers)

    def put_durable_offset(self, durable_offset: int) -> None:
        """Report that the log is synced up to this physical offset."""
        self._inbox.append(durable_offset)

    def put_finished(self, requests: list[AppendRequest]) -> None:
        """Complete these requests, after all earlier reports have been processed."""
        self._inbox.append(tuple(requests))

    def flush(self) -> None:
        """Have the inbox processed: with the eager tail in this thread, unless another thread is
        running a pass, otherwise by the reput thread."""
        if self.eager_tail:
            for _ in range(_EAGER_PASSES):
                if not self._inbox or not self._pass_lock.acquire(blocking=False):
                    return  # The thread that runs a pass checks the inbox after its pass.
                self._make_pass()
        if self._inbox:
            self._wake_thread()

    def _wake_thread(self) -> None:
        if self._is_asleep:
            self._is_asleep = False
            self._wakeups.put(None)
        if self._is_stopped:
            self._drain()

    @property
    def uncommitted_count(self) -> int:
        """The number of written blocks whose entries are not in LMDB yet."""
        return max(self._appended_blocks - self._committed_blocks, 0)

    @property
    def behind_messages(self) -> int:
        """The number of messages in the blocks that `uncommitted_count` counts."""
        return max(self._appended_messages - self._committed_messages, 0)

    def _count_appended(self, headers: list[BatchHeader]) -> None:
        self._appended_blocks += len(headers)
        self._appended_messages += sum(map(_message_count, headers))

    # -- the reput thread ------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait():
            if self._inbox:
                self._pass_lock.acquire()
                self._make_pass()
            if self.monotonic() >= self._next_commit_s:
                self._commit()
        self._is_stopped = True  # From now on, `flush` processes the inbox in its own thread.
        self._drain()
        while self._commit():
            pass

    def _wait(self) -> bool:
        """Wait for reports, or until a commit is due. Return False when the service must stop."""
        self._is_asleep = self._is_idle = True
        # A thread that reports after these checks finds `_is_asleep` set, and `_is_idle` if its
        # entries are the first to commit.
        if self.committer.uncommitted:
            self._is_idle = False
        if not self._inbox and not self._is_stopping:
            if self._is_idle:
                self._wakeups.get()
                self._schedule_commit(self.commit_interval_s)
            else:
                with contextlib.suppress(queue.Empty):
                    self._wakeups.get(timeout=max(self._next_commit_s - self.monotonic(), 0))
        self._is_asleep = self._is_idle = False
        return not self._is_stopping

    def _drain(self) -> None:
        while self._inbox:
            self._pass_lock.acquire()
            self._make_pass()

    def _commit(self) -> bool:
        """Commit the oldest durable entries; return whether there were any. Passes of other threads
        may run meanwhile. After a failure of a pass nothing is committed."""
        if self._has_failed:
            self._schedule_commit(self.commit_interval_s)
            return False
        try:
            group = self.committer.try_commit(self._durable_offset)
        except Exception as error:  # last resort: report any unexpected error
            self._fail(error)
            return False
        with self._pass_lock:
            self._drop_committed(group)
        pause_s = 0.0 if len(group) == COMMIT_GROUP else self.commit_interval_s
        if self.committer.failure is not None:  # retries are costly
            pause_s = max(pause_s, _FAILED_COMMIT_PAUSE_S)
        self._schedule_commit(pause_s)
        return bool(group)

    def _schedule_commit(self, pause_s: float) -> None:
        self._next_commit_s = self.monotonic() + pause_s

    def _drop_committed(self, group: Sequence[Uncommitted]) -> None:
        """Count these committed entries, and drop them from the queues: LMDB has them."""
        self._committed_blocks += len(group)
        self._committed_messages += sum([entry.unit.message_count for entry in group])
        ends = {entry.key: entry.unit.end_offset for entry in group if entry.key is not None}
        for key, end in ends.items():
            cq = self.queues.get(key)
            if cq is not None:
                cq.trim_entries(end, self.tail_entries)

    def _fail(self, error: Exception) -> None:
        """Report an error. From now on passes only complete requests, and nothing is committed."""
        _logger.exception("reput failed")
        self._has_failed = True
        self.on_failure(error)

    # -- passes ----------------------------------------------------------------------------

    def _make_pass(self) -> None:
        """Run one pass and release `_pass_lock`."""
        try:
            self._process_inbox()
        except Exception as error:  # last resort, in the thread that runs the pass
            self._fail(error)
        finally:
            self._pass_lock.release()
        if self._is_idle and self.committer.uncommitted:
            self._is_idle = False
            self._wakeups.put(None)

    def _process_inbox(self) -> None:
        advanced: dict[QueueKey, int] = {}
        finished: list[AppendRequest] = []
        try:
            for _ in range(_PASS_SIZE):
                if not self._inbox:
                    break
                report = self._inbox.popleft()
                if isinstance(report, tuple):
                    finished += report
                elif not self._has_failed:
                    self._process(report, advanced)
        finally:
            if advanced or finished:
                self.on_pass(advanced, finished)

    def _process(self, report: list[BatchHeader] | int, advanced: dict[QueueKey, int]) -> None:
        if isinstance(report, int):
            self._show_durable(report, advanced)
            # Only now may entries up to here be committed: entries in LMDB must be visible.
            self._durable_offset = max(self._durable_offset, report)
        else:
            for header in report:
                self._index_block(header, advanced)

    def _index_block(
        self, header: BatchHeader, advanced: dict[QueueKey, int], *, visible: bool = False
    ) -> None:
        """Add a block to its queue. Make it visible, unless it must wait for the sync."""
        needs_durable = self.needs_durable(header.topic_id)
        key = (header.topic_id, header.queue_id) if needs_durable is not None else None
        cq = self.queues.get(key) if key is not None else None
        if cq is None and key is not None:
            cq = self.queues[key] = ConsumeQueue(None, 0, 0)
        before = cq.indexed if cq is not None else None
        unit = CqUnit(
            header.base_offset,
            header.physical_offset,
            header.total_size,
            header.message_count,
            header.store_timestamp_us,
            header.tag_summary,
            before.queue_bytes + before.size if before is not None else 0,
        )
        self.reput_offset = end = unit.physical_offset + unit.size
        self.committer.uncommitted.append(Uncommitted(key, unit, header))
        if cq is None or key is None:
            return
        cq.indexed = unit
        durable = visible or end <= self._durable_offset
        if cq.pending == 0 and (durable or not needs_durable):
            cq.show(unit)
            advanced[key] = cq.max_offset
        else:
            cq.pending += 1
            self._pending.append((key, cq, unit))

    def _show_durable(self, durable_offset: int, advanced: dict[QueueKey, int]) -> None:
        pending = self._pending
        while pending and pending[0][2].end_physical_offset <= durable_offset:
            key, cq, unit = pending.popleft()
            cq.pending -= 1
            cq.show(unit)
            advanced[key] = cq.max_offset


_logger = logging.getLogger(__name__)


@dataclass(eq=False)
class IndexCommitter:
    """Writes the entries of reput to LMDB, but only entries whose blocks are synced. With them it
    stores the position up to which the log is indexed.

    One thread at a time may append to `uncommitted`, in log order. One thread at a time may call
    `commit` and `try_commit`; it owns `sequences`, so that each commit stores the producers'
    sequence numbers as they were at the committed position. These two threads may differ.
    """

    index: Index
    sequences: ProducerSequences
    segment_start: Callable[[int], int]
    uncommitted: deque[Uncommitted] = field(default_factory=deque)
    failure: str | None = None
    """Why the last commit failed, or None if it succeeded."""

    def __post_init__(self) -> None:
        self._position = self.index.position()

    def try_commit(self, durable_offset: int) -> Sequence[Uncommitted]:
        """Commit as `commit` does. If LMDB fails (the disk is full, for example), log the error and
        return no entries; they stay in memory for the next try."""
        try:
            group = self.commit(durable_offset)
        except lmdb.Error as error:
            if str(error) != self.failure:
                self.failure = str(error)
                _logger.error("the index could not be committed and is behind the log: %s", error)
            return []
        if self.failure is not None and group:
            self.failure = None
            _logger.warning("the index can be committed again")
        return group

    def commit(self, durable_offset: int) -> Sequence[Uncommitted]:
        """Write the oldest entries that are durable to LMDB, at most COMMIT_GROUP; return them.

        Raises lmdb.Error; then the entries stay in memory.
        """
        group: list[Uncommitted] = []
        waiting = self.uncommitted
        # Access by position: a pass appends meanwhile, and iterating over a changing deque raises.
        for at in range(min(len(waiting), COMMIT_GROUP)):
            entry = waiting[at]
            if entry.unit.physical_offset + entry.unit.size > durable_offset:
                break
            group.append(entry)
        if group:
            position = self._position_after(group)
            self.index.commit(
                [(entry.key, entry.unit) for entry in group if entry.key is not None],
                position,
                self._record_producers(group),
            )
            self._position = position
            for _ in group:
                waiting.popleft()
        return group

    def _position_after(self, group: Sequence[Uncommitted]) -> ReputPosition:
        before, last = self._position, group[-1].unit
        start = self.segment_start(last.physical_offset)
        here = [entry.header for entry in group if entry.unit.physical_offset >= start]
        is_same = start == before.segment_start
        return ReputPosition(
            last.end_physical_offset,
            start,
            (before.block_count if is_same else 0) + len(here),
            (before.key_count if is_same else 0) + sum(map(keyed_messages, here)),
        )

    def _record_producers(
        self, group: Sequence[Uncommitted]
    ) -> list[tuple[ProducerKey, ProducerState | None]]:
        """Update the producers' sequence numbers; return the changed producers. Safe to repeat."""
        sequences = self.sequences
        changed: set[ProducerKey] = set()
        for entry in group:
            publishes = entry.header.idempotent
            if publishes:
                sequences.record(entry.header)
                changed.update([(each.producer_id, each.topic_id) for each in publishes])
        changed.update(sequences.expire(group[-1].unit.store_timestamp_us))
        return [(key, sequences.state(key)) for key in changed]
