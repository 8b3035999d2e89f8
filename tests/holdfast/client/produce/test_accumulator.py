from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.client.errors import ClientClosed, MessageTooLarge, UnknownQueue
from holdfast.client.produce.accumulator import (
    MAX_BATCHES_PER_QUEUE,
    MAX_REQUEST_BYTES,
    MESSAGE_OVERHEAD_BYTES,
    Accumulator,
    PendingBatch,
    ProducerOptions,
    Stored,
)
from holdfast.commitlog.append.producer_sequences import REMEMBERED_BATCHES
from holdfast.commitlog.format.batch import Batch, queue_for_key
from holdfast.commitlog.format.batch_check import MessageLimits

STORED = Stored(topic_id=1, base_offset=0, durable=True)


def make(**changes: Any) -> Accumulator:
    names = ("queue", "priority", "batch_bytes", "buffer_bytes")
    options: dict[str, Any] = {
        "batch_bytes": 10 * (100 + MESSAGE_OVERHEAD_BYTES),
        "buffer_bytes": 1024 * 1024,
    }
    options |= {name: changes.pop(name) for name in names if name in changes}
    arguments: dict[str, Any] = {
        "queue_count": 4,
        "first_queue": 0,
        "limits": MessageLimits(),
        "owner": None,
        "clock_us": lambda: 5_000_000,
        "on_opened": lambda batch: None,
        "on_ready": lambda: None,
    }
    return Accumulator(ProducerOptions(**options), **{**arguments, **changes})


BODY = b"x" * 100


def test_a_request_has_no_more_batches_than_the_broker_remembers() -> None:
    assert MAX_BATCHES_PER_QUEUE <= REMEMBERED_BATCHES


def test_a_batch_is_ready_when_it_is_full() -> None:
    calls: list[None] = []
    accumulator = make(on_ready=lambda: calls.append(None))
    for _ in range(9):
        accumulator.add(BODY)
    assert accumulator.take() == []
    last = accumulator.add(BODY)
    assert len(calls) == 1
    assert accumulator.take() == [last]
    assert (last.message_count, last.queue) == (10, 0)


def test_messages_without_key_and_queue_go_to_the_queues_in_turn() -> None:
    accumulator = make(first_queue=2)
    queues = [accumulator.add(BODY).queue for _ in range(50)]
    assert queues == [2] * 10 + [3] * 10 + [0] * 10 + [1] * 10 + [2] * 10


def test_messages_with_a_key_go_to_the_queue_of_the_key() -> None:
    accumulator = make()
    for key in ("a", "b", "ключ", "10.0.0.1"):
        assert accumulator.add(BODY, key).queue == queue_for_key(key, 4)


def test_the_queue_of_the_producer_precedes_the_given_queue_and_the_key() -> None:
    assert make().add(BODY, "a", queue=3).queue == 3
    assert make(queue=1).add(BODY, "a").queue == 1
    assert make(queue=1).add(BODY).queue == 1


def level_topic(**changes: Any) -> Accumulator:
    """Return a topic of two indexes with three levels: priorities 0-3, 4 and 5-9."""
    return make(queue_count=6, priority_levels=3, **changes)


def test_a_message_goes_to_the_queue_of_its_index_and_its_priority() -> None:  # Q20
    index = queue_for_key("a", 2)
    accumulator = level_topic()
    assert accumulator.add(BODY, "a").queue == index * 3 + 1
    for priority, level in ((0, 0), (3, 0), (4, 1), (5, 2), (9, 2)):
        assert accumulator.add(BODY, "a", priority=priority).queue == index * 3 + level
    urgent = level_topic(priority=9)
    assert urgent.add(BODY, "a").queue == index * 3 + 2
    assert urgent.add(BODY, "a", priority=0).queue == index * 3
    assert make().add(BODY, "a", priority=9).queue == queue_for_key("a", 4)


def test_each_level_takes_the_indexes_in_turn_a_batch_each() -> None:
    accumulator = level_topic()
    urgent = [accumulator.add(BODY, priority=9).queue for _ in range(20)]
    assert urgent == [2] * 10 + [5] * 10
    mixed = [accumulator.add(BODY, priority=p).queue for p in (0, 4, 9) * 2]
    assert mixed[:3] == mixed[3:]
    assert [queue % 3 for queue in mixed[:3]] == [0, 1, 2]
    accumulator.close_all()
    assert all(batch.message_count for batch in accumulator.unresolved())


