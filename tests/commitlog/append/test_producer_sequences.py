import copy
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.commitlog.append.producer_sequences import (
    BROKER_EPOCH,
    REMEMBERED_BATCHES,
    ProducerLimits,
    ProducerSequences,
    StoredSequence,
)
from holdfast.commitlog.errors import (
    LogError,
    ProducerFenced,
    RoutedOtherwise,
    SequenceGap,
    SequenceTooOld,
    TooManyProducers,
)
from holdfast.commitlog.format.batch_header import BatchFlag, BatchHeader
from holdfast.commitlog.format.header_table import NO_HEADERS, run_of

PRODUCER = 77
EXPIRY_US = 1000
REQUEST = int(BatchFlag.REQUEST_SEQUENCE)


def header(
    sequence: int,
    *,
    epoch: int = 0,
    queue: int = 0,
    offset: int = 0,
    at: int = 0,
    producer: int = PRODUCER,
    flags: int = 0,
    topic: int = 1,
) -> BatchHeader:
    """Return the stamped header of a batch."""
    return BatchHeader(
        flags=flags,
        total_size=136,
        payload_crc=0,
        message_count=2,
        body_bytes=0,
        physical_offset=1000 + offset,
        base_offset=offset,
        topic_id=topic,
        queue_id=queue,
        store_timestamp_us=at,
        producer_id=producer,
        producer_epoch=epoch,
        sequence=sequence,
    )


def sequences(expiry_us: int = EXPIRY_US, **limits: int) -> ProducerSequences:
    return ProducerSequences(
        expiry_us=expiry_us, limits=replace(ProducerLimits(100, 100, 100), **limits)
    )


def find(known: ProducerSequences, batch: BatchHeader) -> StoredSequence | LogError | None:
    """Return the result or the error of `find`, at the batch's own time."""
    try:
        return known.find(batch, batch.topic_id, batch.queue_id, batch.store_timestamp_us)
    except LogError as error:
        return error


def offset_of(known: ProducerSequences, batch: BatchHeader) -> int:
    """Return the offset of a batch that `find` must find."""
    found = find(known, batch)
    assert isinstance(found, StoredSequence)
    return found.base_offset


def record(*batches: BatchHeader) -> ProducerSequences:
    known = sequences()
    for batch in batches:
        known.record(batch)
    return known


def _stored(*numbers: int) -> ProducerSequences:
    """Return the state after these sequences, each at the offset of ten times its number."""
    return record(*(header(number, epoch=1, offset=10 * number) for number in numbers))


# -- the rules, as a table -------------------------------------------------------------------


def test_a_batch_without_a_producer_is_always_new() -> None:
    known = record(header(0, producer=0))
    assert len(known) == 0
    assert find(known, header(0, producer=0)) is None


@pytest.mark.parametrize("sequence", [0, 1, 2**62])
@pytest.mark.parametrize("epoch", [0, 5])
def test_an_unknown_producer_may_start_at_any_sequence(sequence: int, epoch: int) -> None:
    assert find(sequences(), header(sequence, epoch=epoch)) is None
    assert find(_stored(3), header(sequence, epoch=1, queue=9)) is None
    assert find(_stored(3), header(sequence, epoch=epoch, topic=2)) is None


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (header(8, epoch=1), None),
        (header(9, epoch=1), SequenceGap(8, 9)),
        (header(7, epoch=1), 70),
        (header(3, epoch=1), 30),
        (header(2, epoch=1), SequenceTooOld(2, 3)),
        (header(0, epoch=1), SequenceTooOld(0, 3)),
        (header(0, epoch=2), None),
        (header(1, epoch=2), SequenceGap(0, 1)),
        (header(8, epoch=0), ProducerFenced(0, 1)),
        (header(7, epoch=0), ProducerFenced(0, 1)),
    ],
)
def test_results_after_the_eighth_batch(
    asked: BatchHeader, expected: int | LogError | None
) -> None:
    found = find(_stored(*range(8)), asked)
    if isinstance(found, StoredSequence):
        assert found.base_offset == expected
    else:
        assert repr(found) == repr(expected)


