"""A stream as its driver sees it: what there is, how far the next micro-batch goes, and waiting.

Spark asks for the newest offsets in a loop, every ten milliseconds when there is nothing new.
The second question in a row that would be answered "nothing" is held instead, until something
comes or for `idle_wait_ms`; a question after a micro-batch never is, so that a query that has
other sources too does not wait for this one.
"""

import logging
import time
from collections.abc import Callable, Mapping
from itertools import chain

from holdfast.spark.admitting import Admission
from holdfast.spark.catalog import Catalog, LiveCatalog, OutOfRange, TopicState
from holdfast.spark.errors import (
    BrokerRefused,
    GoneFromStream,
    SparkError,
    TopicRecreated,
    means_no_topic,
)
from holdfast.spark.mirror import GroupMirror
from holdfast.spark.offsets import OffsetRange, QueueRange
from holdfast.spark.plan import (
    BoundTopic,
    bind_topics,
    matching_topics,
    plan_partitions,
    release_leases,
)
from holdfast.spark.stream_offsets import (
    BEGINNING,
    QueueKey,
    StreamOffsets,
    TopicOffsets,
    advanced,
    losses,
    ranges_ahead,
    ranges_between,
)
from holdfast.spark.stream_options import Limits, StreamOptions

_log = logging.getLogger("holdfast.spark")

#: Spark asks again within ten milliseconds while nothing is new: a longer pause was no idling.
SPINNING_S = 0.1
#: Between two looks where the broker cannot be asked to wait, and what each topic adds to it.
_PAUSE_S = 0.2
_PAUSE_PER_TOPIC_S = 0.02
#: A topic that changes between being looked at and being planned is looked at again.
_ATTEMPTS = 3


