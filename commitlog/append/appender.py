"""The appender thread: assigns offsets to publishes in order of arrival, and writes them.

The thread works in rounds. In each round it takes the waiting publishes, up to a limit, and writes
them with one call if possible (group commit). Waiting Rows of one queue become one batch. A publish
to several queues is stored completely or not at all, unless it is too large for one segment. A
publish that need not be durable completes after the write. A publish that must be durable goes to
the sync thread, so that the other publishes do not wait for a sync.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from holdfast.commitlog.append.producer_sequences import ProducerSequences
from holdfast.commitlog.append.staging import (
    AppendRequest,
    AppendResult,
    Need,
    QueueKey,
    ReputInbox,
    RowRun,
    RowRuns,
    StagedBlocks,
)
from holdfast.commitlog.errors import (
    LogClosed,
    LogError,
    LogOverloaded,
    LogPoisoned,
    RoutedOtherwise,
    TooManyProducers,
)
from holdfast.commitlog.format.batch import Batch, tag_summary
from holdfast.commitlog.format.batch_encoding import Rows, encode_rows, with_run
from holdfast.commitlog.format.batch_header import HEADER_SIZE, BatchHeader
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.segment import Segment, keyed_messages

__all__ = ["AppendRequest", "AppendResult", "Appender", "SyncQueue"]

_logger = logging.getLogger(__name__)

#: A round takes no further request when its requests have this many bytes in total: a larger write
#: would only delay the next publish.
MAX_GROUP_BYTES = 16 * 1024 * 1024
#: A round takes no further request when it has this many batches: each batch has two buffers, and
#: one system call writes at most 1,024 buffers.
MAX_GROUP_BATCHES = 512


class SyncQueue(Protocol):
    """The methods of the sync thread that the appender calls."""

    @property
    def durable_offset(self) -> int:
        """Physical offset below which everything is synced."""

    def put_written(self, requests: list[AppendRequest]) -> None:
        """Notify the sync thread of new writes. After the sync that covers these writes, it
        completes `requests`."""


class Appender:
    """Owns the end of the log: next queue offsets, timestamps, producers' sequences.

    Any thread may call `submit`. The appender thread reports to `inbox` the written headers, then
    the finished requests, and flushes it at the end of each round. It calls `on_roll` with the
    segment that ended, and `on_failure` with an unexpected error, which makes the log read-only.
    `poison` reports the failed requests in the thread of its caller.
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
        inbox: ReputInbox,
        on_roll: Callable[[Segment], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._log = log
        self._sequences = sequences
        self._sync_queue = sync_queue
        self._next_offsets = dict(next_offsets)
        self._last_timestamp_us = last_timestamp_us
        self._max_waiting_bytes = max_waiting_bytes
        self._now_us = now_us
        self._inbox = inbox
        self._on_roll = on_roll
        self._on_failure = on_failure
        self._waiting: deque[AppendRequest] = deque()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        #: The thread sleeps by acquiring this lock; `wake` releases it once for each sleep.
        self._wakeup = threading.Lock()
        self._wakeup.acquire()
        self._is_asleep = False
        self._closing = False
        self._poisoned: str | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-appender", daemon=True)

    # -- any thread ------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Write the waiting requests, then end the thread; may be called twice."""
        self._closing = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, request: AppendRequest, *, urgent: bool = False, wake: bool = True) -> None:
        """Queue a publish.

        Raise BatchTooLarge, LogClosed or LogPoisoned. Raise LogOverloaded if the waiting bytes
        would exceed max_waiting_bytes; if no request waits, a request of any size is accepted. An
        `urgent` request (one of the broker itself) ignores that limit and goes to the front of the
        queue. With `wake=False` the caller must call `wake` after its last `submit`."""
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
        """Wake the thread if it sleeps, so that it processes the submitted requests."""
        with self._lock:
            if self._is_asleep:
                self._is_asleep = False
                self._wakeup.release()

    def poison(self, cause: str) -> None:
        """Make the log read-only: fail the waiting requests and refuse new ones. Any thread."""
        with self._lock:
            if self._poisoned is None:
                self._poisoned = cause
            waiting = list(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
        self._fail(waiting, LogPoisoned(cause))
        self._inbox.flush()

    @property
    def poisoned(self) -> str | None:
        """Why the log is read-only; None if it is writable."""
        return self._poisoned

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the requests that are queued and not yet taken by the thread."""
        return self._waiting_bytes

    # -- the appender thread ---------------------------------------------------------------

    def _run(self) -> None:
        while group := self._take_group():
            try:
                self._append_group(group)
            except Exception as error:  # last resort: an unexpected error makes the log read-only
                _logger.exception("the appender failed")
                self.poison(f"{type(error).__name__}: {error}")
                self._inbox.put_finished(
                    [request for request in group if request.error is not None]
                )
                self._fail([r for r in group if r.error is None], LogPoisoned(str(error)))
                self._on_failure(error)
            self._inbox.flush()

    def _take_group(self) -> list[AppendRequest]:
        """Wait for requests, and return those of the next round, at least one. Return [] if the
        appender is closing and no request waits."""
        while True:
            with self._lock:
                if self._waiting:
                    return self._next_group()
                if self._closing:
                    return []
                self._is_asleep = True
            self._wakeup.acquire()

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
        staged = StagedBlocks()
        need = Need.of([batch for request in group for batch in request.batches])
        runs = RowRuns(has_room=self._log.has_room(*need))
        for request in group:
            try:
                self._place(request, staged, runs)
            except LogError as error:
                self._refuse(request, error)
        self._place_runs(staged, runs)
        self._write(staged)
        self._sequences.end_reservations()
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
        self._sync_queue.put_written(waiting)
        if failed or finished:
            self._inbox.put_finished([*failed, *finished])

    def _place(self, request: AppendRequest, staged: StagedBlocks, runs: RowRuns) -> None:
        """Stage the batches of a request, except batches that are stored already. Rows are added
        to the run of their queue (a Run becomes one batch), where rows of later requests may join
        them.

        After a LogError nothing of the request is staged, with two exceptions: a second batch of
        the same producer and queue is checked only after the first is staged, and a request that
        needs several segments is staged batch by batch."""
        self._last_timestamp_us = max(self._now_us(), self._last_timestamp_us)
        known = self._find_stored(request, staged, runs)
        if request.refusal is not None and None in known:
            self._refuse(request, request.refusal)
            return
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

    def _find_stored(
        self, request: AppendRequest, staged: StagedBlocks, runs: RowRuns
    ) -> list[AppendResult | None]:
        """Return for each batch of a request where an earlier attempt stored it; None for a new
        batch.

        If a batch follows a new batch of the same producer and queue, the result is None too;
        `_place_batch` looks up the second batch after the first one has its offsets."""
        self._check_routing(request, staged, runs)
        found: list[AppendResult | None] = []
        new: set[tuple[int, int]] = set()
        for batch in request.batches:
            producer_id = _producer_of(batch)
            if not producer_id or (producer_id, batch.queue_id) in new:
                found.append(None)
                continue
            if producer_id in runs.producers:
                # Record this producer's waiting rows first: this batch may repeat them.
                self._place_runs(staged, runs)
            before = self._stored_before(batch, (request.topic_id, batch.queue_id))
            if before is None:
                self._sequences.reserve(
                    batch if isinstance(batch, Rows) else batch.header,
                    request.topic_id,
                    batch.queue_id,
                    request.client,
                    self._last_timestamp_us,
                )
                new.add((producer_id, batch.queue_id))
            found.append(before)
        return found

    def _check_routing(self, request: AppendRequest, staged: StagedBlocks, runs: RowRuns) -> None:
        """Check the queues of a retried request. Raise RoutedOtherwise if an earlier attempt went
        to other queues, and SequenceTooOld if the broker no longer remembers that attempt."""
        producer_id = _producer_of(request.batches[0]) if request.batches else 0
        if not producer_id:
            return
        if producer_id in runs.producers:
            self._place_runs(staged, runs)
        first = request.batches[0]
        self._sequences.check_routing(
            first if isinstance(first, Rows) else first.header,
            request.topic_id,
            {batch.queue_id: len(batch) for batch in request.batches},
            self._last_timestamp_us,
        )

    def _reserve(
        self, batches: Sequence[Batch | Rows], staged: StagedBlocks, runs: RowRuns
    ) -> bool:
        """Reserve room for all `batches` in the active segment, in addition to the staged blocks
        and waiting runs; roll to a new segment if necessary. If this returns True, only the write
        can still fail.

        Return False if no segment can hold all `batches`: the caller must then place them one by
        one. Raise what `CommitLog.roll` raises."""
        if not batches:
            return True
        need = Need.of(batches)
        waits = Need.of([batch for batch in batches if isinstance(batch, Rows)])
        if self._log.has_room(*staged.need.plus(runs.need).plus(need)):
            runs.need = runs.need.plus(waits)
            return True
        self._place_runs(staged, runs)
        self._write(staged)
        fits = self._log.fits_segment(*need)
        while fits and not self._log.has_room(*need):
            self._roll(*need)
        runs.need = waits
        return fits

    def _place_batch(
        self,
        request: AppendRequest,
        index: int,
        batch: Batch | Rows,
        staged: StagedBlocks,
        runs: RowRuns,
    ) -> None:
        """Stage a batch, or add its rows to the run of their queue."""
        key = (request.topic_id, batch.queue_id)
        run = runs.get(key)
        if run is not None and not (isinstance(batch, Rows) and run.takes(batch)):
            # Stage the run before this batch: messages of a queue must keep their order of arrival.
            self._place_run(key, staged, runs)
            run = None
        # `_find_stored` skips a batch if an earlier batch of the request is for its queue.
        before = self._stored_before(batch, key) if index else None
        if before is not None:
            request.results[index] = before
        elif isinstance(batch, Rows):
            if run is None:
                run = runs[key] = RowRun()
            run.add(request, index, batch)
            if batch.producer_id:
                runs.producers.add(batch.producer_id)
        else:
            stamped = self._stamp(batch.header, key, _summary(batch), staged)
            self._sequences.record(stamped)
            staged.add(stamped, batch.block[HEADER_SIZE:])
            request.results[index] = _append_result(stamped, stamped.base_offset, len(batch))

    def _refuse(self, request: AppendRequest, error: Exception) -> None:
        """Fail a request that could not be placed. Until its producer retries the request, the
        producer's later sequences are refused as gaps. If parts of the request are stored, they are
        duplicates in the retry."""
        request.error = error
        if isinstance(error, RoutedOtherwise):  # the first attempt is stored: no gap is possible
            return
        is_too_many = isinstance(error, TooManyProducers)  # then remember no new producer
        for batch in request.batches:
            publish = batch if isinstance(batch, Rows) else batch.header
            self._sequences.reopen(
                publish,
                request.topic_id,
                batch.queue_id,
                self._last_timestamp_us,
                only_known=is_too_many,
            )

    def _stored_before(self, batch: Batch | Rows, key: QueueKey) -> AppendResult | None:
        """Return where an earlier attempt of this idempotent publish was stored, None if there is
        no stored attempt. Raise SequenceGap, SequenceTooOld or ProducerFenced."""
        if isinstance(batch, Rows) and not batch.producer_id:
            return None
        publish = batch if isinstance(batch, Rows) else batch.header
        before = self._sequences.find(publish, *key, self._last_timestamp_us)
        if before is None:
            return None
        return AppendResult(
            key[1],
            before.base_offset,
            before.message_count,
            before.store_timestamp_us,
            before.end_physical_offset,
            duplicate=True,
        )

    def _place_runs(self, staged: StagedBlocks, runs: RowRuns) -> None:
        """Stage every run as one batch."""
        for key in list(runs):
            self._place_run(key, staged, runs)
        runs.producers.clear()
        runs.need = Need()

    def _place_run(self, key: QueueKey, staged: StagedBlocks, runs: RowRuns) -> None:
        """Stage a queue's run as one batch. On a LogError, fail all publishes of the run."""
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
            request.results[index] = _append_result(stamped, base_offset, len(rows))
            base_offset += len(rows)

    def _stamp(
        self, header: BatchHeader, key: QueueKey, summary: int, staged: StagedBlocks
    ) -> BatchHeader:
        """Return the header of the next batch to stage, with its offsets, ids and timestamp. First
        roll to a new segment if necessary; raise what `CommitLog.roll` raises."""
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

    def _make_room(self, header: BatchHeader, staged: StagedBlocks) -> None:
        """Roll to the next segment if this batch does not fit. Raise what `CommitLog.roll`
        raises."""
        keys = keyed_messages(header)
        if self._log.has_room(
            staged.size + header.total_size, staged.keys + keys, len(staged.headers) + 1
        ):
            return
        self._write(staged)
        # A second roll is needed if the prepared segment is too small for this batch.
        while not self._log.has_room(header.total_size, keys, 1):
            self._roll(header.total_size, keys, 1)

    def _roll(self, size: int, keys: int, blocks: int) -> None:
        ended = self._log.roll(size, keys, blocks)
        if ended is not None:
            self._on_roll(ended)

    def _write(self, staged: StagedBlocks) -> None:
        """Write the staged blocks. After an OSError the end of the log is unknown, so `_run` makes
        the log read-only."""
        if staged.headers:
            self._log.append(staged.buffers, staged.headers)
            self._inbox.put_headers(staged.headers)
            staged.clear()

    def _fail(self, requests: list[AppendRequest], error: Exception) -> None:
        for request in requests:
            request.error = error
        if requests:
            self._inbox.put_finished(requests)


#: The result of a batch that has no offsets yet.
_NOWHERE = AppendResult(0, 0, 0, 0, 0)


def _producer_of(batch: Batch | Rows) -> int:
    return batch.producer_id if isinstance(batch, Rows) else batch.header.producer_id


def _append_result(stamped: BatchHeader, base_offset: int, count: int) -> AppendResult:
    return AppendResult(
        stamped.queue_id,
        base_offset,
        count,
        stamped.store_timestamp_us,
        stamped.end_physical_offset,
    )


def _summary(batch: Batch) -> int:
    """Return the tag summary computed from the batch's tag codes. The producer's summary is not
    trusted: a wrong one would hide messages from filters."""
    # Only the size of a text shows whether a message has a tag: a tag may have the code 0.
    codes, offsets = batch.tag_codes, batch.tag_offsets
    if codes is None or offsets is None:
        return 0
    return tag_summary(set(codes[np.diff(offsets) > 0].tolist()))
