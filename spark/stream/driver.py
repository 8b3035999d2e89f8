"""The driver's side of a stream: find new messages, choose micro-batches, and wait.

Spark asks for the newest offsets in a loop, every ten milliseconds while there is nothing new. If a
call finds nothing, the next call waits until messages arrive, for at most `idle_wait_ms`. The first
call after a micro-batch never waits, so that it does not delay a query that has other sources, too.
"""

import logging
import time
from collections.abc import Callable, Mapping
from itertools import chain

from holdfast.log_files.descriptions import TopicState
from holdfast.log_files.ranges import OffsetRange
from holdfast.spark.broker.catalog import Catalog, LiveCatalog, OutOfRange
from holdfast.spark.errors import (
    BrokerRefused,
    GoneFromStream,
    SparkError,
    TopicRecreated,
    means_no_topic,
)
from holdfast.spark.options.offsets import QueueRange
from holdfast.spark.options.stream import StreamOptions, TriggerLimits
from holdfast.spark.read.plan import (
    BoundTopic,
    bind_topics,
    match_topics,
    plan_partitions,
    release_leases,
)
from holdfast.spark.stream.batch_limits import BatchLimits
from holdfast.spark.stream.group_progress import ProgressReporter
from holdfast.spark.stream.offsets import (
    BEGINNING,
    QueueKey,
    StreamOffsets,
    TopicOffsets,
    advance,
    find_losses,
    ranges_ahead,
    ranges_between,
)

_log = logging.getLogger("holdfast.spark")

#: While idle, Spark calls every ten milliseconds. If two calls are further apart than this, Spark
#: was busy between them.
IDLE_CALL_GAP_S = 0.1
#: The pause between two polls of all topics is at least this long, and this long for each topic.
_PAUSE_S, _PAUSE_PER_TOPIC_S = 0.2, 0.02
#: `latest` tries at most this many times to choose a micro-batch: a topic may change meanwhile.
_ATTEMPTS = 3


