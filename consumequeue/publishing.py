"""Publishing: admit batches, hand them to the appender, and reply once they are durable enough.

All publishes of one event loop iteration go to the appender together, so that they can share a
batch and a write. A publish that is alone does not wait for others. Everything here belongs to the
event loop, except `Publisher.deliver_pass`.

A publish counts as in flight until the appender has completed it, even if its client has timed out
or disconnected, because it is in memory until then. Alarms and limits refuse only publishes:
reading, storing offsets, retention and the broker's own records continue.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field

import msgspec

from holdfast.commitlog.append.appender import Appender, AppendRequest, AppendResult
from holdfast.commitlog.errors import LogError, LogOverloaded, SyncTimeout
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_check import MessageLimits
from holdfast.commitlog.format.batch_encoding import Rows
from holdfast.consumequeue.config import TopicsConfig
from holdfast.consumequeue.errors import TopicFull, UnknownQueue, UnknownTopic
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey, Topic

_logger = logging.getLogger(__name__)

#: A topic with at most this many queues is measured at every publish, which takes a few
#: microseconds. A topic with more queues is measured at most once per _MEASURED_S seconds; between
#: measurements, each publish adds its size as the client sent it.
_QUICK_QUEUES = 64
_MEASURED_S = 1.0

PublishAlarm = Callable[[], LogError | None]
"""Returns the error that refuses all publishes now, or None."""

AlarmListener = Callable[[LogError | None], None]
"""Called on the event loop with the error that refuses all publishes from now on, or with None when
publishing continues. Must not raise an error."""

ArrivalListener = Callable[[dict[QueueKey, int]], None]
"""Called on the event loop with the new max offsets of queues."""


class BegunPublish(msgspec.Struct):
    """A publish that may not be stored yet. When `future` has a result, it is stored: then
    `request.results` has the place of each batch, in order."""

    request: AppendRequest
    future: asyncio.Future[None]


@dataclass(eq=False)
class Publisher:
    """Publishes to the log. `timeout_ms` is how long a publish waits for the disk. After each pass
    of reput, every listener in `arrival_listeners` is called."""

    table: TopicTable
    config: TopicsConfig
    appender: Appender
    admission: "PublishAdmission"
    arrival_listeners: Sequence[ArrivalListener]
    _: KW_ONLY
    timeout_ms: int

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._is_appending_soon = False
        #: The publishes that wait, oldest first, each with its deadline. While any publish waits,
        #: one timer is set.
        self._waiting: dict[asyncio.Future[None], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def limits(self, topic: Topic) -> MessageLimits:
        config = self.config
        return MessageLimits(
            topic.config.max_message_bytes,
            config.max_key_bytes,
            config.max_tag_bytes,
            config.max_properties_bytes,
        )

    async def publish(
        self,
        topic: Topic,
        batches: Sequence[Batch | Rows],
        *,
        durability: str | None = None,
        client: str = "",
        refusal: Exception | None = None,
    ) -> list[AppendResult]:
        """Append messages that are checked and have a queue id. Return the place of each batch, in
        the order of `batches`.

        Return when `durability` ("fsync" or "written"; by default that of the topic) is reached
        and the messages can be read. Exception: if `durability` is "written" on a topic with
        "fsync", the messages can be read only later. Each new producer counts against the limit
        of `client`.

        If `refusal` is not None, raise it and store nothing. Exception: if an earlier try has
        stored all batches, the publish succeeds as a duplicate.

        Raises UnknownTopic (the topic has been deleted), UnknownQueue, or LogError. An alarm's
        error and SyncTimeout are LogErrors. Cancelling is safe. After SyncTimeout or after
        cancelling, the batches may still be stored.
        """
        begun = self.begin(topic, batches, durability=durability, client=client, refusal=refusal)
        try:
            await begun.future
        finally:
            self.end(begun)
        return begun.request.results

    def begin(
        self,
        topic: Topic,
        batches: Sequence[Batch | Rows],
        *,
        durability: str | None = None,
        client: str = "",
        refusal: Exception | None = None,
    ) -> "BegunPublish":
        """Begin a publish without waiting for it. `publish` describes the rest; errors that occur
        later are set in the future of the result. If its future is cancelled, call `end`."""
        if self.table.by_id(topic.topic_id) is None:
            raise UnknownTopic(topic.name)
        for batch in batches:
            if not 0 <= batch.queue_id < topic.queue_count:
                raise UnknownQueue(topic.name, batch.queue_id, topic.queue_count)
        durable = (durability or topic.config.durability) == "fsync"
        future: asyncio.Future[None] = self._loop.create_future()
        request = AppendRequest(
            topic.topic_id, batches, durable, context=future, client=client, refusal=refusal
        )
        self._submit(request)
        self._waiting[future] = self._loop.time() + self.timeout_ms / 1000
        if self._timer is None:
            self._timer = self._loop.call_later(self.timeout_ms / 1000, self._expire)
        return BegunPublish(request, future)

    def end(self, begun: BegunPublish) -> None:
        """Stop the deadline of a publish that is stored, has failed, or is given up."""
        self._waiting.pop(begun.future, None)

    def _submit(self, request: AppendRequest) -> None:
        """Hand a request to the appender, which is called once per event loop iteration."""
        self.admission.enter(request.size)
        try:
            self.appender.submit(request, wake=False)
        except LogError:
            self.admission.in_flight_bytes -= request.size
            raise
        if not self._is_appending_soon:
            self._is_appending_soon = True
            self._loop.call_soon(self._append)

    def _append(self) -> None:
        self._is_appending_soon = False
        self.appender.append_now()

    def _expire(self) -> None:
        """Fail the publishes that waited too long. They still count as in flight."""
        self._timer = None
        now_s = self._loop.time()
        for future, until_s in list(self._waiting.items()):
            if until_s > now_s:
                self._timer = self._loop.call_at(until_s, self._expire)
                return
            del self._waiting[future]
            if not future.done():
                future.set_exception(SyncTimeout(self.timeout_ms))

    def deliver_pass(self, advanced: dict[QueueKey, int], finished: list[AppendRequest]) -> None:
        """Deliver the results of a reput pass (the new max offsets of queues, and the finished
        requests) to the event loop, with one call of the loop. Any thread may call this."""
        if threading.get_ident() == self._loop_thread:  # the event loop need not be woken
            self._loop.call_soon(self._complete_pass, advanced, finished)
            return
        try:
            self._loop.call_soon_threadsafe(self._complete_pass, advanced, finished)
        except RuntimeError:
            _logger.warning("%d publishes completed after the event loop ended", len(finished))

    def _complete_pass(self, advanced: dict[QueueKey, int], finished: list[AppendRequest]) -> None:
        """Call the listeners, then complete the publishes of the finished requests."""
        try:
            if advanced:
                for listener in self.arrival_listeners:
                    listener(advanced)
        finally:
            for request in finished:
                future = request.context
                if not isinstance(future, asyncio.Future):
                    continue
                self.admission.in_flight_bytes -= request.size
                self._waiting.pop(future, None)
                if future.done():
                    continue
                if request.error is None:
                    future.set_result(None)
                else:
                    future.set_exception(request.error)


@dataclass(eq=False)
class PublishAdmission:
    """Admits publishes: none while an alarm is raised, and only a limited number of bytes at once.

    When an admitted publish ends, the caller subtracts its size from `in_flight_bytes`.
    `alarm_listeners` are called when the first alarm is raised, and when the last alarm has ended.
    The first refused publish and `update` find such changes.
    """

    max_in_flight_bytes: int
    alarms: Mapping[str, PublishAlarm]
    in_flight_bytes: int = 0
    alarm_listeners: list[AlarmListener] = field(default_factory=list, init=False)
    refusal: LogError | None = field(default=None, init=False)
    """What `alarm_listeners` were last called with: the error that refuses publishes, or None."""
    _failure: LogError | None = field(default=None, init=False)

    def enter(self, size: int) -> None:
        """Admit a publish of `size` bytes. If no other publish is in flight, admit any size.

        Raises the LogError of a raised alarm, or LogOverloaded above the limit.
        """
        self.check()
        if self.in_flight_bytes and self.in_flight_bytes + size > self.max_in_flight_bytes:
            raise LogOverloaded(
                self.in_flight_bytes, self.max_in_flight_bytes, "max_in_flight_bytes"
            )
        self.in_flight_bytes += size

    def check(self) -> None:
        """Raise the LogError of an alarm that is raised, if any."""
        for alarm in self.alarms.values():
            error = alarm()
            if error is not None:
                self._note(error)
                raise copy(error)  # `error` itself would keep the frames of every caller

    def update(self) -> None:
        """Call the listeners if the first alarm was raised, or if the last alarm has ended."""
        raised = (alarm() for alarm in self.alarms.values())
        self._note(self._failure or next((error for error in raised if error is not None), None))

    def fail(self, error: LogError) -> None:
        """Call the listeners with `error`, because the log stores nothing until a restart."""
        self._failure = error
        self.update()

    def _note(self, refusal: LogError | None) -> None:
        before, self.refusal = self.refusal, refusal
        if (before is None) is not (refusal is None):
            for listener in self.alarm_listeners:
                listener(refusal)


class _Usage(msgspec.Struct):
    """The stored bytes of a topic at `measured_s`, and the bytes of publishes in progress."""

    measured_s: float = float("-inf")
    stored: int = 0
    arriving: int = 0


@dataclass(eq=False)
class TopicRoom:
    """Admits publishes to topics with a `max_bytes`. Call `leave` once for every admitted publish.
    Topics without a limit are not tracked.

    `stored_bytes` measures a topic; `now_s` is a monotonic clock. Publishes in progress count too.
    Retention deletes the oldest messages to keep a topic within `retention_bytes`; `max_bytes`
    instead makes the broker refuse new messages.
    """

    stored_bytes: Callable[[Topic], int]
    now_s: Callable[[], float]
    _usages: dict[int, _Usage] = field(default_factory=dict, init=False)

    def enter(self, topic: Topic, size: int) -> int:
        """Admit `size` bytes. Return the bytes that count: 0 if the topic has no limit, otherwise
        `size`. Raises TopicFull if the topic would exceed its limit."""
        limit = topic.config.max_bytes
        if limit is None:
            return 0
        usage = self._usages.get(topic.topic_id)
        if usage is None:
            usage = self._usages[topic.topic_id] = _Usage()
        now_s = self.now_s()
        if topic.queue_count <= _QUICK_QUEUES or now_s - usage.measured_s >= _MEASURED_S:
            usage.stored, usage.measured_s = self.stored_bytes(topic), now_s
        if usage.stored + usage.arriving + size > limit:
            raise TopicFull(topic.name, usage.stored, limit)
        usage.arriving += size
        return size

    def leave(self, topic: Topic, counted: int) -> None:
        """End an admitted publish, which is stored or has failed. `counted` is the result of
        `enter`."""
        usage = self._usages.get(topic.topic_id) if counted else None
        if usage is not None:
            usage.arriving -= counted
            usage.stored += counted

    def forget(self, topic_id: int) -> None:
        self._usages.pop(topic_id, None)
