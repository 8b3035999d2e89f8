"""Which batches of idempotent producers are stored already. Pure: no clock, no locks.

One ProducerSequences belongs to the appender thread. What it knows can be rebuilt from batch
headers, oldest first, by `record`. Rules, after Kafka's: a lower epoch is fenced; a higher one
starts at sequence 0; an unknown producer starts where it likes; then each batch counts one up.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from holdfast.commitlog.batch_header import BatchFlag, BatchHeader
from holdfast.commitlog.errors import ProducerFenced, SequenceGap, SequenceTooOld
from holdfast.commitlog.header_table import Headers, Run, headers_in

# A plain int: an IntFlag costs a microsecond each time it is looked at.
_REQUEST_SEQUENCE = int(BatchFlag.REQUEST_SEQUENCE)

#: How many batches per (producer, topic, queue) can be answered again with their offsets.
REMEMBERED_BATCHES = 5


class Sequenced(Protocol):
    """What a batch, or messages that are none yet, say of the publish that brings them."""

    @property
    def producer_id(self) -> int:
        """Who may send it again; 0: nobody."""

    @property
    def producer_epoch(self) -> int:
        """Which life of the producer."""

    @property
    def sequence(self) -> int:
        """The number that the producer gave it."""

    @property
    def flags(self) -> int:
        """REQUEST_SEQUENCE among them when the sequence counts requests over the topic."""


class StoredSequence(NamedTuple):
    """Where one batch of a producer was stored."""

    sequence: int
    base_offset: int
    message_count: int
    end_physical_offset: int
    store_timestamp_us: int


@dataclass(slots=True)
class ProducerState:
    """What is known of one producer on one topic."""

    epoch: int
    last_request: int = -1
    """Last sequence of a producer that counts requests over the topic."""
    last_timestamp_us: int = 0
    queues: dict[int, tuple[StoredSequence, ...]] = field(default_factory=dict)
    """The last batches by queue, oldest first."""
    awaited: dict[int, int] = field(default_factory=dict)
    """By queue that has none, the sequence that was refused there first."""


ProducerKey = tuple[int, int]
"""(producer id, topic id)"""


class ProducerSequences:
    """The last batches of every idempotent producer. By times after `not_after_us`, that of the
    moment, nobody is forgotten: a clock that jumped ahead must not let duplicates in."""

    def __init__(
        self,
        *,
        expiry_us: int,
        max_producers: int,
        not_after_us: Callable[[], int] = lambda: 2**63,
    ) -> None:
        self._not_after_us = not_after_us
        self._expiry_us = expiry_us
        self._max_producers = max_producers
        self._producers: OrderedDict[ProducerKey, ProducerState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._producers)

    def find(
        self, publish: Sequenced, topic_id: int, queue_id: int, now_us: int
    ) -> StoredSequence | None:
        """Return where this publish was stored before, None when it is the next one to store.

        Raises ProducerFenced, SequenceGap or SequenceTooOld when it is neither.
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
        stored = state.queues.get(queue_id, ())
        for entry in stored:
            if entry.sequence == sequence:
                return entry
        if publish.flags & _REQUEST_SEQUENCE:
            last = state.last_request
        else:
            last = stored[-1].sequence if stored else state.awaited.get(queue_id, sequence) - 1
        if sequence > last + 1:
            raise SequenceGap(last + 1, sequence)
        if sequence <= last and stored and sequence < stored[-1].sequence:
            raise SequenceTooOld(sequence, stored[0].sequence)
        return None

    def record(self, header: BatchHeader) -> None:
        """Take note of a batch that was stored, as its stamped header says. What was stored is
        right: a producer that was forgotten by then starts anew here too, whatever its epoch."""
        for publish in header.idempotent:
            self._record(publish)

    def _record(self, header: BatchHeader) -> None:
        key = (header.producer_id, header.topic_id)
        state = self._current(key, header.store_timestamp_us)
        if state is None or header.producer_epoch != state.epoch:
            state = self._producers[key] = ProducerState(header.producer_epoch)
        self._producers.move_to_end(key)
        state.last_timestamp_us = max(state.last_timestamp_us, header.store_timestamp_us)
        if header.flags & _REQUEST_SEQUENCE:
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

    def reopen(self, publish: Sequenced, topic_id: int, queue_id: int, now_us: int) -> None:
        """Take note that a publish was refused that would have been the next to store, or to be
        completed: what its producer has sent behind it is a gap until it comes again. (Behind one
        that nothing is known of anything could come, and it would be too old itself.) Nothing
        happens for one that was not its turn."""
        if not publish.producer_id:
            return
        key, sequence = (publish.producer_id, topic_id), publish.sequence
        counts_requests = publish.flags & _REQUEST_SEQUENCE
        state = self._current(key, now_us)
        if state is None:
            state = ProducerState(publish.producer_epoch, last_timestamp_us=now_us)
            state.last_request = sequence - 1 if counts_requests else -1
            self._producers[key] = state
        elif publish.producer_epoch != state.epoch:
            return
        elif counts_requests and sequence == state.last_request:
            state.last_request -= 1
        if not counts_requests and queue_id not in state.queues:
            state.awaited.setdefault(queue_id, sequence)

    def record_all(self, publishes: Headers) -> set[ProducerKey]:
        """Do as `record` does for each of many publishes, as a Run has them, at less cost: what
        the last ones of a producer would make it forget is left out. Return whose they were."""
        if not len(publishes):
            return set()
        telling = self._telling(publishes)
        for publish in headers_in(Run(telling, telling[:0])):
            self._record(publish)
        keys = np.unique(publishes[["producer_id", "topic_id"]])
        return {(int(producer_id), int(topic_id)) for producer_id, topic_id in keys}

    def _telling(self, mine: Headers) -> Headers:
        """Return the last REMEMBERED_BATCHES of each producer, topic and queue; all of them where
        an epoch ends, or the expiry may pass, between them."""
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
        """Forget producers unheard of for the expiry, and those idle longest when there are too
        many; return them. To be called after `record`, now and then."""
        forgotten = []
        while self._producers:
            key, state = next(iter(self._producers.items()))
            is_surplus = len(self._producers) > self._max_producers
            if not is_surplus and not self._has_expired(state, now_us):
                break
            del self._producers[key]
            forgotten.append(key)
        return forgotten

    def _current(self, key: ProducerKey, now_us: int) -> ProducerState | None:
        state = self._producers.get(key)
        if state is not None and self._has_expired(state, now_us):
            del self._producers[key]
            return None
        return state

    def _has_expired(self, state: ProducerState, now_us: int) -> bool:
        # The clock is asked only for the few that it can still save.
        end = state.last_timestamp_us + self._expiry_us
        return end <= now_us and end <= self._not_after_us()

    # -- kept beside the index, so that a restart need not read every header ---------------

    def state(self, key: ProducerKey) -> ProducerState | None:
        """Return what is known of one producer on one topic."""
        return self._producers.get(key)

    def restore(self, key: ProducerKey, state: ProducerState) -> None:
        """Put back what `state` returned before; oldest timestamps first."""
        self._producers[key] = state
