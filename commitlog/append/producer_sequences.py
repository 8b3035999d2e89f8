"""Remember which batches of idempotent producers are stored. Pure: no clock, no locks.

The appender owns one ProducerSequences, and uses it from one thread at a time. `record` can rebuild
its content from batch headers, oldest first. The rules follow Kafka: a lower epoch is fenced; a
higher epoch starts at sequence 0; an unknown producer may start at any sequence; each further batch
or request increases the sequence by one.

No producer is forgotten before its expiry, because its retry would otherwise be stored again. If
too many producers are remembered in total, or for one topic or client, `reserve` refuses new ones.
A producer counts once for each queue of the topic that it publishes to, because each queue needs
memory.

The broker's own producers, one for each dead letter, have a separate limit. When it is reached, the
oldest are forgotten. The broker appends a dead letter again only if it crashes between the append
and the commit of the group's progress. That time is short, so only the newest producers matter.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from holdfast.commitlog.errors import (
    ProducerFenced,
    RoutedOtherwise,
    SequenceGap,
    SequenceTooOld,
    TooManyProducers,
)
from holdfast.commitlog.format.batch_header import REQUEST_SEQUENCE, BatchHeader
from holdfast.commitlog.format.header_table import Headers, Run, headers_in

#: How many of the last batches of each (producer, topic, queue) are remembered. A retry of such a
#: batch gets the offsets of the first attempt.
REMEMBERED_BATCHES = 5
#: The epoch of the broker's own producers. Clients may not use it.
BROKER_EPOCH = 2**32 - 1


class ProducerFields(Protocol):
    """The producer fields of a publish: a batch header or Rows. `producer_id` is 0 if the publish
    is not idempotent. `flags` contains REQUEST_SEQUENCE if `sequence` counts requests over the
    whole topic."""

    @property
    def producer_id(self) -> int: ...

    @property
    def producer_epoch(self) -> int: ...

    @property
    def sequence(self) -> int: ...

    @property
    def flags(self) -> int: ...


class StoredSequence(NamedTuple):
    """Where one batch of a producer was stored."""

    sequence: int
    base_offset: int
    message_count: int
    end_physical_offset: int
    store_timestamp_us: int


@dataclass(slots=True)
class ProducerState:
    """The remembered state of one producer on one topic."""

    epoch: int
    last_request: int = -1
    """The last sequence, if the producer counts requests over the topic."""
    last_timestamp_us: int = 0
    queues: dict[int, tuple[StoredSequence, ...]] = field(default_factory=dict)
    """The last stored batches of each queue, oldest first."""
    awaited: dict[int, int] = field(default_factory=dict)
    """For each queue that has no stored batch, the sequence that was first refused there."""
    owner: str = field(default="", compare=False)
    """The client that published first; empty if unknown, as after a restart."""

    @property
    def weight(self) -> int:
        """How much this state counts in the limits: 1 for each of its queues, at least 1."""
        return max(len(self.queues) + len(self.awaited), 1)


ProducerKey = tuple[int, int]
"""(producer id, topic id)"""


class ProducerLimits(msgspec.Struct, frozen=True):
    """The most producers that are remembered. A producer counts once for each of its queues."""

    max_producers: int
    max_producers_per_topic: int = 2**63
    max_producers_per_client: int = 2**63
    #: At most this many of the broker's own producers (one for each dead letter) are remembered.
    max_broker_producers: int = 2**63


class ProducerSequences:
    """The last batches of every idempotent producer.

    `not_after_us` is a second clock, which does not jump ahead. A producer that has not expired by
    this clock is kept, so that a jump of the wall clock does not cause duplicates."""

    def __init__(
        self,
        *,
        expiry_us: int,
        limits: ProducerLimits,
        not_after_us: Callable[[], int] = lambda: 2**63,
    ) -> None:
        self._not_after_us = not_after_us
        self._expiry_us = expiry_us
        self._limits = limits
        self._producers: OrderedDict[ProducerKey, ProducerState] = OrderedDict()
        self._of_broker: OrderedDict[ProducerKey, ProducerState] = OrderedDict()
        self._reserved: dict[tuple[ProducerKey, int], str] = {}
        """The clients for which room is reserved and no batch is recorded yet, by producer key and
        queue."""
        self.weight = 0
        """How much of the limit `max_producers` is used, with reservations."""
        self._of_topic: Counter[int] = Counter()
        self._of_client: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._producers) + len(self._of_broker)

    def reserve(
        self, publish: ProducerFields, topic_id: int, queue_id: int, client: str, now_us: int
    ) -> None:
        """Reserve room in the limits for a batch that is new according to `find`, until `record`
        or `end_reservations`. Raise TooManyProducers if a limit is reached."""
        if not publish.producer_id or publish.producer_epoch == BROKER_EPOCH:
            return
        key = (publish.producer_id, topic_id)
        state = self._current(key, now_us)
        if state is not None and (queue_id in state.queues or queue_id in state.awaited):
            return
        if (key, queue_id) in self._reserved:
            return
        limits = self._limits
        for name, taken, limit in (
            ("max_producers_per_client", self._of_client[client], limits.max_producers_per_client),
            ("max_producers_per_topic", self._of_topic[topic_id], limits.max_producers_per_topic),
            ("max_producers", self.weight, limits.max_producers),
        ):
            if taken >= limit and (client or name != "max_producers_per_client"):
                raise TooManyProducers(name, limit)
        self._reserved[key, queue_id] = client
        self._count(key, client, 1)

    def end_reservations(self) -> None:
        """Release the room that was reserved for batches that were not recorded."""
        for (key, _), client in self._reserved.items():
            self._count(key, client, -1)
        self._reserved.clear()

    def _count(self, key: ProducerKey, client: str, change: int) -> None:
        self.weight += change
        topic_id = key[1]
        self._of_topic[topic_id] += change
        if not self._of_topic[topic_id]:
            del self._of_topic[topic_id]
        self._of_client[client] += change
        if not self._of_client[client]:
            del self._of_client[client]

    def find(
        self, publish: ProducerFields, topic_id: int, queue_id: int, now_us: int
    ) -> StoredSequence | None:
        """Return where this publish was stored before, None if it is the next one to store.

        Raise ProducerFenced if its epoch is lower than the producer's current epoch, SequenceGap if
        an earlier sequence is missing, and SequenceTooOld if the publish was stored before, but its
        offsets are no longer remembered.
        """
        if not publish.producer_id:
            return None
        state = self._current((publish.producer_id, topic_id), now_us)
        if state is None:
            return None
        epoch, sequence = publish.producer_epoch, publish.sequence
        if epoch < state.epoch:
            raise ProducerFenced(epoch, state.epoch)
        if epoch > state.epoch:
            if sequence:
                raise SequenceGap(0, sequence)
            return None
        if epoch == BROKER_EPOCH:  # a dead letter: its retry may go to another queue
            return next((stored[-1] for stored in state.queues.values()), None)
        stored = state.queues.get(queue_id, ())
        for entry in stored:
            if entry.sequence == sequence:
                return entry
        if publish.flags & REQUEST_SEQUENCE:
            last = state.last_request
        else:
            last = stored[-1].sequence if stored else state.awaited.get(queue_id, sequence) - 1
        if sequence > last + 1:
            raise SequenceGap(last + 1, sequence)
        if sequence <= last and stored and sequence < stored[-1].sequence:
            raise SequenceTooOld(sequence, stored[0].sequence)
        return None

    def check_routing(
        self, publish: ProducerFields, topic_id: int, counts: Mapping[int, int], now_us: int
    ) -> None:
        """Check a retried request against its stored attempt. `counts` maps each queue of the
        request to its number of messages.

        Raise RoutedOtherwise if the attempt stored messages in a queue that is not in `counts`, or
        another number of messages in a queue. Raise SequenceTooOld if the attempt is no longer
        remembered."""
        if not publish.flags & REQUEST_SEQUENCE or publish.producer_epoch == BROKER_EPOCH:
            return
        state = self._current((publish.producer_id, topic_id), now_us)
        sequence = publish.sequence
        if state is None or state.epoch != publish.producer_epoch or sequence > state.last_request:
            return
        before = {
            queue: entry.message_count
            for queue, stored in state.queues.items()
            for entry in stored
            if entry.sequence == sequence
        }
        if not before.items() <= counts.items():
            raise RoutedOtherwise(sequence)
        if state.queues and not before:
            oldest = min(stored[0].sequence for stored in state.queues.values())
            raise SequenceTooOld(sequence, oldest)

    def record(self, header: BatchHeader) -> None:
        """Remember a stored batch; `header` is its header as stored. Every stored batch is
        accepted. If the producer's state has expired or has another epoch, a new state replaces
        it."""
        for publish in header.idempotent:
            self._record(publish)

    def _record(self, header: BatchHeader) -> None:
        key = (header.producer_id, header.topic_id)
        client = self._reserved.pop((key, header.queue_id), None)
        if client is not None:
            self._count(key, client, -1)
        state = self._current(key, header.store_timestamp_us)
        before = 0 if state is None else state.weight
        if state is None or header.producer_epoch != state.epoch:
            owner = state.owner if state is not None else client or ""
            state = ProducerState(header.producer_epoch, owner=owner)
        known = self._producers_with(header.producer_epoch)
        if known.get(key) is not state:
            self._forget(key)
            known[key] = state
            before = 0
        known.move_to_end(key)
        state.last_timestamp_us = max(state.last_timestamp_us, header.store_timestamp_us)
        if header.flags & REQUEST_SEQUENCE:
            state.last_request = max(state.last_request, header.sequence)
        stored = state.queues.get(header.queue_id, ())
        entry = StoredSequence(
            header.sequence,
            header.base_offset,
            header.message_count,
            header.end_physical_offset,
            header.store_timestamp_us,
        )
        if entry not in stored:
            state.queues[header.queue_id] = (*stored, entry)[-REMEMBERED_BATCHES:]
        state.awaited.pop(header.queue_id, None)
        if known is self._producers and state.weight != before:
            self._count(key, state.owner, state.weight - before)

    def _producers_with(self, epoch: int) -> OrderedDict[ProducerKey, ProducerState]:
        return self._of_broker if epoch == BROKER_EPOCH else self._producers

    def reopen(
        self,
        publish: ProducerFields,
        topic_id: int,
        queue_id: int,
        now_us: int,
        *,
        only_known: bool = False,
    ) -> None:
        """Remember that this publish, which was next in sequence, was refused.

        Later sequences of its producer are then gaps until the producer sends this publish again.
        Otherwise an unknown producer could continue with a later sequence, and the sequence of the
        refused publish would then be too old. Do nothing for a publish that was not next. For an
        unknown producer, do nothing with `only_known` or if max_producers is reached."""
        if not publish.producer_id or publish.producer_epoch == BROKER_EPOCH:
            return
        key, sequence = (publish.producer_id, topic_id), publish.sequence
        counts_requests = publish.flags & REQUEST_SEQUENCE
        client = self._reserved.pop((key, queue_id), None)
        if client is not None:
            self._count(key, client, -1)
        state = self._current(key, now_us)
        before = 0 if state is None else state.weight
        if state is None:
            if only_known or self.weight >= self._limits.max_producers:
                return
            state = ProducerState(
                publish.producer_epoch, last_timestamp_us=now_us, owner=client or ""
            )
            state.last_request = sequence - 1 if counts_requests else -1
            self._producers[key] = state
        elif publish.producer_epoch != state.epoch:
            return
        elif counts_requests and sequence == state.last_request:
            state.last_request -= 1
        if not counts_requests and queue_id not in state.queues:
            state.awaited.setdefault(queue_id, sequence)
        self._count(key, state.owner, state.weight - before)

    def record_all(self, publishes: Headers) -> set[ProducerKey]:
        """Do what `record` does for each row of `Run.publishes`, at less cost: rows that later
        rows of the same producer would replace are skipped. Return the keys of the producers."""
        if not len(publishes):
            return set()
        newest = self._newest_of_each(publishes)
        for publish in headers_in(Run(newest, newest[:0])):
            self._record(publish)
        keys = np.unique(publishes[["producer_id", "topic_id"]])
        return {(int(producer_id), int(topic_id)) for producer_id, topic_id in keys}

    def _newest_of_each(self, mine: Headers) -> Headers:
        """Return the last REMEMBERED_BATCHES rows of each producer, topic and queue. Return all
        rows if a producer changes its epoch within these rows, or if the rows span at least the
        expiry time."""
        times = mine["store_timestamp_us"]
        if int(times.max()) - int(times.min()) >= self._expiry_us:
            return mine
        order = np.lexsort((mine["queue_id"], mine["topic_id"], mine["producer_id"]))
        rows = mine[order]
        is_same = (rows["producer_id"][1:] == rows["producer_id"][:-1]) & (
            rows["topic_id"][1:] == rows["topic_id"][:-1]
        )
        if bool((is_same & (rows["producer_epoch"][1:] != rows["producer_epoch"][:-1])).any()):
            return mine
        is_same &= rows["queue_id"][1:] == rows["queue_id"][:-1]
        ends = np.append(np.flatnonzero(~is_same), len(rows) - 1)
        lengths = np.diff(ends, prepend=-1)
        from_end = np.repeat(ends, lengths) - np.arange(len(rows))
        return mine[np.sort(order[from_end < REMEMBERED_BATCHES])]

    def expire(self, now_us: int) -> list[ProducerKey]:
        """Forget the producers that have not published for the expiry time, and the oldest of the
        broker's own producers if there are too many. Return the forgotten keys. Call it regularly
        after `record`."""
        forgotten = []
        for known, most in (
            (self._producers, 2**63),
            (self._of_broker, self._limits.max_broker_producers),
        ):
            while known:
                key, state = next(iter(known.items()))
                if len(known) <= most and not self._has_expired(state, now_us):
                    break
                self._forget(key)
                forgotten.append(key)
        return forgotten

    def _current(self, key: ProducerKey, now_us: int) -> ProducerState | None:
        state = self.state(key)
        if state is not None and self._has_expired(state, now_us):
            self._forget(key)
            return None
        return state

    def _forget(self, key: ProducerKey) -> None:
        state = self._producers.pop(key, None)
        if state is not None:
            self._count(key, state.owner, -state.weight)
        self._of_broker.pop(key, None)

    def _has_expired(self, state: ProducerState, now_us: int) -> bool:
        # Read the second clock only if the producer has expired by the first clock.
        end = state.last_timestamp_us + self._expiry_us
        return end <= now_us and end <= self._not_after_us()

    # -- stored with the index, so that a restart need not read every header ---------------

    def state(self, key: ProducerKey) -> ProducerState | None:
        """Return the state of one producer on one topic, None if it is unknown."""
        return self._producers.get(key) or self._of_broker.get(key)

    def restore(self, key: ProducerKey, state: ProducerState) -> None:
        """Restore a state that `state` returned earlier. Call this in the order of the states'
        timestamps, oldest first."""
        self._producers_with(state.epoch)[key] = state
        if state.epoch != BROKER_EPOCH:
            self._count(key, state.owner, state.weight)
