"""A consumer with `no_local` gets no messages that its own client has published."""

import pytest

from holdfast.client.errors import ApiError
from holdfast.client.produce.identities import ProducerIds
from holdfast.client.sync_client import Client
from holdfast.commitlog.format.session_ids import producer_ids_of
from holdfast.testing import RunningBroker


def consumed(client: Client, topic: str, *, no_local: bool) -> set[str]:
    """Consume and acknowledge until the end."""
    with client.consume(topic, topic, no_local=no_local, follow=False) as deliveries:
        return {each.text for each in deliveries}


def test_the_messages_of_the_own_client_stay_available_to_others(
    shared_broker: RunningBroker, topic: str
) -> None:
    # T28: `publish` and producers, and their ids that are created later
    with shared_broker.client() as mine, shared_broker.client() as other:
        mine.create_topic(topic, queues=2)
        mine.create_group(topic, [topic])
        with mine.consume(topic, topic, no_local=True) as consumer:
            for number in range(5):
                mine.publish(topic, f"mine {number}")
                with mine.producer(topic) as producer:
                    for queue in (0, 1):
                        producer.send(f"mine {number} {queue}", queue=queue)
                other.publish(topic, f"other {number}")
                assert next(consumer).text == f"other {number}"
        expected = {f"mine {number}{queue}" for number in range(5) for queue in ("", " 0", " 1")}
        # The last message of the loop was not acknowledged.
        assert consumed(mine, topic, no_local=True) == {"other 4"}
        assert mine.describe_group(topic).available == 15
        assert consumed(other, topic, no_local=True) == expected


def test_a_keyed_group_refuses_no_local(shared_broker: RunningBroker, topic: str) -> None:
    with shared_broker.client() as client:
        client.create_topic(topic, queues=1)
        client.create_group(topic, [topic], mode="keyed")
        consumer = client.consume(topic, topic, no_local=True)
        with consumer, pytest.raises(ApiError) as refused:
            next(consumer)
        assert refused.value.type == "filter-not-allowed"


def test_the_ids_of_a_client_are_different_and_in_its_session() -> None:
    one, other = ProducerIds(), ProducerIds()
    found = [ids.create() for _ in range(1_000) for ids in (one, other)]
    assert len({*found}) == 2_000
    for ids, mine in ((one, found[::2]), (other, found[1::2])):
        first, last = producer_ids_of(ids.session)
        assert 1 <= first <= min(mine) and max(mine) <= last < 2**63
        assert last - first == 2**24 - 1
        assert len(ids.session) <= 127
