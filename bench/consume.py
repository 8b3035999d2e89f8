"""How fast one Python process consumes.

    python -m bench.consume [--json] [--messages 3000000]

Reads a queue that was published as in bench.publish, in written mode: message by message with
AsyncClient and with Client, with access to every body; and batch by batch. Broker and client share
this machine's cores.
"""

import asyncio
from collections.abc import Callable
from functools import partial

import uvloop

from bench.harness import Figure, arguments, broker, measure, report
from bench.publish import DURABILITY, publish_async
from holdfast.running_broker import RunningBroker


def main() -> None:
    """Measure and print."""
    options = arguments("How fast one Python process consumes.", messages=3_000_000)
    figures: list[Figure] = []
    works: tuple[tuple[str, Callable[[RunningBroker, str, int], None]], ...] = (
        ("pull(), async", pull_async),
        ("pull(), sync", pull_sync),
        ("pull_batches(), sync", pull_batches),
    )
    with broker() as running:
        for topic, body_bytes, messages in (
            ("of100", 100, options.messages),
            ("of1k", 1024, options.messages // 8),
        ):
            with running.client() as client:
                client.create_topic(topic, queues=1, durability=DURABILITY)
            publish_async(running, topic, messages, body_bytes)
            for name, work in works:
                figures.append(
                    measure(
                        name,
                        running,
                        partial(work, running, topic, messages * body_bytes),
                        durability=DURABILITY,
                        messages=messages,
                        body_bytes=body_bytes,
                    )
                )
    report(figures, as_json=options.json)


def pull_async(running: RunningBroker, topic: str, total_bytes: int) -> None:
    """Read with an AsyncClient."""

    async def pull() -> int:
        size = 0
        async with running.async_client() as client:
            async for message in client.pull(topic, queue=0, offset=0, follow=False):
                size += len(message.body)
        return size

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(pull()) == total_bytes


def pull_sync(running: RunningBroker, topic: str, total_bytes: int) -> None:
    """Read with a Client."""
    size = 0
    with running.client() as client:
        for message in client.pull(topic, queue=0, offset=0, follow=False):
            size += len(message.body)
    assert size == total_bytes


def pull_batches(running: RunningBroker, topic: str, total_bytes: int) -> None:
    """Read whole batches with a Client, without separating the bodies."""
    size = 0
    with running.client() as client:
        for part in client.pull_batches(topic, queue=0, offset=0, follow=False):
            size += part.batch.header.body_bytes
    assert size == total_bytes


if __name__ == "__main__":
    main()