def test_find_returns_where_a_batch_is_stored() -> None:
    original = header(4, offset=40, at=123)
    assert find(record(original), header(4)) == StoredSequence(
        sequence=4,
        base_offset=40,
        message_count=2,
        end_physical_offset=original.end_physical_offset,
        store_timestamp_us=123,
    )


def test_the_last_five_are_remembered() -> None:
    known = _stored(*range(20))
    remembered = [
        n for n in range(20) if isinstance(find(known, header(n, epoch=1)), StoredSequence)
    ]
    assert remembered == list(range(20))[-REMEMBERED_BATCHES:] == [15, 16, 17, 18, 19]


def test_each_queue_has_its_own_sequence() -> None:
    known = record(header(0), header(1), header(0, queue=1))
    assert find(known, header(2)) is None
    assert find(known, header(1, queue=1)) is None
    assert repr(find(known, header(2, queue=1))) == repr(SequenceGap(1, 2))


def test_a_higher_epoch_forgets_the_lower_one() -> None:
    known = record(header(0), header(1), header(0, epoch=1, offset=50))
    assert offset_of(known, header(0, epoch=1)) == 50
    assert repr(find(known, header(2))) == repr(ProducerFenced(0, 1))
    assert repr(find(known, header(2, epoch=1))) == repr(SequenceGap(1, 2))


# -- requests over several queues ------------------------------------------------------------


def test_a_request_is_completed_by_its_retry() -> None:
    known = record(
        header(6, queue=0, flags=REQUEST, offset=60),
        header(6, queue=1, flags=REQUEST, offset=61),
        header(7, queue=0, flags=REQUEST, offset=70),  # the crash came before queue 1
    )
    assert offset_of(known, header(7, queue=0, flags=REQUEST)) == 70
    for queue in (1, 2):
        assert find(known, header(7, queue=queue, flags=REQUEST)) is None


@pytest.mark.parametrize(
    ("sequence", "queue", "expected"),
    [
        (8, 0, None),
        (8, 5, None),
        (9, 0, SequenceGap(8, 9)),
        (9, 5, SequenceGap(8, 9)),  # relative to the topic, not to the queue
        (2, 1, SequenceTooOld(2, 4)),
        (7, 1, None),
        (5, 5, None),
    ],
)
def test_requests_count_over_the_topic(
    sequence: int, queue: int, expected: LogError | None
) -> None:
    known = record(
        header(4, queue=1, flags=REQUEST),
        header(5, queue=0, flags=REQUEST),
        header(6, queue=1, flags=REQUEST),
        header(7, queue=0, flags=REQUEST),
    )
    found = find(known, header(sequence, queue=queue, flags=REQUEST))
    assert repr(found) == repr(expected)


def test_later_requests_are_gaps_until_a_reopened_one_is_stored() -> None:
    known = record(
        header(6, queue=0, flags=REQUEST),
        header(6, queue=1, flags=REQUEST),
        header(7, queue=0, flags=REQUEST, offset=70),
    )
    known.reopen(header(7, queue=1, flags=REQUEST), 1, 1, 0)
    assert repr(find(known, header(8, queue=1, flags=REQUEST))) == repr(SequenceGap(7, 8))
    assert offset_of(known, header(7, queue=0, flags=REQUEST)) == 70
    assert find(known, header(7, queue=1, flags=REQUEST)) is None
    known.record(header(7, queue=1, flags=REQUEST))
    assert find(known, header(8, queue=1, flags=REQUEST)) is None


@pytest.mark.parametrize(
    "other",
    [
        header(6, flags=REQUEST),  # later requests are stored already
        header(7, flags=REQUEST, epoch=1),
        header(7, flags=REQUEST, producer=2),
        header(7),
    ],
)
def test_only_the_last_request_of_a_producer_is_reopened(other: BatchHeader) -> None:
    known = record(header(6, flags=REQUEST), header(7, flags=REQUEST))
    known.reopen(other, 1, 0, 0)
    assert find(known, header(8, flags=REQUEST)) is None


@pytest.mark.parametrize("flags", [REQUEST, 0])
def test_later_sequences_are_gaps_after_a_refused_first_one(flags: int) -> None:
    known = record()
    known.reopen(header(4, flags=flags), 1, 0, 0)
    known.reopen(header(5, flags=flags), 1, 0, 0)
    assert repr(find(known, header(5, flags=flags))) == repr(SequenceGap(4, 5))
    assert find(known, header(4, flags=flags)) is None
    assert find(known, header(3, flags=flags)) is None  # it may still start at any number
    known.record(header(4, flags=flags))
    assert find(known, header(5, flags=flags)) is None