def test_a_given_queue_accepts_only_its_own_priority_level() -> None:
    accumulator = level_topic()
    assert accumulator.add(BODY, queue=4).queue == accumulator.add(BODY, queue=4, priority=4).queue
    for refused in (
        lambda: accumulator.add(BODY, queue=4, priority=9),
        lambda: level_topic(queue=4).add(BODY, priority=9),
        lambda: level_topic(queue=4, priority=9),
        lambda: accumulator.add(BODY, priority=10),
        lambda: accumulator.add(BODY, priority=-1),
        lambda: accumulator.add(BODY, ttl_ms=0),
        lambda: accumulator.add(BODY, ttl_ms=10**15 + 1),
    ):
        with pytest.raises(ValueError, match=r"priority|ttl_ms"):
            refused()
    assert len(accumulator.unresolved()) == 1


def test_messages_contain_when_they_expire() -> None:  # T32
    accumulator = make(queue=0)
    batch = accumulator.add(b"0")
    accumulator.add(b"1", ttl_ms=7)
    accumulator.add(b"2")
    encoded = Batch.decode(batch.encode(producer_id=7, sequence=3))
    assert [encoded.expires_at_ms(row) for row in range(3)] == [0, 5007, 0]
    assert make(queue=0).add(b"0").expires_timestamps_us is None


def test_columns_are_padded_for_messages_without_a_value() -> None:
    accumulator = make(queue=0)
    batch = accumulator.add(b"0")
    accumulator.add("1ü", key="k", properties={"p": "v"})
    accumulator.add(b"2", tag="t")
    accumulator.add(b"3", key="l")
    accumulator.add(b"4", properties={})
    accumulator.close(batch)
    encoded = Batch.decode(batch.encode(producer_id=7, sequence=3))
    assert encoded.header.born_timestamp_us == 5_000_000
    assert (encoded.header.producer_id, encoded.header.sequence) == (7, 3)
    rows = range(5)
    assert [encoded.body(row) for row in rows] == [b"0", "1ü".encode(), b"2", b"3", b"4"]
    assert [encoded.key(row) for row in rows] == [None, "k", None, "l", None]
    assert [encoded.tag(row) for row in rows] == [None, None, "t", None, None]
    assert [encoded.properties(row) for row in rows] == [{}, {"p": "v"}, {}, {}, {}]


LIMITS = MessageLimits(
    max_message_bytes=100, max_key_bytes=10, max_tag_bytes=5, max_properties_bytes=20
)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"body": 5}, TypeError),
        ({"body": None}, TypeError),
        ({"body": "\ud800"}, ValueError),
        ({"body": b"x" * 101}, MessageTooLarge),
        ({"body": b"", "key": ""}, ValueError),
        ({"body": b"", "key": 5}, TypeError),
        ({"body": b"", "key": "k" * 11}, MessageTooLarge),
        ({"body": b"", "key": "\ud800"}, ValueError),
        ({"body": b"", "tag": ""}, ValueError),
        ({"body": b"", "tag": "t" * 6}, MessageTooLarge),
        ({"body": b"", "properties": {"": "v"}}, ValueError),
        ({"body": b"", "properties": {"n": 5}}, TypeError),
        ({"body": b"", "properties": {"n": "v" * 20}}, MessageTooLarge),
        ({"body": b"", "queue": 4}, UnknownQueue),
        ({"body": b"", "queue": -1}, UnknownQueue),
    ],
)
def test_a_refused_message_adds_nothing(message: Mapping[str, Any], error: type[Exception]) -> None:
    accumulator = make(limits=LIMITS, queue_count=4)
    batch = accumulator.add(b"good", queue=0)
    with pytest.raises(error):
        accumulator.add(**message)
    for batch in accumulator.unresolved():
        accumulator.close(batch)
    (batch,) = accumulator.take()
    assert len(Batch.decode(batch.encode(producer_id=1, sequence=0))) == 1


def test_messages_at_the_limits_are_accepted() -> None:
    accumulator = make(limits=LIMITS)
    accumulator.add(b"x" * 100)
    accumulator.add(b"x" * 90, key="k" * 10)
    accumulator.add(b"", tag="t" * 5, properties={"n": "v" * 19})


def test_a_queue_has_one_request_in_flight() -> None:
    accumulator = make(queue=0)
    first = [accumulator.add(BODY) for _ in range(10)][-1]
    assert accumulator.take() == [first]
    second = [accumulator.add(BODY) for _ in range(10)][-1]
    assert accumulator.take() == []
    accumulator.resolve([first], [STORED])
    assert accumulator.take() == [second]


def test_a_request_contains_several_queues_and_a_limited_number_of_batches() -> None:
    accumulator = make(queue_count=2)
    for _ in range(2 * 10 * (MAX_BATCHES_PER_QUEUE + 1)):
        accumulator.add(BODY)
    batches = accumulator.unresolved()
    taken = accumulator.take()
    assert Counter(batch.queue for batch in taken) == {
        0: MAX_BATCHES_PER_QUEUE,
        1: MAX_BATCHES_PER_QUEUE,
    }
    accumulator.resolve(taken, [STORED] * len(taken))
    assert set(accumulator.take()) == set(batches) - set(taken)


