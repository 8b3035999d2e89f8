"""A load for Redis Streams with redis-py and hiredis."""

import asyncio
from collections.abc import Callable, Iterator

import redis
import redis.asyncio
import uvloop

from bench.peers.loads.common import main, singles_in_threads

_READ_COUNT = 1000


class RedisLoad:
    """Uses a stream as a topic; a message is one field."""

    def __init__(self, address: str, durability: str) -> None:
        host, port = address.split(":")
        self._host, self._port = host, int(port)

    def create(self, topic: str) -> None:
        """Do nothing: the first entry creates a stream."""

    def publish(self, topic: str, messages: int, body: bytes, batch: int) -> None:
        """Send a batch of XADD in a pipeline, wait for its answers, and repeat."""
        client = self._connect()
        for _ in range(messages // batch):
            pipeline = client.pipeline(transaction=False)
            for _ in range(batch):
                pipeline.xadd(topic, {b"b": body})
            pipeline.execute()

    def consume(self, topic: str, messages: int) -> int:
        """Read with XREAD, a thousand messages at a time."""
        client = self._connect()
        size, left, last = 0, messages, b"0"
        while left:
            ((_, entries),) = client.xread({topic: last}, count=_READ_COUNT)
            for _, fields in entries:
                size += len(fields[b"b"])
            last = entries[-1][0]
            left -= len(entries)
        return size

    def sender(self, topic: str) -> Callable[[bytes], object]:
        """Publish with XADD, one message at a time."""
        client = self._connect()
        return lambda body: client.xadd(topic, {b"b": body})

    def singles(self, topic: str, body: bytes, *, producers: int, each: int, shared: bool) -> None:
        """Run one task per producer on one event loop. The producers share a client and its
        connection pool, or each has its own client.

        A single producer needs no event loop. With 64 producers, threads with a connection each
        reach only half of this rate.
        """
        if producers == 1:
            singles_in_threads(lambda: self.sender(topic), body, producers=producers, each=each)
            return

        async def run() -> None:
            clients = [
                redis.asyncio.Redis(
                    host=self._host, port=self._port, max_connections=producers if shared else 1
                )
                for _ in range(1 if shared else producers)
            ]

            async def produce(client: redis.asyncio.Redis) -> None:
                for _ in range(each):
                    await client.xadd(topic, {b"b": body})

            await asyncio.gather(
                *(produce(clients[number % len(clients)]) for number in range(producers))
            )
            for client in clients:
                await client.aclose()

        uvloop.run(run())

    def deliveries(self, topic: str) -> Iterator[bytes]:
        """Read with XREAD BLOCK."""
        client = self._connect()
        last = b"0"
        while True:
            for _, entries in client.xread({topic: last}, count=_READ_COUNT, block=60_000):
                last = entries[-1][0]
                for _, fields in entries:
                    yield fields[b"b"]

    def _connect(self) -> redis.Redis:
        return redis.Redis(host=self._host, port=self._port)


if __name__ == "__main__":
    main(RedisLoad)
