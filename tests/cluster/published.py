"""What the jobs read: two topics on a broker, made once."""

import time
from dataclasses import dataclass

import holdfast
from holdfast.running_broker import RunningBroker
from holdfast.spark import bind

ORDERS, TRIMMED = "orders", "trimmed"
BEFORE, AFTER = 18_000, 2_000
TRIMMED_COUNT = 3_000
_DEADLINE_S = 30.0

#: Small segments, and a retention that looks often: what is trimmed is gone at once.
BROKER_ARGUMENTS = (
    *("--commitlog-segment-bytes", "1MiB"),
    *("--commitlog-retention-interval-ms", "50"),
)


@dataclass(frozen=True)
class Published:
    """Where the topics are, and the two reads that were bound on the way."""

    url: str
    data_dir: str
    bound: dict[str, str]
    lost: dict[str, str]


def publish(broker: RunningBroker) -> Published:
    """Fill the topics: ORDERS in two parts with a bound read between, TRIMMED and then trim it."""
    with broker.client() as client:
        client.create_topic(ORDERS, queues=4)
        _publish(client, ORDERS, range(BEFORE))
        bound = bind(broker.url, ORDERS)
        _publish(client, ORDERS, range(BEFORE, BEFORE + AFTER))
        client.create_topic(TRIMMED, queues=1)
        _publish(client, TRIMMED, range(TRIMMED_COUNT))
        lost = bind(broker.url, TRIMMED)
        client.change_topic(TRIMMED, retention_bytes=64 * 1024)
        _await_trimming(client)
    return Published(broker.url, str(broker.data_dir), dict(bound.options), dict(lost.options))


def _publish(client: holdfast.Client, topic: str, numbers: range) -> None:
    with client.producer(topic, batch_bytes=16 * 1024) as producer:
        for number in numbers:
            producer.send(
                b"number %d, " % number
                + b"and a body of a hundred bytes or so, as orders have" * 2,
                key=f"customer-{number % 100}",
                tag="paid" if number % 3 else None,
                properties={"n": str(number)},
            )


def _await_trimming(client: holdfast.Client) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while client.describe_topic(TRIMMED)["queues"][0]["min_offset"] == 0:
        assert time.monotonic() < deadline, "retention took nothing"
        time.sleep(0.02)
