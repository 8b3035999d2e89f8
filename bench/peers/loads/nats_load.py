"""A load for NATS JetStream with nats-py on uvloop."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import nats
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamConfig

from bench.peers.loads.common import main

_PENDING_BATCHES = 4
_T = TypeVar("_T")


class NatsLoad:
    """Uses a file stream with one subject as a topic."""

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

        uvloop.run(create())

    def publish(self, topic: str, messages: int, body: bytes, batch: int) -> None:
        """Publish with publish_async() in a loop; it waits when too many are unacknowledged."""

        async def publish() -> None:
            client = await nats.connect(self._address)
            stream = client.jetstream(publish_async_max_pending=_PENDING_BATCHES * batch)
            futures = [await stream.publish_async(topic, body) for _ in range(messages)]
            await stream.publish_async_completed()
            for future in futures:
                future.result()
            await client.close()

        uvloop.run(publish())

    def consume(self, topic: str, messages: int) -> int:
        """Read with an ordered consumer and a callback, the library's way to replay a stream."""

        async def consume() -> int:
            client = await nats.connect(self._address)
            size, left = 0, messages
            done = asyncio.Event()

            async def received(message: Msg) -> None:
                nonlocal size, left
                size += len(message.data)
                left -= 1
                if not left:
                    done.set()

            await client.jetstream().subscribe(topic, cb=received, ordered_consumer=True)
            await done.wait()
            await client.close()
            return size

        return uvloop.run(consume())

    def sender(self, topic: str) -> Callable[[bytes], object]:
        """Publish with publish() and wait for its acknowledgement, on an event loop of this
        thread."""
        loop = uvloop.new_event_loop()

        def run(work: Coroutine[Any, Any, _T]) -> _T:
            return loop.run_until_complete(work)

        stream = run(nats.connect(self._address)).jetstream()
        return lambda body: run(stream.publish(topic, body))

    def singles(self, topic: str, body: bytes, *, producers: int, each: int, shared: bool) -> None:
        """Run one task per producer on one event loop, with a shared connection or with one
        connection for each producer."""

        async def produce(client: Client) -> None:
            stream = client.jetstream()
            for _ in range(each):
                await stream.publish(topic, body)

        async def run() -> None:
            clients = [await nats.connect(self._address) for _ in range(1 if shared else producers)]
            await asyncio.gather(
                *(produce(clients[number % len(clients)]) for number in range(producers))
            )
            for client in clients:
                await client.close()

        uvloop.run(run())

    def deliveries(self, topic: str) -> Iterator[bytes]:
        """Read with a push subscription."""
        loop = uvloop.new_event_loop()
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
