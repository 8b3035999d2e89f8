import pytest

from holdfast.log_files.descriptions import Split
from holdfast.log_files.ranges import OffsetRange
from holdfast.spark.broker.block_receiver import BlockGatherer
from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.errors import ReplyMismatch
from tests.support.servers.fake_broker import FakeBroker


def test_topics_are_listed_over_pages(
    broker: FakeBroker, client: BrokerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.spark.broker.client._PAGE", 2)
    for name in ("e", "a", "d", "b", "c"):
        broker.topic(name)
    assert list(client.topic_names()) == ["a", "b", "c", "d", "e"]
    assert len(broker.requests) == 3


def test_storing_again_after_a_lost_answer_succeeds(
    broker: FakeBroker, client: BrokerClient
) -> None:
    client.store_offsets("billing", "orders", {0: 5}, etag='"0"')
    assert client.store_offsets("billing", "orders", {0: 5}, etag='"0"').offsets == {0: 5}


def test_splits_follow_blocks_and_omit_other_queues(
    broker: FakeBroker, client: BrokerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.spark.broker.client._QUEUES_PER_PLAN", 1)
    topic = broker.topic("orders", queues=3)
    for queue in range(3):
        topic.publish(queue, [b"a"] * 3)
        topic.publish(queue, [b"b"] * 3)
    ranges = {0: OffsetRange(1, 6), 2: OffsetRange(0, 2)}
    splits = client.splits("orders", topic.topic_id, ranges, max_bytes=1, min_splits=1)
    assert [(s.queue, s.start, s.end) for s in splits] == [(0, 1, 3), (0, 3, 6), (2, 0, 2)]
    assert all(isinstance(split, Split) and split.size_bytes > 0 for split in splits)
    assert len(broker.requests) == 2


def test_a_pull_names_its_bounds_tags_and_filter(broker: FakeBroker, client: BrokerClient) -> None:
    topic = broker.topic("orders")
    ids, tags = (topic.topic_id, 0, 0), frozenset("ba")
    for count in (1, 9_999, 10_000, 10_001):
        client.pull_blocks(
            "orders", *ids, BlockGatherer(9, 9), max_messages=count, max_bytes=9, tags=tags
        )
    client.pull(
        "orders", topic.topic_id, 0, 0, max_bytes=9, tags=frozenset("ba"), expression="a > 'x y'"
    )
    pull = "GET /v1/topics/orders/queues/0/messages?offset=0&max_messages="
    assert broker.requests == [
        f"{pull}1&max_bytes=9&tag=a,b",
        f"{pull}9999&max_bytes=9&tag=a,b",
        f"{pull}10000&max_bytes=9&tag=a,b",
        f"{pull}10000&max_bytes=9&tag=a,b",
        f"{pull}10000&max_bytes=9&tag=a,b&filter=a+%3E+%27x+y%27",
    ]


def test_a_reply_without_its_headers_is_no_brokers(
    broker: FakeBroker, client: BrokerClient
) -> None:
    topic = broker.topic("orders")
    broker.faults.append(lambda _: broker.describe(topic="orders"))
    with pytest.raises(ReplyMismatch, match="is it a Holdfast broker"):
        client.pull("orders", topic.topic_id, 0, 0, max_bytes=1)
