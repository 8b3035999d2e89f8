"""RabbitMQ, by pika (one by one, consuming) and aio-pika (publishing many with confirms)."""

import asyncio
from collections.abc import Callable, Iterator

import aio_pika
import pika

from bench.peers.loads.common import main, singles_in_threads

_PREFETCH = 1000


class RabbitLoad:
    """A topic is a durable queue; messages are persistent and confirmed."""

    def __init__(self, address: str, durability: str) -> None:
        place, self._kind = address.split("/")
        self._host, port = place.split(":")
        self._port = int(port)
        self._persistent = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)

    def create(self, topic: str) -> None:
        """Declare the queue."""
        connection = self._connect()
        connection.channel().queue_declare(
            topic, durable=True, arguments={"x-queue-type": self._kind}
        )
        connection.close()

    def publish(self, topic: str, messages: int, body: bytes, batch: int) -> None:
        """Publish a batch, wait for its confirms together, go on."""

        async def publish() -> None:
            connection = await aio_pika.connect(host=self._host, port=self._port)
            channel = await connection.channel()
            send = channel.default_exchange.publish
            for _ in range(messages // batch):
                await asyncio.gather(
                    *(
                        send(
                            aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT),
                            topic,
                        )
                        for _ in range(batch)
                    )
                )
            await connection.close()

        asyncio.run(publish())

    def consume(self, topic: str, messages: int) -> int:
        """Take with a prefetch, acknowledge by the half prefetch."""
        connection = self._connect()
        channel = connection.channel()
        channel.basic_qos(prefetch_count=_PREFETCH)
        size = 0
        for count, (method, _, body) in enumerate(channel.consume(topic), 1):
            size += len(body)
            if count % (_PREFETCH // 2) == 0 or count == messages:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if count == messages:
                break
        channel.cancel()
        connection.close()
        return size

    def sender(self, topic: str) -> Callable[[bytes], object]:
        """basic_publish() with confirms."""
        channel = self._connect().channel()
        channel.confirm_delivery()
        return lambda body: channel.basic_publish("", topic, body, self._persistent)

    def singles(self, topic: str, body: bytes, *, producers: int, each: int) -> None:
        """A thread and a connection each."""
        singles_in_threads(self, topic, body, producers=producers, each=each)

    def deliveries(self, topic: str) -> Iterator[bytes]:
        """Consume, acknowledging each."""
        channel = self._connect().channel()
        channel.basic_qos(prefetch_count=_PREFETCH)
        for method, _, body in channel.consume(topic):
            channel.basic_ack(method.delivery_tag)
            yield body

    def _connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.ConnectionParameters(self._host, self._port))


if __name__ == "__main__":
    main(RabbitLoad)
