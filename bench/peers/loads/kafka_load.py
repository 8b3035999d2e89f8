"""A load for Kafka with confluent-kafka."""

import threading
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers.loads.common import main, singles_in_threads

_FETCH_COUNT = 1000


class KafkaLoad:
    """Uses a topic with one partition; in fsync, with `flush.messages=1` and acks=all."""

    def __init__(self, address: str, durability: str) -> None:
        self._address = {"bootstrap.servers": address}
        self._durability = durability

    def create(self, topic: str) -> None:
        """Create the topic."""
        config = {"flush.messages": "1"} if self._durability == "fsync" else {}
        new = NewTopic(topic, num_partitions=1, replication_factor=1, config=config)
        admin = AdminClient(self._address)
        admin.create_topics([new])[topic].result(30)

    def publish(self, topic: str, messages: int, body: bytes, batch: int) -> None:
        """Publish with produce() in a loop, as the documentation shows."""
        producer = self._producer(
            {
                "batch.num.messages": batch,
                # The default limit of a million bytes would end a batch of larger messages early.
                "batch.size": max(1_000_000, 2 * batch * len(body)),
                "linger.ms": 5,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        produce, poll = producer.produce, producer.poll
        for number in range(messages):
            while True:
                try:
                    produce(topic, body)
                    break
                except BufferError:
                    poll(0.01)
            if number % batch == 0:
                poll(0)
        if producer.flush(120):
            raise RuntimeError("not all was acknowledged")

    def consume(self, topic: str, messages: int) -> int:
        """Read with consume(), a thousand messages at a time.

        With the default prefetch of 100,000 messages the client stops fetching for a second
        whenever the prefetch is full, which limits small messages to about 200,000 per second.
        """
        consumer = self._consumer(topic, {"queued.min.messages": 1_000_000})
        size, left = 0, messages
        while left:
            for message in consumer.consume(_FETCH_COUNT, 10):
                if message.error():
                    raise RuntimeError(message.error())
                size += len(message.value())
                left -= 1
        consumer.close()
        return size

    def sender(self, topic: str) -> Callable[[bytes], object]:
        """Publish with produce() and wait for its delivery report."""
        producer = self._producer({"linger.ms": 0})
        done = threading.Event()
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is not None:
                failed.append(error)
            done.set()

        def send(body: bytes) -> None:
            done.clear()
            producer.produce(topic, body, on_delivery=delivered)
            while not done.is_set():
                producer.poll(1)
            if failed:
                raise RuntimeError(failed[0])

        return send

    def singles(self, topic: str, body: bytes, *, producers: int, each: int, shared: bool) -> None:
        """Run one thread per producer. The producers share a client, which a further thread polls,
        or each has its own client."""
        if not shared:
            singles_in_threads(lambda: self.sender(topic), body, producers=producers, each=each)
            return
        # Without lingering, a request has only one or two messages. Then the rate is a quarter of
        # the rate with 1 ms (with 64 producers: a tenth). With 5 ms it is 0.6 (0.8) of it.
        producer = self._producer({"linger.ms": 1})
        ended = threading.Event()

        def sender() -> Callable[[bytes], object]:
            done = threading.Semaphore(0)
            failed: list[KafkaError] = []

            def delivered(error: KafkaError | None, _: object) -> None:
                if error is not None:
                    failed.append(error)
                done.release()

            def send(body: bytes) -> None:
                producer.produce(topic, body, on_delivery=delivered)
                done.acquire()
                if failed:
                    raise RuntimeError(failed[0])

            return send

        def poll() -> None:
            while not ended.is_set():
                producer.poll(0.1)

        poller = threading.Thread(target=poll)
        poller.start()
        try:
            singles_in_threads(sender, body, producers=producers, each=each)
        finally:
            ended.set()
            poller.join()

    def deliveries(self, topic: str) -> Iterator[bytes]:
        """Read with poll() and its defaults."""
        consumer = self._consumer(topic)
        while True:
            message = consumer.poll(60)
            if message is not None and not message.error():
                yield message.value()

    def _producer(self, more: dict[str, object]) -> Producer:
        acks = "all" if self._durability == "fsync" else "1"
        return Producer({**self._address, "acks": acks, **more})

    def _consumer(self, topic: str, more: Mapping[str, object] = MappingProxyType({})) -> Consumer:
        """Return a consumer of the only partition from its beginning, without a consumer group."""
        settings = {"group.id": "bench", "enable.auto.commit": False, **more}
        consumer = Consumer({**self._address, **settings})
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        return consumer


if __name__ == "__main__":
    main(KafkaLoad)
