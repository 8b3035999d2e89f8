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


@pytest.fixture
def url(holdfast_broker: RunningBroker) -> str:
    with holdfast_broker.client() as client:
        client.create_topic("orders", queues=QUEUES, durability="written")
    publish(holdfast_broker)
    return holdfast_broker.url


def publish(broker: RunningBroker) -> None:
    with broker.client() as client:
        for queue in range(QUEUES):
            for _ in range(BATCHES):
                with client.producer("orders", queue=queue, durability="written") as producer:
                    for _ in range(ROWS):
                        producer.send(b"x" * 20)


def options(url: str, **given: str) -> StreamOptions:
    return parse_stream_options(
        {"url": url, "topic": "orders", "startingOffsets": "earliest", **given}
    )


@pytest.fixture
def client(url: str) -> Iterator[BrokerClient]:
    with BrokerClient.open(options(url).read.address) as client:
        yield client


@pytest.mark.parametrize(
    "limits",
    [{"maxBytesPerTrigger": "10k"}, {"maxBytesPerTrigger": "1"}, {"maxOffsetsPerTrigger": "277"}],
)
def test_everything_is_read_once_within_the_limits(
    url: str, client: BrokerClient, limits: dict[str, str]
) -> None:
    wanted = options(url, **limits)
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
    holdfast_broker: RunningBroker, url: str
) -> None:
    wanted = parse_stream_options(
        {
            "path": str(holdfast_broker.data_dir),
            "topic": "orders",
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
            publish(holdfast_broker)
    assert sorted(rows) == [
        (queue, offset) for queue in range(QUEUES) for offset in range(2 * BATCHES * ROWS)
    ]


def test_leases_end_with_their_micro_batch(
    holdfast_broker: RunningBroker, url: str, client: BrokerClient
) -> None:
    driver = StreamDriver(client, options(url))
    start = driver.initial()
    end = driver.latest(start, options(url).limits)
    driver.plan(start, end)
    assert leased(holdfast_broker)
    driver.latest(end, options(url).limits)
    assert not leased(holdfast_broker)


def leased(broker: RunningBroker) -> bool:
    with broker.client() as client:
        return bool(client.describe_topic("orders").get("read_leases"))


def test_the_broker_holds_a_request_until_a_message_arrives(
    holdfast_broker: RunningBroker, url: str, client: BrokerClient
) -> None:
    ends = dict.fromkeys(range(QUEUES), BATCHES * ROWS)
    client.hold("orders", ends, 1)  # nothing arrives
    waiting = threading.Thread(target=client.hold, args=("orders", ends, 60_000))
    waiting.start()
    with holdfast_broker.client() as publisher:
        publisher.publish("orders", b"y", queue=1)
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_mirror_knows_a_group_with_leases(
    holdfast_broker: RunningBroker, url: str, client: BrokerClient
) -> None:
    with holdfast_broker.client() as owner:
        owner.create_group("kitchen", {"orders": {}})
    with pytest.raises(InvalidOption, match="leases messages"):
        ProgressReporter(client, "kitchen").check()
    reporter = ProgressReporter(client, "stream")
    reporter.check()
    topic_id = client.describe("orders").topic_id
    reporter.store({"orders": TopicOffsets(topic_id, {0: 5})})
    reporter.check()
    reporter.store({"orders": TopicOffsets(topic_id, {0: 4, 1: 7})})
    stored = client.stored_offsets("stream", "orders")
    assert stored is not None
    assert stored.offsets == {0: 5, 1: 7}


def test_a_topic_recreated_is_told_from_the_old_one(
    holdfast_broker: RunningBroker, url: str, client: BrokerClient
) -> None:
    driver = StreamDriver(client, options(url))
    start = driver.initial()
    with holdfast_broker.client() as owner:
        owner.delete_topic("orders")
        owner.create_topic("orders", queues=QUEUES)
    with pytest.raises(TopicRecreated):
        driver.latest(start, options(url).limits)
