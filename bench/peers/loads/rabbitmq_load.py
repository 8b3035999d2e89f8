"""A load for RabbitMQ with pika: its asynchronous publisher with confirms, its blocking consumer.

aio-pika's publish(), awaited in thousands, reaches a seventh of this publisher's rate.
"""

from collections.abc import Callable, Iterator

import pika

from bench.peers.loads.common import main, singles_in_threads

_PREFETCH = 1000
_PENDING_BATCHES = 4


class _Publisher:
    """pika's asynchronous publisher; it counts confirms as they arrive."""

    def __init__(
        self,
        topic: str,
        messages: int,
        body: bytes,
        properties: pika.BasicProperties,
        *,
        window: int,
        refill: int,
    ) -> None:
        self._topic = topic
        self._messages = messages
        self._body = body
        self._properties = properties
        self._window = window
        #: The publisher sends again when it may send at least this many messages. For batches this
        #: is half of the window.
        self._refill = refill
        self._sent = 0
        self._unconfirmed: set[int] = set()
        self._failure: BaseException | None = None

    def run(self, parameters: pika.ConnectionParameters) -> None:
        """Publish all messages; return once all are confirmed."""
        self._connection = pika.SelectConnection(
            parameters,
            on_open_callback=lambda opened: opened.channel(on_open_callback=self._opened),
            on_close_callback=self._closed,
        )
        self._connection.ioloop.start()
        if self._sent < self._messages or self._unconfirmed:
            raise RuntimeError(f"not all was confirmed: {self._failure}")

    def _opened(self, channel: pika.channel.Channel) -> None:
        self._channel = channel
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._fill())

    def _fill(self) -> None:
        publish = self._channel.basic_publish
        while self._sent < self._messages and len(self._unconfirmed) < self._window:
            publish("", self._topic, self._body, self._properties)
            self._sent += 1
            self._unconfirmed.add(self._sent)

    def _on_confirm(self, frame: pika.frame.Method) -> None:
        if not isinstance(frame.method, pika.spec.Basic.Ack):
            raise RuntimeError(f"not stored: {frame.method}")
        tag = frame.method.delivery_tag
        if frame.method.multiple:
            self._unconfirmed = {each for each in self._unconfirmed if each > tag}
        else:
            self._unconfirmed.discard(tag)
        if self._sent == self._messages and not self._unconfirmed:
            self._connection.close()
        elif len(self._unconfirmed) <= self._window - self._refill:
            self._fill()

    def _closed(self, connection: pika.SelectConnection, reason: BaseException) -> None:
        self._failure = reason
        connection.ioloop.stop()


class RabbitLoad:
    """Uses a durable queue as a topic; messages are persistent and confirmed."""

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
        """Publish asynchronously, with a few unconfirmed batches at a time."""
        window = _PENDING_BATCHES * batch
        publisher = _Publisher(
            topic, messages, body, self._persistent, window=window, refill=window - window // 2
        )
        publisher.run(pika.ConnectionParameters(self._host, self._port))

    def consume(self, topic: str, messages: int) -> int:
        """Read with a prefetch, and acknowledge each half of it together."""
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
        """Publish with basic_publish() and confirms."""
        channel = self._connect().channel()
        channel.confirm_delivery()
        return lambda body: channel.basic_publish("", topic, body, self._persistent)

    def singles(self, topic: str, body: bytes, *, producers: int, each: int, shared: bool) -> None:
        """Publish on one shared connection, or with a thread and a connection per producer.

        On a shared connection, the asynchronous publisher has one message in flight per producer,
        because the blocking publisher does not support many threads.
        """
        if shared and producers > 1:
            publisher = _Publisher(
                topic, producers * each, body, self._persistent, window=producers, refill=1
            )
            publisher.run(pika.ConnectionParameters(self._host, self._port))
            return
        singles_in_threads(lambda: self.sender(topic), body, producers=producers, each=each)

    def deliveries(self, topic: str) -> Iterator[bytes]:
        """Consume, and acknowledge each message."""
        channel = self._connect().channel()
        channel.basic_qos(prefetch_count=_PREFETCH)
        for method, _, body in channel.consume(topic):
            channel.basic_ack(method.delivery_tag)
            yield body

    def _connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.ConnectionParameters(self._host, self._port))


if __name__ == "__main__":
    main(RabbitLoad)