class StreamDriver:
    """The driver's side of one stream. Use it from one thread. The caller closes `catalog` and the
    client of `reporter`."""

    def __init__(
        self,
        catalog: Catalog,
        options: StreamOptions,
        reporter: ProgressReporter | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._clock = clock
        self._sleep = sleep
        self._catalog = catalog
        self._reporter = reporter
        self._initial: StreamOffsets | None = None
        self._target: StreamOffsets | None = None
        self._seen: Mapping[str, TopicState] = {}
        self._idle: tuple[StreamOffsets, float] | None = None
        self._last_batch_at: float | None = None
        self._batch_limits = BatchLimits(catalog)
        self._logged_losses: frozenset[str] = frozenset()
        self._leases: dict[tuple[str, str], None] = {}

    def initial(self) -> StreamOffsets:
        """Return the start of a new stream. Every call returns the same offsets."""
        if self._initial is None:
            read = self._options.read
            names = match_topics(self._catalog, read)
            bound = bind_topics(self._catalog, read) if names else ()
            self._initial = {
                topic.name: TopicOffsets(
                    topic.topic_id, {queue: part.start for queue, part in topic.ranges.items()}
                )
                for topic in bound
            }
        return self._initial

    def pin(self) -> None:
        """Make the current ends of the queues the end of the stream. After that, `latest` returns
        no later offsets, and does not wait."""
        self._seen = self._describe_topics()
        self._target = _queue_ends(self._seen)

    def close(self) -> None:
        """Release the stream's leases. May be called twice."""
        self._release_leases()

    @property
    def leases(self) -> list[tuple[str, str]]:
        """The leases of the micro-batches planned since the last `latest`: (topic, id) each."""
        return list(self._leases)

    def newest(self) -> StreamOffsets | None:
        """Return the ends of all queues as last described; None before any `latest` or `pin`."""
        return _queue_ends(self._seen) if self._seen else None

    def latest(self, start: StreamOffsets, limits: TriggerLimits) -> StreamOffsets:
        """Return the end of the next micro-batch, or `start` itself if there is none. If messages
        after `start` are lost, raises an error; without failOnDataLoss, logs the loss. Releases the
        leases of the last micro-batch, whose tasks have ended."""
        self._release_leases()
        for attempt in range(1, _ATTEMPTS + 1):
            self._seen = (
                self._wait_for_change(start)
                if self._is_idling(start)
                else self._describe_topics(start)
            )
            self._handle_losses(list(find_losses(start, self._seen)))
            try:
                end = self._advance(start, limits)
                break
            except (BrokerRefused, OutOfRange, TopicRecreated) as error:
                # A topic was trimmed or created again during this attempt. The next attempt
                # describes the topics again.
                if attempt == _ATTEMPTS:
                    raise
                self._idle = None
                _log.info("the topics are described again: %s", error)
        now_s = self._clock()
        if end == start:
            self._idle = (start, now_s)
            return start
        self._idle, self._last_batch_at = None, now_s
        return end

    def plan(self, start: StreamOffsets, end: StreamOffsets) -> list[tuple[QueueRange, ...]]:
        """Return the ranges of each task of the micro-batch from `start` to `end`; may be empty."""
        topics = []
        for name, ranges in ranges_between(start, end).items():
            topic_id = end[name].topic_id
            state = self._describe(name)
            if state is None:
                self._handle_losses([GoneFromStream(name, None)])
            elif state.topic_id != topic_id:
                self._handle_losses([TopicRecreated(name, topic_id, state.topic_id)])
            else:
                topics.append(BoundTopic(name, topic_id, ranges, state.priority_levels))
        plan = plan_partitions(self._catalog, self._options.read, topics)
        held = (part.lease.ids for parts in plan for part in parts if part.lease is not None)
        self._leases |= dict.fromkeys(chain.from_iterable(held))
        return plan

    def commit(self, end: StreamOffsets) -> None:
        """Store `end` as the offsets of the stream's group, if it has one. Raises nothing."""
        if self._reporter is not None:
            seen = self._seen  # leave out topics that were deleted and created again
            self._reporter.store(
                {
                    name: topic
                    for name, topic in end.items()
                    if name not in seen or seen[name].topic_id == topic.topic_id
                }
            )

    def _release_leases(self) -> None:
        """Release the leases of finished tasks. If they were left to expire, two micro-batches per
        second would have more leases than the broker grants."""
        release_leases(self._catalog, self._leases)
        self._leases.clear()

    # -- the current topics ------------------------------------------------------------------

    def _describe_topics(self, start: StreamOffsets | None = None) -> dict[str, TopicState]:
        """Return the current state of the stream's existing topics. Raises the catalog's error for
        a missing topic if failOnDataLoss is set, the options name the topic, and `start` is given
        but does not contain it."""
        read = self._options.read
        found = {}
        for name in match_topics(self._catalog, read):
            is_new = start is not None and name not in start
            must_be = read.pattern is None and is_new and read.fail_on_data_loss
            state = self._describe(name, must_be=must_be)
            if state is not None:
                found[name] = state
        return found

    def _describe(self, name: str, *, must_be: bool = False) -> TopicState | None:
        """Return a topic with the queues that the options name, or None if the topic does not
        exist. With `must_be`, raise the catalog's error instead."""
        try:
            state = self._catalog.describe(name)
        except SparkError as error:
            if must_be or not means_no_topic(error):
                raise
            return None
        assigned = self._options.read.assigned
        if assigned is None:
            return state
        # A repeated micro-batch may read a topic that the options no longer name.
        wanted = assigned.get(name, frozenset())
        queues = {q: each for q, each in state.queues.items() if q in wanted}
        return TopicState(state.name, state.topic_id, queues, state.priority_levels)

    def _handle_losses(self, lost: list[SparkError]) -> None:
        """Raise the first loss. Without failOnDataLoss, log each loss that the last call of this
        method did not log."""
        if self._options.read.fail_on_data_loss:
            for loss in lost:
                raise loss
        sentences = [str(loss) for loss in lost]
        for sentence in sentences:
            if sentence not in self._logged_losses:
                _log.warning("the stream continues without lost messages: %s", sentence)
        self._logged_losses = frozenset(sentences)

    # -- the end of a micro-batch ------------------------------------------------------------

    def _advance(self, start: StreamOffsets, limits: TriggerLimits) -> StreamOffsets:
        ahead = self._clip_to_target(ranges_ahead(start, self._seen))
        waiting = sum(part.end - part.start for part in ahead.values())
        if not self._may_start(waiting, limits):
            return start
        ends = {key: part.start for key, part in ahead.items()}
        ends.update(self._batch_limits.admit(ahead, limits, self._seen))
        return advance(start, self._seen, ends)

    def _clip_to_target(self, ahead: Mapping[QueueKey, OffsetRange]) -> dict[QueueKey, OffsetRange]:
        """Return the ranges. If `pin` was called, cut them at the end that it set."""
        if self._target is None:
            return dict(ahead)
        cut = {}
        for key, (first, last) in ahead.items():
            target = self._target.get(key.topic)
            if target is None or target.topic_id != self._seen[key.topic].topic_id:
                last = first
            else:
                last = max(first, min(last, target.queues.get(key.queue, first)))
            cut[key] = OffsetRange(first, last)
        return cut

    def _may_start(self, waiting: int, limits: TriggerLimits) -> bool:
        """Return True if enough messages wait, or the maximum delay is over."""
        if limits.min_offsets is None or self._target is not None or self._last_batch_at is None:
            return True
        overdue_s = self._clock() - self._last_batch_at - limits.max_delay_ms / 1000
        return waiting >= limits.min_offsets or overdue_s >= 0

    # -- waiting -----------------------------------------------------------------------------

    def _is_idling(self, start: StreamOffsets) -> bool:
        """Return True if Spark repeats a call that has just found nothing."""
        if self._idle is None or self._target is not None:
            return False
        last_start, called_at = self._idle
        return last_start == start and self._clock() - called_at < IDLE_CALL_GAP_S

    def _wait_for_change(self, start: StreamOffsets) -> Mapping[str, TopicState]:
        """Wait until the topics change, for at most `idle_wait_ms`, and return their new state.

        For a single topic that is read to its end, the broker holds a request until a message
        arrives. Otherwise the topics are polled. The more topics there are, the longer the pause
        between two polls.
        """
        wait_ms = self._options.idle_wait_ms
        deadline = self._clock() + wait_ms / 1000
        if len(self._seen) == 1 and isinstance(self._catalog, LiveCatalog) and wait_ms:
            ((name, topic),) = self._seen.items()
            ends = {queue: state.max_offset for queue, state in topic.queues.items()}
            read = start[name].queues if name in start else {}
            if all(read.get(queue, BEGINNING) == end for queue, end in ends.items()):
                self._catalog.hold(name, ends, wait_ms)
        pause_s = max(_PAUSE_S, _PAUSE_PER_TOPIC_S * len(self._seen))
        while (now := self._describe_topics(start)) == self._seen:
            left_s = deadline - self._clock()
            if left_s <= 0:
                break
            self._sleep(min(left_s, pause_s))
        return now


def _queue_ends(topics: Mapping[str, TopicState]) -> StreamOffsets:
    return {
        name: TopicOffsets(
            topic.topic_id, {queue: state.max_offset for queue, state in topic.queues.items()}
        )
        for name, topic in topics.items()
    }
