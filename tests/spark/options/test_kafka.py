"""Each option of Spark's Kafka connector is accepted, or refused with advice.

The table is that of the connector's guide, including the options of its client.
"""

import pytest

from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.offsets import LATEST, AtTime, AtTimes, ExplicitOffsets
from holdfast.spark.options.read import ReadOptions, parse_options
from holdfast.spark.read.plan import BoundTopic, bind_topics
from tests.support.servers.fake_broker import FakeBroker

JOB = {"kafka.bootstrap.servers": "broker:8711", "subscribe": "orders", "schema": "kafka"}
TIMES = '{"orders": {"0": 2000, "1": 1}}'

OBEYED = {
    "subscribe": "orders,refunds",
    "subscribePattern": "order.*",
    "assign": '{"orders": [0, 1]}',
    "startingOffsets": '{"orders": {"0": 23, "1": -2}}',
    "endingOffsets": '{"orders": {"0": 50, "1": -1}}',
    "startingTimestamp": "1700000000000",
    "endingTimestamp": "1700000000000",
    "startingOffsetsByTimestamp": TIMES,
    "endingOffsetsByTimestamp": TIMES,
    "failOnDataLoss": "false",
    "minPartitions": "8",
    "includeHeaders": "true",
}
#: Option -> words of the advice in its error.
REFUSED = {
    "kafkaConsumer.pollTimeoutMs": "retried for up to a minute",
    "fetchOffset.numRetries": "retried for up to a minute",
    "fetchOffset.retryIntervalMs": "retried for up to a minute",
    "groupIdPrefix": "joins no group",
    "kafka.group.id": "joins no group",
    "maxRecordsPerPartition": "maxBytesPerPartition",
    "kafka.security.protocol": "option token",
    "kafka.sasl.mechanism": "option token",
    "kafka.sasl.jaas.config": "option token",
    "kafka.ssl.truststore.location": "caFile",
    "kafka.auto.offset.reset": "startingOffsets",
    "kafka.enable.auto.commit": "commits nothing",
    "kafka.key.deserializer": "CAST",
    "kafka.value.deserializer": "CAST",
    "kafka.isolation.level": "no transactions",
    "kafka.fetch.max.bytes": "fetchMaxBytes",
    "kafka.max.partition.fetch.bytes": "fetchMaxBytes",
    "kafka.max.poll.records": "fetchMaxBytes",
    "kafka.request.timeout.ms": "retried",
    "kafka.session.timeout.ms": "retried",
    "kafka.client.id": "Kafka's client, which is not used here; omit it",
    "kafka.interceptor.classes": "Kafka's client, which is not used here; omit it",
}


def job(**given: str) -> ReadOptions:
    own = {"subscribe", "subscribePattern", "assign"} & given.keys()
    return parse_options(
        {name: JOB[name] for name in JOB if not own or name != "subscribe"} | given
    )


@pytest.mark.parametrize("name", OBEYED)
def test_an_option_is_obeyed(name: str) -> None:
    assert job(**{name: OBEYED[name]}) != job() or OBEYED[name] == JOB.get(name)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("fold", [str, str.lower, str.upper])
def test_a_refused_option_has_advice(name: str, fold: type[str]) -> None:
    with pytest.raises(InvalidOption, match=REFUSED[name]) as caught:
        job(**{fold(name): "1"})
    assert caught.value.option == fold(name)


@pytest.mark.parametrize("strategy", ["error", "latest"])
def test_the_strategy_goes_with_a_starting_time(strategy: str) -> None:
    name = "startingOffsetsByTimestampStrategy"
    with pytest.raises(InvalidOption, match="needs startingTimestamp"):
        job(**{name: strategy})
    for given in ({"startingTimestamp": "5"}, {"startingOffsetsByTimestamp": TIMES}):
        start = job(**given, **{name: strategy}).start
        assert isinstance(start, AtTime | AtTimes)
        assert start.must_match == (strategy == "error")


