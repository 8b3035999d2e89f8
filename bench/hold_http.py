"""Held pulls over real connections: how fast they wake, and how exactly they end.

    python -m bench.hold_http [--json]

There is one broker process on loopback, and one client process with plain sockets. Prints the
milliseconds from the acknowledgement of a publish (as its producer sees it) to the answer of each
held pull, and how late 1,000 pulls with the same deadline end. bench.parked measures the cost of
held (parked) pulls.
"""

import argparse
import asyncio
import json
import re
import resource
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import uvloop

from bench.rows import Row, report
from holdfast.running_broker import RunningBroker

#: docs/adr/0009 promises that a held pull ends at most this late.
_LATE_BAR_MS = 50
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """One keep-alive HTTP/1.1 connection; `answered` is called for each complete answer."""

    def __init__(self, answered: Callable[["Connection", float], None]) -> None:
        self.answered = answered
        self.sent_at = 0.0
        self.status = 0
        self.body = b""
        self.transport: asyncio.Transport | None = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop has another base class

    def send(self, request: bytes) -> None:
        assert self.transport is not None
        self.sent_at = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._data += data
        head, found, rest = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        match = _LENGTH.search(head)
        length = int(match[1]) if match else 0
        if len(rest) >= length:
            self.status = int(head[9:12])
            self.body = rest[:length]
            self._data = b""
            self.answered(self, now)


class Client:
    """Connections to one broker."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        assert parts.port
        self.host, self.port = parts.hostname, parts.port

    async def connect(self, answered: Callable[[Connection, float], None]) -> Connection:
        """Return a connection that the broker has accepted and answered once."""
        loop = asyncio.get_running_loop()
        accepted = loop.create_future()
        _, protocol = await loop.create_connection(
            lambda: Connection(lambda _, now: accepted.set_result(now)), self.host, self.port
        )
        protocol.send(self.get("/healthz"))
        await accepted
        protocol.answered = answered
        return protocol

    def get(self, path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\nHost: {self.host}\r\nAccept: */*\r\n\r\n".encode()

    def post(self, path: str, body: object) -> bytes:
        raw = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self.host}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
        )
        return head.encode() + raw

    async def publish(self, connection: Connection, topic: str, queue: int) -> float:
        """Publish one message; return the time of its acknowledgement."""
        done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        connection.answered = lambda _, now: done.set_result(now)
        body = {"messages": [{"body": "x" * 100, "queue": queue}]}
        connection.send(self.post(f"/v1/topics/{topic}/messages", body))
        at = await done
        assert connection.status == 200, connection.body
        return at


def put_topic(url: str, topic: str, queues: int, durability: str) -> None:
    """Create a topic."""
    request = urllib.request.Request(
        f"{url}/v1/topics/{topic}",
        json.dumps({"queues": queues, "durability": durability}).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request):
        pass


def metric(url: str, name: str) -> float:
    """Return one unlabelled metric of the broker."""
    with urllib.request.urlopen(f"{url}/metrics") as reply:
        for line in reply.read().decode().splitlines():
            if re.match(rf"holdfast_{name} ", line):
                return float(line.rsplit(" ", 1)[1])
    raise KeyError(name)


async def held(url: str, count: int, deadline_s: float = 30.0) -> None:
    """Wait until exactly `count` pulls are parked, that is, held by the broker."""
    until = time.monotonic() + deadline_s
    while metric(url, "long_poll_parked") != count:
        if time.monotonic() > until:
            raise TimeoutError(f"{metric(url, 'long_poll_parked')} parked, not {count}")
        await asyncio.sleep(0.05)


async def wake_latency(
    url: str, durability: str, *, parked: int = 1000, queues: int = 200, publishes: int = 400
) -> dict[str, float]:
    """Park pulls on many queues, and publish to one queue after another. Return how long after the
    publish's acknowledgement the pulls are answered."""
    topic = f"wake-{durability}"
    put_topic(url, topic, queues, durability)
    client = Client(url)
    offsets = [0] * queues
    answers: list[tuple[int, float]] = []
    waiting: dict[Connection, int] = {}

    def answered(connection: Connection, now: float) -> None:
        assert connection.status == 200, connection.body
        answers.append((waiting[connection], now))

    def park(connection: Connection) -> None:
        queue = waiting[connection]
        path = f"/v1/topics/{topic}/queues/{queue}/messages?offset={offsets[queue]}&wait_ms=60000"
        connection.send(client.get(path))

    for index in range(parked):
        connection = await client.connect(answered)
        waiting[connection] = index % queues
        park(connection)
    await held(url, parked)
    producer = await client.connect(lambda _, now: None)
    latencies = []
    for index in range(publishes):
        queue = (index * 7) % queues
        answers.clear()
        acked = await client.publish(producer, topic, queue)
        until = time.perf_counter() + 5
        while len(answers) < parked // queues and time.perf_counter() < until:
            await asyncio.sleep(0)
        assert len(answers) == parked // queues, (queue, answers)
        assert all(answered_queue == queue for answered_queue, _ in answers)
        latencies += [max(0.0, (at - acked) * 1000) for _, at in answers]
        offsets[queue] += 1
        for connection, its_queue in waiting.items():
            if its_queue == queue:
                park(connection)
        await held(url, parked)
    for connection in waiting:
        assert connection.transport is not None
        connection.transport.close()
    await held(url, 0)
    latencies.sort()
    return {
        "p50_ms": statistics.median(latencies),
        "p99_ms": latencies[int(len(latencies) * 0.99)],
        "max_ms": latencies[-1],
        "answers": len(latencies),
    }


