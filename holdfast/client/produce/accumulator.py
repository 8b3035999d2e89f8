"""Messages collected into batches, one open batch per queue, until they are sent. Pure.

A batch is *open* while messages are added, then *ready*, then *taken* by a request, then *resolved*
(stored or failed). Messages of a queue are in only one request at a time, and the batches of a
queue are sent in the order in which they became ready. So a queue stores its messages in the order
in which they were added.

The clock is passed in; there is no loop and no lock. Callers that share an Accumulator between
threads must lock it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.client.errors import UnknownQueue
from holdfast.client.produce.new_message import (
    Body,
    check_priority,
    check_text,
    check_ttl,
    encode_body,
    measure_properties,
    message_too_large,
)
from holdfast.client.produce.options import ProducerOptions as ProducerOptions
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.hashes import queue_for_key
from holdfast.commitlog.format.limits import MessageLimits
from holdfast.commitlog.format.priority import DEFAULT_PRIORITY, level_of, level_of_queue

#: The size that is counted for each message in addition to its body and texts. It is roughly the
#: memory that Python needs for a message. It also limits how many empty messages a batch can have.
MESSAGE_OVERHEAD_BYTES = 32

#: One request has at most this many batches of a queue. To recognize retries, the broker remembers
#: the offsets of this many batches per queue.
MAX_BATCHES_PER_QUEUE = 5

#: The limits of one request. They are far below the broker's defaults (16 MiB, 100,000 messages).
MAX_REQUEST_BYTES = 4 * 1024 * 1024
MAX_REQUEST_MESSAGES = 50_000
MAX_REQUEST_BATCHES = 1_000

_MAX_CACHED_TEXTS = 100_000
_MAX_FAILURES_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a batch was stored: its message i has the offset base_offset + i."""

    topic_id: int
    base_offset: int
    durable: bool


@dataclass(slots=True, eq=False)
class PendingBatch:
    """Messages of one queue that are being collected or sent.

    There is one column per field of the messages. Each column except `bodies` may be None, or
    shorter than `bodies`. A message without a value in a column does not have this field.
    """

    queue: int
    born_timestamp_us: int
    #: The producer of the batch.
    owner: Any
    bodies: list[bytes] = field(default_factory=list)
    keys: list[str | None] | None = None
    tags: list[str | None] | None = None
    properties: list[Mapping[str, str] | None] | None = None
    expires_timestamps_us: list[int | None] | None = None
    #: The born timestamps that callers gave. All other messages have the batch's.
    born_timestamps_us: list[int | None] | None = None
    size_bytes: int = 0
    is_open: bool = True
    #: Set when the batch is closed, because the messages are removed when the batch is resolved.
    message_count: int = 0
    #: None until the batch is resolved.
    outcome: Stored | Exception | None = None
    #: Whether a caller has read the batch's failure.
    is_failure_seen: bool = False
    #: The event for which the producer's callers wait; only the producer uses it.
    waiter: Any = None

    def encode(self, *, producer_id: int, sequence: int) -> bytes:
        """Return the batch encoded for the broker."""
        count = len(self.bodies)
        expires = _pad_column(self.expires_timestamps_us, count)
        return encode_batch(
            self.bodies,
            keys=_pad_column(self.keys, count),
            tags=_pad_column(self.tags, count),
            properties=_pad_column(self.properties, count),
            born_timestamp_us=self.born_timestamp_us,
            born_timestamps_us=self._fill_born(count),
            expires_timestamps_us=None if expires is None else [each or 0 for each in expires],
            queue_id=self.queue,
            producer_id=producer_id,
            sequence=sequence,
        )

    def _fill_born(self, count: int) -> list[int] | None:
        born = _pad_column(self.born_timestamps_us, count)
        if born is None:
            return None
        return [self.born_timestamp_us if each is None else each for each in born]


