"""A load for Holdfast over AMQP, with a blocking client on the product's own engine.

The address is HOST:PORT/topic or HOST:PORT/group. It says from where `deliveries` receives: from
the topic (each link gets every message), or from a group (each message is accepted).
"""

from collections.abc import Callable, Iterator

from bench.peers.loads.common import main
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from tests.support.clients.amqp_client import AmqpClient, data_message

#: The link gets this much credit again when half of it is used.
_CREDIT = 1000
#: The sender's settle mode "settled" (AMQP 1.0, part 2, section 2.8.2).
_SETTLED = 1
#: Before the body: a data section with at most 255 bytes.
_DATA = data_message(b"")[:-1]


class AmqpLoad:
    """Uses one link for each sender or receiver; a message is one data section."""

    def __init__(self, address: str, durability: str) -> None:
        place, _, self._from = address.partition("/")
        self._port = int(place.partition(":")[2])

    def create(self, topic: str) -> None:
        """Attach a link: the broker makes the topic."""
        with AmqpClient(self._port) as client:
            client.sender(topic)

    def sender(self, topic: str) -> Callable[[bytes], object]:
        """Publish one message at a time, and wait for its outcome."""
        client, link = self._sending(topic)

        def send(body: bytes) -> None:
            client.send(link, data_message(body))
            client.take_outcomes()

        return send

    def singles(self, topic: str, body: bytes, *, producers: int, each: int, shared: bool) -> None:
        """Keep as many publishes waiting as there are producers, all of them over one link. When a
        message has its outcome, its producer sends the next message."""
        client, link = self._sending(topic)
        message, left = data_message(body), each * producers
        waiting = 0
        while left or waiting:
            for _ in range(min(producers - waiting, left)):
                link.send(message)
                waiting, left = waiting + 1, left - 1
            client.flush()
            waiting -= len(client.take_outcomes())

    def deliveries(self, topic: str) -> Iterator[bytes]:
        """Receive over a link that always has credit. A topic's messages come settled, because a
        link may not have more than `max_unsettled` that its client never settles."""
        client = AmqpClient(self._port, container=f"receives {topic}")
        if self._from == "topic":
            link = client.receiver(f"/topics/{topic}", credit=_CREDIT, snd_settle_mode=_SETTLED)
        else:
            link = client.receiver(topic, credit=_CREDIT)
        while True:
            (delivery,) = client.take()
            yield bytes(delivery.message).rpartition(_DATA)[2][1:]
            if self._from == "group":
                client.settle(delivery)
            if link.credit < _CREDIT // 2:
                link.grant(_CREDIT)
                client.flush()

    def _sending(self, topic: str) -> tuple[AmqpClient, OutgoingLink]:
        client = AmqpClient(self._port, container=f"sends {topic}")
        return client, client.sender(topic)


if __name__ == "__main__":
    main(AmqpLoad)
