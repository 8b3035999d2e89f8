"""W11: read a topic that 16 producers published one message at a time.

    python -m bench.small_batches [--json] [--messages 200000] [--rounds 5]

The producers publish to one queue at the same time, in written mode. Each has its own client, so
that they do not share requests. For comparison, the same number of messages is published to another
topic in batches of 1,000. Both topics are read alternately with pull(), message by message.
"""

import asyncio
import time
from collections.abc import Iterator

import uvloop

from bench.consume import pull_async, pull_sync
from bench.harness import arguments, broker, measure
from bench.publish import publish_async
from bench.rows import RATE, TIMES, Row, report
from holdfast.client.values import Durability
from holdfast.running_broker import RunningBroker

DURABILITY: Durability = "written"
_PRODUCERS = 16
_BODY_BYTES = 100
_BAR = 0.5


def main() -> None:
    """Measure and print."""
    options = arguments("Reading what was published one at a time.", messages=200_000, rounds=5)
    report(rows(options.messages, options.rounds), as_json=options.json)


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """Measure; yield the rates and their ratio."""
    with broker() as running:
        with running.client() as client:
            for topic in ("singles", "batches"):
                client.create_topic(topic, queues=1, durability=DURABILITY)
        publish_async(running, "batches", messages, _BODY_BYTES)
        seconds = publish_singles(running, "singles", messages)
        published = Row(
            "W11", "published one at a time by 16", DURABILITY, RATE, [messages / seconds]
        )
        published.body_bytes = _BODY_BYTES
        yield published
        for reader, pull in (("sync", pull_sync), ("async", pull_async)):
            of = {
                topic: Row("W11", f"pull(), {reader}, of {topic}", DURABILITY, RATE, [], 100)
                for topic in ("singles", "batches")
            }
            for _ in range(rounds):
                for topic, row in of.items():
                    figure = measure(
                        row.case,
                        running,
                        lambda topic=topic, pull=pull: pull(  # type: ignore[misc]
                            running, topic, messages * _BODY_BYTES
                        ),
                        durability=DURABILITY,
                        messages=messages,
                        body_bytes=_BODY_BYTES,
                    )
                    row.values.append(figure.messages / figure.seconds)
                    row.broker_us.append(figure.broker_cpu_s / messages * 1e6)
                    row.client_us.append(figure.client_cpu_s / messages * 1e6)
            yield from of.values()
            ratios = [
                small / large
                for small, large in zip(of["singles"].values, of["batches"].values, strict=True)
            ]
            case = f"singles beside batches, {reader}"
            yield Row("W11", case, DURABILITY, TIMES, ratios, at_least=_BAR)


def publish_singles(running: RunningBroker, topic: str, messages: int) -> float:
    """Publish one message at a time with concurrent tasks; return the seconds."""

    async def publish() -> None:
        body = b"x" * _BODY_BYTES

        async def produce() -> None:
            async with running.async_client() as client:
                for _ in range(messages // _PRODUCERS):
                    await client.publish(topic, body, queue=0)

        await asyncio.gather(*(produce() for _ in range(_PRODUCERS)))

    started = time.perf_counter()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(publish())
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
