"""W5 under load: latency from publish to delivery, without and with 1,000 other parked pulls.

    python -m bench.latency [--json] [--parked 1000] [--rounds 5]

The load is that of bench/peers (100 B at 1,000 messages/s, a producer process and a consumer
process with the synchronous client), in written mode, with one broker. Runs with and without the
parked pulls alternate. A parked pull is a pull that the broker holds until a message arrives; each
of these has its own connection, and none waits on the queue of the load.
"""

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import uvloop

from bench.hold_http import Client, Connection, held, put_topic
from bench.peers.system import Server, running
from bench.peers.systems.holdfast import Holdfast
from bench.peers.workload import Run
from bench.peers.workloads.latency import LATENCY
from bench.rows import TIMES, Row, report

DURABILITY = "written"
_BAR = 1.5
_OTHER_QUEUES = 16


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Latency, with and without other pulls parked.")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    parser.add_argument("--parked", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    report(rows(options.parked, options.rounds), as_json=options.json)


def rows(parked: int, rounds: int) -> Iterator[Row]:
    """Measure; yield the latencies without and with the parked pulls, and their ratio."""
    alone: dict[str, list[float]] = {"p50": [], "p99": []}
    beside: dict[str, list[float]] = {"p50": [], "p99": []}
    with running(Holdfast(), DURABILITY) as server:
        put_topic(server.address, "others", _OTHER_QUEUES, DURABILITY)
        run = Run(server, DURABILITY, {})
        for _ in range(rounds):
            _measure(run, alone)
            with others_parked(server, parked):
                _measure(run, beside)
    for case in alone:
        company = f"{case}, {parked:,} others parked"
        yield Row("W5", f"{case} of publish to delivery", DURABILITY, "ms", alone[case])
        yield Row("W5", company, DURABILITY, "ms", beside[case])
        ratios = [late / early for early, late in zip(alone[case], beside[case], strict=True)]
        bar = _BAR if case == "p99" else None
        yield Row("W5", f"{company}, beside none", DURABILITY, TIMES, ratios, at_most=bar)


def _measure(run: Run, into: dict[str, list[float]]) -> None:
    for result in LATENCY.run(run):
        into[result.case].append(result.value)


@contextmanager
def others_parked(server: Server, count: int) -> Iterator[None]:
    """Keep `count` pulls parked until the end of the block, each on its own connection."""
    loop = uvloop.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        parking = _park(server.address, count)
        connections = asyncio.run_coroutine_threadsafe(parking, loop).result(60)
        yield
        asyncio.run_coroutine_threadsafe(_unpark(server.address, connections), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _park(url: str, count: int) -> list[Connection]:
    client = Client(url)
    connections = []
    for number in range(count):
        connection = await client.connect(lambda _, now: None)
        queue = number % _OTHER_QUEUES
        connection.send(
            client.get(f"/v1/topics/others/queues/{queue}/messages?offset=0&wait_ms=60000")
        )
        connections.append(connection)
    await held(url, count)
    return connections


async def _unpark(url: str, connections: list[Connection]) -> None:
    for connection in connections:
        assert connection.transport is not None
        connection.transport.close()
    await held(url, 0)


if __name__ == "__main__":
    main()
