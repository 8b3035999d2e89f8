"""What the spans of OpenTelemetry cost a client.

    python -m bench.opentelemetry [--json] [--messages 200000] [--rounds 5]

An AsyncClient publishes messages of 100 bytes with a producer, and consumes a part of them with a
handler, in written mode: without an instrumentation, and with each of several. The ways alternate.
Each rate is shown as a ratio to the rate without an instrumentation in the same round.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from uuid import uuid4

import uvloop
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider

from bench.harness import arguments, broker, measure
from bench.publish import BATCH_BYTES_OF_100, SENDS_BETWEEN_DRAINS
from bench.rows import RATE, TIMES, Row, report
from holdfast.client import AsyncClient, Delivery
from holdfast.client.opentelemetry import OpenTelemetry
from holdfast.client.values import Durability
from holdfast.running_broker import RunningBroker

DURABILITY: Durability = "written"
_BODY_BYTES = 100
#: One message of this many is consumed, because consuming takes longer than publishing.
_PUBLISHED_PER_CONSUMED = 10

WAYS: Mapping[str, Callable[[], OpenTelemetry | None]] = {
    "no instrumentation": lambda: None,
    "no SDK": lambda: OpenTelemetry(NoOpTracerProvider()),
    "spans not sampled": lambda: OpenTelemetry(TracerProvider(ALWAYS_OFF)),
    "no create spans": lambda: OpenTelemetry(TracerProvider(), create_spans=False),
    "all spans": lambda: OpenTelemetry(TracerProvider()),
}


def main() -> None:
    """Measure and print."""
    options = arguments("What spans cost a client.", messages=200_000, rounds=5)
    report(rows(options.messages, options.rounds), as_json=options.json)


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """Measure; yield the rates and their ratios."""
    acts = {
        "publish": (_publish, messages),
        "consume": (_consume, messages // _PUBLISHED_PER_CONSUMED),
    }
    rates = {
        (act, way): Row("", f"{act}, {way}", DURABILITY, RATE, [], _BODY_BYTES)
        for act in acts
        for way in WAYS
    }
    with broker() as running:
        for _ in range(rounds):
            for way, make in WAYS.items():
                topic = f"topic-{uuid4()}"
                with running.client() as client:
                    client.create_topic(topic, queues=1, durability=DURABILITY)
                for act, (work, count) in acts.items():
                    figure = measure(
                        act,
                        running,
                        partial(uvloop.run, work(running, topic, count, make())),
                        durability=DURABILITY,
                        messages=count,
                        body_bytes=_BODY_BYTES,
                    )
                    row = rates[act, way]
                    row.values.append(count / figure.seconds)
                    row.client_us.append(figure.client_cpu_s / count * 1e6)
    yield from rates.values()
    for (act, way), row in rates.items():
        off = rates[act, "no instrumentation"]
        if row is not off:
            ratios = [on / none for on, none in zip(row.values, off.values, strict=True)]
            yield Row("", f"{act}, {way}: rate", DURABILITY, TIMES, ratios)


async def _publish(
    running: RunningBroker, topic: str, count: int, tracing: OpenTelemetry | None
) -> None:
    body = bytes(_BODY_BYTES)
    async with (
        AsyncClient(running.url, instrumentation=tracing) as client,
        client.producer(topic, batch_bytes=BATCH_BYTES_OF_100) as producer,
    ):
        for number in range(count):
            producer.send(body)
            if number % SENDS_BETWEEN_DRAINS == 0:
                await producer.drain()


async def _consume(
    running: RunningBroker, topic: str, count: int, tracing: OpenTelemetry | None
) -> None:
    left = count
    is_over = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        nonlocal left
        left -= 1
        if not left:
            is_over.set()

    async with (
        AsyncClient(running.url, instrumentation=tracing) as client,
        client.consume(
            topic, f"{topic}-group", start="earliest", max_in_flight=1000, concurrency=1
        ) as consumer,
    ):
        running_handler = asyncio.create_task(consumer.run(handle))
        await is_over.wait()
        consumer.stop()
        await running_handler


if __name__ == "__main__":
    main()
