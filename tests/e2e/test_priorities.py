"""Priorities through a whole broker: all ways of publishing choose the same queue."""

import itertools
from typing import TYPE_CHECKING

from holdfast.client import Client
from holdfast.commitlog.format.batch import queue_for_key

if TYPE_CHECKING:
    from holdfast.testing import RunningBroker

KEYS = ("a", "b", "ключ")


def test_client_producer_and_broker_choose_the_same_queues(
    broker: "RunningBroker",
) -> None:
    with Client(broker.url) as client:
        client.create_topic("t", queues=3, priority_levels=4)
        places = {}
        for key, priority in itertools.product(KEYS, (None, *range(10))):
            body = f"{key} {priority}"
            places[body] = client.publish("t", body, key=key, priority=priority).queue
        with client.producer("t") as producer:
            sent = {
                f"{key} {priority}": producer.send(
                    f"{key} {priority}", key=key, priority=priority, ttl_ms=60_000
                )
                for key, priority in itertools.product(KEYS, (None, *range(10)))
            }
        assert {body: handle.result().queue for body, handle in sent.items()} == places
        for body, queue in places.items():
            assert queue // 4 == queue_for_key(body.split()[0], 3)
        levels = {body.split()[1]: queue % 4 for body, queue in places.items()}
        assert levels == {
            **dict.fromkeys(("0", "1", "2", "3"), 0),
            **dict.fromkeys(("4", "None"), 1),
            **dict.fromkeys(("5",), 2),
            **dict.fromkeys(("6", "7", "8", "9"), 3),
        }
        stored = [message.body.decode() for message in client.pull("t", follow=False)]
        assert sorted(stored) == sorted([*places, *places])
