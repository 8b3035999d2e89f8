"""A stream's driver with a real broker: the broker understands its requests as intended."""

import threading
from collections.abc import Iterator

import pytest

from holdfast.running_broker import RunningBroker
from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.errors import InvalidOption, TopicRecreated
from holdfast.spark.options.stream import StreamOptions, parse_stream_options
from holdfast.spark.read.reading import open_catalog, read_rows
from holdfast.spark.stream.driver import StreamDriver
from holdfast.spark.stream.group_progress import ProgressReporter
from holdfast.spark.stream.offsets import TopicOffsets

QUEUES = 3
BATCHES = 8
ROWS = 50


@pytest.fixture(autouse=True)
def published(running: RunningBroker, topic: str) -> None:
    publish(running, topic)


def publish(broker: RunningBroker, topic: str) -> None:
    with broker.client() as client:
        for queue in range(QUEUES):
            for _ in range(BATCHES):
                with client.producer(topic, queue=queue, durability="written") as producer:
                    for _ in range(ROWS):
                        producer.send(b"x" * 20)


@pytest.fixture
def options(running: RunningBroker, topic: str) -> StreamOptions:
    return parse_stream_options({"url": running.url, "topic": topic, "startingOffsets": "earliest"})


@pytest.fixture
def client(options: StreamOptions) -> Iterator[BrokerClient]:
    with BrokerClient.open(options.read.address) as client:
        yield client


@pytest.mark.parametrize(
    ("limit", "value"),
    [("maxBytesPerTrigger", "10k"), ("maxBytesPerTrigger", "1"), ("maxOffsetsPerTrigger", "277")],
)
def test_everything_is_read_once_within_the_limits(
    running: RunningBroker, topic: str, client: BrokerClient, limit: str, value: str
) -> None:
    given = {"url": running.url, "topic": topic, "startingOffsets": "earliest"}
    wanted = parse_stream_options({**given, limit: value})
    driver = StreamDriver(client, wanted)
    start, batches = driver.initial(), 0
    read = dict.fromkeys(range(QUEUES), 0)
    while (end := driver.latest(start, wanted.limits)) != start:
        parts = [part for parts in driver.plan(start, end) for part in parts]
        for part in parts:
            assert part.start == read[part.queue]
            read[part.queue] = part.end
        start, batches = end, batches + 1
    assert read == dict.fromkeys(range(QUEUES), BATCHES * ROWS)
    assert batches > 3
    driver.close()


def test_a_directory_is_streamed_without_asking_its_broker(
    running: RunningBroker, topic: str
) -> None:
    wanted = parse_stream_options(
        {
            "path": str(running.data_dir),
            "topic": topic,
            "startingOffsets": "earliest",
            "columns": "queue,offset",
            "maxBytesPerTrigger": "10k",
            "idleWaitMs": "0",
        }
    )
    rows = []
    with open_catalog(wanted.read) as catalog:
        driver = StreamDriver(catalog, wanted)
        start = driver.initial()
        for _ in range(2):
            while (end := driver.latest(start, wanted.limits)) != start:
                for parts in driver.plan(start, end):
                    for batch in read_rows(parts, wanted.read):
                        rows += [(row["queue"], row["offset"]) for row in batch.to_pylist()]
                start = end
            publish(running, topic)
    assert sorted(rows) == [
        (queue, offset) for queue in range(QUEUES) for offset in range(2 * BATCHES * ROWS)
    ]


def test_leases_end_with_their_micro_batch(
    running: RunningBroker, topic: str, options: StreamOptions, client: BrokerClient
) -> None:
    driver = StreamDriver(client, options)
    start = driver.initial()
    end = driver.latest(start, options.limits)
    driver.plan(start, end)
    assert leased(running, topic)
    driver.latest(end, options.limits)
    assert not leased(running, topic)


def leased(broker: RunningBroker, topic: str) -> bool:
    with broker.client() as client:
        return bool(client.describe_topic(topic).get("read_leases"))


def test_the_broker_holds_a_request_until_a_message_arrives(
    running: RunningBroker, topic: str, client: BrokerClient
) -> None:
    ends = dict.fromkeys(range(QUEUES), BATCHES * ROWS)
    client.hold(topic, ends, 1)  # nothing arrives
    waiting = threading.Thread(target=client.hold, args=(topic, ends, 60_000))
    waiting.start()
    with running.client() as publisher:
        publisher.publish(topic, b"y", queue=1)
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_mirror_knows_a_group_with_leases(
    running: RunningBroker, topic: str, client: BrokerClient
) -> None:
    with running.client() as owner:
        owner.create_group("kitchen", {topic: {}})
    with pytest.raises(InvalidOption, match="leases messages"):
        ProgressReporter(client, "kitchen").check()
    reporter = ProgressReporter(client, "stream")
    reporter.check()
    topic_id = client.describe(topic).topic_id
    reporter.store({topic: TopicOffsets(topic_id, {0: 5})})
    reporter.check()
    reporter.store({topic: TopicOffsets(topic_id, {0: 4, 1: 7})})
    stored = client.stored_offsets("stream", topic)
    assert stored is not None
    assert stored.offsets == {0: 5, 1: 7}


def test_a_topic_recreated_is_told_from_the_old_one(
    running: RunningBroker, topic: str, options: StreamOptions, client: BrokerClient
) -> None:
    driver = StreamDriver(client, options)
    start = driver.initial()
    with running.client() as owner:
        owner.delete_topic(topic)
        owner.create_topic(topic, queues=QUEUES)
    with pytest.raises(TopicRecreated):
        driver.latest(start, options.limits)
