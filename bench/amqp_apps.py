"""1,000 programs that publish and consume: with one connection each, and with two.

    python -m bench.amqp_apps [--json] [--apps 1000] [--messages 20] [--rounds 5]

Over AMQP 1.0 one connection is enough for a program that publishes and consumes. Other protocols
advise two, because a publisher that is stopped must not stop the consumer. Each program publishes
its messages to one topic, and all consume as members of one group and accept each message. The
clock runs until the last acknowledgement is stored. Both ways are measured in turns, each on a
broker of its own; all programs are in one client process.
"""

import asyncio
import resource
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from urllib.request import urlopen

import uvloop

from bench.harness import ARGUMENTS, Figure, arguments, broker, measure
from bench.rows import RATE, TIMES, Row, report
from holdfast.client import AsyncClient, AsyncReceiver, AsyncSender
from holdfast.free_port import free_port
from holdfast.running_broker import RunningBroker

_BODY_BYTES = 100
_TOPIC, _GROUP = "work", "workers"
_CREDIT = 10
_BAR = 1.0
#: Connections of one program, by way.
_WAYS = {"one connection each": 1, "two connections each": 2}


def main() -> None:
    """Measure and print."""
    options = arguments("Programs with one or two connections.", apps=1_000, messages=20, rounds=5)
    report(rows(options.apps, options.messages, options.rounds), as_json=options.json)


def rows(apps: int, messages: int, rounds: int) -> Iterator[Row]:
    """Measure both ways in turns; yield their rates and connections, and the ratio of the rates."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found = {
        way: Row("", f"{apps:,} programs, {way}", "written", RATE, [], _BODY_BYTES) for way in _WAYS
    }
    opened = {way: Row("", f"connections, {way}", "-", "connections", []) for way in _WAYS}
    for _ in range(rounds):
        for way, connections in _WAYS.items():
            figure, count = _measure(way, apps, messages, connections)
            found[way].values.append(figure.messages_per_s)
            found[way].broker_us.append(figure.broker_cpu_s / figure.messages * 1e6)
            found[way].client_us.append(figure.client_cpu_s / figure.messages * 1e6)
            opened[way].values.append(count)
    yield from found.values()
    yield from opened.values()
    one, two = (row.values for row in found.values())
    ratios = [ours / theirs for ours, theirs in zip(one, two, strict=True)]
    yield Row("", "one connection / two connections", "written", TIMES, ratios, at_least=_BAR)


def _measure(way: str, apps: int, messages: int, connections: int) -> tuple[Figure, int]:
    """Run the programs on a new broker; return the figure, and the broker's connections."""
    port = free_port()
    with (
        broker((*ARGUMENTS, "--amqp-port", str(port))) as running,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        programs = _Programs(running, f"amqp://127.0.0.1:{port}")
        runner.run(programs.open(apps, connections))
        count = _connections(running)
        runner.run(programs.work(2))  # warms up
        total = apps * messages
        figure = measure(
            way,
            running,
            lambda: runner.run(programs.work(messages)),
            durability="written",
            messages=total,
            body_bytes=_BODY_BYTES,
        )
        runner.run(programs.close())
        return figure, count


def _connections(running: RunningBroker) -> int:
    """Return how many AMQP connections the broker has."""
    with urlopen(f"{running.url}/metrics") as reply:
        for line in reply.read().decode().splitlines():
            if line.startswith("holdfast_amqp_connections"):
                return int(float(line.rpartition(" ")[2]))
    raise LookupError("holdfast_amqp_connections")


class _Programs:
    """The programs: a sender and a receiver each."""

    def __init__(self, running: RunningBroker, url: str) -> None:
        self._running, self._url = running, url
        self._links: list[tuple[AsyncSender, AsyncReceiver]] = []
        self._stack = AsyncExitStack()
        self._left = 0

    async def open(self, apps: int, connections: int) -> None:
        client = await self._stack.enter_async_context(AsyncClient(self._running.url))
        await client.create_topic(_TOPIC, queues=4, durability="written")
        await client.create_group(_GROUP, _TOPIC)
        for _ in range(apps):
            enter = self._stack.enter_async_context
            sessions = [await enter(client.session(self._url)) for _ in range(connections)]
            self._links.append((
                await sessions[0].sender(_TOPIC),
                await sessions[-1].receiver(group=_GROUP, credit=_CREDIT),
            ))  # fmt: skip

    async def work(self, messages: int) -> None:
        """Publish `messages` with each program; return when all are acknowledged."""
        self._left = len(self._links) * messages
        is_over = asyncio.Event()
        consuming = [
            asyncio.create_task(self._consume(receiver, is_over)) for _, receiver in self._links
        ]
        body = bytes(_BODY_BYTES)
        await asyncio.gather(
            *(sender.send(body) for sender, _ in self._links for _ in range(messages))
        )
        await is_over.wait()
        for task in consuming:
            task.cancel()
        await asyncio.gather(*consuming, return_exceptions=True)

    async def _consume(self, receiver: AsyncReceiver, is_over: asyncio.Event) -> None:
        accepted = partial(self._accepted, is_over)
        async for message in receiver:
            receiver.accept(message).add_done_callback(accepted)

    def _accepted(self, is_over: asyncio.Event, outcome: "asyncio.Future[None]") -> None:
        if not outcome.cancelled() and outcome.exception() is None:
            self._left -= 1
            if not self._left:
                is_over.set()

    async def close(self) -> None:
        await self._stack.aclose()


if __name__ == "__main__":
    main()
