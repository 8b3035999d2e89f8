import pytest

from holdfast.spark.bound import Bound, bind
from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.errors import DataLost, InvalidOption, OffsetsMoved, TopicRecreated
from holdfast.spark.options.read import parse_options
from holdfast.spark.read.plan import bind_topics
from tests.support.servers.fake_broker import FakeBroker, FakeTopic


@pytest.fixture(autouse=True)
def topic(broker: FakeBroker) -> FakeTopic:
    return broker.topic("orders", queues=2, bodies=[b"x"] * 10)


def again(bound: Bound) -> object:
    """Return the ranges that the bound options read."""
    options = parse_options(bound.options)
    with BrokerClient.open(options.address) as client:
        return {topic.name: dict(topic.ranges) for topic in bind_topics(client, options)}


def test_a_group_continues_at_its_saved_offsets(broker: FakeBroker, topic: FakeTopic) -> None:
    first = bind(broker.url, "orders", group="billing")
    assert first.offsets == {"orders": {0: (0, 10), 1: (0, 10)}}
    first.save()
    topic.publish(1, [b"y"] * 5)
    second = bind(broker.url, "orders", group="billing")
    assert second.offsets == {"orders": {0: (10, 10), 1: (10, 15)}}
    second.save()
    assert broker.groups["billing"]["orders"][0] == {0: 10, 1: 15}


def test_a_bound_read_stays_the_same(broker: FakeBroker, topic: FakeTopic) -> None:
    bound = bind(broker.url, "orders", group="billing")
    topic.publish(0, [b"late"])
    topic.queues.append(type(topic.queues[0])())
    topic.publish(2, [b"in a queue added later"])
    bound.save()
    assert again(bound) == bound.offsets


def test_options_are_kept_except_those_that_bind_replaces(broker: FakeBroker) -> None:
    bound = bind(
        broker.url, "orders", startingTimestamp=0, includeBody=False, tag="a", minPartitions=None
    )
    assert set(bound.options) == {
        "url", "includeBody", "tag", "assign", "topicIds", "startingOffsets", "endingOffsets",
        "columns",
    }  # fmt: skip
    assert bound.options["includeBody"] == "false"
    assert again(bound) == bound.offsets


@pytest.mark.parametrize(
    "what",
    [{"subscribe": "orders"}, {"subscribePattern": "o.*"}, {"Assign": '{"orders": [0, 1]}'}],
    ids=str,
)
def test_topics_are_bound_however_they_are_named(broker: FakeBroker, what: dict[str, str]) -> None:
    bound = bind(broker.url, **what)
    assert again(bound) == bound.offsets == {"orders": {0: (0, 10), 1: (0, 10)}}


def test_several_topics_keep_their_topic_column(broker: FakeBroker) -> None:
    broker.topic("returns")
    bound = bind(broker.url, "orders,returns", group="billing")
    assert bound.options["columns"].startswith("topic,")
    bound.save()
    assert set(broker.groups["billing"]) == {"orders", "returns"}
    assert again(bound) == bound.offsets


def test_a_start_overrides_the_groups_offsets(broker: FakeBroker) -> None:
    bind(broker.url, "orders", group="billing").save()
    bound = bind(broker.url, "orders", group="billing", startingOffsets='{"0": 4}')
    assert bound.offsets == {"orders": {0: (4, 10), 1: (0, 10)}}


def test_saving_twice_is_saving_once(broker: FakeBroker) -> None:
    bound = bind(broker.url, "orders", group="billing")
    bound.save()
    bound.save()
    assert broker.groups["billing"]["orders"] == ({0: 10, 1: 10}, 1)


def test_offsets_that_somebody_else_moved_are_left_alone(broker: FakeBroker) -> None:
    bound = bind(broker.url, "orders", group="billing")
    broker.groups["billing"] = {"orders": ({0: 3}, 1)}
    with pytest.raises(OffsetsMoved, match="bind again"):
        bound.save()
    assert broker.groups["billing"]["orders"] == ({0: 3}, 1)


def test_without_a_group_there_is_nothing_to_save(broker: FakeBroker) -> None:
    with pytest.raises(ValueError, match="group"):
        bind(broker.url, "orders").save()


def test_a_groups_trimmed_offsets_are_lost_data(broker: FakeBroker, topic: FakeTopic) -> None:
    bind(broker.url, "orders", group="billing", endingOffsets='{"0": 2}').save()
    topic.publish(0, [b"y"] * 10)
    topic.queues[0].min_offset = 10
    with pytest.raises(DataLost, match="from offset 2 to 10"):
        bind(broker.url, "orders", group="billing")
    bound = bind(broker.url, "orders", group="billing", failOnDataLoss=False)
    assert bound.offsets["orders"][0] == (10, 20)


def test_a_topic_recreated_is_not_read_in_its_stead(broker: FakeBroker) -> None:
    bound = bind(broker.url, "orders")
    broker.topic("orders", queues=2)
    with pytest.raises(TopicRecreated):
        again(bound)


def test_a_topic_recreated_since_it_was_read_is_not_saved(broker: FakeBroker) -> None:
    bound = bind(broker.url, "orders", group="billing")
    broker.topic("orders", queues=2)
    with pytest.raises(TopicRecreated):
        bound.save()
    assert broker.groups == {}


def test_a_group_may_be_in_more_queues_than_are_assigned(broker: FakeBroker) -> None:
    bind(broker.url, "orders", group="billing", endingOffsets='{"0": 4, "1": 6}').save()
    bound = bind(broker.url, assign='{"orders": [1]}', group="billing")
    assert bound.offsets == {"orders": {1: (6, 10)}}
    bound.save()
    assert broker.groups["billing"]["orders"][0] == {0: 4, 1: 10}


def test_options_are_checked(broker: FakeBroker) -> None:
    with pytest.raises(InvalidOption, match="is unknown"):
        bind(broker.url, "orders", sine=1)


def test_a_broker_is_found_without_its_scheme(broker: FakeBroker) -> None:
    bind(broker.url.removeprefix("http://"), "orders", group="billing").save()
    assert "billing" in broker.groups
