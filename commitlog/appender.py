"""The appender thread: takes publishes in turn, gives them their place, writes them.

All that waits is written with one call (group commit). A publish in written mode is answered
then; one that asks for durability is handed to the sync thread, so that nobody who did not ask
for a sync waits behind one.
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
from holdfast.commitlog.segment import Segment, keyed_messages

_logger = logging.getLogger(__name__)

#: One write takes at most this much: a larger one only makes the next publish wait.
MAX_GROUP_BYTES = 16 * 1024 * 1024
#: Two buffers a batch, 1,024 a system call.
MAX_GROUP_BATCHES = 512

QueueKey = tuple[int, int]


@dataclass(frozen=True, slots=True)
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
    batches: Sequence[Batch]
    durable: bool
    """Answer only once it is synced."""
    context: object = None
    """The caller's own: what to complete."""
    results: list[Appended] = field(default_factory=list)
    error: Exception | None = None

    @property
    def size(self) -> int:
        """Bytes that it puts into the log."""
        return sum(batch.header.total_size for batch in self.batches)

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
    written, in log order, before their requests complete; `rolled` with the segment that ended.
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
        self._waiting: deque[AppendRequest] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._poisoned: str | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-appender", daemon=True)

    # -- any thread ------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, then end the thread; may be called twice."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, request: AppendRequest, *, urgent: bool = False) -> None:
        """Queue a publish. Raises BatchTooLarge, LogClosed, LogPoisoned, or LogOverloaded when
        more bytes wait than max_waiting_bytes (one request is always let in). An `urgent` one
        is let in whatever waits, and goes before it: the broker's own."""
        for batch in request.batches:
            self._log.check_size(batch.header.total_size)
        size = request.size
        with self._changed:
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
            self._changed.notify()

    def poison(self, cause: str) -> None:
        """Refuse all that comes and fail all that waits; the log is read-only from now on."""
        with self._changed:
            if self._poisoned is None:
                self._poisoned = cause
            waiting = list(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
        self._fail(waiting, LogPoisoned(cause))

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

    def _take_group(self) -> list[AppendRequest]:
        """Wait for work; return at least one request, or none when closing."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
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
        for request in group:
            try:
                self._place(request, staged)
            except LogError as error:
                request.error = error
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

    def _place(self, request: AppendRequest, staged: "_Staged") -> None:
        """Stage every batch of a request that is not stored already."""
        now_us = self._last_timestamp_us = max(self._now_us(), self._last_timestamp_us)
        for batch in request.batches:
            header = batch.header
            before = self._sequences.find(header, request.topic_id, header.queue_id, now_us)
            if before is not None:
                request.results.append(
                    Appended(
                        header.queue_id,
                        before.base_offset,
                        before.message_count,
                        before.store_timestamp_us,
                        before.end_physical_offset,
                        duplicate=True,
                    )
                )
                continue
            self._make_room(header, staged)
            key = (request.topic_id, header.queue_id)
            stamped = header.stamped(
                physical_offset=self._log.written_offset + staged.size,
                durable_offset=self._sync_queue.durable_offset,
                base_offset=self._next_offsets.get(key, 0),
                topic_id=request.topic_id,
                queue_id=header.queue_id,
                store_timestamp_us=now_us,
                tag_summary=_summary(batch),
            )
            self._next_offsets[key] = stamped.end_offset
            self._sequences.record(stamped)
            staged.add(stamped, batch.block[HEADER_SIZE:])
            request.results.append(
                Appended(
                    header.queue_id,
                    stamped.base_offset,
                    stamped.message_count,
                    now_us,
                    stamped.end_physical_offset,
                )
            )

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


def _summary(batch: Batch) -> int:
    """Return the tag summary that the batch's own codes give: the producer's is not trusted,
    since a wrong one would hide messages from filters. A tag's code may be 0."""
    codes, offsets = batch.tag_codes, batch.tag_offsets
    if codes is None or offsets is None:
        return 0
    return tag_summary(set(codes[np.diff(offsets) > 0].tolist()))
