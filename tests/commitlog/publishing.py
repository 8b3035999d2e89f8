"""An appender (and a syncer) over a simulated disk, and all their callbacks, in order."""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.commitlog.append.appender import Appender, AppendRequest, SyncQueue
from holdfast.commitlog.append.producer_sequences import ProducerLimits, ProducerSequences
from holdfast.commitlog.append.syncer import Syncer
from holdfast.commitlog.errors import LogError
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import Rows, encode_batch
from holdfast.commitlog.format.batch_header import BatchHeader
from holdfast.commitlog.segments.segment import Segment
from tests.support.simulation.simulated_disk import SimulatedDisk
from tests.support.storage.small_log import NOW_US, SEGMENT_BYTES, SmallLog

DEADLINE_S = 20.0


@dataclass(frozen=True)
class Event:
    """A report or a callback's call: dispatch, complete, rolled, written, advanced or failed."""

    kind: str
    what: object


class Events:
    """A ReputInbox that keeps all reports and callback calls so far, in order, from any thread."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self._completed: queue.SimpleQueue[AppendRequest] = queue.SimpleQueue()
        self._changed = threading.Condition()

    def note(self, kind: str, what: object) -> None:
        with self._changed:
            self.all.append(Event(kind, what))
            self._changed.notify_all()

    def put_headers(self, headers: list[BatchHeader]) -> None:
        self.note("dispatch", list(headers))

    def put_durable_offset(self, durable_offset: int) -> None:
        self.note("advanced", durable_offset)

    def flush(self) -> None:
        pass

    def put_finished(self, requests: list[AppendRequest]) -> None:
        self.note("complete", list(requests))
        for request in requests:
            self._completed.put(request)

    def next_completed(self) -> AppendRequest:
        """Wait for the next request to complete, and return it."""
        return self._completed.get(timeout=DEADLINE_S)

    def wait_for(self, kind: str) -> object:
        """Wait until a callback of this kind was called; return its first value."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.of(kind), DEADLINE_S), f"no {kind}"
        return self.of(kind)[0]

    def of(self, kind: str) -> list[object]:
        return [event.what for event in self.all if event.kind == kind]

    def completions(self, request: AppendRequest) -> int:
        """Return how often a request was completed."""
        lists = [what for what in self.of("complete") if isinstance(what, list)]
        return sum(each is request for requests in lists for each in requests)


class IdleSyncQueue:
    """A sync thread that never syncs: it keeps the waiting requests."""

    def __init__(self, events: Events) -> None:
        self.durable_offset = 0
        self.has_single_requests = False
        self._events = events

    def put_written(self, requests: list[AppendRequest]) -> None:
        self._events.note("written", list(requests))

    def of_waiting(self) -> list[AppendRequest]:
        found: list[AppendRequest] = []
        for what in self._events.of("written"):
            assert isinstance(what, list)
            found += what
        return found


class Publishing:
    """A log on a simulated disk with an appender that is not started yet.

    Requests that are submitted before `appender.start()` form one group.
    """

    def __init__(
        self,
        *,
        max_waiting_bytes: int = 64 * 1024 * 1024,
        max_bytes_now: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
        disk: SimulatedDisk | None = None,
        next_offsets: dict[tuple[int, int], int] | None = None,
        last_timestamp_us: int = 0,
        producers: ProducerLimits | None = None,
    ) -> None:
        self.disk = disk if disk is not None else SimulatedDisk()
        self.small = SmallLog(Path("/log"), self.disk, segment_bytes)
        self.small.open()
        self.log = self.small.log
        self.events = Events()
        self.clock: Callable[[], int] = lambda: NOW_US
        self.monotonic: Callable[[], float] = lambda: 0.0
        self.idle = IdleSyncQueue(self.events)
        self.syncer: Syncer | None = None
        self.sequences = ProducerSequences(
            expiry_us=10**12, limits=producers or ProducerLimits(1000)
        )
        self._settings = (max_waiting_bytes, max_bytes_now, next_offsets or {}, last_timestamp_us)
        self.appender = self._make_appender(self.idle)

    def _make_appender(self, sync_queue: SyncQueue) -> Appender:
        max_waiting_bytes, max_bytes_now, next_offsets, last_timestamp_us = self._settings
        return Appender(
            self.log,
            self.sequences,
            sync_queue,
            next_offsets=next_offsets,
            last_timestamp_us=last_timestamp_us,
            max_waiting_bytes=max_waiting_bytes,
            max_bytes_now=max_bytes_now,
            now_us=lambda: self.clock(),
            monotonic=lambda: self.monotonic(),
            inbox=self.events,
            on_roll=lambda segment: self.events.note("rolled", segment),
            on_failure=lambda error: self.events.note("failed", error),
        )

    def with_syncer(self, flush_interval_s: float = 3600.0) -> "Publishing":
        """Connect a real sync thread to the appender, and start it."""
        self.syncer = Syncer(
            self.log,
            durable_offset=0,
            flush_interval_s=flush_interval_s,
            inbox=self.events,
            on_failure=lambda error: self.events.note("failed", error),
            monotonic=lambda: 0.0,
        )
        self.appender = self._make_appender(self.syncer)
        self.syncer.start()
        return self

    def stop(self) -> None:
        """End the threads."""
        self.disk.release_syncs()
        self.appender.stop()
        if self.syncer is not None:
            self.syncer.stop()

    def submit(
        self,
        *batches: Batch | Rows,
        durable: bool = False,
        topic_id: int = 1,
        urgent: bool = False,
        client: str = "",
        refusal: Exception | None = None,
    ) -> AppendRequest:
        """Submit a publish."""
        request = AppendRequest(
            topic_id, list(batches) or [batch()], durable, client=client, refusal=refusal
        )
        self.appender.submit(request, urgent=urgent)
        return request

    def dispatched(self) -> list[BatchHeader]:
        """Return the headers dispatched so far."""
        found: list[BatchHeader] = []
        for what in self.events.of("dispatch"):
            assert isinstance(what, list)
            found += what
        return found

    def rolled(self) -> list[Segment]:
        return [what for what in self.events.of("rolled") if isinstance(what, Segment)]


def batch(
    size: int = 100,
    *,
    queue: int = 0,
    tags: Sequence[str | None] | None = None,
    producer_id: int = 0,
    sequence: int = 0,
    epoch: int = 0,
) -> Batch:
    """Return a batch of one message, as a client sends it."""
    return Batch.decode(
        encode_batch(
            [b"x" * size],
            tags=tags,
            queue_id=queue,
            producer_id=producer_id,
            sequence=sequence,
            producer_epoch=epoch,
        )
    )


def error_of(request: AppendRequest) -> LogError:
    """Return the error of a request."""
    assert isinstance(request.error, LogError)
    return request.error
