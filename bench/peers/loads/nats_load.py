"""NATS JetStream, by nats-py."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamConfig

from bench.peers.loads.common import main

_FETCH_COUNT = 1000
_T = TypeVar("_T")


class NatsLoad:
    """A topic is a file stream of one subject."""

    def __init__(self, address: str, durability: str) -> None:
        self._address = f"nats://{address}"

    def create(self, topic: str) -> None:
        """Add the stream."""

        async def create() -> None:
            client = await nats.connect(self._address)
            await client.jetstream().add_stream(
                StreamConfig(name=topic, subjects=[topic], storage=StorageType.FILE)
            )
            await client.close()

        asyncio.run(create())

    def publish(self, topic: str, messages: int, body: bytes, batch: int) -> None:
        """Send a batch, wait for its acknowledgements together, go on."""

        async def publish() -> None:
            client = await nats.connect(self._address)
            stream = client.jetstream(publish_async_max_pending=batch)
            for _ in range(messages // batch):
                sent = [await stream.publish_async(topic, body) for _ in range(batch)]
                await asyncio.gather(*sent)
            await client.close()

        asyncio.run(publish())

    def consume(self, topic: str, messages: int) -> int:
        """Fetch a thousand at a time, with no acknowledgements, as a replay does."""

        async def consume() -> int:
            client = await nats.connect(self._address)
            consumer = await client.jetstream().pull_subscribe(
                topic, config=ConsumerConfig(ack_policy=AckPolicy.NONE)
            )
            size, left = 0, messages
            while left:
                for message in await consumer.fetch(min(left, _FETCH_COUNT), timeout=10):
                    size += len(message.data)
                    left -= 1
            await client.close()
            return size

        return asyncio.run(consume())

    def sender(self, topic: str) -> Callable[[bytes], object]:
        """publish() and wait for its acknowledgement, on a loop of this thread's own."""
        loop = asyncio.new_event_loop()

        def run(work: Coroutine[Any, Any, _T]) -> _T:
            return loop.run_until_complete(work)

        stream = run(nats.connect(self._address)).jetstream()
        return lambda body: run(stream.publish(topic, body))

    def singles(self, topic: str, body: bytes, *, producers: int, each: int) -> None:
        """A task and a connection each, on one loop."""

        async def produce() -> None:
            client = await nats.connect(self._address)
            stream = client.jetstream()
            for _ in range(each):
                await stream.publish(topic, body)
            await client.close()

        async def run() -> None:
            await asyncio.gather(*(produce() for _ in range(producers)))

        asyncio.run(run())

    def deliveries(self, topic: str) -> Iterator[bytes]:
        """A push subscription."""
        loop = asyncio.new_event_loop()
        client = loop.run_until_complete(nats.connect(self._address))
        subscription = loop.run_until_complete(
            client.jetstream().subscribe(
                topic,
                config=ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.NEW),
            )
        )
        while True:
            yield loop.run_until_complete(subscription.next_msg(60)).data


if __name__ == "__main__":
    main(NatsLoad)
