"""A topic with all kinds of messages, for the tests of tables."""

from holdfast.client.sync_client import Client


def publish_mixed(client: Client, topic: str) -> None:
    """Publish batches with and without the optional columns to three queues."""
    client.create_topic(topic, queues=3)
    for queue in range(3):
        with client.producer(topic, queue) as producer:
            for number in range(40):
                has_all = number % 3 == 0
                producer.send(
                    b'{"id": %d, "name": "n%d"}' % (number, number),
                    key=f"k{number}" if has_all else None,
                    tag="red" if number % 2 else "blue",
                    properties={"a": str(number), "é": "ü"} if has_all else None,
                )
                if number % 10 == 9:
                    producer.flush()