class Accumulator:
    """The batches of one producer that are not resolved yet.

    `on_opened(batch)` is called for each new batch, so that its linger timer can start;
    `on_ready()` is called when a full batch has become ready. `is_full` is True while at least
    `buffer_bytes` are waiting. A full accumulator still accepts messages; the caller must decide
    whether to add more. `has_room` is True while at least half of the buffer is free.
    """

    def __init__(
        self,
        options: ProducerOptions,
        *,
        queue_count: int,
        first_queue: int,
        limits: MessageLimits,
        owner: Any,
        clock_us: Callable[[], int],
        on_opened: Callable[[PendingBatch], None],
        on_ready: Callable[[], None],
        priority_levels: int = 1,
    ) -> None:
        self._queue_count = queue_count
        self._levels = priority_levels
        #: A key is hashed to one of this many indexes. Each index has one queue per priority level.
        self._index_count = queue_count // priority_levels
        self._priority = options.priority
        self._level = self._level_of(options.priority)
        if options.queue is not None:
            self._check_queue(options.queue, options.priority)
        self._fixed_queue = options.queue
        self._next_index = first_queue % self._index_count
        self._buffer_bytes = options.buffer_bytes
        # Open batches do not count as waiting; together they add at most half the buffer.
        max_open_bytes = options.buffer_bytes // (2 * queue_count)
        self._batch_bytes = max(1, min(options.batch_bytes, max_open_bytes))
        self._limits = limits
        self._max_body_bytes = limits.max_message_bytes
        self._owner = owner
        self._clock_us = clock_us
        self._on_opened = on_opened
        self._on_ready = on_ready

        self._open: dict[int, PendingBatch] = {}
        #: For each priority level, the batch that gets the messages without key and queue. A batch
        #: that is no longer open is replaced when the next such message is added.
        self._keyless = [PendingBatch(0, 0, None, is_open=False)] * priority_levels
        self._ready: dict[int, deque[PendingBatch]] = {}
        self._busy_queues: set[int] = set()
        self._unresolved: dict[PendingBatch, None] = {}
        self._failed: deque[PendingBatch] = deque(maxlen=_MAX_FAILURES_KEPT)
        self._waiting_bytes = 0
        self.is_full = False
        self.has_room = True
        #: The keys and tags that have passed their checks.
        self._index_by_key: dict[str, int] = {}
        self._known_tags: set[str] = set()

    def add(
        self,
        body: Body,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        born_timestamp_us: int | None = None,
    ) -> PendingBatch:
        """Append a message to a batch and return the batch.

        If it raises TypeError, ValueError, MessageTooLarge or UnknownQueue, nothing was added.
        """
        if type(body) is not bytes:
            body = encode_body(body)
        if len(body) > self._max_body_bytes:
            raise message_too_large("message", len(body), self._max_body_bytes)
        if (
            key is None
            and tag is None
            and properties is None
            and queue is None
            and priority is None
            and ttl_ms is None
            and born_timestamp_us is None
        ):
            batch = self._keyless[self._level]
            if not batch.is_open:
                batch = self._open_keyless(self._level)
            batch.bodies.append(body)
            batch.size_bytes += len(body) + MESSAGE_OVERHEAD_BYTES
        else:
            batch = self._add_with_fields(
                body, key, tag, properties, queue, priority, ttl_ms, born_timestamp_us
            )
        if batch.size_bytes >= self._batch_bytes:
            self.close(batch)
            self._on_ready()
        return batch

    def _add_with_fields(
        self,
        body: bytes,
        key: str | None,
        tag: str | None,
        properties: Mapping[str, str] | None,
        queue: int | None,
        priority: int | None,
        ttl_ms: int | None,
        born_timestamp_us: int | None,
    ) -> PendingBatch:
        size = len(body) + MESSAGE_OVERHEAD_BYTES
        if key is not None:
            if key not in self._index_by_key:
                self._learn_key(key)
            size += len(key)
        if tag is not None:
            if tag not in self._known_tags:
                self._learn_tag(tag)
            size += len(tag)
        if properties:
            properties_bytes = measure_properties(properties)
            limit = self._limits.max_properties_bytes
            if properties_bytes > limit:
                raise message_too_large("properties", properties_bytes, limit)
            size += properties_bytes
        if ttl_ms is not None:
            check_ttl(ttl_ms)
        batch = self._find_batch(key, queue, priority)
        row = len(batch.bodies)
        batch.bodies.append(body)
        batch.size_bytes += size
        if key is not None:
            batch.keys = _set_in_column(batch.keys, row, key)
        if tag is not None:
            batch.tags = _set_in_column(batch.tags, row, tag)
        if properties:
            batch.properties = _set_in_column(batch.properties, row, dict(properties))
        if ttl_ms is not None:
            expires_us = self._clock_us() + ttl_ms * 1000
            batch.expires_timestamps_us = _set_in_column(
                batch.expires_timestamps_us, row, expires_us
            )
        if born_timestamp_us is not None:
            batch.born_timestamps_us = _set_in_column(
                batch.born_timestamps_us, row, born_timestamp_us
            )
        return batch

    def _open_keyless(self, level: int) -> PendingBatch:
        """Return a new batch for messages of a level that have no key and no queue. Its queue is
        the producer's fixed queue if there is one, otherwise the queues of the level take turns.
        """
        if self._fixed_queue is not None:
            queue = self._fixed_queue
        else:
            index = self._next_index
            self._next_index = (index + 1) % self._index_count
            queue = index * self._levels + level
        batch = self._keyless[level] = self._open_batch(queue)
        return batch

    def _find_batch(self, key: str | None, queue: int | None, priority: int | None) -> PendingBatch:
        if priority is None:
            priority, level = self._priority, self._level
        else:
            check_priority(priority)
            level = self._level_of(priority)
        if queue is None:
            queue = self._fixed_queue
        if queue is not None:
            self._check_queue(queue, priority)
        elif key is not None:
            queue = self._index_by_key[key] * self._levels + level
        else:
            batch = self._keyless[level]
            return batch if batch.is_open else self._open_keyless(level)
        return self._open.get(queue) or self._open_batch(queue)

    def _open_batch(self, queue: int) -> PendingBatch:
        batch = self._open.get(queue)
        if batch is None:
            batch = self._open[queue] = PendingBatch(queue, self._clock_us(), self._owner)
            self._unresolved[batch] = None
            self._on_opened(batch)
        return batch

    def _learn_key(self, key: str) -> None:
        check_text("key", key, self._limits.max_key_bytes)
        if len(self._index_by_key) >= _MAX_CACHED_TEXTS:
            self._index_by_key.clear()
        self._index_by_key[key] = queue_for_key(key, self._index_count)

    def _learn_tag(self, tag: str) -> None:
        check_text("tag", tag, self._limits.max_tag_bytes)
        if len(self._known_tags) >= _MAX_CACHED_TEXTS:
            self._known_tags.clear()
        self._known_tags.add(tag)

    def _check_queue(self, queue: int, priority: int | None) -> None:
        if not 0 <= queue < self._queue_count:
            raise UnknownQueue(
                404,
                "unknown-queue",
                "No such queue",
                f"there is no queue {queue}; the topic's queues are 0 to {self._queue_count - 1}",
                {"queue_count": self._queue_count},
            )
        level = level_of_queue(queue, self._levels)
        if priority is not None and self._level_of(priority) != level:
            raise ValueError(
                f"priority {priority} is level {self._level_of(priority)} of {self._levels}, but "
                f"queue {queue} is of level {level}; leave one of them out"
            )

    def _level_of(self, priority: int | None) -> int:
        return level_of(DEFAULT_PRIORITY if priority is None else priority, self._levels)

    def close(self, batch: PendingBatch) -> None:
        """Make an open batch ready to be sent; do nothing if it is closed already."""
        if not batch.is_open:
            return
        batch.is_open = False
        batch.message_count = len(batch.bodies)
        del self._open[batch.queue]
        self._ready.setdefault(batch.queue, deque()).append(batch)
        self._count_waiting(batch.size_bytes)

    def close_all(self) -> None:
        """Make every open batch ready to be sent."""
        for batch in list(self._open.values()):
            self.close(batch)

    def take(self) -> list[PendingBatch]:
        """Return the batches for one request, without batches of queues that have a request in
        flight. The queue that has waited longest comes first. The list may be empty."""
        taken: list[PendingBatch] = []
        room_bytes, room_messages = MAX_REQUEST_BYTES, MAX_REQUEST_MESSAGES
        room_batches = MAX_REQUEST_BATCHES
        for queue in [queue for queue in self._ready if queue not in self._busy_queues]:
            ready = self._ready.pop(queue)
            for _ in range(min(len(ready), MAX_BATCHES_PER_QUEUE, room_batches)):
                room_bytes -= ready[0].size_bytes
                room_messages -= ready[0].message_count
                if taken and (room_bytes < 0 or room_messages < 0):
                    break
                taken.append(ready.popleft())
                room_batches -= 1
                self._busy_queues.add(queue)
            if ready:
                self._ready[queue] = ready
            if room_bytes <= 0 or room_messages <= 0 or room_batches <= 0:
                break
        return taken

    def resolve(
        self, batches: Iterable[PendingBatch], outcomes: Iterable[Stored | Exception]
    ) -> None:
        """Record the outcomes of a request's batches; free their queues and their buffer space."""
        for batch, outcome in zip(batches, outcomes, strict=True):
            batch.outcome = outcome
            batch.bodies = []
            batch.keys = batch.tags = batch.properties = None
            batch.expires_timestamps_us = batch.born_timestamps_us = None
            self._busy_queues.discard(batch.queue)
            self._count_waiting(-batch.size_bytes)
            del self._unresolved[batch]
            if isinstance(outcome, Exception):
                self._failed.append(batch)

    def _count_waiting(self, change_bytes: int) -> None:
        self._waiting_bytes += change_bytes
        self.is_full = self._waiting_bytes >= self._buffer_bytes
        self.has_room = self._waiting_bytes <= self._buffer_bytes // 2

    def unresolved(self) -> list[PendingBatch]:
        """Return all batches that are not resolved, oldest first."""
        return list(self._unresolved)

    def take_unseen_failures(self) -> list[PendingBatch]:
        """Return the failed batches whose failure no caller has read; forget all failed batches.

        Only the last 1,000 failed batches are kept.
        """
        unseen = [batch for batch in self._failed if not batch.is_failure_seen]
        self._failed.clear()
        return unseen


def _pad_column(column: list[Any] | None, count: int) -> list[Any] | None:
    return None if column is None else column + [None] * (count - len(column))


def _set_in_column(column: list[Any] | None, row: int, value: Any) -> list[Any]:
    """Return the column with `value` appended at `row`; missing rows before `row` become None."""
    if column is None:
        column = []
    column.extend([None] * (row - len(column)))
    column.append(value)
    return column
