"""W6: the cost of parked pulls: memory per pull, idle processor use, and time to wake a pull.

    python -m bench.parked [--json] [--connections 15000] [--entries 100000] [--wakes 500]

A parked pull is a pull that the broker holds until a message arrives. It is measured in two ways.
`--connections`: a broker process on loopback; each pull has its own connection, and its request has
two headers. `--entries`: a broker in this process; its connections have transports without sockets,
so that the number of sockets does not limit the number of pulls. The time to wake a pull is
measured on a separate queue, alternately with 10 parked pulls and with all of them: from the
publish to the answer of the pull, and the broker's processor time for both requests. All in fsync
mode.
"""

import argparse
import asyncio
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvloop

from bench.harness import broker, process_cpu_s, process_resident_bytes
from bench.hold_http import Client, Connection, held, metric, open_more_files, put_topic
from bench.rows import TIMES, Row, report
from holdfast.broker import Broker
from holdfast.config import load_config
from holdfast.running_broker import RunningBroker

DURABILITY = "fsync"
_PARKED = "long_poll_parked"
_QUEUES = 16
_FEW = 10
_IDLE_S = 5.0
_ROUNDS = 3
_BYTES_BAR, _IDLE_BAR, _WAKE_BAR = 8000, 1.0, 1.5
#: The wait between a pull and the publish that wakes it; the broker parks a pull much faster.
_PARKING_S = 0.003


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What parked pulls cost.")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    parser.add_argument("--connections", type=int, default=15_000)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--wakes", type=int, default=500)
    options = parser.parse_args()
    open_more_files()
    rows = [*connections(options.connections, options.wakes), *entries(options.entries)]
    report(rows, as_json=options.json)


def connections(count: int, wakes: int) -> Iterator[Row]:
    """Measure with real connections."""
    with broker(()) as running:
        put_topic(running.url, "parked", _QUEUES, DURABILITY)
        put_topic(running.url, "probe", 1, DURABILITY)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            yield from runner.run(_connections(running, count, wakes))


async def _connections(running: RunningBroker, count: int, wakes: int) -> list[Row]:
    probe = await Probe.open(running)
    waking: dict[int, list[tuple[float, float]]] = {_FEW: [], count: []}
    each, idle = [], []
    for _ in range(_ROUNDS):
        for parked, costs in waking.items():
            before = process_resident_bytes(running.pid)
            crowd = await _park(running.url, parked)
            if parked == count:
                each.append((process_resident_bytes(running.pid) - before) / count)
                spent = process_cpu_s(running.pid)
                await asyncio.sleep(_IDLE_S)
                idle.append(100 * (process_cpu_s(running.pid) - spent) / _IDLE_S)
            costs.append(await probe.wake(wakes))
            for connection in crowd:
                assert connection.transport is not None
                connection.transport.close()
            await held(running.url, 0, 60)
    what = f"{count:,} connections"
    rows = [
        # Later rounds reuse the memory of the first round, so only the first round counts.
        Row("W6", f"{what}: memory of each", DURABILITY, "B", each[:1], at_most=_BYTES_BAR),
        Row("W6", f"{what}: idle", DURABILITY, "% of a core", idle, at_most=_IDLE_BAR),
    ]
    for index, unit in enumerate(("ms", "broker us")):
        few, many = ([cost[index] for cost in waking[parked]] for parked in (_FEW, count))
        rows.append(Row("W6", f"waking one of {_FEW}", DURABILITY, unit, few))
        rows.append(Row("W6", f"waking one of {count:,}", DURABILITY, unit, many))
        ratios = [late / early for early, late in zip(few, many, strict=True)]
        case = f"waking one of {count:,} beside one of {_FEW}, {unit}"
        rows.append(Row("W6", case, DURABILITY, TIMES, ratios, at_most=_WAKE_BAR))
    return rows


