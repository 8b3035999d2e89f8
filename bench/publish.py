"""How fast one Python process publishes.

    python -m bench.publish [--json] [--messages 3000000]

One producer publishes to one queue, in written mode, with AsyncClient and with Client: messages of
100 bytes in batches of 1,000, and messages of 1 KiB in batches of the default size. Then messages
are sent one by one as JSON, each in its own POST, on one connection of Python's http.client. Broker
and client share this machine's cores.
"""

import asyncio
import http.client
import json
from functools import partial
from urllib.parse import urlsplit

import uvloop

from bench.harness import Figure, arguments, broker, measure, report
from holdfast.client.produce.accumulator import MESSAGE_OVERHEAD_BYTES, ProducerOptions
from holdfast.client.values import Durability
from holdfast.running_broker import RunningBroker

DURABILITY: Durability = "written"
#: With this batch size, a batch has 1,000 messages of 100 bytes. Larger messages are sent in
#: batches of the default size.
BATCH_BYTES_OF_100 = 1000 * (100 + MESSAGE_OVERHEAD_BYTES)
SENDS_BETWEEN_DRAINS = 1000


def main() -> None:
    """Measure and print."""
    options = arguments("How fast one Python process publishes.", messages=3_000_000, posts=5000)
    figures: list[Figure] = []
    with broker() as running:
        with running.client() as client:
            for topic in ("async100", "sync100", "async1k", "sync1k", "posts"):
                client.create_topic(topic, queues=1, durability=DURABILITY)
        for body_bytes, suffix, messages in (
            (100, "100", options.messages),
            (1024, "1k", options.messages // 8),
        ):
            for name, work in (("async", publish_async), ("sync", publish_sync)):
                figures.append(
                    measure(
                        f"send(), {name}",
                        running,
                        partial(work, running, name + suffix, messages, body_bytes),
                        durability=DURABILITY,
                        messages=messages,
                        body_bytes=body_bytes,
                    )
                )
        figures.append(
            measure(
                "POST of one, JSON",
                running,
                partial(post_json, running, "posts", options.posts, 100),
                durability=DURABILITY,
                messages=options.posts,
                body_bytes=100,
            )
        )
    report(figures, as_json=options.json)


def publish_async(running: RunningBroker, topic: str, messages: int, body_bytes: int) -> None:
    """Send with an AsyncProducer."""

    async def publish() -> None:
        body = b"x" * body_bytes
        async with (
            running.async_client() as client,
            client.producer(topic, batch_bytes=_batch_bytes(body_bytes)) as producer,
        ):
            send = producer.send
            for _ in range(messages // SENDS_BETWEEN_DRAINS):
                for _ in range(SENDS_BETWEEN_DRAINS):
                    send(body)
                await producer.drain()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(publish())


def publish_sync(running: RunningBroker, topic: str, messages: int, body_bytes: int) -> None:
    """Send with a Producer."""
    body = b"x" * body_bytes
    with (
        running.client() as client,
        client.producer(topic, batch_bytes=_batch_bytes(body_bytes)) as producer,
    ):
        send = producer.send
        for _ in range(messages):
            send(body)


def _batch_bytes(body_bytes: int) -> int:
    return BATCH_BYTES_OF_100 if body_bytes == 100 else ProducerOptions.batch_bytes


def post_json(running: RunningBroker, topic: str, messages: int, body_bytes: int) -> None:
    """Publish one message per request, as any HTTP client can."""
    where = urlsplit(running.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port)
    body = json.dumps({"messages": [{"body": "x" * body_bytes}]})
    headers = {"Content-Type": "application/json"}
    for _ in range(messages):
        connection.request("POST", f"/v1/topics/{topic}/messages", body, headers)
        response = connection.getresponse()
        response.read()
        assert response.status == 200
    connection.close()


if __name__ == "__main__":
    main()
