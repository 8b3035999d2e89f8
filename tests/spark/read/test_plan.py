import logging
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.errors import BrokerRefused, DataLost, InvalidOption, TopicRecreated
from holdfast.spark.options.offsets import QueueRange
from holdfast.spark.options.read import ReadOptions, parse_options
from holdfast.spark.read.plan import bind_topics, pack_parts, plan_partitions
from tests.support.servers.fake_broker import FakeBroker, FakeTopic


@pytest.fixture
def topic(broker: FakeBroker) -> FakeTopic:
    topic = broker.topic("orders", queues=2)
    for queue in range(2):
        for second in range(10):
            topic.publish(queue, [b"x"] * 10, store_timestamp_us=second * 1_000_000)
    return topic


def options(**given: str) -> ReadOptions:
    topics = (
        {"topic": "orders"} if not {"subscribe", "subscribePattern", "assign"} & set(given) else {}
    )
    return parse_options({"url": "http://unused", "leaseMs": "0", **topics, **given})


def bound(client: BrokerClient, **given: str) -> dict[str, Mapping[int, tuple[int, int]]]:
    return {topic.name: topic.ranges for topic in bind_topics(client, options(**given))}


def test_topics_by_pattern_match_as_a_whole(broker: FakeBroker, client: BrokerClient) -> None:
    for name in ("orders", "orders.dead", "reorders"):
        broker.topic(name)
    assert set(bound(client, subscribePattern="orders.*")) == {"orders", "orders.dead"}


def test_only_assigned_queues_are_read(topic: FakeTopic, client: BrokerClient) -> None:
    assert bound(client, assign='{"orders": [1]}') == {"orders": {1: (0, 100)}}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"subscribePattern": "order"}, "no topic matches"),
        ({"assign": '{"orders": [2]}'}, "no queue 2"),
        ({"startingOffsets": "group:biling"}, "there is no group 'biling'"),
        ({"startingOffsets": '{"order": {"0": 1}}'}, "'order', which is not read"),
    ],
)
def test_choices_that_the_topics_do_not_have_are_refused(
    topic: FakeTopic, client: BrokerClient, given: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidOption, match=says):
        bound(client, **given)


def test_an_unknown_topic_is_the_brokers_to_refuse(client: BrokerClient) -> None:
    with pytest.raises(BrokerRefused, match="no topic 'orders'"):
        bound(client)


def test_empty_ranges_are_no_partitions(broker: FakeBroker, client: BrokerClient) -> None:
    broker.topic("orders", queues=4)
    topics = bind_topics(client, options())
    broker.requests.clear()
    assert plan_partitions(client, options(), topics) == []
    assert broker.requests == []


def test_a_small_topic_is_one_task(topic: FakeTopic, client: BrokerClient) -> None:
    plan = plan_partitions(client, options(), bind_topics(client, options()))
    whole = [QueueRange("orders", topic.topic_id, queue, 0, 100) for queue in range(2)]
    assert plan == [tuple(whole)]


def test_min_partitions_keeps_parts_apart(topic: FakeTopic, client: BrokerClient) -> None:
    wanted = options(minPartitions="7")
    plan = plan_partitions(client, wanted, bind_topics(client, wanted))
    assert len(plan) == 7
    assert [(p.queue, p.start) for parts in plan for p in parts] == sorted(
        (p.queue, p.start) for parts in plan for p in parts
    )


def test_partitions_are_limited_in_bytes(topic: FakeTopic, client: BrokerClient) -> None:
    wanted = options(maxBytesPerPartition="600")
    plan = plan_partitions(client, wanted, bind_topics(client, wanted))
    size = topic.queues[0].blocks[0].header.total_size
    assert size * 3 < 600 < size * 4
    assert len(plan) == 7  # of 20 blocks, three at a time


def test_ranges_trimmed_before_the_plan_are_lost_data_or_skipped_and_logged(
    topic: FakeTopic, client: BrokerClient, caplog: pytest.LogCaptureFixture
) -> None:
    topics = bind_topics(client, options())
    topic.queues[1].min_offset = 30
    with pytest.raises(DataLost, match=r"queue 1 of 'orders' .* offset 0 to 30"):
        plan_partitions(client, options(), topics)
    with caplog.at_level(logging.WARNING, "holdfast.spark"):
        (parts,) = plan_partitions(client, options(failOnDataLoss="false"), topics)
    assert [(p.queue, p.start, p.end) for p in parts] == [(0, 0, 100), (1, 30, 100)]
    assert "skipped 30 messages" in caplog.text


def test_a_queue_that_lost_its_tail_is_lost_data(topic: FakeTopic, client: BrokerClient) -> None:
    topics = bind_topics(client, options())
    del topic.queues[0].blocks[5:]
    with pytest.raises(DataLost, match="the queue ends before"):
        plan_partitions(client, options(), topics)
    allowed = options(failOnDataLoss="false")
    (parts,) = plan_partitions(client, allowed, topics)
    assert [(p.queue, p.start, p.end) for p in parts] == [(0, 0, 50), (1, 0, 100)]


def test_a_topic_recreated_before_the_plan_is_refused(
    broker: FakeBroker, topic: FakeTopic, client: BrokerClient
) -> None:
    topics = bind_topics(client, options())
    broker.topic("orders", queues=2)
    with pytest.raises(TopicRecreated, match="load it again"):
        plan_partitions(client, options(failOnDataLoss="false"), topics)


@settings(deadline=None)  # others may share the machine
@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 10), st.integers(1, 300))
def test_packs_hold_every_part_once_in_order(
    sizes: list[int], at_least: int, small_bytes: int
) -> None:
    parts = [(QueueRange("t", 1, n // 3, n % 3, n % 3 + 1), size) for n, size in enumerate(sizes)]
    packs = pack_parts(parts, at_least=at_least, small_bytes=small_bytes)
    assert len(packs) >= min(at_least, len(parts))
    offsets = [
        (p.queue, offset)
        for pack_parts in packs
        for p in pack_parts
        for offset in range(p.start, p.end)
    ]
    assert offsets == [(n // 3, n % 3) for n in range(len(sizes))]
    if sum(sizes) <= small_bytes and sizes:
        assert len(packs) == min(at_least, len(sizes))