# -- forgetting ------------------------------------------------------------------------------


def test_an_inactive_producer_is_forgotten_at_its_expiry() -> None:
    known = record(header(0, at=100), header(1, at=200))
    assert isinstance(find(known, header(1, at=199 + EXPIRY_US)), StoredSequence)
    assert find(known, header(1, at=200 + EXPIRY_US)) is None


def test_expire_returns_the_forgotten_producers() -> None:
    # S4: producers beyond max_producers were forgotten too early
    known = sequences(max_producers=3)
    for producer in range(1, 6):
        known.record(header(0, producer=producer, at=producer))
    known.record(header(1, producer=1, at=6))
    assert known.expire(6) == []
    assert known.expire(3 + EXPIRY_US) == [(2, 1), (3, 1)]
    assert known.expire(5 + EXPIRY_US) == [(4, 1), (5, 1)]
    assert known.expire(6 + EXPIRY_US) == [(1, 1)]
    assert (len(known), known.weight) == (0, 0)


# -- budgets ---------------------------------------------------------------------------------


def publish(known: ProducerSequences, batch: BatchHeader, client: str = "") -> str | None:
    """Publish like the appender; return the name of the limit that refuses it."""
    if find(known, batch) is None:
        try:
            known.reserve(batch, batch.topic_id, batch.queue_id, client, batch.store_timestamp_us)
        except TooManyProducers as error:
            known.end_reservations()
            return error.limit_name
        known.record(batch)
    known.end_reservations()
    known.expire(batch.store_timestamp_us)
    return None


@pytest.mark.parametrize("count", [4, 5, 6])
@pytest.mark.parametrize(
    ("name", "topics", "client"),
    [
        ("max_producers", 50, ""),
        ("max_producers_per_topic", 1, ""),
        ("max_producers_per_client", 50, "token spark"),
    ],
)
def test_new_producers_above_each_limit_are_refused(
    name: str, topics: int, client: str, count: int
) -> None:
    # S4: they made the broker forget other producers, whose retries were stored twice
    known = sequences(**{name: 5})
    refused = [
        publish(known, header(0, producer=number, topic=1 + number % topics), client)
        for number in range(1, count + 1)
    ]
    assert refused == [None] * min(count, 5) + [name] * (count - 5)
    for number in range(1, min(count, 5) + 1):
        again = header(0, producer=number, topic=1 + number % topics)
        assert isinstance(find(known, again), StoredSequence)
        assert publish(known, header(1, producer=number, topic=1 + number % topics), client) is None


def test_the_limit_of_a_topic_or_client_does_not_affect_others() -> None:
    known = sequences(max_producers_per_topic=3, max_producers_per_client=5)
    for number in range(1, 4):
        assert publish(known, header(0, producer=number, topic=1), "greedy") is None
    assert publish(known, header(0, producer=9, topic=1), "modest") == "max_producers_per_topic"
    for number in range(1, 3):
        assert publish(known, header(0, producer=number, topic=2), "greedy") is None
    full = header(0, producer=9, topic=2)
    assert publish(known, full, "greedy") == "max_producers_per_client"
    assert publish(known, full, "modest") is None


def test_a_producer_counts_once_for_each_of_its_queues() -> None:
    known = sequences(max_producers=3)
    for queue in range(3):
        assert publish(known, header(0, queue=queue)) is None
    assert known.weight == 3
    assert publish(known, header(0, queue=3)) == "max_producers"
    assert publish(known, header(1, queue=2)) is None


def test_expiry_and_a_new_epoch_free_room() -> None:
    known = sequences(max_producers=2)
    assert publish(known, header(0, queue=0, at=1)) is None
    assert publish(known, header(0, queue=1, at=1)) is None
    assert publish(known, header(0, producer=2, at=2)) == "max_producers"
    assert publish(known, header(0, queue=0, epoch=1, at=3)) is None  # replaces the old epoch
    assert publish(known, header(0, producer=2, at=4)) is None
    assert publish(known, header(0, producer=3, at=5)) == "max_producers"
    known.expire(3 + EXPIRY_US)
    assert publish(known, header(0, producer=3, at=3 + EXPIRY_US)) is None


