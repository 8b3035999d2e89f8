"""A topic and a group of their own for each test, on the broker of the whole run."""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import holdfast
from holdfast.running_broker import RunningBroker

_numbers = itertools.count()


@dataclass
class Setting:
    """What a test uses. `name` is a topic of one queue, and its group."""

    broker: RunningBroker
    client: holdfast.Client
    name: str

    def publish(self, count: int, topic: str | None = None) -> None:
        """Publish the numbers from 0 on."""
        with self.client.producer(topic or self.name) as producer:
            for number in range(count):
                producer.send(b"%d" % number)

    def add_group(self) -> str:
        """Return the name of one more topic, with its group."""
        name = f"channels-{os.getpid()}-{next(_numbers)}"
        self.client.create_topic(name, queues=1)
        self.client.create_group(name, [name])
        return name

    def in_flight(self, group: str | None = None) -> int:
        """Return how many messages of a group are leased."""
        in_flight = self.client.describe_group(group or self.name).in_flight
        assert in_flight is not None
        return in_flight


@pytest.fixture
def setting(holdfast_session_broker: RunningBroker) -> Iterator[Setting]:
    with holdfast_session_broker.client() as client:
        found = Setting(holdfast_session_broker, client, "")
        found.name = found.add_group()
        yield found
