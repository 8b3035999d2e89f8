"""The appender thread: assigns offsets to publishes in order of arrival, and writes them.

The thread works in rounds. In each round it takes the waiting publishes, up to a limit, and writes
them with one call if possible (group commit). Waiting Rows of one queue become one batch. A publish
to several queues is stored completely or not at all, unless it is too large for one segment. A
publish that need not be durable completes after the write. A publish that must be durable goes to
the sync thread, so that the other publishes do not wait for a sync.

While the thread sleeps, the event loop may run a small round itself (`append_now`). That saves the
two thread switches of a publish, which take longer than the round. Only one thread runs a round at
a time. A round that needs a new segment, or that writes to a slow disk, is left to the thread.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from holdfast.commitlog.append.producer_sequences import ProducerFields, ProducerSequences
from holdfast.commitlog.append.write_times import WriteTimes
from holdfast.commitlog.errors import (
    LogClosed,
    LogError,
    LogOverloaded,
    LogPoisoned,
    RoutedOtherwise,
    TooManyProducers,
)
from holdfast.commitlog.format.batch import Batch, tag_summary
from holdfast.commitlog.format.batch_encoding import Rows, encode_rows, most_shared_bytes, with_run
from holdfast.commitlog.format.batch_header import HEADER_SIZE, BatchHeader, Buffer
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.segment import Segment, keyed_messages

_logger = logging.getLogger(__name__)

#: A round takes no further request when its requests have this many bytes in total: a larger write
#: would only delay the next publish.
MAX_GROUP_BYTES = 16 * 1024 * 1024
#: A round takes no further request when it has this many batches: each batch has two buffers, and
#: one system call writes at most 1,024 buffers.
MAX_GROUP_BATCHES = 512
#: At most this many bytes and messages of several publishes share a batch, because a reader that
#: needs one message reads the whole batch.
MAX_SHARED_BYTES = 256 * 1024
MAX_SHARED_MESSAGES = 1024
#: `append_now` takes at most this many rows, because encoding a row takes microseconds.
MAX_ROWS_NOW = 256

QueueKey = tuple[int, int]

_total_size = attrgetter("total_size")


class AppendResult(msgspec.Struct):
    """Where one batch of a publish is stored. `durable` is True if the publish completes only after
    a sync, `duplicate` if an earlier attempt of the publish stored the batch."""

    queue_id: int
    base_offset: int
    message_count: int
    store_timestamp_us: int
    end_physical_offset: int
    durable: bool
    duplicate: bool = False


class AppendRequest(msgspec.Struct, eq=False):
    """The batches of one publish, all for one topic. Each request is passed once to
    `ReputInbox.put_finished`, with `results` or `error` set."""

    topic_id: int
    batches: Sequence[Batch | Rows]
    durable: bool
    """Complete the request only after a sync."""
    context: object = None
    """An object of the caller, such as the future to complete."""
    client: str = ""
    """The client that publishes; empty if there is none. A new producer counts against the limit of
    this client."""
    refusal: Exception | None = None
    """If this is set, nothing of the request may be stored, and the request fails with this error.
    But a request that is already completely stored succeeds, as a duplicate."""
    results: list[AppendResult] = []
    """One result for each of `batches`, valid if the request completed without an error."""
    error: Exception | None = None
    size: int = 0
    """The total size of `batches`, in bytes. Do not give it: it is computed."""

    def __post_init__(self) -> None:
        self.size = sum(map(_total_size, self.batches))

    def set_result(self, index: int, stored: BatchHeader, base_offset: int, count: int) -> None:
        """Set the result of a batch: `count` messages from `base_offset` in the block `stored`."""
        self.results[index] = AppendResult(
            stored.queue_id,
            base_offset,
            count,
            stored.store_timestamp_us,
            stored.end_physical_offset,
            self.durable,
        )

    @property
    def end_physical_offset(self) -> int:
        """Where the last block of the request ends: a sync must reach this offset."""
        return max((result.end_physical_offset for result in self.results), default=0)


class ReputInbox(Protocol):
    """Receives the reports of the appender and the sync thread. A report is only queued; a thread
    calls `flush` after its last report."""

    def put_headers(self, headers: list[BatchHeader]) -> None:
        """Report that these blocks were written. They are in log order."""

    def put_durable_offset(self, durable_offset: int) -> None:
        """Report that the log is synced up to this physical offset."""

    def put_finished(self, requests: list[AppendRequest]) -> None:
        """Report requests that succeeded or failed. Their blocks were reported before."""

    def flush(self) -> None:
        """Have the queued reports processed, in this thread or in another one."""


class SyncQueue(Protocol):
    """The methods of the sync thread that the appender calls."""

    @property
    def durable_offset(self) -> int:
        """Physical offset below which everything is synced."""

    @property
    def has_single_requests(self) -> bool:
        """Whether no request waits for the next sync, and the last sync completed at most one
        request."""

    def put_written(self, requests: list[AppendRequest]) -> None:
        """Notify the sync thread of new writes. After the sync that covers these writes, it
        completes `requests`."""


class Appender:
    """Owns the end of the log: next queue offsets, timestamps, producers' sequences.

    Any thread may call `submit`. The thread that runs a round reports to `inbox` the written
    headers, then the finished requests, and flushes it at the end of each round. It calls `on_roll`
    with the segment that ended, and `on_failure` with an unexpected error, which makes the log
    read-only. `poison` reports the failed requests in the thread of its caller.
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
        max_bytes_now: int,
        now_us: Callable[[], int],
        monotonic: Callable[[], float],
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
        self._max_bytes_now = max_bytes_now
        self._now_us = now_us
        self._monotonic = monotonic
        self._write_times = WriteTimes()
        self._inbox = inbox
        self._on_roll = on_roll
        self._on_failure = on_failure
        self._waiting: deque[AppendRequest] = deque()
        self.waiting_bytes = 0
        """Bytes of the requests that are queued and not yet taken by the thread."""
        self._lock = threading.Lock()
        #: The thread sleeps by acquiring this lock; `wake` releases it once for each sleep.
        self._wakeup = threading.Lock()
        self._wakeup.acquire()
        self._is_asleep = False
        self._is_lent = False
        """Whether `append_now` runs a round. The thread sleeps meanwhile, and is not woken."""
        self._closing = False
        self.poisoned: str | None = None
        """Why the log is read-only; None if it is writable."""
        self._thread = threading.Thread(target=self._run, name="holdfast-appender", daemon=True)

    # -- any thread ------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write the waiting requests, then end the thread; may be called twice."""
        self._closing = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def durable_offset(self) -> int:
        """Physical offset below which everything is synced. Any thread may read it."""
        return self._sync_queue.durable_offset

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
            if self.poisoned is not None:
                raise LogPoisoned(self.poisoned)
            if self._closing:
                raise LogClosed
            if urgent:
                self._waiting.appendleft(request)
            elif self.waiting_bytes and self.waiting_bytes + size > self._max_waiting_bytes:
                raise LogOverloaded(self.waiting_bytes, self._max_waiting_bytes)
            else:
                self._waiting.append(request)
            self.waiting_bytes += size
        if wake:
            self.wake()

    def wake(self) -> None:
        """Wake the thread if it sleeps, so that it processes the submitted requests."""
        with self._lock:
            self._wake_locked()

    def _wake_locked(self) -> None:
        if self._is_asleep and not self._is_lent:
            self._is_asleep = False
            self._wakeup.release()

    def append_now(self) -> None:
        """Append the submitted requests in this thread if only a short write is needed. Otherwise
        wake the appender thread.

        At most `max_bytes_now` bytes are appended here; 0 means that the thread appends everything.
        The thread also appends everything if a request must be durable and other requests probably
        arrive soon: while the thread wakes up, they join the same sync.
        """
        with self._lock:
            if not self._can_append_now():
                self._wake_locked()
                return
            group = self._next_group()
            self._is_lent = True
        try:
            self._run_round(group, has_room=True)
        finally:
            with self._lock:
                self._is_lent = False
                if self._waiting or self._closing:
                    self._wake_locked()

    def _can_append_now(self) -> bool:
        """Return whether the thread sleeps, and the waiting requests need only a short write."""
        if not self._is_asleep or self._is_lent or self._closing:
            return False
        if not 0 < self.waiting_bytes <= self._max_bytes_now:
            return False
        batches: list[Batch | Rows] = []
        rows = 0
        is_single = len(self._waiting) == 1 and self._sync_queue.has_single_requests
        for request in self._waiting:
            if request.durable and not is_single:
                return False
            batches += request.batches
            for batch in request.batches:
                if isinstance(batch, Rows):
                    rows += batch.message_count
        return (
            len(batches) <= MAX_GROUP_BATCHES
            and rows <= MAX_ROWS_NOW
            and self._write_times.are_short(self._monotonic())
            and self._log.has_room(*Need.of(batches))
        )

    def poison(self, cause: str) -> None:
        """Make the log read-only: fail the waiting requests and refuse new ones. Any thread."""
        with self._lock:
            if self.poisoned is None:
                self.poisoned = cause
            waiting = list(self._waiting)
            self._waiting.clear()
            self.waiting_bytes = 0
        self._fail(waiting, LogPoisoned(cause))
        self._inbox.flush()

    # -- the appender thread ---------------------------------------------------------------

    def _run(self) -> None:
        while group := self._take_group():
            self._run_round(group)

    def _run_round(self, group: list[AppendRequest], *, has_room: bool = False) -> None:
        """Append the requests. With `has_room`, the caller has found that the active segment has
        room for all of them."""
        try:
            self._append_group(group, has_room=has_room)
        except Exception as error:  # last resort: an unexpected error makes the log read-only
            _logger.exception("the appender failed")
            self.poison(f"{type(error).__name__}: {error}")
            self._inbox.put_finished([request for request in group if request.error is not None])
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
        self.waiting_bytes -= size
        return group

    def _append_group(self, group: list[AppendRequest], *, has_room: bool) -> None:
        if not has_room:
            need = Need.of([batch for request in group for batch in request.batches])
            has_room = self._log.has_room(*need)
        staged = _Round(has_room=has_room)
        for request in group:
            try:
                self._place(request, staged)
            except LogError as error:
                self._refuse(request, error)
        self._place_runs(staged)
        self._write(staged)
        self._sequences.end_reservations()
        self._sequences.expire(self._last_timestamp_us)
        failed: list[AppendRequest] = []
        waiting: list[AppendRequest] = []
        finished: list[AppendRequest] = []
        durable_offset = self._sync_queue.durable_offset
        for request in group:
            if request.error is not None:
                failed.append(request)
            elif request.durable and request.end_physical_offset > durable_offset:
                waiting.append(request)
            else:
                finished.append(request)
        self._sync_queue.put_written(waiting)
        if failed or finished:
            self._inbox.put_finished([*failed, *finished])

    def _place(self, request: AppendRequest, staged: "_Round") -> None:
        """Stage the batches of a request, except batches that are stored already. Rows are added
        to the run of their queue (a run becomes one batch), where rows of later requests may join
        them.

        Usually nothing of the request is staged after a LogError. In two cases its first batches
        stay staged: if the error concerns the second batch of a producer to one queue, which is
        checked after the first is staged; and if the request needs several segments, because then
        its batches are staged one by one."""
        self._last_timestamp_us = max(self._now_us(), self._last_timestamp_us)
        known = self._find_stored(request, staged)
        if request.refusal is not None and None in known:
            self._refuse(request, request.refusal)
            return
        request.results = [before or _NOWHERE for before in known]
        is_whole = staged.has_room or self._reserve(
            [batch for batch, before in zip(request.batches, known, strict=True) if before is None],
            staged,
        )
        for index, batch in enumerate(request.batches):
            if known[index] is None:
                self._place_batch(request, index, batch, staged)
                if not is_whole:
                    self._place_runs(staged)
                    if request.error is not None:
                        return

    def _find_stored(self, request: AppendRequest, staged: "_Round") -> list[AppendResult | None]:
        """Return one result for each batch of a request: the place where an earlier attempt stored
        the batch, or None if the batch is new. Raise RoutedOtherwise if an earlier attempt went to
        other queues, and SequenceTooOld if the broker no longer remembers that attempt.

        If a batch follows a new batch of the same producer and queue, the result is None too;
        `_place_batch` looks up the second batch after the first one has its offsets."""
        found: list[AppendResult | None] = []
        new: set[tuple[int, int]] = set()
        for index, batch in enumerate(request.batches):
            publish = _publish_of(batch)
            producer_id, queue_id = publish.producer_id, batch.queue_id
            if producer_id in staged.producers:
                # Record this producer's waiting rows first: this batch may repeat them.
                self._place_runs(staged)
            if producer_id and not index:
                counts = {each.queue_id: len(each) for each in request.batches}
                self._sequences.check_routing(
                    publish, request.topic_id, counts, self._last_timestamp_us
                )
            if not producer_id or (producer_id, queue_id) in new:
                found.append(None)
                continue
            before = self._find(publish, request, queue_id)
            if before is None:
                self._sequences.reserve(
                    publish, request.topic_id, queue_id, request.client, self._last_timestamp_us
                )
                new.add((producer_id, queue_id))
            found.append(before)
        return found

    def _find(
        self, publish: ProducerFields, request: AppendRequest, queue_id: int
    ) -> AppendResult | None:
        """Return where an earlier attempt of this idempotent publish was stored, None if there is
        no stored attempt. Raise SequenceGap, SequenceTooOld or ProducerFenced."""
        before = self._sequences.find(publish, request.topic_id, queue_id, self._last_timestamp_us)
        if before is None:
            return None
        return AppendResult(
            queue_id,
            before.base_offset,
            before.message_count,
            before.store_timestamp_us,
            before.end_physical_offset,
            request.durable,
            duplicate=True,
        )

    def _reserve(self, batches: Sequence[Batch | Rows], staged: "_Round") -> bool:
        """Reserve room for all `batches` in the active segment, in addition to the staged blocks
        and waiting runs; roll to a new segment if necessary. If this returns True, only the write
        can still fail.

        Return False if no segment can hold all `batches`: the caller must then place them one by
        one. Raise what `CommitLog.roll` raises."""
        if not batches:
            return True
        need = Need.of(batches)
        rows = Need.of([batch for batch in batches if isinstance(batch, Rows)])
        if self._log.has_room(*staged.need.plus(staged.reserved).plus(need)):
            staged.reserved = staged.reserved.plus(rows)
            return True
        self._place_runs(staged)
        self._write(staged)
        fits = self._log.fits_segment(*need)
        while fits and not self._log.has_room(*need):
            self._roll(*need)
        staged.reserved = rows
        return fits

    def _place_batch(
        self, request: AppendRequest, index: int, batch: Batch | Rows, staged: "_Round"
    ) -> None:
        """Stage a batch, or add its rows to the run of their queue."""
        key = (request.topic_id, batch.queue_id)
        run = staged.runs.get(key)
        if run is not None and not (isinstance(batch, Rows) and run.has_room(batch)):
            # Stage the run before this batch: messages of a queue must keep their order of arrival.
            self._place_run(key, staged)
            run = None
        before = None
        if index and (publish := _publish_of(batch)).producer_id:
            # `_find_stored` returned None for this batch if an earlier batch of the request goes to
            # the same queue.
            before = self._find(publish, request, batch.queue_id)
        if before is not None:
            request.results[index] = before
        elif isinstance(batch, Rows):
            if run is None:
                run = staged.runs[key] = _RowRun()
            run.add(request, index, batch)
            if batch.producer_id:
                staged.producers.add(batch.producer_id)
        else:
            stamped = self._stamp(batch.header.copy(), key, _tag_summary_of(batch), staged)
            self._sequences.record(stamped)
            staged.add(stamped, batch.block[HEADER_SIZE:])
            request.set_result(index, stamped, stamped.base_offset, len(batch))

    def _refuse(self, request: AppendRequest, error: Exception) -> None:
        """Fail a request that could not be placed. Until its producer retries the request, the
        producer's later sequences are refused as gaps. If parts of the request are stored, they are
        duplicates in the retry."""
        request.error = error
        if isinstance(error, RoutedOtherwise):  # the first attempt is stored: no gap is possible
            return
        is_too_many = isinstance(error, TooManyProducers)  # do not remember new producers
        for batch in request.batches:
            self._sequences.reopen(
                _publish_of(batch),
                request.topic_id,
                batch.queue_id,
                self._last_timestamp_us,
                only_known=is_too_many,
            )

    def _place_runs(self, staged: "_Round") -> None:
        """Stage every run as one batch."""
        for key in list(staged.runs):
            self._place_run(key, staged)
        staged.producers.clear()
        staged.reserved = _NO_NEED

    def _place_run(self, key: QueueKey, staged: "_Round") -> None:
        """Stage a queue's run as one batch. On a LogError, fail all publishes of the run."""
        run = staged.runs.pop(key)
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
            count = rows.message_count
            request.set_result(index, stamped, base_offset, count)
            base_offset += count

    def _stamp(
        self, header: BatchHeader, key: QueueKey, summary: int, staged: "_Round"
    ) -> BatchHeader:
        """Set offsets, ids and timestamp in the header of the next batch to stage, and return the
        header. First roll to a new segment if necessary; raise what `CommitLog.roll` raises."""
        if not staged.has_room:
            self._make_room(header, staged)
        stamped = header.stamp(
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

    def _make_room(self, header: BatchHeader, staged: "_Round") -> None:
        """Write the staged blocks and roll, if the active segment has no room for one more batch.
        Raise what `CommitLog.roll` raises."""
        keys = keyed_messages(header)
        if not self._log.has_room(
            staged.size + header.total_size, staged.keys + keys, len(staged.headers) + 1
        ):
            self._write(staged)
            # A second roll is needed if the prepared segment is too small for this batch.
            while not self._log.has_room(header.total_size, keys, 1):
                self._roll(header.total_size, keys, 1)

    def _roll(self, size: int, keys: int, blocks: int) -> None:
        ended = self._log.roll(size, keys, blocks)
        if ended is not None:
            self._on_roll(ended)

    def _write(self, staged: "_Round") -> None:
        """Write the staged blocks. After an OSError the end of the log is unknown, so `_run` makes
        the log read-only."""
        if staged.headers:
            started_s = self._monotonic()
            self._log.append(staged.buffers, staged.headers)
            ended_s = self._monotonic()
            self._write_times.record(ended_s - started_s, ended_s)
            self._inbox.put_headers(staged.headers)
            staged.clear_blocks()

    def _fail(self, requests: list[AppendRequest], error: Exception) -> None:
        for request in requests:
            request.error = error
        if requests:
            self._inbox.put_finished(requests)


class _RowRun:
    """Rows that will become one batch, each with its request and the index of its result."""

    def __init__(self) -> None:
        self.rows: list[Rows] = []
        self.requests: list[tuple[AppendRequest, int]] = []
        self._size = 0
        self._count = 0
        self._producers: set[int] = set()

    def has_room(self, rows: Rows) -> bool:
        """Return whether the rows may share this batch. The batch must stay small and have at most
        one publish of each producer."""
        return (
            self._size + rows.total_size <= MAX_SHARED_BYTES
            and self._count + rows.message_count <= MAX_SHARED_MESSAGES
            and rows.producer_id not in self._producers
        )

    def add(self, request: AppendRequest, index: int, rows: Rows) -> None:
        """Add rows for which `has_room` is True. `index` is that of the rows' result in
        `request.results`."""
        self.rows.append(rows)
        self.requests.append((request, index))
        self._size += rows.total_size
        self._count += rows.message_count
        if rows.producer_id:
            self._producers.add(rows.producer_id)


class Need(NamedTuple):
    """The room that batches and rows need in a segment. For rows it is the most that they can
    need, because it is not known yet which rows will share a batch."""

    size: int = 0
    keys: int = 0
    blocks: int = 0

    @classmethod
    def of(cls, batches: Sequence[Batch | Rows]) -> "Need":
        size = keys = 0
        for batch in batches:
            size += batch.total_size
            if isinstance(batch, Rows):
                size += most_shared_bytes(batch)
                keys += batch.message_count
            else:
                keys += keyed_messages(batch.header)
        return cls(size, keys, len(batches))

    def plus(self, other: "Need") -> "Need":
        return Need(self.size + other.size, self.keys + other.keys, self.blocks + other.blocks)


_NO_NEED = Need()


class _Round:
    """The blocks and the rows of one round that are not written yet. Blocks have their offsets;
    rows wait in the run of their queue."""

    def __init__(self, *, has_room: bool) -> None:
        self.has_room = has_room
        """Whether the active segment has room for all requests of the round, so that it is
        unnecessary to reserve room."""
        self.runs: dict[QueueKey, _RowRun] = {}
        self.producers: set[int] = set()
        """The producers that have rows in the runs."""
        self.reserved = _NO_NEED
        """The room that is reserved for the runs."""
        self.clear_blocks()

    @property
    def need(self) -> Need:
        """The room that the blocks need in a segment."""
        return Need(self.size, self.keys, len(self.headers))

    def clear_blocks(self) -> None:
        self.headers: list[BatchHeader] = []
        self.buffers: list[Buffer] = []
        self.size = 0
        self.keys = 0

    def add(self, header: BatchHeader, payload: Buffer) -> None:
        """Add a block after the others."""
        self.headers.append(header)
        self.buffers += (header.encode(), payload)
        self.size += header.total_size
        self.keys += keyed_messages(header)


#: The result of a batch that has no offsets yet.
_NOWHERE = AppendResult(0, 0, 0, 0, 0, durable=False)


def _publish_of(batch: Batch | Rows) -> ProducerFields:
    return batch if isinstance(batch, Rows) else batch.header


def _tag_summary_of(batch: Batch) -> int:
    """Return the tag summary computed from the batch's tag codes. The producer's summary is not
    trusted: a wrong one would hide messages from filters."""
    # A message has a tag if the tag's text is not empty. The code does not show it, because a
    # tag may have the code 0.
    codes, offsets = batch.tag_codes, batch.tag_offsets
    if codes is None or offsets is None:
        return 0
    return tag_summary(set(codes[np.diff(offsets) > 0].tolist()))
