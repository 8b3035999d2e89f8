"""The appender thread: takes publishes in turn, gives them their place, writes them.

All that waits is written with one call (group commit), and Rows that wait for one queue become
one batch. A publish in written mode is answered then; one that asks for durability is handed to
the sync thread, so that nobody who did not ask for a sync waits behind one.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from holdfast.commitlog.batch import Batch, tag_summary
from holdfast.commitlog.batch_header import HEADER_SIZE, BatchHeader, Buffer
from holdfast.commitlog.commit_log import CommitLog
from holdfast.commitlog.errors import LogClosed, LogError, LogOverloaded, LogPoisoned
from holdfast.commitlog.producer_sequences import ProducerSequences
from holdfast.commitlog.rows import Rows, encode_rows, with_run
from holdfast.commitlog.segment import Segment, keyed_messages

_logger = logging.getLogger(__name__)

#: One write takes at most this much: a larger one only makes the next publish wait.
MAX_GROUP_BYTES = 16 * 1024 * 1024
#: Two buffers a batch, 1,024 a system call.
MAX_GROUP_BATCHES = 512
#: Publishes share a batch up to so much: a reader that wants one message gets the whole batch.
MAX_SHARED_BYTES = 256 * 1024
MAX_SHARED_MESSAGES = 1024

QueueKey = tuple[int, int]


@dataclass(slots=True)
class Appended:
    """Where one batch of a publish is. `duplicate`: it was stored before, by an earlier try."""

    queue_id: int
    base_offset: int
    message_count: int
    store_timestamp_us: int
    end_physical_offset: int
    duplicate: bool = False


@dataclass(slots=True, eq=False)
class AppendRequest:
    """Batches of one publish. `done` is called once, in the thread that finished it, by way of
    the `completed` callback of the Appender: never directly."""

    topic_id: int
    batches: Sequence[Batch | Rows]
    durable: bool
    """Answer only once it is synced."""
    context: object = None
    """The caller's own: what to complete."""
    results: list[Appended] = field(default_factory=list)
    """Of each of `batches`, once it is finished without an error."""
    error: Exception | None = None
    size: int = field(init=False)
    """Bytes that it puts into the log, at most."""

    def __post_init__(self) -> None:
        self.size = sum([batch.total_size for batch in self.batches])

    @property
    def end_physical_offset(self) -> int:
        """Where the last of its blocks ends: what a sync has to cover."""
        return max((result.end_physical_offset for result in self.results), default=0)


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
        staged = _Staged()
        runs: _Runs = {}
        for request in group:
            try:
                self._place(request, staged, runs)
            except LogError as error:
                request.error = error
        for key in list(runs):
            self._place_run(key, staged, runs)
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

    def _place(self, request: AppendRequest, staged: "_Staged", runs: "_Runs") -> None:
        """Stage every batch of a request that is not stored already; Rows wait in their queue's
        run for those that come after."""
        self._last_timestamp_us = max(self._now_us(), self._last_timestamp_us)
        request.results = [_NOWHERE] * len(request.batches)
        for index, batch in enumerate(request.batches):
            key = (request.topic_id, batch.queue_id)
            run = runs.get(key)
            if run is not None and not (isinstance(batch, Rows) and run.takes(batch)):
                # Messages of a queue stay in the order in which they came; and one that was sent
                # again is known for that once what it repeats has its place.
                self._place_run(key, staged, runs)
                run = None
            before = self._stored_before(batch, key)
            if before is not None:
                request.results[index] = before
            elif isinstance(batch, Rows):
                if run is None:
                    run = runs[key] = _Run()
                run.add(request, index, batch)
            else:
                stamped = self._stamp(batch.header, key, _summary(batch), staged)
                self._sequences.record(stamped)
                staged.add(stamped, batch.block[HEADER_SIZE:])
                request.results[index] = _appended(stamped, stamped.base_offset, len(batch))

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

    def _place_run(self, key: QueueKey, staged: "_Staged", runs: "_Runs") -> None:
        """Stage a queue's run as one batch. What fails then fails for all its publishes."""
        run = runs.pop(key)
        header, payload = encode_rows(run.rows)
        try:
            stamped = self._stamp(header, key, header.tag_summary, staged)
        except LogError as error:
            for request, _ in run.requests:
                request.error = error
            return
        stamped = with_run(stamped, run.rows)
        self._sequences.record(stamped)
        staged.add(stamped, payload)
        base_offset = stamped.base_offset
        for (request, index), rows in zip(run.requests, run.rows, strict=True):
            request.results[index] = _appended(stamped, base_offset, len(rows))
            base_offset += len(rows)

    def _stamp(
        self, header: BatchHeader, key: QueueKey, summary: int, staged: "_Staged"
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

    def _make_room(self, header: BatchHeader, staged: "_Staged") -> None:
        """Roll to the next segment when this batch no longer fits. Raises DiskFull."""
        keys = keyed_messages(header)
        if self._log.has_room(
            staged.size + header.total_size, staged.keys + keys, len(staged.headers) + 1
        ):
            return
        self._write(staged)
        # More than once where the next segment was prepared when segments were still smaller.
        while not self._log.has_room(header.total_size, keys, 1):
            ended = self._log.roll()
            if ended is not None:
                self._rolled(ended)

    def _write(self, staged: "_Staged") -> None:
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


class _Run:
    """Rows that wait to become one batch, each with the request and the place of its result."""

    def __init__(self) -> None:
        self.rows: list[Rows] = []
        self.requests: list[tuple[AppendRequest, int]] = []
        self._size = 0
        self._count = 0
        self._producers: set[int] = set()

    def takes(self, rows: Rows) -> bool:
        """Return whether the rows may share the batch: it stays small, and of each producer it
        has one publish at most."""
        return (
            self._size + rows.total_size <= MAX_SHARED_BYTES
            and self._count + len(rows) <= MAX_SHARED_MESSAGES
            and rows.producer_id not in self._producers
        )

    def add(self, request: AppendRequest, index: int, rows: Rows) -> None:
        self.rows.append(rows)
        self.requests.append((request, index))
        self._size += rows.total_size
        self._count += len(rows)
        if rows.producer_id:
            self._producers.add(rows.producer_id)


_Runs = dict[QueueKey, _Run]


class _Staged:
    """Blocks that have their place but are not written yet."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.headers: list[BatchHeader] = []
        self.buffers: list[Buffer] = []
        self.size = 0
        self.keys = 0

    def add(self, header: BatchHeader, payload: Buffer) -> None:
        self.headers.append(header)
        self.buffers += (header.encode(), payload)
        self.size += header.total_size
        self.keys += keyed_messages(header)


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