class Probe:
    """One connection for a pull and one for a producer, on a queue without other parked pulls."""

    def __init__(self, running: RunningBroker, client: Client) -> None:
        self._pid = running.pid
        self._client = client
        self._offset = 0

    @classmethod
    async def open(cls, running: RunningBroker) -> "Probe":
        """Open both connections."""
        probe = cls(running, Client(running.url))
        probe._waiting = await probe._client.connect(probe._answered)
        probe._producer = await probe._client.connect(lambda _, now: None)
        return probe

    _waiting: Connection
    _producer: Connection
    _answer: "asyncio.Future[float]"

    async def wake(self, times: int) -> tuple[float, float]:
        """Park and wake a pull `times` times.

        Return the median milliseconds from the publish to the answer, and the broker's microseconds
        for parking, publish and answer.
        """
        latencies = []
        spent = process_cpu_s(self._pid)
        for _ in range(times):
            self._answer = asyncio.get_running_loop().create_future()
            path = f"/v1/topics/probe/queues/0/messages?offset={self._offset}&wait_ms=60000"
            self._waiting.send(self._client.get(path))
            await asyncio.sleep(_PARKING_S)
            started = time.perf_counter()
            await self._client.publish(self._producer, "probe", 0)
            latencies.append((await self._answer - started) * 1000)
            self._offset += 1
        spent = process_cpu_s(self._pid) - spent
        return statistics.median(latencies), spent / times * 1e6

    def _answered(self, connection: Connection, now: float) -> None:
        assert connection.status == 200, connection.body
        self._answer.set_result(now)


async def _park(url: str, count: int) -> list[Connection]:
    client = Client(url)
    parked = []
    for number in range(count):
        connection = await client.connect(lambda _, now: None)
        connection.send(client.get(_pull(number)))
        parked.append(connection)
    await held(url, count, 60)
    return parked


def _pull(number: int) -> str:
    return f"/v1/topics/parked/queues/{number % _QUEUES}/messages?offset=0&wait_ms=60000"


class CapturingLoop(uvloop.Loop):
    """An event loop that keeps the protocol factory of a server."""

    connect: Callable[[], asyncio.BaseProtocol]

    async def create_server(  # type: ignore[override]
        self, factory: Any, *args: Any, **more: Any
    ) -> Any:
        """Create the server as usual, and keep its factory."""
        self.connect = factory
        return await super().create_server(factory, *args, **more)


class KeepsNothing(asyncio.Transport):
    """A transport without a socket. Each has another client address. The broker must not answer on
    it."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            high, low = divmod(self._number, 250)
            return (f"127.{high // 250}.{high % 250}.{low + 1}", 40_000)
        return ("127.0.0.1", 8711) if name == "sockname" else default

    def write(self, data: object) -> None:
        raise AssertionError(f"answered: {bytes(data)!r}")  # type: ignore[call-overload]

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    abort = pause_reading = resume_reading = close

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


def entries(count: int) -> Iterator[Row]:
    """Measure with transports without sockets, in this process."""
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        asyncio.Runner(loop_factory=CapturingLoop) as runner,
    ):
        each, idle = runner.run(_entries(Path(folder), count))
    what = f"{count:,} entries in process"
    yield Row("W6", f"{what}: memory of each", DURABILITY, "B", [each], at_most=_BYTES_BAR)
    yield Row("W6", f"{what}: idle", DURABILITY, "% of a core", [idle], at_most=_IDLE_BAR)


async def _entries(folder: Path, count: int) -> tuple[float, float]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CapturingLoop)
    flags = {
        "data_dir": str(folder / "data"),
        "http_api.port": 0,
        "http_api.max_connections": 2 * count,
        "holdservice.max_held": 2 * count,
        "holdservice.max_held_per_queue": 2 * count,
    }
    here = Broker(load_config(file=None, environ={}, flags=flags))
    await here.start()
    await asyncio.to_thread(put_topic, here.url, "parked", _QUEUES, DURABILITY)
    client = Client(here.url)
    gc.collect()
    before = process_resident_bytes(os.getpid())
    kept = []
    for number in range(count):
        protocol, transport = loop.connect(), KeepsNothing(number)
        protocol.connection_made(transport)
        _receive(protocol, client.get(_pull(number)))
        kept.append((protocol, transport))
        if number % 100 == 0:
            await asyncio.sleep(0)
    await held_here(here, count)
    each = (process_resident_bytes(os.getpid()) - before) / count
    spent = process_cpu_s(os.getpid())
    await asyncio.sleep(_IDLE_S)
    idle = 100 * (process_cpu_s(os.getpid()) - spent) / _IDLE_S
    for protocol, _ in kept:
        protocol.connection_lost(None)
    await here.stop()
    return each, idle


async def held_here(here: Broker, count: int) -> None:
    """Wait until exactly `count` pulls are parked in this process's broker."""
    while (parked := await asyncio.to_thread(metric, here.url, _PARKED)) < count:
        await asyncio.sleep(0.1)
    assert parked == count, parked


def _receive(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    if isinstance(protocol, asyncio.BufferedProtocol):
        memoryview(protocol.get_buffer(len(data)))[: len(data)] = data
        protocol.buffer_updated(len(data))
    else:
        assert isinstance(protocol, asyncio.Protocol)
        protocol.data_received(data)


if __name__ == "__main__":
    main()