def test_a_kafka_job_fails_by_default_if_a_queue_has_no_message_at_the_time() -> None:
    assert job(startingTimestamp="5").start == AtTime(5, must_match=True)
    own = parse_options({"url": "b:1", "topic": "t", "startingTimestamp": "5"})
    assert own.start == AtTime(5, must_match=False)
    assert job(endingTimestamp="5").end == AtTime(5)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOffsetsByTimestamp": "5"}, "is not JSON"),
        ({"startingOffsetsByTimestamp": '{"orders": 5}'}, "not a queue number"),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": -1}}'}, "not a time"),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": "x"}}'}, "not an offset"),
        ({"endingOffsetsByTimestamp": "{"}, "not JSON"),
        ({"startingOffsetsByTimestamp": TIMES, "startingOffsets": "earliest"}, "contradict"),
        ({"startingOffsetsByTimestamp": TIMES, "startingTimestamp": "1"}, "contradict"),
        ({"endingOffsetsByTimestamp": TIMES, "endingOffsets": "latest"}, "contradict"),
        ({"subscribe": "a,b", "startingOffsetsByTimestamp": '{"0": 5}'}, "name them"),
        (
            {"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "earliest"},
            "none of error, latest",
        ),
    ],
)
def test_wrong_options_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        job(**given)


def test_nested_offsets_are_read_as_kafkas() -> None:
    assert job(endingOffsets='{"orders": {"0": 50, "1": -1}}').end == ExplicitOffsets(
        {"orders": {0: 50, 1: LATEST}}
    )


@pytest.fixture
def stamped(broker: FakeBroker) -> FakeBroker:
    """Three queues with ten messages per second from 1 to 3; the last one only of second 1."""
    topic = broker.topic("orders", queues=3)
    for queue in range(3):
        for second in (1, 2, 3) if queue < 2 else (1,):
            topic.publish(queue, [b"x"] * 10, store_timestamp_us=second * 1_000_000)
    return broker


def bound(broker: FakeBroker, **given: str) -> dict[int, tuple[int, int]]:
    options = parse_options({"url": broker.url, "topic": "orders", **given})
    with BrokerClient.open(options.address) as client:
        (topic,) = bind_topics(client, options)
    assert isinstance(topic, BoundTopic)
    return {queue: (part.start, part.end) for queue, part in topic.ranges.items()}


def test_each_queue_may_have_its_own_times(stamped: FakeBroker) -> None:
    assert bound(
        stamped,
        startingOffsetsByTimestamp='{"orders": {"0": 2000, "1": 1}}',
        endingOffsetsByTimestamp='{"orders": {"1": 1001, "2": 9000}}',
    ) == {0: (10, 30), 1: (0, 10), 2: (0, 10)}
    assert bound(stamped, startingOffsetsByTimestamp='{"0": 2001}')[0] == (20, 30)


def test_a_queue_without_a_message_at_the_time_is_empty_or_refused(stamped: FakeBroker) -> None:
    assert bound(stamped, startingTimestamp="2000") == {0: (10, 30), 1: (10, 30), 2: (10, 10)}
    strategy = {"startingOffsetsByTimestampStrategy": "error"}
    with pytest.raises(InvalidOption, match="queue 2 of 'orders' has no message") as caught:
        bound(stamped, startingTimestamp="2000", **strategy)
    assert "startingOffsetsByTimestampStrategy=latest" in str(caught.value)
    times = {"startingOffsetsByTimestamp": '{"0": 2000}'}
    assert bound(stamped, **times, **strategy)[2] == (0, 10)


def test_a_queue_or_topic_that_is_not_read_is_refused(stamped: FakeBroker) -> None:
    with pytest.raises(InvalidOption, match="has no queue 7"):
        bound(stamped, startingOffsetsByTimestamp='{"7": 5}')
    with pytest.raises(InvalidOption, match="'refunds', which is not read"):
        bound(stamped, startingOffsetsByTimestamp='{"refunds": {"0": 5}}')
