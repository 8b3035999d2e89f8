"""The broker's processor time for a single publish, with clients that cost almost nothing.

    python -m bench.publish_cost [--json] [--requests 20000] [--rounds 5]

Each of N connections sends a message of 1 KiB, waits for the answer, and repeats. The requests are
encoded once and the answers are not parsed, so that the client does not limit the broker. A request
to /healthz, which does no work, is measured in the same rounds for comparison. The cases take
turns.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import uvloop

from bench.harness import arguments, broker, process_cpu_s
from bench.hold_http import Client, Connection, put_topic
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
    options = arguments(__doc__ or "", requests=20_000, rounds=5)
    report(rows(options.requests, options.rounds), as_json=options.json)


def rows(requests: int, rounds: int) -> Iterator[Row]:
    """Measure; yield the cost of each case, and its ratio to the request that does no work. The
    first round does not count."""
    found = {case: Row("", case.name, case.durability, _UNIT, []) for case in _CASES}
    with broker() as running:
        for durability in ("written", "fsync"):
            put_topic(running.url, durability, 1, durability)
        for number in range(rounds + 1):
            for case, row in found.items():
                count = requests if case.connections > 1 else requests // 8
                spent = uvloop.run(_measure(running, case, count))
                if number:
                    row.values.append(spent)
    base = found[_CASES[0]].values
    for case, row in found.items():
        row.at_most = case.bar_us
        yield row
        if case.name != _BASE:
            ratios = [ours / theirs for ours, theirs in zip(row.values, base, strict=True)]
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