async def only_one(url: str, queues: int = 500) -> dict[str, float]:
    """Park one pull per queue, publish to one queue, and return the number of answered pulls."""
    put_topic(url, "only-one", queues, "fsync")
    client = Client(url)
    answers: list[Connection] = []
    connections = []
    for queue in range(queues):
        connection = await client.connect(lambda each, now: answers.append(each))
        connection.send(
            client.get(f"/v1/topics/only-one/queues/{queue}/messages?offset=0&wait_ms=60000")
        )
        connections.append(connection)
    await held(url, queues)
    producer = await client.connect(lambda _, now: None)
    await client.publish(producer, "only-one", 123)
    await held(url, queues - 1)
    await asyncio.sleep(0.5)
    assert answers == [connections[123]], len(answers)
    for connection in connections:
        assert connection.transport is not None
        connection.transport.close()
    await held(url, 0)
    return {"queues": queues, "answered": len(answers)}


async def deadlines(url: str, count: int = 1000, wait_ms: int = 3000) -> dict[str, float]:
    """Send many pulls at once, so that they have the same deadline. Return how late they end."""
    put_topic(url, "deadlines", 1, "fsync")
    client = Client(url)
    errors: list[float] = []
    done = asyncio.Event()

    def answered(connection: Connection, now: float) -> None:
        assert connection.status == 200, connection.body
        errors.append((now - connection.sent_at) * 1000 - wait_ms)
        if len(errors) == count:
            done.set()

    connections = [await client.connect(answered) for _ in range(count)]
    request = client.get(f"/v1/topics/deadlines/queues/0/messages?offset=0&wait_ms={wait_ms}")
    for connection in connections:
        connection.send(request)
    await asyncio.wait_for(done.wait(), wait_ms / 1000 + 10)
    for connection in connections:
        assert connection.transport is not None
        connection.transport.close()
    errors.sort()
    return {
        "pulls": count,
        "earliest_ms": errors[0],
        "median_ms": statistics.median(errors),
        "latest_ms": errors[-1],
    }


async def rows(rounds: int) -> list[Row]:
    """Run every measurement on one new broker."""
    found = []
    with tempfile.TemporaryDirectory() as folder, RunningBroker(Path(folder, "data")) as broker:
        url = broker.url
        for durability in ("fsync", "written"):
            woken = await wake_latency(url, durability)
            for share in ("p50", "p99"):
                case = f"1,000 held over 200 queues: acknowledged to answered, {share}"
                found.append(Row("", case, durability, "ms", [woken[f"{share}_ms"]]))
        answered = (await only_one(url))["answered"]
        case = "500 queues with a pull each, one publish: answers"
        found.append(Row("", case, "fsync", "pulls", [answered], at_least=1, at_most=1))
        ends = [await deadlines(url) for _ in range(rounds)]
        case = "1,000 pulls whose waits end together: the latest, after wait_ms"
        latest = [end["latest_ms"] for end in ends]
        found.append(Row("", case, "fsync", "ms", latest, at_most=_LATE_BAR_MS))
        earliest = [-end["earliest_ms"] for end in ends]
        case = "the same: the earliest, before wait_ms"
        found.append(Row("", case, "fsync", "ms", earliest, at_most=_LATE_BAR_MS))
        rescues = metric(url, "scan_rescues_total")
        found.append(Row("", "scan_rescues through all of it", "-", "", [rescues], at_most=0))
    return found


def open_more_files() -> None:
    """Raise this process's limit of open files to its hard limit."""
    with suppress(ValueError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How held pulls wake and end.")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    open_more_files()
    report(uvloop.run(rows(options.rounds)), as_json=options.json)


if __name__ == "__main__":
    main()