def test_a_reservation_that_is_not_recorded_is_released() -> None:
    known = sequences(max_producers=1)
    known.reserve(header(0, producer=1), 1, 0, "a", 0)
    known.reserve(header(0, producer=1), 1, 0, "a", 0)  # the same queue again: no further room
    with pytest.raises(TooManyProducers):
        known.reserve(header(0, producer=2), 1, 0, "a", 0)
    known.end_reservations()
    assert known.weight == 0
    known.reserve(header(0, producer=2), 1, 0, "a", 0)


@pytest.mark.parametrize("flags", [0, REQUEST])
def test_a_producer_refused_by_a_limit_takes_no_room(flags: int) -> None:
    known = sequences(max_producers=1)
    refused = header(0, producer=1, flags=flags)
    known.reopen(refused, 1, 0, 0, only_known=True)
    assert (len(known), known.weight) == (0, 0)
    known.reopen(refused, 1, 0, 0)
    assert (len(known), known.weight) == (1, 1)
    known.reopen(header(0, producer=2, flags=flags), 1, 0, 0)
    assert (len(known), known.weight) == (1, 1)


def test_producers_of_the_broker_have_their_own_limit() -> None:
    # S4: a hundred thousand dead letters made the broker forget every producer
    known = sequences(max_producers=1, max_broker_producers=3)
    assert publish(known, header(0, producer=1)) is None
    for number in range(10, 15):
        letter = header(0, producer=number, epoch=BROKER_EPOCH)
        assert publish(known, letter) is None
    assert (known.weight, len(known)) == (1, 4)
    assert isinstance(find(known, header(0, producer=1)), StoredSequence)
    assert isinstance(find(known, header(0, producer=14, epoch=BROKER_EPOCH)), StoredSequence)
    assert find(known, header(0, producer=10, epoch=BROKER_EPOCH)) is None


def test_restored_producers_count_and_have_no_client() -> None:
    known = sequences(max_producers=2, max_producers_per_client=1)
    publish(known, header(0, producer=1), "a")
    publish(known, header(0, producer=2, epoch=BROKER_EPOCH), "a")
    restored = sequences(max_producers=2, max_producers_per_client=1)
    for key in ((1, 1), (2, 1)):
        state = known.state(key)
        assert state is not None
        restored.restore(key, copy.deepcopy(state))
    assert restored.weight == 1
    assert publish(restored, header(0, producer=3), "b") is None
    assert publish(restored, header(0, producer=4), "c") == "max_producers"


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4),  # producer
            st.integers(0, 2),  # queue
            st.sampled_from([0, 0, 1, BROKER_EPOCH]),
            st.sampled_from([0, 0, 1, EXPIRY_US]),
            st.sampled_from(["store", "store", "reserve", "refuse"]),
        ),
        max_size=40,
    )
)
def test_the_counts_match_the_remembered_producers(
    steps: list[tuple[int, int, int, int, str]],
) -> None:
    known, now = sequences(), 0
    for producer, queue, epoch, later, what in steps:
        now += later
        batch = header(0, producer=producer, queue=queue, epoch=epoch, at=now)
        if what == "store":
            publish(known, batch, f"client {producer}")
        else:
            known.reserve(batch, 1, queue, "other", now)
            if what == "refuse":
                known.reopen(batch, 1, queue, now)
            known.end_reservations()
        states = [known.state((number, 1)) for number in range(1, 5)]
        theirs = [each for each in states if each is not None and each.epoch != BROKER_EPOCH]
        assert known.weight == sum(each.weight for each in theirs)
        assert known._of_topic.total() == known._of_client.total() == known.weight


def test_a_restored_state_has_the_same_results() -> None:
    known = _stored(0, 1, 2)
    state = known.state((PRODUCER, 1))
    assert state is not None
    restored = sequences()
    restored.restore((PRODUCER, 1), copy.deepcopy(state))
    for number in range(5):
        asked = header(number, epoch=1)
        assert repr(find(restored, asked)) == repr(find(known, asked))
    assert known.state((PRODUCER, 2)) is None


# -- rebuilding from headers -----------------------------------------------------------------


