"""A load with Holdfast's own clients."""

import asyncio
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack

import uvloop

from bench.peers.loads.common import main
from holdfast.client import AsyncClient, Client
from holdfast.client.produce.accumulator import MESSAGE_OVERHEAD_BYTES
from holdfast.client.values import Durability

_SENDS_BETWEEN_DRAINS = 1000

#: A load measures messages, not what follows its imports: a thread of OpenBLAS, which numpy starts,
#: spins for 0.1 s of processor time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
#: The client imports these modules at their first use. A load measures messages, not imports.
for _name in ("produce.producers", "produce.coalescing", "read.pull", "read.readers"):
    importlib.import_module(f"holdfast.client.{_name}")


class HoldfastLoad:
    """Uses a topic with one queue."""

    def __init__(self, address: str, durability: str) -> None:
        self._url = address
        self._durability: Durability = "fsync" if durability == "fsync" else "written"

    def create(self, topic: str) -> None:
        """Create the topic."""
        with Client(self._url) as client:
            client.create_topic(topic, queues=1, durability=self._durability)

    def publish(self, topic: str, messages: int, body: bytes, batch: int) -> None:
        """Publish with send() in a loop and drain() now and then, as the documentation shows."""

        async def publish() -> None:
            batch_bytes = batch * (len(body) + MESSAGE_OVERHEAD_BYTES)
            async with (
                AsyncClient(self._url) as client,
                client.producer(topic, batch_bytes=batch_bytes) as producer,
            ):
                send = producer.send
                for _ in range(messages // _SENDS_BETWEEN_DRAINS):
                    for _ in range(_SENDS_BETWEEN_DRAINS):
                        send(body)
                    await producer.drain()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(publish())

    def consume(self, topic: str, messages: int) -> int:
        """Read with pull(), message by message."""
        size = 0
        with Client(self._url) as client:
            for message in client.pull(topic, queue=0, offset=0, follow=False):
                size += len(message.body)
        return size

    def sender(self, topic: str) -> Callable[[bytes], object]:
        """Publish with publish(), one message at a time."""
        client = Client(self._url)
        return lambda body: client.publish(topic, body, queue=0)

    def singles(self, topic: str, body: bytes, *, producers: int, each: int, shared: bool) -> None:
        """Run one task per producer on one event loop, with a shared client or a client each."""

        async def run() -> None:
            async with AsyncExitStack() as stack:
                clients = [
                    await stack.enter_async_context(AsyncClient(self._url))
                    for _ in range(1 if shared else producers)
                ]

                async def produce(client: AsyncClient) -> None:
                    for _ in range(each):
                        await client.publish(topic, body, queue=0)

                await asyncio.gather(
                    *(produce(clients[number % len(clients)]) for number in range(producers))
                )

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())

    def deliveries(self, topic: str) -> Iterator[bytes]:
        """Read with pull() in follow mode."""
        with Client(self._url) as client:
            for message in client.pull(topic, queue=0, start="latest", follow=True):
                yield message.body


if __name__ == "__main__":
    main(HoldfastLoad)
