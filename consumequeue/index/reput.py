"""Reput: follow the log, add every batch to its queue, wake the callers that wait.

An entry becomes visible when its block is as durable as its topic requires, and never before an
earlier entry of its queue. Visible entries can be read from memory at once; committer.py writes
them to LMDB. Reput also completes publishes, so that a client can read from an offset as soon as
the client knows the offset.

Reput works in passes, and only one pass runs at a time. The thread that holds the lock `_turn` runs
the pass and may change the in-memory queues. A thread that brings work runs the pass itself if
`_turn` is free, because waking another thread takes longer than a pass. If work piles up, the reput
thread does it. No work is left undone: each thread queues its work before it tries to take `_turn`,
and the holder of `_turn` checks for new work after its pass.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.commitlog.append.appender import AppendRequest
from holdfast.commitlog.append.producer_sequences import ProducerSequences
from holdfast.commitlog.format.batch_header import BatchHeader
from holdfast.commitlog.segments.segment import keyed_messages
from holdfast.consumequeue.index.committer import IndexCommitter, Uncommitted
from holdfast.consumequeue.index.consume_queue import ConsumeQueue, CqUnit
from holdfast.consumequeue.index.index import Index, ReputPosition
from holdfast.consumequeue.topics import QueueKey

_logger = logging.getLogger(__name__)

#: Recovery commits the entries each time that this many have been added.
_RECOVERY_GROUP = 50_000
#: One pass handles at most this many work items, then reports their results.
_PASS_SIZE = 64
#: A thread that brings work runs at most this many passes; the reput thread does the rest.
_PASSES_HERE = 2


class _Finished(NamedTuple):
    """Requests to complete. All their blocks were dispatched earlier."""

    requests: list[AppendRequest]


#: One work item of reput: written blocks, the new durable offset, finished requests, or for each
#: queue the offset up to which LMDB has its entries.
_Work = list[BatchHeader] | int | _Finished | dict[QueueKey, int]


@dataclass(slots=True)
class _Pass:
    """The results of one pass, for `told`."""

    advanced: dict[QueueKey, int] = field(default_factory=dict)
    finished: list[AppendRequest] = field(default_factory=list)


class ReputService:
    """Owns the in-memory queues and the index to which they are committed.

    The appender thread calls `dispatch`, the sync thread `durable_advanced`, both call `finished`.
    Each call wakes the reput thread. With `wake=False` a call only queues the work; the caller must
    then call `attend` after its last report.

    `told` is called after a pass, in the thread that ran the pass, with the new max offset of each
    queue that got visible entries, and with the finished requests. `needs_durable` returns whether
    the entries of a topic id wait for the sync; it returns None if there is no such topic.
    `segment_start` returns the start of the segment that holds a physical offset. `sequences` must
    be as the index has stored them. `failed` is called when a pass fails or the index thread ends
    early.
    """

    def __init__(
        self,
        index: Index,
        *,
        queues: dict[QueueKey, ConsumeQueue],
        sequences: ProducerSequences,
        needs_durable: Callable[[int], bool | None],
        segment_start: Callable[[int], int],
        told: Callable[[dict[QueueKey, int], list[AppendRequest]], None],
        failed: Callable[[Exception], None],
        commit_interval_s: float,
        tail_entries: int,
    ) -> None:
        self.queues = queues
        self._durable_offset = 0
        self._needs_durable = needs_durable
        self._segment_start = segment_start
        self._told = told
        self._failed = failed
        self._tail_entries = tail_entries
        self._work: deque[_Work] = deque()
        #: Held during a pass, never while waiting for anything.
        self._turn = threading.Lock()
        #: The reput thread waits on this queue. True means that there is work, False means stop.
        self._bell: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._has_failed = False
        self._is_stopped = False
        self._pending: deque[tuple[QueueKey, ConsumeQueue, CqUnit]] = deque()
        self._position = index.position()
        self._thread = threading.Thread(target=self._run, name="holdfast-reput", daemon=True)
        self.committer = IndexCommitter(
            index,
            sequences,
            interval_s=commit_interval_s,
            durable_offset=lambda: self._durable_offset,
            committed=self._was_committed,
            failed=failed,
        )

    # -- start, stop, and what other threads call ------------------------------------------

    def recovered(self, header: BatchHeader) -> None:
        """Index a block that recovery found; call this before `start`. After each _RECOVERY_GROUP
        entries, commit the entries that are proven durable. Recovery writes the other blocks again
        before it ends."""
        self._index_block(header, {}, visible=True)
        if self.committer.uncommitted_count % _RECOVERY_GROUP == 0:
            self._trim(self.committer.try_commit(header.durable_offset))

    def start(self, durable_offset: int) -> None:
        """Commit the entries that recovery found and start both threads."""
        self._durable_offset = durable_offset
        self._trim(self.committer.try_commit(durable_offset))
        self._thread.start()
        self.committer.start()

    def stop(self) -> None:
        """Index the dispatched blocks, commit the durable entries, end both threads. May be called
        twice."""
        self._bell.put(False)
        if self._thread.is_alive():
            self._thread.join()
        self.committer.stop()

    def dispatch(self, headers: list[BatchHeader], *, wake: bool = True) -> None:
        """Report that these blocks were written. They must be in log order."""
        self._put(headers, wake)

    def durable_advanced(self, durable_offset: int, *, wake: bool = True) -> None:
        """Report that the log is synced up to this physical offset."""
        self._put(durable_offset, wake)

    def finished(self, requests: list[AppendRequest], *, wake: bool = True) -> None:
        """Complete these requests, after all work that was reported before has been processed."""
        self._put(_Finished(requests), wake)

    def attend(self) -> None:
        """Process the queued work in this thread, unless another thread is running a pass."""
        for _ in range(_PASSES_HERE):
            if not self._work or not self._turn.acquire(blocking=False):
                return  # The thread that runs a pass checks for new work after its pass.
            self._make_pass()
        if self._work:
            self._ring()

    def _put(self, work: _Work, wake: bool) -> None:
        self._work.append(work)
        if wake:
            self._ring()

    def _ring(self) -> None:
        self._bell.put(True)
        if self._is_stopped:
            self._work_off()

    @property
    def reput_offset(self) -> int:
        """Physical offset up to which the log is indexed (in memory)."""
        return self._position.physical_offset

    def _was_committed(self, ends: dict[QueueKey, int]) -> None:
        """For each queue, drop the entries up to its offset from memory, because LMDB has them."""
        self._put(ends, wake=False)
        self.attend()

    # -- passes ----------------------------------------------------------------------------

    def _run(self) -> None:
        while self._bell.get():
            self._work_off()
        self._is_stopped = True  # From now on, `_ring` processes new work in its own thread.
        self._work_off()

    def _work_off(self) -> None:
        while self._work:
            self._turn.acquire()
            self._make_pass()

    def _make_pass(self) -> None:
        """Run one pass, report its results, and release `_turn`. After an error, later passes only
        complete requests."""
        done = _Pass()
        try:
            self._work_for(done)
        except Exception as error:  # last resort, in the thread that runs the pass
            _logger.exception("reput failed")
            self._has_failed = True
            self._failed(error)
        finally:
            self._turn.release()

    def _work_for(self, done: _Pass) -> None:
        try:
            for _ in range(_PASS_SIZE):
                if not self._work:
                    break
                self._handle(self._work.popleft(), done)
        finally:
            if done.advanced or done.finished:
                self._told(done.advanced, done.finished)

    def _handle(self, work: _Work, done: _Pass) -> None:
        if isinstance(work, _Finished):
            done.finished += work.requests
        elif self._has_failed:
            return  # After a failure only `_Finished` items are handled, to complete the requests.
        elif isinstance(work, dict):
            self._trim(work)
        elif isinstance(work, int):
            self._show_durable(work, done.advanced)
            # The committer may commit up to here only now, because entries in LMDB must be visible.
            self._durable_offset = max(self._durable_offset, work)
        else:
            for header in work:
                self._index_block(header, done.advanced)

    def _index_block(
        self, header: BatchHeader, advanced: dict[QueueKey, int], *, visible: bool = False
    ) -> None:
        """Add a block to its queue. Make it visible, unless it must wait for the sync."""
        needs_durable = self._needs_durable(header.topic_id)
        key = (header.topic_id, header.queue_id) if needs_durable is not None else None
        cq = self._queue(key) if key is not None else None
        before = cq.indexed if cq is not None else None
        unit = CqUnit(
            header.base_offset,
            header.physical_offset,
            header.total_size,
            header.message_count,
            header.store_timestamp_us,
            header.tag_summary,
            before.end_queue_bytes if before is not None else 0,
        )
        self._position = self._position_after(header)
        self.committer.add(Uncommitted(key, unit, header, self._position))
        if cq is None or key is None:
            return
        cq.indexed = unit
        durable = visible or unit.end_physical_offset <= self._durable_offset
        if cq.pending == 0 and (durable or not needs_durable):
            cq.show(unit)
            advanced[key] = cq.max_offset
        else:
            cq.pending += 1
            self._pending.append((key, cq, unit))

    def _queue(self, key: QueueKey) -> ConsumeQueue:
        found = self.queues.get(key)
        if found is None:
            found = self.queues[key] = ConsumeQueue(None, 0, 0)
        return found

    def _position_after(self, header: BatchHeader) -> ReputPosition:
        before = self._position
        segment = self._segment_start(header.physical_offset)
        is_same = segment == before.segment_start
        return ReputPosition(
            header.end_physical_offset,
            segment,
            (before.block_count if is_same else 0) + 1,
            (before.key_count if is_same else 0) + keyed_messages(header),
        )

    def _show_durable(self, durable_offset: int, advanced: dict[QueueKey, int]) -> None:
        pending = self._pending
        while pending and pending[0][2].end_physical_offset <= durable_offset:
            key, cq, unit = pending.popleft()
            cq.pending -= 1
            cq.show(unit)
            advanced[key] = cq.max_offset

    def _trim(self, ends: dict[QueueKey, int]) -> None:
        for key, end in ends.items():
            cq = self.queues.get(key)
            if cq is not None:
                cq.trim_entries(end, self._tail_entries)