def test_a_request_has_a_limited_size_but_at_least_one_batch() -> None:
    accumulator = make(
        queue_count=8, batch_bytes=1, buffer_bytes=2**30, limits=MessageLimits(2**30)
    )
    large = b"x" * (MAX_REQUEST_BYTES // 2)
    for queue in range(3):
        accumulator.add(large, queue=queue)
    accumulator.add(b"x" * (MAX_REQUEST_BYTES + 1), queue=3)
    sizes = []
    while taken := accumulator.take():
        sizes.append(len(taken))
    assert sizes == [1, 1, 1, 1]


def test_the_buffer_is_full_until_its_batches_are_resolved() -> None:
    accumulator = make(queue_count=1, buffer_bytes=20 * (100 + MESSAGE_OVERHEAD_BYTES))
    was_full = []
    for _ in range(20):
        accumulator.add(BODY)
        was_full.append(accumulator.is_full)
    taken = accumulator.take()
    accumulator.resolve(taken, [STORED] * len(taken))
    was_full.append(accumulator.is_full)
    assert was_full == [False] * 19 + [True, False]


def test_open_batches_of_many_queues_stay_within_half_the_buffer() -> None:
    accumulator = make(queue_count=1000, batch_bytes=2**20, buffer_bytes=2**20)
    for queue in range(1000):
        accumulator.add(b"x" * 300, queue=queue)
    assert sum(batch.size_bytes for batch in accumulator.unresolved()) < 2**20 // 2
    accumulator.add(b"x" * 300, queue=5)
    assert [batch.queue for batch in accumulator.take()] == [5]


def test_unseen_failures_are_returned_once() -> None:
    accumulator = make(queue=0, batch_bytes=1)
    seen, unseen = accumulator.add(b"1"), accumulator.add(b"2")
    accumulator.resolve(accumulator.take(), [ClientClosed(), ClientClosed()])
    seen.is_failure_seen = True
    assert accumulator.take_unseen_failures() == [unseen]
    assert accumulator.take_unseen_failures() == []


def test_a_resolved_batch_releases_its_messages() -> None:
    accumulator = make(queue=0, batch_bytes=1)
    batch = accumulator.add(b"1", key="k")
    accumulator.resolve(accumulator.take(), [STORED])
    assert batch.bodies == []
    assert batch.keys is None
    assert (batch.message_count, batch.outcome) == (1, STORED)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from([None, "a", "b", "c"]), st.integers(0, 400)),
        st.tuples(st.just("close"), st.none(), st.just(0)),
        st.tuples(st.just("take"), st.none(), st.just(0)),
        st.tuples(st.just("settle"), st.none(), st.integers(0, 3)),
    ),
    max_size=120,
)


@settings(max_examples=100, deadline=None)
@given(ACTIONS, st.integers(1, 5))
def test_every_message_is_sent_once_and_in_the_order_of_its_queue(
    actions: list[tuple[str, str | None, int]], queue_count: int
) -> None:
    accumulator = make(queue_count=queue_count, batch_bytes=600, buffer_bytes=100_000)
    sent: dict[int, list[bytes]] = {}
    arrived: dict[int, list[bytes]] = {}
    under_way: list[list[PendingBatch]] = []

    def take() -> bool:
        taken = accumulator.take()
        if taken:
            busy = {batch.queue for request in under_way for batch in request}
            assert not busy & {batch.queue for batch in taken}
            under_way.append(taken)
        return bool(taken)

    def settle(index: int) -> None:
        request = under_way.pop(index % len(under_way))
        for batch in request:
            arrived.setdefault(batch.queue, []).extend(batch.bodies)
        accumulator.resolve(request, [STORED] * len(request))

    for number, (action, key, size) in enumerate(actions):
        if action == "send":
            body = b"%d:" % number + b"x" * size
            sent.setdefault(accumulator.add(body, key).queue, []).append(body)
        elif action == "close":
            accumulator.close_all()
        elif action == "take":
            take()
        elif under_way:
            settle(size)
    accumulator.close_all()
    while take() or under_way:
        if under_way:
            settle(0)
    assert arrived == sent
    assert accumulator.unresolved() == []


def test_messages_have_the_born_timestamps_that_are_given() -> None:
    accumulator = make(queue=0)
    batch = accumulator.add(b"0")
    accumulator.add(b"1", born_timestamp_us=7_000)
    accumulator.add(b"2", born_timestamp_us=0)
    accumulator.add(b"3")
    encoded = Batch.decode(batch.encode(producer_id=7, sequence=3))
    born = [encoded.born_timestamp_us(row) for row in range(4)]
    assert born == [5_000_000, 7_000, 0, 5_000_000]
    alone = Batch.decode(make(queue=0).add(b"0").encode(producer_id=7, sequence=3))
    assert alone.born_timestamps_us is None
