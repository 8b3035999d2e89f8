"""Reput: follows the log, gives every batch its place in its queue, tells who waits.

An entry becomes visible once its topic's durability is met, and never before one that is
earlier in its queue. Entries are readable in memory at once; index_committer.py puts them into
LMDB. A publish is answered by way of reput too, so that whoever is told an offset can read from it.

Work is done in passes, one at a time. Whoever has the turn owns the in-memory queues for the pass:
the thread that brings the work if nobody else has it (waking another takes longer than a pass), the
reput thread when work piles up. No work is left lying: it is put down before the turn is asked for,
and who gives the turn back looks again.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.commitlog.appender import AppendRequest
from holdfast.commitlog.batch_header import BatchHeader
from holdfast.commitlog.producer_sequences import ProducerSequences
from holdfast.commitlog.segment import keyed_messages
from holdfast.consumequeue.consume_queue import ConsumeQueue, CqUnit
from holdfast.consumequeue.index import Index, ReputPosition
from holdfast.consumequeue.index_committer import IndexCommitter, Uncommitted
from holdfast.consumequeue.topics import QueueKey

_logger = logging.getLogger(__name__)

#: While recovering, entries are committed in groups of this many.
_RECOVERY_GROUP = 50_000
#: So many pieces of work are done before those who wait are told of them.
_PASS_SIZE = 64
#: So many passes are made by a thread that has other work; what is left then is the reput thread's.
_PASSES_HERE = 2


class _Finished(NamedTuple):
    """Requests to complete, now that what they wrote was dispatched."""

    requests: list[AppendRequest]


#: What reput is told: blocks written, the durable mark, requests that are finished, up to where
#: each queue is in LMDB now.
_Work = list[BatchHeader] | int | _Finished | dict[QueueKey, int]


@dataclass(slots=True)
class _Pass:
    """What one pass has to tell."""

    advanced: dict[QueueKey, int] = field(default_factory=dict)
    finished: list[AppendRequest] = field(default_factory=list)


class ReputService:
    """Owns the in-memory queues and the index behind them.

    `dispatch` is the appender thread's to call, `durable_advanced` the sync thread's, `finished`
    both's; each wakes the reput thread. Called without `wake` they only put the work down, and the
    caller is to call `attend` once it has told all. `told` is called once a pass, in the thread
    that made it, with the new max offset of each queue that got visible entries, and the requests
    that are finished. `needs_durable` tells for a topic id whether its entries wait for the sync,
    None when there is no such topic; `segment_start` gives the start of a position's segment.
    `sequences` are as the index has them. `failed` is called by a thread that ends early, or whose
    pass failed.
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
        #: What the reput thread waits for: True is work, False the end.
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
        """Index a block found by recovery, before `start`. What is proven durable is committed
        now and then; recovery writes the rest once more before it ends."""
        self._index_block(header, {}, visible=True)
        if self.committer.uncommitted_count % _RECOVERY_GROUP == 0:
            self._trim(self.committer.try_commit(header.durable_offset))

    def start(self, durable_offset: int) -> None:
        """Commit what recovery found and start both threads."""
        self._durable_offset = durable_offset
        self._trim(self.committer.try_commit(durable_offset))
        self._thread.start()
        self.committer.start()

    def stop(self) -> None:
        """Index what was dispatched, commit what is durable, end both threads. May be called
        twice."""
        self._bell.put(False)
        if self._thread.is_alive():
            self._thread.join()
        self.committer.stop()

    def dispatch(self, headers: list[BatchHeader], *, wake: bool = True) -> None:
        """These blocks were written, in log order."""
        self._put(headers, wake)

    def durable_advanced(self, durable_offset: int, *, wake: bool = True) -> None:
        """The log is synced up to here."""
        self._put(durable_offset, wake)

    def finished(self, requests: list[AppendRequest], *, wake: bool = True) -> None:
        """Complete these requests once all that was told before is visible."""
        self._put(_Finished(requests), wake)

    def attend(self) -> None:
        """See that all work is done that was put down: here and now if nobody has the turn."""
        for _ in range(_PASSES_HERE):
            if not self._work or not self._turn.acquire(blocking=False):
                return  # Who has the turn looks again after it.
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
        """Queues are in LMDB up to these ends, and need less in memory."""
        self._put(ends, wake=False)
        self.attend()

    # -- passes ----------------------------------------------------------------------------

    def _run(self) -> None:
        while self._bell.get():
            self._work_off()
        self._is_stopped = True  # What comes from here on finds nobody to wake.
        self._work_off()

    def _work_off(self) -> None:
        while self._work:
            self._turn.acquire()
            self._make_pass()

    def _make_pass(self) -> None:
        """Do some of the work, tell of it, give the turn back. A pass that fails is the last."""
        done = _Pass()
        try:
            self._work_for(done)
        except Exception as error:  # the last resort of whichever thread this is
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
            return  # Requests are completed to the end: they are stored, or have failed.
        elif isinstance(work, dict):
            self._trim(work)
        elif isinstance(work, int):
            self._show_durable(work, done.advanced)
            # Only now may the committer go so far: what is in LMDB is visible.
            self._durable_offset = max(self._durable_offset, work)
        else:
            for header in work:
                self._index_block(header, done.advanced)

    def _index_block(
        self, header: BatchHeader, advanced: dict[QueueKey, int], *, visible: bool = False
    ) -> None:
        """Give a block its place in its queue, and show it unless it has to wait."""
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