def test_recording_a_batch_twice_changes_nothing() -> None:
    batches = [header(n, offset=n) for n in range(3)]
    assert record(*batches, *batches).state((PRODUCER, 1)) == record(*batches).state((PRODUCER, 1))


def test_recording_a_group_again_changes_nothing() -> None:
    # The index records a group of batches again if LMDB could not commit it at first.
    group = [header(5), header(0, epoch=1), header(1, epoch=1)]
    assert record(*group, *group).state((PRODUCER, 1)) == record(*group).state((PRODUCER, 1))


def test_a_restart_after_the_expiry_is_rebuilt() -> None:
    # A job that publishes two batches a day under one name, at intervals longer than the expiry.
    known = record(
        header(0, offset=0, at=0), header(1, offset=2, at=0), header(0, offset=4, at=EXPIRY_US)
    )
    assert find(known, header(1, at=EXPIRY_US)) is None
    assert offset_of(known, header(0, at=EXPIRY_US)) == 4


def test_a_lower_epoch_accepted_after_the_expiry_is_kept() -> None:
    known = record(header(0, epoch=9, at=0), header(0, epoch=1, at=EXPIRY_US))
    assert isinstance(find(known, header(0, epoch=1, at=EXPIRY_US)), StoredSequence)
    assert find(known, header(1, epoch=1, at=EXPIRY_US)) is None


# -- against a model -------------------------------------------------------------------------


@dataclass
class Model:
    """The rules in their simplest form, over the list of all stored batches."""

    stored: list[BatchHeader] = field(default_factory=list)

    def expected(self, batch: BatchHeader) -> str:
        """Return "new", "again", or the name of the refusal."""
        mine = [s for s in self.stored if s.producer_id == batch.producer_id]
        times = [s.store_timestamp_us for s in mine] + [batch.store_timestamp_us]
        for i in reversed(range(len(mine))):
            if times[i + 1] - times[i] >= EXPIRY_US:
                mine = mine[i + 1 :]
                break
        if not mine:
            return "new"
        epoch = mine[-1].producer_epoch
        if batch.producer_epoch < epoch:
            return "ProducerFenced"
        if batch.producer_epoch > epoch:
            return "SequenceGap" if batch.sequence else "new"
        mine = [s for s in mine if s.producer_epoch == epoch]
        queue = [s.sequence for s in mine if s.queue_id == batch.queue_id]
        if batch.sequence in queue[-REMEMBERED_BATCHES:]:
            return "again"
        counted = [s.sequence for s in mine] if batch.flags & REQUEST else queue
        if counted and batch.sequence > max(counted) + 1:
            return "SequenceGap"
        if queue and batch.sequence < queue[-1]:
            return "SequenceTooOld"
        return "new"


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[int, int, int, int, int]]:
    """Draw (producer, epoch, queue, sequence, microseconds since the step before)."""
    return draw(
        st.lists(
            st.tuples(
                st.sampled_from([1, 2]),
                st.sampled_from([0, 0, 0, 0, 1, 2]),
                st.sampled_from([0, 0, 1]),
                st.integers(0, 9),
                st.sampled_from([0, 0, 0, 1, EXPIRY_US - 1, EXPIRY_US]),
            ),
            max_size=60,
        )
    )


