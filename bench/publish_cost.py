"""The broker's processor time for a single publish, with clients that cost almost nothing.

    python -m bench.publish_cost [--json] [--requests 20000] [--rounds 5] [--beside CHECKOUT]

Each of N connections sends a message of 1 KiB, waits for the answer, and repeats. The requests are
encoded once and the answers are not parsed, so that the client does not limit the broker. A request
to /healthz, which does no work, is measured in the same rounds for comparison. The cases take
turns. With `--beside`, a broker of another checkout takes turns with this one in each case, and the
ratios of this checkout to the other are printed, too.
"""

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.harness import process_cpu_s
from bench.hold_http import Client, Connection, put_topic
from bench.hot_requests import broker_of
from bench.rows import TIMES, Row, report
from holdfast.running_broker import RunningBroker

_BODY_BYTES = 1024
_UNIT = "broker us"
_BASE = "GET /healthz, 16 connections"


@dataclass(frozen=True)
class Case:
    """A closed loop of one request over several connections."""

    name: str
    durability: str
    connections: int
    bar_us: float | None = None


_CASES = (
    Case(_BASE, "-", 16),
    Case("publish, 1 connection", "written", 1),
    Case("publish, 16 connections", "written", 16, 35),
    Case("publish, 1 connection", "fsync", 1),
    Case("publish, 16 connections", "fsync", 16),
    Case("publish, 64 connections", "fsync", 64, 50),
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__ or "")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", type=Path)
    options = parser.parse_args()
    report(rows(options.requests, options.rounds, options.beside), as_json=options.json)


def rows(requests: int, rounds: int, beside: Path | None = None) -> Iterator[Row]:
    """Measure; yield the cost of each case, and its ratio to the request that does no work, or to
    the broker of the checkout `beside`. The first round does not count."""
    spent: dict[Case, list[list[float]]] = {case: [] for case in _CASES}
    with ExitStack() as stack:
        brokers = [stack.enter_context(broker_of(each)) for each in filter(None, (Path(), beside))]
        for running in brokers:
            for durability in ("written", "fsync"):
                put_topic(running.url, durability, 1, durability)
        for number in range(rounds + 1):
            for case, values in spent.items():
                count = requests if case.connections > 1 else requests // 8
                order = brokers if number % 2 else brokers[::-1]
                found = {each.pid: uvloop.run(_measure(each, case, count)) for each in order}
                if number:
                    values.append([found[each.pid] for each in brokers])
    base = [ours for ours, *_ in spent[_CASES[0]]]
    for case, values in spent.items():
        costs = [ours for ours, *_ in values]
        yield Row("", case.name, case.durability, _UNIT, costs, at_most=case.bar_us)
        if beside is not None:
            ratios = [ours / other for ours, other in values]
            yield Row("", f"{case.name}, beside the other", case.durability, TIMES, ratios)
        elif case.name != _BASE:
            ratios = [ours / theirs for ours, theirs in zip(costs, base, strict=True)]
            yield Row("", f"{case.name}, beside {_BASE}", case.durability, TIMES, ratios)


async def _measure(running: RunningBroker, case: Case, requests: int) -> float:
    """Return the broker's processor time of a request, in microseconds."""
    client = Client(running.url)
    left, done = requests, asyncio.get_running_loop().create_future()
    connections = [await client.connect(lambda _, now: None) for _ in range(case.connections)]
    request = _request(client, case)

    def answered(connection: Connection, _: float) -> None:
        nonlocal left
        assert connection.status == 200, connection.body
        left -= 1
        if left >= case.connections:
            connection.send(request)
        elif left == 0:
            done.set_result(None)

    before = process_cpu_s(running.pid)
    for connection in connections:
        connection.answered = answered
        connection.send(request)
    await done
    spent = process_cpu_s(running.pid) - before
    for connection in connections:
        assert connection.transport is not None
        connection.transport.close()
    return spent / requests * 1e6


def _request(client: Client, case: Case) -> bytes:
    if case.durability == "-":
        return client.get("/healthz")
    head = (
        f"POST /v1/topics/{case.durability}/messages HTTP/1.1\r\nHost: {client.host}\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {_BODY_BYTES}\r\n\r\n"
    )
    return head.encode() + b"x" * _BODY_BYTES


if __name__ == "__main__":
    main()