class StreamDriver:
    """The driver's side of one stream. For one thread; `catalog` and `mirror` are its owner's."""

    def __init__(
        self,
        catalog: Catalog,
        options: StreamOptions,
        mirror: GroupMirror | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._clock = clock
        self._sleep = sleep
        self._catalog = catalog
        self._mirror = mirror
        self._initial: StreamOffsets | None = None
        self._target: StreamOffsets | None = None
        self._seen: Mapping[str, TopicState] = {}
        self._idle: tuple[StreamOffsets, float] | None = None
        self._last_batch_at: float | None = None
        self._admission = Admission(catalog)
        self._said: frozenset[str] = frozenset()
        self._leases: dict[tuple[str, str], None] = {}

    def initial(self) -> StreamOffsets:
        """Return where a new stream begins: the same each time it is asked."""
        if self._initial is None:
            read = self._options.read
            names = matching_topics(self._catalog, read)
            bound = bind_topics(self._catalog, read) if names else ()
            self._initial = {
                topic.name: TopicOffsets(
                    topic.topic_id, {queue: part.start for queue, part in topic.ranges.items()}
                )
                for topic in bound
            }
        return self._initial

    def pin(self) -> None:
        """Take what there is now as the end: `latest` never goes beyond it, and does not wait."""
        self._seen = self._survey()
        self._target = _ends_of(self._seen)

    def close(self) -> None:
        """Let go of what the broker keeps for the stream. May be called twice."""
        self._release_leases()

    @property
    def leases(self) -> list[tuple[str, str]]:
        """What the broker keeps for the micro-batch that was planned last: topics and ids."""
        return list(self._leases)

    def newest(self) -> StreamOffsets | None:
        """Return the ends of all queues as they were last seen."""
        return _ends_of(self._seen) if self._seen else None

    def latest(self, start: StreamOffsets, limits: Limits) -> StreamOffsets:
        """Return how far the next micro-batch goes, `start` itself when there is none.

        Raises what is lost of `start`, or says it where that is allowed. The micro-batch that was
        planned last is over, so its leases end.
        """
        self._release_leases()
        for attempt in range(1, _ATTEMPTS + 1):
            self._seen = self._await_news(start) if self._is_idling(start) else self._survey(start)
            self._lose(list(losses(start, self._seen)))
            try:
                end = self._advance(start, limits)
                break
            except (BrokerRefused, OutOfRange, TopicRecreated) as error:
                # Trimmed or made again since it was looked at; what that means, the next look says.
                if attempt == _ATTEMPTS:
                    raise
                self._idle = None
                _log.info("looking again, since %s", error)
        now_s = self._clock()
        if end == start:
            self._idle = (start, now_s)
            return start
        self._idle, self._last_batch_at = None, now_s
        return end

    def plan(self, start: StreamOffsets, end: StreamOffsets) -> list[tuple[QueueRange, ...]]:
        """Return what each task of the micro-batch between two offsets reads; may be empty."""
        topics = []
        for name, ranges in ranges_between(start, end).items():
            topic_id = end[name].topic_id
            state = self._describe(name)
            if state is None:
                self._lose([GoneFromStream(name, None)])
            elif state.topic_id != topic_id:
                self._lose([TopicRecreated(name, topic_id, state.topic_id)])
            else:
                topics.append(BoundTopic(name, topic_id, ranges, state.priority_levels))
        plan = plan_partitions(self._catalog, self._options.read, topics)
        held = (part.lease.ids for parts in plan for part in parts if part.lease is not None)
        self._leases |= dict.fromkeys(chain.from_iterable(held))
        return plan

    def commit(self, end: StreamOffsets) -> None:
        """Take note that everything below `end` is processed. Raises nothing."""
        if self._mirror is None:
            return
        made_again = {
            name
            for name, topic in end.items()
            if name in self._seen and self._seen[name].topic_id != topic.topic_id
        }
        self._mirror.store({n: topic for n, topic in end.items() if n not in made_again})

    def _release_leases(self) -> None:
        """Let go of what tasks that are done were to read: at two micro-batches a second, leases
        that end by themselves would be many."""
        release_leases(self._catalog, self._leases)
        self._leases.clear()

    # -- what there is -----------------------------------------------------------------------

    def _survey(self, start: StreamOffsets | None = None) -> dict[str, TopicState]:
        """Return all that is asked for and there: topics that are gone are left out.

        One that the options name, but that the stream has not read, is what the catalog raises;
        without `start` it is not known which these are.
        """
        read = self._options.read
        found = {}
        for name in matching_topics(self._catalog, read):
            is_new = start is not None and name not in start
            must_be = read.pattern is None and is_new and read.fail_on_data_loss
            state = self._describe(name, must_be=must_be)
            if state is not None:
                found[name] = state
        return found

    def _describe(self, name: str, *, must_be: bool = False) -> TopicState | None:
        """Return a topic with those of its queues that are asked for, None when it is gone."""
        try:
            state = self._catalog.describe(name)
        except SparkError as error:
            if must_be or not means_no_topic(error):
                raise
            return None
        assigned = self._options.read.assigned
        if assigned is None:
            return state
        # A micro-batch that is repeated may be of a topic that the options do not name any more.
        wanted = assigned.get(name, frozenset())
        queues = {q: each for q, each in state.queues.items() if q in wanted}
        return TopicState(state.name, state.topic_id, queues, state.priority_levels)

    def _lose(self, lost: list[SparkError]) -> None:
        """Raise what is lost, or say it, where that is allowed: once, however often it is met."""
        if self._options.read.fail_on_data_loss:
            for loss in lost:
                raise loss
        sentences = [str(loss) for loss in lost]
        for sentence in sentences:
            if sentence not in self._said:
                _log.warning("the stream goes on without what is lost: %s", sentence)
        self._said = frozenset(sentences)

    # -- how far to go -----------------------------------------------------------------------

    def _advance(self, start: StreamOffsets, limits: Limits) -> StreamOffsets:
        ahead = self._up_to_target(ranges_ahead(start, self._seen))
        waiting = sum(part.end - part.start for part in ahead.values())
        if not self._is_enough(waiting, limits):
            return start
        ends = {key: part.start for key, part in ahead.items()}
        ends.update(self._admission.admit(ahead, limits, self._seen))
        return advanced(start, self._seen, ends)

    def _up_to_target(self, ahead: Mapping[QueueKey, OffsetRange]) -> dict[QueueKey, OffsetRange]:
        """Return the ranges without what came after the stream was told to end."""
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

    def _is_enough(self, waiting: int, limits: Limits) -> bool:
        """Whether as many messages wait as a micro-batch is to have, or it has waited enough."""
        if limits.min_offsets is None or self._target is not None or self._last_batch_at is None:
            return True
        overdue_s = self._clock() - self._last_batch_at - limits.max_delay_ms / 1000
        return waiting >= limits.min_offsets or overdue_s >= 0

    # -- waiting -----------------------------------------------------------------------------

    def _is_idling(self, start: StreamOffsets) -> bool:
        """Whether Spark does nothing but ask: the same as a moment ago, when nothing was new."""
        if self._idle is None or self._target is not None:
            return False
        asked, at = self._idle
        return asked == start and self._clock() - at < SPINNING_S

    def _await_news(self, start: StreamOffsets) -> Mapping[str, TopicState]:
        """Wait until there is other than what was seen last, no longer than `idle_wait_ms`.

        The broker is asked to hold a request where that covers it all: one topic, of which
        nothing waits yet. Several are looked at in turns, the less often the more they are.
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
        while (now := self._survey(start)) == self._seen:
            left_s = deadline - self._clock()
            if left_s <= 0:
                break
            self._sleep(min(left_s, pause_s))
        return now


def _ends_of(topics: Mapping[str, TopicState]) -> StreamOffsets:
    return {
        name: TopicOffsets(
            topic.topic_id, {queue: state.max_offset for queue, state in topic.queues.items()}
        )
        for name, topic in topics.items()
    }
