"""The appender thread: takes publishes in turn, gives them their place, writes them.

All that waits is written with one call (group commit), and Rows that wait for one queue become
one batch. A publish over several queues is placed as a whole or not at all, unless no segment
takes all of it. A publish in written mode is answered then; one that asks for durability is handed
to the sync thread, so that nobody who did not ask for a sync waits behind one.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from holdfast.commitlog.batch import Batch, tag_summary
from holdfast.commitlog.batch_header import HEADER_SIZE, BatchHeader
from holdfast.commitlog.commit_log import CommitLog
from holdfast.commitlog.errors import LogClosed, LogError, LogOverloaded, LogPoisoned
from holdfast.commitlog.producer_sequences import ProducerSequences
from holdfast.commitlog.rows import Rows, encode_rows, with_run
from holdfast.commitlog.segment import Segment, keyed_messages
from holdfast.commitlog.staging import Appended, AppendRequest, Need, QueueKey, Run, Runs, Staged

__all__ = ["AppendRequest", "Appended", "Appender", "SyncQueue"]

_logger = logging.getLogger(__name__)

#: One write takes at most this much: a larger one only makes the next publish wait.
MAX_GROUP_BYTES = 16 * 1024 * 1024
#: Two buffers a batch, 1,024 a system call.
MAX_GROUP_BATCHES = 512


class SyncQueue(Protocol):
    """What the appender asks of the sync thread."""

    @property
    def durable_offset(self) -> int:
        """Physical offset below which everything is synced."""

    def written(self, requests: list[AppendRequest]) -> None:
        """Something was written; these requests wait for the sync that covers them."""


class Appender:
    """Owns the end of the log: next queue offsets, timestamps, producers' sequences.

    `submit` may be called from any thread. The callbacks are called in the appender thread:
    `completed` with requests that are finished (or failed), `dispatch` with the headers just
    written, in log order, before their requests complete, `all_told` behind those of a group;
    `rolled` with the segment that ended.
    """

    def __init__(
        self,
        log: CommitLog,
        sequences: ProducerSequences,
        sync_queue: SyncQueue,
        *,
        next_offsets: Mapping[QueueKey, int],
        last_timestamp_us: int,
        max_waiting_bytes: int,
        now_us: Callable[[], int],
        dispatch: Callable[[list[BatchHeader]], None],
        completed: Callable[[list[AppendRequest]], None],
        rolled: Callable[[Segment], None],
        failed: Callable[[Exception], None],
        all_told: Callable[[], None] = lambda: None,
    ) -> None:
        self._log = log
        self._sequences = sequences
        self._sync_queue = sync_queue
        self._next_offsets = dict(next_offsets)
        self._last_timestamp_us = last_timestamp_us
        self._max_waiting_bytes = max_waiting_bytes
        self._now_us = now_us
        self._dispatch = dispatch
        self._completed = completed
        self._rolled = rolled
        self._failed = failed
        self._all_told = all_told
        self._waiting: deque[AppendRequest] = deque()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        #: Held by nobody while the thread is awake; released once each time it sleeps.
        self._bell = threading.Lock()
        self._bell.acquire()
        self._is_asleep = False
        self._closing = False
        self._poisoned: str | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-appender", daemon=True)

    # -- any thread ------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, then end the thread; may be called twice."""
        self._closing = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, request: AppendRequest, *, urgent: bool = False, wake: bool = True) -> None:
        """Queue a publish. Raises BatchTooLarge, LogClosed, LogPoisoned, or LogOverloaded when
        more bytes wait than max_waiting_bytes (one request is always let in). An `urgent` one
        is let in whatever waits, and goes before it: the broker's own. Without `wake` the caller
        is to call that itself, once for all that it submits."""
        for batch in request.batches:
            self._log.check_size(batch.total_size)
        size = request.size
        with self._lock:
            if self._poisoned is not None:
                raise LogPoisoned(self._poisoned)
            if self._closing:
                raise LogClosed
            if urgent:
                self._waiting.appendleft(request)
            elif self._waiting_bytes and self._waiting_bytes + size > self._max_waiting_bytes:
                raise LogOverloaded(self._waiting_bytes, self._max_waiting_bytes)
            else:
                self._waiting.append(request)
            self._waiting_bytes += size
        if wake:
            self.wake()

    def wake(self) -> None:
        """See that the thread looks at what was submitted."""
        with self._lock:
            if self._is_asleep:
                self._is_asleep = False
                self._bell.release()

    def poison(self, cause: str) -> None:
        """Refuse all that comes and fail all that waits; the log is read-only from now on."""
        with self._lock:
            if self._poisoned is None:
                self._poisoned = cause
            waiting = list(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
        self._fail(waiting, LogPoisoned(cause))
        self._all_told()

    @property
    def poisoned(self) -> str | None:
        """Why the log is read-only; None while it is not."""
        return self._poisoned

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait to be written."""
        return self._waiting_bytes

    # -- the appender thread ---------------------------------------------------------------

    def _run(self) -> None:
        while group := self._take_group():
            try:
                self._append_group(group)
            except Exception as error:  # the thread's last resort
                _logger.exception("the appender failed")
                self.poison(f"{type(error).__name__}: {error}")
                self._completed([request for request in group if request.error is not None])
                self._fail([r for r in group if r.error is None], LogPoisoned(str(error)))
                self._failed(error)
            self._all_told()

    def _take_group(self) -> list[AppendRequest]:
        """Wait for work; return at least one request, or none when closing."""
        while True:
            with self._lock:
                if self._waiting:
                    return self._next_group()
                if self._closing:
                    return []
                self._is_asleep = True
            self._bell.acquire()

    def _next_group(self) -> list[AppendRequest]:
        group: list[AppendRequest] = []
        size = batches = 0
        while self._waiting and size < MAX_GROUP_BYTES and batches < MAX_GROUP_BATCHES:
            request = self._waiting.popleft()
            group.append(request)
            size += request.size
            batches += len(request.batches)
        self._waiting_bytes -= size
        return group

    def _append_group(self, group: list[AppendRequest]) -> None:
        staged = Staged()
        need = Need.of([batch for request in group for batch in request.batches])
        runs = Runs(has_room=self._log.has_room(*need))
        for request in group:
            try:
                self._place(request, staged, runs)
            except LogError as error:
                self._refuse(request, error)
        self._place_runs(staged, runs)
        self._write(staged)
        self._sequences.expire(self._last_timestamp_us)
        failed = [request for request in group if request.error is not None]
        waiting = [
            request
            for request in group
            if request.error is None
            and request.durable
            and request.end_physical_offset > self._sync_queue.durable_offset
        ]
        held_back = set(map(id, waiting))
        finished = [r for r in group if r.error is None and id(r) not in held_back]
        self._sync_queue.written(waiting)
        if failed or finished:
            self._completed([*failed, *finished])

    def _place(self, request: AppendRequest, staged: Staged, runs: Runs) -> None:
        """Stage every batch of a request that is not stored already; Rows wait in their queue's
        run for those that come after. A LogError leaves none of it staged, but for what comes
        behind one of the same producer and queue, and for what only several segments take."""
        self._last_timestamp_us = max(self._now_us(), self._last_timestamp_us)
        known = self._known(request, staged, runs)
        request.results = [before or _NOWHERE for before in known]
        is_whole = runs.has_room or self._reserve(
            [batch for batch, before in zip(request.batches, known, strict=True) if before is None],
            staged,
            runs,
        )
        for index, batch in enumerate(request.batches):
            if known[index] is None:
                self._place_batch(request, index, batch, staged, runs)
                if not is_whole:
                    self._place_runs(staged, runs)
                    if request.error is not None:
                        return

    def _known(self, request: AppendRequest, staged: Staged, runs: Runs) -> list[Appended | None]:
        """Return which of a request's batches are stored already, and where. One behind another
        new one of its producer and queue is looked up when that has its place."""
        found: list[Appended | None] = []
        new: set[tuple[int, int]] = set()
        for batch in request.batches:
            producer_id = _producer_of(batch)
            if not producer_id or (producer_id, batch.queue_id) in new:
                found.append(None)
                continue
            if producer_id in runs.producers:
                # What was sent again is known for that once what it repeats has its place.
                self._place_runs(staged, runs)
            before = self._stored_before(batch, (request.topic_id, batch.queue_id))
            if before is None:
                new.add((producer_id, batch.queue_id))
            found.append(before)
        return found

    def _reserve(self, batches: Sequence[Batch | Rows], staged: Staged, runs: Runs) -> bool:
        """See that the active segment takes all of these beside what waits, and roll if it does
        not: from then on nothing of them can fail but the write. False: no segment ever takes
        them all, they are to be placed one by one. Raises what a roll raises."""
        if not batches:
            return True
        need = Need.of(batches)
        waits = Need.of([batch for batch in batches if isinstance(batch, Rows)])
        if self._log.has_room(*staged.need.and_(runs.need).and_(need)):
            runs.need = runs.need.and_(waits)
            return True
        self._place_runs(staged, runs)
        self._write(staged)
        fits = self._log.fits_segment(*need)
        while fits and not self._log.has_room(*need):
            self._roll()
        runs.need = waits
        return fits

    def _place_batch(
        self,
        request: AppendRequest,
        index: int,
        batch: Batch | Rows,
        staged: Staged,
        runs: Runs,
    ) -> None:
        """Stage a batch, or let its rows wait in their queue's run."""
        key = (request.topic_id, batch.queue_id)
        run = runs.get(key)
        if run is not None and not (isinstance(batch, Rows) and run.takes(batch)):
            # Messages of a queue stay in the order in which they came.
            self._place_run(key, staged, runs)
            run = None
        # Known are those that do not follow another of their queue in the same request.
        before = self._stored_before(batch, key) if index else None
        if before is not None:
            request.results[index] = before
        elif isinstance(batch, Rows):
            if run is None:
                run = runs[key] = Run()
            run.add(request, index, batch)
            if batch.producer_id:
                runs.producers.add(batch.producer_id)
        else:
            stamped = self._stamp(batch.header, key, _summary(batch), staged)
            self._sequences.record(stamped)
            staged.add(stamped, batch.block[HEADER_SIZE:])
            request.results[index] = _appended(stamped, stamped.base_offset, len(batch))

    def _refuse(self, request: AppendRequest, error: LogError) -> None:
        """Fail a request that could not be placed. What is stored of it is answered to its retry
        as a duplicate; until then nothing of its producer may come behind it."""
        request.error = error
        for batch in request.batches:
            publish = batch if isinstance(batch, Rows) else batch.header
            self._sequences.reopen(
                publish, request.topic_id, batch.queue_id, self._last_timestamp_us
            )

    def _stored_before(self, batch: Batch | Rows, key: QueueKey) -> Appended | None:
        """Return where an earlier try of an idempotent producer is, None when there was none."""
        if isinstance(batch, Rows) and not batch.producer_id:
            return None
        publish = batch if isinstance(batch, Rows) else batch.header
        before = self._sequences.find(publish, *key, self._last_timestamp_us)
        if before is None:
            return None
        return Appended(
            key[1],
            before.base_offset,
            before.message_count,
            before.store_timestamp_us,
            before.end_physical_offset,
            duplicate=True,
        )

    def _place_runs(self, staged: Staged, runs: Runs) -> None:
        """Stage all runs."""
        for key in list(runs):
            self._place_run(key, staged, runs)
        runs.producers.clear()
        runs.need = Need()

    def _place_run(self, key: QueueKey, staged: Staged, runs: Runs) -> None:
        """Stage a queue's run as one batch. What fails then fails for all its publishes."""
        run = runs.pop(key)
        header, payload = encode_rows(run.rows)
        try:
            stamped = self._stamp(header, key, header.tag_summary, staged)
        except LogError as error:
            for request, _ in run.requests:
                self._refuse(request, error)
            return
        stamped = with_run(stamped, run.rows)
        self._sequences.record(stamped)
        staged.add(stamped, payload)
        base_offset = stamped.base_offset
        for (request, index), rows in zip(run.requests, run.rows, strict=True):
            request.results[index] = _appended(stamped, base_offset, len(rows))
            base_offset += len(rows)

    def _stamp(
        self, header: BatchHeader, key: QueueKey, summary: int, staged: Staged
    ) -> BatchHeader:
        """Return the header of a batch that is to be staged next, with its place in it."""
        self._make_room(header, staged)
        stamped = header.stamped(
            physical_offset=self._log.written_offset + staged.size,
            durable_offset=self._sync_queue.durable_offset,
            base_offset=self._next_offsets.get(key, 0),
            topic_id=key[0],
            queue_id=key[1],
            store_timestamp_us=self._last_timestamp_us,
            tag_summary=summary,
        )
        self._next_offsets[key] = stamped.end_offset
        return stamped

    def _make_room(self, header: BatchHeader, staged: Staged) -> None:
        """Roll to the next segment when this batch no longer fits. Raises DiskFull."""
        keys = keyed_messages(header)
        if self._log.has_room(
            staged.size + header.total_size, staged.keys + keys, len(staged.headers) + 1
        ):
            return
        self._write(staged)
        # More than once where the next segment was prepared when segments were still smaller.
        while not self._log.has_room(header.total_size, keys, 1):
            self._roll()

    def _roll(self) -> None:
        ended = self._log.roll()
        if ended is not None:
            self._rolled(ended)

    def _write(self, staged: Staged) -> None:
        """Write what is staged. A failure leaves the end of the log unknown: it is final."""
        if staged.headers:
            self._log.append(staged.buffers, staged.headers)
            self._dispatch(staged.headers)
            staged.clear()

    def _fail(self, requests: list[AppendRequest], error: Exception) -> None:
        for request in requests:
            request.error = error
        if requests:
            self._completed(requests)


#: Of a batch that has no place yet.
_NOWHERE = Appended(0, 0, 0, 0, 0)


def _producer_of(batch: Batch | Rows) -> int:
    return batch.producer_id if isinstance(batch, Rows) else batch.header.producer_id


def _appended(stamped: BatchHeader, base_offset: int, count: int) -> Appended:
    return Appended(
        stamped.queue_id,
        base_offset,
        count,
        stamped.store_timestamp_us,
        stamped.end_physical_offset,
    )


def _summary(batch: Batch) -> int:
    """Return the tag summary that the batch's own codes give: the producer's is not trusted,
    since a wrong one would hide messages from filters. A tag's code may be 0."""
    codes, offsets = batch.tag_codes, batch.tag_offsets
    if codes is None or offsets is None:
        return 0
    return tag_summary(set(codes[np.diff(offsets) > 0].tolist()))