@given(steps(), st.booleans())
def test_live_rebuilt_and_restored_agree_with_the_model(
    drawn: list[tuple[int, int, int, int, int]], counts_requests: bool
) -> None:
    model, live = Model(), sequences()
    now = 0
    for producer, epoch, queue, sequence, later in drawn:
        now += later
        batch = header(
            sequence,
            epoch=epoch,
            queue=queue,
            offset=2 * len(model.stored),
            at=now,
            producer=producer,
            flags=REQUEST if counts_requests else 0,
        )
        rebuilt = record(*model.stored)
        found = find(live, batch)
        assert repr(find(rebuilt, batch)) == repr(found)
        kind = {type(None): "new", StoredSequence: "again"}.get(type(found), type(found).__name__)
        assert kind == model.expected(batch)
        if found is None:
            model.stored.append(batch)
            live.record(batch)
        elif isinstance(found, StoredSequence):
            original = model.stored[found.base_offset // 2]
            assert (original.sequence, original.queue_id, original.producer_epoch) == (
                sequence,
                queue,
                epoch,
            )


def test_a_jump_of_the_clock_forgets_no_producer() -> None:
    """By the timestamps of the batches a year has passed, by the given clock no time has passed."""
    really_us = 10
    known = ProducerSequences(
        expiry_us=EXPIRY_US, limits=ProducerLimits(100), not_after_us=lambda: really_us
    )
    known.record(header(0, at=5, offset=0))
    late = 10**9
    known.record(header(1, at=late, offset=2))
    assert known.expire(late) == []
    assert offset_of(known, header(0, at=late)) == 0
    really_us = 5 * late
    assert known.expire(really_us) == [(PRODUCER, 1)]


# -- many at once ----------------------------------------------------------------------------

BATCHES = st.tuples(
    st.integers(0, 2),  # producer, 0: none
    st.integers(1, 2),  # topic
    st.integers(0, 1),  # queue
    st.integers(0, 1),  # epoch
    st.sampled_from([1, 1, 1, 1, 500, 2000]),  # microseconds since the one before
)


@given(batches=st.lists(BATCHES, max_size=60), expiry_us=st.sampled_from([900, 3000, 10**9]))
@settings(deadline=None)
def test_record_all_equals_single_records(
    batches: list[tuple[int, int, int, int, int]], expiry_us: int
) -> None:
    headers = []
    now_us = 10**6
    for number, (producer, topic, queue, epoch, later_us) in enumerate(batches):
        now_us += later_us
        headers.append(
            header(
                number,
                epoch=epoch,
                queue=queue,
                offset=2 * number,
                at=now_us,
                producer=producer,
                flags=REQUEST if producer == 2 else 0,
                topic=topic,
            )
        )
    one_by_one, at_once = sequences(expiry_us), sequences(expiry_us)
    for each in headers:
        one_by_one.record(each)
    keys = at_once.record_all(
        np.concatenate([NO_HEADERS, *(run_of(each).publishes for each in headers)])
    )
    assert keys == {(h.producer_id, h.topic_id) for h in headers if h.producer_id}
    assert {key: at_once.state(key) for key in keys} == {key: one_by_one.state(key) for key in keys}
    assert at_once.expire(now_us) == one_by_one.expire(now_us)


@pytest.mark.parametrize(
    ("counts", "is_as_before"),
    [
        ({0: 2, 1: 2}, True),
        ({0: 2, 1: 2, 2: 7}, True),  # a crash had interrupted it
        ({0: 2}, False),
        ({0: 2, 2: 2}, False),
        ({0: 2, 1: 3}, False),
        ({2: 2}, False),
    ],
)
def test_a_retry_must_have_the_queues_of_the_first_attempt(
    counts: dict[int, int], is_as_before: bool
) -> None:
    known = record(*(header(0, queue=queue, flags=REQUEST) for queue in (0, 1)))
    if is_as_before:
        known.check_routing(header(0, flags=REQUEST), 1, counts, 0)
    else:
        with pytest.raises(RoutedOtherwise, match="in other queues"):
            known.check_routing(header(0, flags=REQUEST), 1, counts, 0)
    # The next request may use any queues, and so may other epochs and producers.
    for free in (
        header(1, flags=REQUEST),
        header(0, epoch=1, flags=REQUEST),
        header(0, producer=PRODUCER + 1, flags=REQUEST),
    ):
        known.check_routing(free, 1, {9: 1}, 0)
    known.check_routing(header(0), 1, {9: 1}, 0)  # its sequences count by queue


def test_a_forgotten_request_is_too_old_in_every_queue() -> None:
    known = record(*(header(n, flags=REQUEST) for n in range(REMEMBERED_BATCHES + 1)))
    with pytest.raises(SequenceTooOld, match="sequence 1 and later"):
        known.check_routing(header(0, flags=REQUEST), 1, {1: 2}, 0)


def test_a_dead_letter_is_found_in_any_queue() -> None:
    known = record(header(0, queue=3, offset=8, epoch=BROKER_EPOCH, flags=REQUEST))
    letter = header(0, epoch=BROKER_EPOCH, flags=REQUEST)
    known.check_routing(letter, 1, {0: 1}, 0)
    assert offset_of(known, letter) == 8
