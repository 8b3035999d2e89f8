"""How much a consumer slows down when a few of its handlers are stuck.

    python -m bench.stuck_handlers [--json] [--seconds 3] [--rounds 3]

Two AsyncClients in one process consume a backlog at the same time: 16 queues, or 1,000 keys of a
keyed group. In the first consumer, all handlers are fast. In the second consumer, the handlers of
one queue, or of three keys, block forever at their first message. For both consumers, the rate
counts the handled messages of the other queues or keys.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

import uvloop

from bench.harness import arguments, broker
from bench.rows import TIMES, Row, report
from holdfast.client import AsyncClient, Delivery
from holdfast.client.values import Durability, Mode
from holdfast.running_broker import RunningBroker

_BODY_BYTES = 100
_BACKLOG = 60_000
_DURABILITY: Durability = "written"
#: The rate is measured after this time, in which the consumer connects, fits the size of its buffer
#: to the load, and detects slow handlers.
_WARM_UP_S = 2.5
_BAR = 0.95


@dataclass(frozen=True)
class Case:
    """The settings of one case. Handlers of the first `stuck` queues or keys get stuck."""

    name: str
    mode: Mode
    queues: int
    keys: int
    concurrency: int
    max_in_flight: int
    stuck: int

    def is_stuck(self, delivery: Delivery) -> bool:
        """Return whether a delivery is of a queue or key whose handler is stuck."""
        unit = int(delivery.key or 0) if self.mode == "keyed" else delivery.queue
        return unit < self.stuck


CASES = (
    Case("16 queues, 1 stuck", "competing", 16, 1_600, 16, 256, 1),
    Case("1,000 keys, 3 stuck", "keyed", 16, 1_000, 64, 96, 3),
    Case("16 queues, 1 stuck, defaults", "competing", 16, 1_600, 16, 32, 1),
)


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__ or "", seconds=3, rounds=3)
    report(rows(options.seconds, options.rounds), as_json=options.json)


def rows(seconds: int, rounds: int) -> Iterator[Row]:
    """Measure; yield the rates of both consumers, and their ratio."""
    for case in CASES:
        rates = []
        with broker() as running:
            for round_ in range(rounds):
                topics = f"free{round_}", f"stuck{round_}"
                for topic in topics:
                    publish(running, case, topic)
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    rates.append(runner.run(both_rates(running, case, topics, seconds)))
        free, stuck = (list(each) for each in zip(*rates, strict=True))
        yield Row("", f"{case.name}: none stuck", _DURABILITY, "messages/s", free, _BODY_BYTES)
        yield Row("", f"{case.name}: the others", _DURABILITY, "messages/s", stuck, _BODY_BYTES)
        ratios = [a / b for a, b in zip(stuck, free, strict=True)]
        yield Row("", f"{case.name}: beside none", "-", TIMES, ratios, at_least=_BAR)


def publish(running: RunningBroker, case: Case, topic: str) -> None:
    """Create a topic and a group, and publish the backlog."""
    with running.client() as client:
        client.create_topic(topic, queues=case.queues, durability=_DURABILITY)
        client.create_group(f"g-{topic}", topic, mode=case.mode)
        with client.producer(topic) as producer:
            for number in range(_BACKLOG):
                producer.send(b"x" * _BODY_BYTES, key=str(number % case.keys))


async def both_rates(
    running: RunningBroker, case: Case, topics: tuple[str, str], seconds: float
) -> tuple[float, float]:
    """Return the rates of the consumer without stuck handlers and of the consumer with them."""
    free, stuck = topics
    return await asyncio.gather(
        others_rate(running, case, free, seconds, False),
        others_rate(running, case, stuck, seconds, True),
    )


async def others_rate(
    running: RunningBroker, case: Case, topic: str, seconds: float, has_stuck: bool
) -> float:
    """Return the handled messages per second of the queues or keys that are not stuck."""
    count = 0
    for_good = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        nonlocal count
        if case.is_stuck(delivery):
            if has_stuck:
                await for_good.wait()
        else:
            count += 1

    client: AsyncClient
    async with running.async_client() as client:
        consumer = client.consume(
            topic,
            f"g-{topic}",
            concurrency=case.concurrency,
            max_in_flight=case.max_in_flight,
        )
        consuming = asyncio.create_task(consumer.run(handle))
        await asyncio.sleep(_WARM_UP_S)
        before, began_s = count, time.perf_counter()
        await asyncio.sleep(seconds)
        rate = (count - before) / (time.perf_counter() - began_s)
        for_good.set()
        await consumer.close()
        await consuming
    return rate


if __name__ == "__main__":
    main()
